"""One run of `feedline.pack`, in the environment that has Ray: what it takes, as a line of JSON.

`pack_run.py make KIND FOLDER BYTES`, or `pack_run.py pack ENGINE WORKERS SHUFFLE SOURCE FOLDER`.
`ray.init` is not counted, nor the start of the workers. `sent` and `got` are what all processes
write to files and read from them, the memory is that of the largest worker, without mapped files.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
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
    # What it takes to import pyarrow, and to start workers, is not packing's.
    warm = Path(f"{folder}-warm.jsonl")
    warm.write_text('{"x": 1}\n' * 9)
    feedline.pack(warm, f"{folder}-warm", memory_budget=2**20, **options)
    shutil.rmtree(f"{folder}-warm")
    watch = Watch(Path(f"{folder}.partial"), engine)
    start = perf_counter()
    with watch:
        result = feedline.pack(source, folder, chunk_bytes=pack_data.CHUNK_BYTES, **options)
    seconds = perf_counter() - start
    if engine == "ray":
        ray.shutdown()
        shutil.rmtree(started, ignore_errors=True)
    num_bytes = result.num_bytes
    return {"seconds": seconds, "rows": result.num_samples, "bytes": num_bytes, **watch.found}


class Watch:
    """Looks at all workers, ten times a second: their memory, what they read and write."""

    def __init__(self, partial: Path, engine: str) -> None:
        self._partial, self._engine = partial, engine
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._first: dict[str, dict[str, int]] = {}
        self._last: dict[str, dict[str, int]] = {}
        self.found: dict[str, int] = {"memory": 0, "disk": 0}

    def __enter__(self) -> None:
        self._look()
        self._first = dict(self._last)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._look()
        for name, field in (("got", "rchar"), ("sent", "wchar")):
            self.found[name] = sum(
                last[field] - self._first.get(pid, {}).get(field, 0)
                for pid, last in self._last.items()
            )

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
                title = (process / "cmdline").read_bytes()
                if title.startswith(b"ray::") or process.name == str(os.getpid()):
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
    else:
        engine, workers, shuffle, source, folder = sys.argv[2:]
        print(json.dumps(pack(engine, int(workers), shuffle == "shuffle", source, folder)))
