"""Packs that are killed before each change of the file system around publishing, one after another.

Run as a script with a JSON object: `source`, `folder` and `options` of `pack`; `is_anndata`, to use
`pack_anndata`; `before`, a packed folder that is at `folder` when each pack begins, or null;
`whole`, what a pack makes that is not killed; `has_exchange`, whether folders can change places at
once. Each pack is a process of its own. For each, a JSON line says what was at the folder after the
kill, and what the next call did.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from feedline.errors import FeedlineError
from feedline.packing import pack, pack_anndata, workshop
from pack_data import read_tree
from processes import SUPPORT, environment

_CHANGES = ("fsync", "rename", "replace", "truncate", "unlink", "rmdir", "mkdir")


def run_trials(**job: Any) -> list[dict[str, Any]]:
    """Kill a pack before each change, and return what was found each time."""
    command = [sys.executable, __file__, json.dumps(job, default=str)]
    found = subprocess.run(
        command, env=environment(SUPPORT), capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]


def _in_child(job: dict[str, Any], crash_at: int) -> tuple[int, str]:
    """Pack in a process of its own; return how it ended, and its result or its error."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(reader)
            said, code = _pack(job, crash_at)
            os.write(writer, said.encode())
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def _pack(job: dict[str, Any], crash_at: int) -> tuple[str, int]:
    left = [crash_at]

    def killing(change: Any) -> Any:
        def changed(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*args, **kwargs)

        return changed

    def publishing(publish: Any) -> Any:
        def published(*args: Any) -> Any:
            # Only what comes from here on is counted.
            for name in _CHANGES:
                setattr(os, name, killing(getattr(os, name)))
            exchange = workshop.exchange if job["has_exchange"] else lambda one, other: False
            workshop.exchange = killing(exchange)
            return publish(*args)

        return published

    if crash_at:
        workshop.Workshop.publish = publishing(workshop.Workshop.publish)  # type: ignore[method-assign]
    try:
        if job["is_anndata"]:
            return (
                f"{pack_anndata(job['source'], job['folder'], **job['options']).num_rows} rows",
                0,
            )
        result = pack(job["source"], job["folder"], **job["options"])
    except FeedlineError as error:
        return f"{type(error).__name__}: {error}", 3
    return f"{result.num_resumed_chunks} of {result.num_chunks}", 0


def main(job: dict[str, Any]) -> None:
    """Kill one pack after another, each one change later, until one gets through."""
    if job["is_anndata"]:
        import h5py  # noqa: F401  (not again in each process)
        import zarr  # noqa: F401
    folder, before = Path(job["folder"]), job["before"]
    trees = {"before": read_tree(Path(before)) if before else None}
    trees["whole"] = read_tree(Path(job["whole"]))

    def at_folder() -> str:
        if not folder.exists():
            return "nothing"
        found = read_tree(folder)
        return next((name for name, tree in trees.items() if tree == found), "something else")

    for crash_at in itertools.count(1):
        shutil.rmtree(folder, ignore_errors=True)
        if before:
            shutil.copytree(before, folder)
        code, said = _in_child(job, crash_at)
        trial: dict[str, Any] = {"killed": code == -signal.SIGKILL, "said": said}
        trial["found"] = at_folder()
        if trial["killed"]:
            _, trial["then"] = _in_child(job, 0)
            trial["found_then"] = at_folder()
        trial["left"] = sorted(set(os.listdir(folder.parent)) - {folder.name})
        print(json.dumps(trial), flush=True)
        if not trial["killed"]:
            break


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
