"""What the tests may leave in the folder for temporary files."""

from __future__ import annotations

import os
import re
from pathlib import Path

# Those that are killed cannot tidy up: launchers, and what multiprocessing is used by.
_MAY_STAY = ("torchelastic_", "torchinductor_", "pymp-")
# Before it names a folder for temporary files, Python writes "blat" to a file in it and removes
# that. `kill -9` in between leaves the file, empty or whole.
_PROBE = re.compile(r"[a-z0-9_]{8}")
# When a worker is lost, torch opens temporary files to see whether there are too many, and its
# handler of SIGCHLD may raise while it does: then the one that has just been made stays.
_COUNTED = re.compile(r"tmp[a-z0-9_]{8}")


def find_leftovers(folder: Path) -> dict[str, list[str]]:
    """What is left in the folder and should not be: names, with some of what is in those."""
    return {
        path.name: os.listdir(path)[:5] if path.is_dir() else []
        for path in folder.iterdir()
        if not path.name.startswith(_MAY_STAY) and not _is_probe(path) and not _is_counted(path)
    }


def _is_probe(path: Path) -> bool:
    return (
        _PROBE.fullmatch(path.name) is not None
        and path.is_file()
        and path.stat().st_size <= 4
        and path.read_bytes() in (b"", b"blat")
    )


def _is_counted(path: Path) -> bool:
    return _COUNTED.fullmatch(path.name) is not None and path.is_file() and path.stat().st_size == 0
