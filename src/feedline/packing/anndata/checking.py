"""`.h5ad` files are read once in a process of their own, with limits, before they are packed.

A damaged file can make the HDF5 library loop forever, take all memory or end the process. Only
that other process ends then, and the error names the file.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from multiprocessing import spawn
from pathlib import Path
from typing import IO, Any

from feedline import errors
from feedline.errors import DamagedDataError, FeedlineError, PackError
from feedline.packing.anndata.sources import AnnDataFiles
from feedline.packing.rows import SourceFault, check_unchanged, describe_files
from feedline.store.processes import ask_for_death_signal
from feedline.store.progress import Progress

#: How long the other process may be silent; it speaks after each block of rows.
SILENT_SECONDS = 60.0
#: Bytes beside `memory_budget` that it may take.
SPARE_BYTES = 2**29
_MAX_LINE = 2**16
_MEMORY_WORDS = ("MemoryError", "emory allocation failed", "nable to allocate", "bad_alloc")


def check_files(
    paths: Sequence[Path],
    *,
    element: str,
    obs: Sequence[str] | None,
    max_bytes: int,
    memory_budget: int,
    bars: Progress,
) -> None:
    """Read all of the `.h5ad` files once, as packing will, or raise an error that names one."""
    files = [path for path in paths if path.is_file()]
    if not files:
        return
    if obs is None and paths[0] != files[0]:
        # The columns are those of the first source.
        with closing(
            AnnDataFiles(paths[:1], element=element, obs=None, max_bytes=max_bytes)
        ) as one:
            obs = list(one.columns)[1:]
    identity = describe_files("anndata", files)
    limit = memory_budget + SPARE_BYTES
    job = {
        **{"paths": [os.fspath(path) for path in files], "element": element},
        **{"obs": obs, "max_bytes": max_bytes, "limit": limit, "parent": os.getpid()},
    }
    at = files[0]
    for said in _said_by_child(job):
        if "file" in said:
            at = files[said["file"]]
        elif "total" in said:
            bars.begin("checking", said["total"])
        elif "rows" in said:
            bars.advance(said["rows"])
        elif "error" in said:
            raise _error(said, at, limit)
        elif "silent" in said:
            raise DamagedDataError(
                f"{at}: reading it did not get on for {SILENT_SECONDS:.0f} seconds, so it is "
                "damaged, or its disk does not answer; write it again"
            )
        elif "code" in said:
            raise _end_of_child(said["code"], said["stderr"], at)
    check_unchanged(identity)


def _error(said: dict[str, Any], at: Path, limit: int) -> FeedlineError:
    message = str(said["message"])
    if any(word in message for word in _MEMORY_WORDS):
        return DamagedDataError(
            f"{at}: reading it takes more than {limit} bytes of memory, so it is damaged or its "
            "chunks are very large; write it again, or use a larger memory_budget"
        )
    found = SourceFault if said["error"] == "SourceFault" else getattr(errors, said["error"], None)
    kind = found if isinstance(found, type) and issubclass(found, FeedlineError) else PackError
    return kind(message)


def _end_of_child(code: int, stderr: str, at: Path) -> FeedlineError:
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "unknown"
        return DamagedDataError(
            f"{at}: the process that read it was ended by signal {-code} ({name}), so it is "
            "damaged, or memory ran out; write it again"
        )
    last = stderr.strip().rpartition("\n")[2]
    return PackError(f"{at}: the process that reads it failed with exit code {code} ({last:.300})")


def _said_by_child(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what the other process says; its silence or an early end is said last."""
    with _child(job) as child:
        lines: queue.Queue[bytes] = queue.Queue()
        assert child.stdout is not None
        reader = threading.Thread(target=_pass_on, args=(child.stdout, lines), daemon=True)
        reader.start()
        try:
            yield from _said(child, lines)
        finally:
            child.kill()
            # Its pipe is closed next, which must not be while the thread reads.
            reader.join()


def _said(child: subprocess.Popen[bytes], lines: queue.Queue[bytes]) -> Iterator[dict[str, Any]]:
    while True:
        try:
            line = lines.get(timeout=SILENT_SECONDS)
        except queue.Empty:
            yield {"silent": True}
            return
        if not line:
            break
        said = _parsed(line)
        yield said
        if "done" in said:
            return
    child.wait()
    stderr = b"" if child.stderr is None else child.stderr.read(_MAX_LINE)
    yield {"code": child.returncode, "stderr": stderr.decode(errors="replace")}


def _parsed(line: bytes) -> dict[str, Any]:
    # The other process may be damaged by what it reads, so even this is not trusted.
    try:
        said = json.loads(line)
        sizes = [said.get(name, 0) for name in ("file", "total", "rows")]
        if all(isinstance(size, int) for size in sizes):
            return dict(said)
    except (ValueError, RecursionError, AttributeError):
        pass
    return {"code": 1, "stderr": repr(line[:200])}


def _pass_on(pipe: IO[bytes], lines: queue.Queue[bytes]) -> None:
    while line := pipe.readline(_MAX_LINE):
        lines.put(line)
    lines.put(b"")


def _child(job: dict[str, Any]) -> subprocess.Popen[bytes]:
    executable = spawn.get_executable()
    if not executable:
        raise PackError(
            "packing .h5ad files needs a Python interpreter, and sys.executable is empty"
        )
    code = "from feedline.packing.anndata.checking import main; main()"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(
        # Not from the working directory: a stranger's files may be there.
        [os.fsdecode(executable), "-P", "-c", code, json.dumps(job)],
        env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def main() -> None:
    """Read the files of a job, and say how far it got."""
    job = json.loads(sys.argv[1])
    out = sys.stdout

    def say(**said: Any) -> None:
        out.write(json.dumps(said) + "\n")
        out.flush()

    if hasattr(signal, "SIGKILL"):
        ask_for_death_signal(signal.SIGKILL)
        if os.getppid() != job["parent"]:
            sys.exit(1)
    import h5py  # noqa: F401  (what it takes to be imported is not the file's)

    _limit_memory(job["limit"])
    try:
        obs = job["obs"]
        for number, path in enumerate(map(Path, job["paths"])):
            say(file=number)
            files = AnnDataFiles(
                [path], element=job["element"], obs=obs, max_bytes=job["max_bytes"]
            )
            say(total=files.num_rows)
            obs = list(files.columns)[1:]
            files.read_names()
            for rows in files.blocks():
                say(rows=len(rows["row"]))
            files.close()
        say(done=True)
    except MemoryError:
        say(error="DamagedDataError", message="MemoryError")
    except FeedlineError as error:
        say(error=type(error).__name__, message=str(error)[:4000])


def _limit_memory(num_bytes: int) -> None:
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        return  # Not on this system: the limit of time is left.
    limit = pages * resource.getpagesize() + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
