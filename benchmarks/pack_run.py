"""One run of `feedline.pack`, in the environment that has Ray: what it takes, as a line of JSON.

`pack_run.py make KIND FOLDER BYTES`, `pack_run.py pack ENGINE WORKERS SHUFFLE SOURCE FOLDER`, or
`pack_run.py needs ARGUMENTS` of `pack_needs`. `ray.init` is not counted, nor the start of the
workers. `written` and `read` are what all workers write to files and read from them, `moved` is the
size of what tasks get from the object store, and `spilled` what Ray writes of it to a local disk;
the memory is that of the largest worker, without mapped files.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import feedline
import pack_data


def pack(engine: str, num_workers: int, shuffle: bool, source: str, folder: str) -> dict[str, Any]:
    options: dict[str, Any] = {"engine": engine, "num_threads": num_workers, "shuffle": shuffle}
    if engine == "ray":
        started = tempfile.mkdtemp(prefix="feedline-ray-")
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
        import ray

        store = 2**29
        ray.init(
            num_cpus=num_workers,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=store,
            _temp_dir=started,
        )
        # Twice as many tasks as workers, so that none waits for the driver.
        options["num_threads"] = 2 * num_workers
    # What it takes to import pyarrow, and to start workers, is not packing's: each has a part.
    warm = Path(f"{folder}-warm.jsonl")
    warm.write_text('{"text": "warm"}\n' * 2**20)
    feedline.pack(warm, f"{folder}-warm", memory_budget=2**23, **options)
    shutil.rmtree(f"{folder}-warm")
    watch = Watch(Path(f"{folder}.partial"), engine)
    moved = count_moved() if engine == "ray" else {}
    start = perf_counter()
    with watch:
        result = feedline.pack(source, folder, chunk_bytes=pack_data.CHUNK_BYTES, **options)
    seconds = perf_counter() - start
    if engine == "ray":
        ray.shutdown()
        shutil.rmtree(started, ignore_errors=True)
    found = {"seconds": seconds, "rows": result.num_samples, "bytes": result.num_bytes}
    return {**found, **watch.found, "moved": sum(moved.values())}


def count_moved() -> dict[str, int]:
    """Return the sizes of all objects that tasks get, each once, as they come to be known."""
    import ray

    from feedline.packing.engines.cluster import Cluster

    found: dict[str, int] = {}
    submit = Cluster.submit

    def submitted(self: Any, function: Any, *arguments: Any, **options: Any) -> Any:
        objects = [one for one in arguments if isinstance(one, ray.ObjectRef)]
        for one, place in ray.experimental.get_object_locations(objects).items():
            found[one.hex()] = place.get("object_size") or 0
        return submit(self, function, *arguments, **options)

    Cluster.submit = submitted  # type: ignore[method-assign]
    return found


def needs(arguments: dict[str, int]) -> dict[str, int]:
    from feedline.packing import pack_needs

    found = pack_needs(**arguments)  # type: ignore[arg-type]
    names = ("disk", "read", "written", "moved")
    if "num_nodes" in arguments:
        return {name: getattr(found, name) for name in ("memory", *names, "network")}
    # That of one worker, as it is measured.
    memory = found.memory // arguments["num_cores"]
    # Ray spills what does not fit into its object store, which is all of it at most.
    return {"memory": memory, "spilled": found.moved, **{n: getattr(found, n) for n in names}}


#: What Ray calls the workers that move objects between its store and a disk.
SPILLERS = b"SpillWorker", b"RestoreWorker"


class Watch:
    """Looks at all workers, ten times a second: their memory, what they read and write."""

    def __init__(self, partial: Path, engine: str) -> None:
        self._partial, self._engine = partial, engine
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._first: dict[str, dict[str, int]] = {}
        self._last: dict[str, dict[str, int]] = {}
        self._spillers: set[str] = set()
        # What runs at the beginning and has nothing to do with Ray.
        self._others: set[str] = set()
        self.found: dict[str, int] = {"memory": 0, "disk": 0}

    def __enter__(self) -> None:
        self._look()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if b"ray" not in (process / "cmdline").read_bytes():
                    self._others.add(process.name)
        self._others.discard(str(os.getpid()))
        self._first = dict(self._last)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._look()
        workers = self._last.keys() - self._spillers
        self.found["read"] = self._counted("rchar", workers)
        self.found["written"] = self._counted("wchar", workers)
        self.found["spilled"] = self._counted("wchar", self._spillers)

    def _counted(self, field: str, processes: Iterable[str]) -> int:
        """Return what processes have read or written since the beginning."""
        return sum(self._last[p][field] - self._first.get(p, {}).get(field, 0) for p in processes)

    def _run(self) -> None:
        while not self._is_over.wait(0.1):
            self._look()

    def _look(self) -> None:
        disk = 0
        for path in self._partial.glob("spills/**/*"):
            with suppress(OSError):
                disk += path.stat().st_size if path.is_file() else 0
        self.found["disk"] = max(self.found["disk"], disk)
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError):
                if process.name in self._others:
                    continue
                # The driver of a cluster leaves the work to others; this thread reads in it.
                is_worker = process.name == str(os.getpid())
                if self._engine == "ray":
                    command = (process / "cmdline").read_bytes()
                    is_worker = command.startswith(b"ray::")
                    if any(name in command for name in SPILLERS):
                        self._spillers.add(process.name)
                if is_worker:
                    self._look_at(process)

    def _look_at(self, process: Path) -> None:
        lines = (process / "io").read_text().splitlines()
        self._last[process.name] = {n: int(v) for n, _, v in (li.partition(": ") for li in lines)}
        for line in (process / "status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                self.found["memory"] = max(self.found["memory"], 1024 * int(line.split()[1]))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        print(json.dumps(pack_data.make(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))))
    elif sys.argv[1] == "needs":
        print(json.dumps(needs(json.loads(sys.argv[2]))))
    else:
        engine, workers, shuffle, source, folder = sys.argv[2:]
        print(json.dumps(pack(engine, int(workers), shuffle == "shuffle", source, folder)))
