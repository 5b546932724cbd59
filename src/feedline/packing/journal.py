"""What packing has finished, line by line on disk, so that an interrupted run can go on."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from feedline.store.writing import reported

Entry = dict[str, Any]


def read_journal(path: Path) -> list[Entry]:
    """Return the whole lines of a journal; a line that was cut short is taken off the file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    entries: list[Entry] = []
    num_good = 0
    for line in data.splitlines(keepends=True):
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n") or not isinstance(entry, dict):
            break
        entries.append(entry)
        num_good += len(line)
    if num_good < len(data):
        with reported(path):
            os.truncate(path, num_good)
    return entries


class Journal:
    """A file of JSON lines; what is appended is on disk before the call returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with reported(path):
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115

    def append(self, *entries: Entry) -> None:
        """Add lines, all with one sync."""
        lines = b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)
        with self._lock, reported(self._path):
            view = memoryview(lines)
            while view:
                view = view[self._file.write(view) :]
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
