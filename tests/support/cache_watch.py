"""A process that watches from outside how many bytes a cache takes, until it is told to end.

Arguments: the folder, a file that tells it to end, and "files" or "disk": the sizes of all files in
a moment when none comes or goes, or what the file system of the folder says, which is its own. It
prints the most bytes that it has seen, and how often it looked.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from cache_files import still, taken


def look(folder: Path, how: str) -> int:
    """Return the bytes that a cache takes now."""
    if how == "disk":
        status = os.statvfs(folder)
        return (status.f_blocks - status.f_bfree) * status.f_frsize
    if not (folder / "total").exists():
        return 0
    with still(folder):
        return taken(folder)


def main(folder: Path, stop: Path, how: str) -> None:
    """Look again and again."""
    most = count = 0
    while not stop.exists():
        most = max(most, look(folder, how))
        count += 1
        time.sleep(0.002)
    print(most, count)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
