"""Sources to pack, packed folders read back by the libraries that own the formats, and jobs.

Run as a script it packs once, in a process of its own that can be killed or starved.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forked import Forked

Arrays = dict[str, NDArray[Any]]

SOURCE_KINDS = ("arrays", "records", "npy", "npy_folder", "parquet", "csv", "jsonl")


def make_arrays(num_rows: int) -> Arrays:
    """Return rows that tell their number, with columns of several types and shapes."""
    numbers = np.arange(num_rows)
    return {
        "item": numbers,
        "steps": (numbers[:, None] * 7 + np.arange(5)).astype(np.int64),
        "score": numbers / 8 + 0.5,
        "flag": numbers % 3 == 0,
    }


def make_source(kind: str, arrays: Arrays, folder: Path) -> Any:
    """Return arrays as a source of that kind, in files under `folder` where it has any."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "arrays":
        return arrays
    if kind == "records":
        return list_records(arrays)
    if kind.startswith("npy"):
        paths = {name: folder / f"{name}.npy" for name in arrays}
        for name, path in paths.items():
            np.save(path, arrays[name])
        return paths if kind == "npy" else folder
    path = folder / f"data.{kind}"
    if kind == "parquet":
        write_parquet(path, arrays)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(_plain(r)) + "\n" for r in list_records(arrays)))
    else:
        names = [name for name in arrays if arrays[name].ndim == 1]
        rows = [",".join(names)]
        rows += [
            ",".join(str(_plain(record)[name]).lower() for name in names)
            for record in list_records(arrays)
        ]
        path.write_text("\n".join(rows) + "\n")
    return path


def list_records(arrays: Arrays) -> Iterator[dict[str, Any]]:
    """Yield rows as records."""
    for number in range(len(next(iter(arrays.values())))):
        yield {name: array[number] for name, array in arrays.items()}


def write_parquet(path: Path, arrays: Arrays, group: int = 300) -> None:
    """Write arrays as a parquet file of several row groups."""
    import pyarrow as pa
    import pyarrow.parquet

    columns = {
        name: pa.array(array if array.ndim == 1 else array.tolist())
        for name, array in arrays.items()
    }
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=group)


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() for name, value in record.items()}


def read_chunk(path: Path) -> Arrays:
    """Return the columns of a chunk, read by the library that owns its format."""
    if path.is_dir():
        return {
            file.relative_to(path).as_posix().removesuffix(".npy"): np.load(file)
            for file in sorted(path.rglob("*.npy"))
        }
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return dict(load_file(path))
    if path.suffix == ".parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path)
        return {name: np.array(table.column(name).to_pylist()) for name in table.column_names}
    import torch

    sequences, targets, *ids = torch.load(path, weights_only=True)
    names = ("sequence_ids", "subsequence_ids", "start_positions")
    return {
        **{f"sequences/{name}": tensor.numpy() for name, tensor in sequences.items()},
        **{f"targets/{name}": tensor.numpy() for name, tensor in targets.items()},
        **{name: tensor.numpy() for name, tensor in zip(names, ids, strict=True)},
    }


def list_chunks(folder: Path) -> list[Path]:
    """Return the chunks of a folder in the order of its metadata."""
    metadata = json.loads((folder / "metadata.json").read_text())
    return [folder / entry["path"] for entry in metadata["batch_files"]]


def read_folder(folder: Path) -> Arrays:
    """Return all columns of a folder, chunk after chunk."""
    chunks = [read_chunk(path) for path in list_chunks(folder)]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def read_tree(folder: Path) -> dict[str, bytes]:
    """Return every file under a folder, to compare folders byte by byte."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def partial_of(folder: Path) -> Path:
    """Return where an interrupted run leaves its work."""
    return folder.with_name(folder.name + ".partial")


def start_job(source: Any, folder: Path, **options: Any) -> subprocess.Popen[str] | Forked:
    """Start packing in another process.

    Beside the arguments of `pack`, `crash_at` kills the process before the n-th change of the
    file system that is meant to last, `max_file_bytes` is a limit that the system enforces, and
    `pause` is slept for each record of a source "records:<count>".
    """
    arguments = json.dumps({"source": source, "folder": str(folder), **options}, default=str)
    # Memory is measured in a fresh process: what a server has imported is shared with it.
    if "warm_up" in options:
        return subprocess.Popen(
            [sys.executable, __file__, arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    return Forked([__file__, arguments], preload=["pyarrow.parquet", "pyarrow.csv"])


def run_job(source: Any, folder: Path, **options: Any) -> tuple[int, str, str]:
    """Pack in another process; return its exit code and what it printed on stdout and stderr."""
    job = start_job(source, folder, **options)
    output, errors = job.communicate(timeout=120)
    return job.returncode, output, errors


def make_paused_records(count: int, pause: float) -> Iterator[dict[str, Any]]:
    """Yield records slowly."""
    for number in range(count):
        time.sleep(pause)
        yield {"item": number, "steps": [number, number + 1]}


def _crash_at(countdown: int) -> None:
    left = [countdown]

    def wrap(name: str) -> None:
        original = getattr(os, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        setattr(os, name, wrapped)

    for name in ("fsync", "rename", "replace", "truncate", "unlink", "rmdir", "mkdir"):
        wrap(name)


def _anonymous_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return 0


def _watch_memory(peak: list[int], is_over: threading.Event) -> None:
    while not is_over.wait(0.002):
        peak[0] = max(peak[0], _anonymous_kib())


def main() -> None:
    """Pack once, as told by a JSON object."""
    from feedline.packing import pack

    options = json.loads(sys.argv[1])
    source, folder = options.pop("source"), options.pop("folder")
    crash_at, pause = options.pop("crash_at", None), options.pop("pause", 0)
    if isinstance(source, str) and source.startswith("records:"):
        source = make_paused_records(int(source.removeprefix("records:")), pause)
    if limit := options.pop("max_file_bytes", None):
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if crash_at:
        _crash_at(crash_at)
    if options.pop("warm_up", False):
        import pyarrow.parquet  # noqa: F401  (what it takes to be imported is not packing's)
    before = _anonymous_kib()
    peak, is_over = [before], threading.Event()
    watch = threading.Thread(target=_watch_memory, args=(peak, is_over), daemon=True)
    watch.start()
    result = pack(source, folder, **options)
    is_over.set()
    watch.join()
    print(
        json.dumps(
            {"num_resumed": result.num_resumed_chunks, "grown_bytes": 1024 * (peak[0] - before)}
        )
    )


if __name__ == "__main__":
    main()
