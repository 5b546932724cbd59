"""Files without a `metadata.json`: one, or all tables of a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from feedline.errors import InvalidValueError
from feedline.store.arrow_chunk import group_sizes
from feedline.store.foreign.shard_files import shards_in
from feedline.store.formats import is_grouped, open_chunk
from feedline.store.manifest import ChunkFile, Manifest
from feedline.store.paths import file_in

# Folders in which other systems record which files and rows of a table count.
_TABLE_LOGS = {"_delta_log": "Delta Lake", ".hoodie": "Hudi"}


def manifest_of_files(folder: Path, names: Sequence[str]) -> Manifest:
    """Return what a `metadata.json` would contain for some files."""
    entries, samples = [], []
    for name in names:
        path = file_in(folder, name, may_be_folder=True)
        groups = group_sizes(path) if is_grouped(name) else None
        samples.append(open_chunk(path).num_samples if groups is None else sum(groups))
        file = ChunkFile(path=name, num_samples=samples[-1], groups=groups)
        entries.append(file.describe())
    return Manifest(folder, entries, np.array(samples, np.int64))


def has_tables(folder: Path) -> bool:
    """Whether a folder has parquet or Arrow files."""
    return folder.is_dir() and any(is_grouped(name) for name in os.listdir(folder))


def tables_in(folder: Path) -> list[str]:
    """Return the names of the parquet or Arrow files in a folder, sorted so that 2 is before 10.

    Hidden files, and those that begin with `_`, are ignored, as are files of other kinds.
    """
    if not folder.is_dir():
        return []
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith((".", "_"))]
    names = {entry.name for entry in entries if is_grouped(entry.name) and not entry.is_dir()}
    if not names:
        return []
    check_no_table_log(folder)
    kinds = sorted({Path(name).suffix for name in names})
    if ".parquet" in kinds and len(kinds) > 1:
        raise InvalidValueError(
            f"{folder}: has files that end with {' and '.join(kinds)}, which must all be of one "
            "kind; move one kind to another folder"
        )
    for entry in entries:
        if is_grouped(entry.name.lower()) and not is_grouped(entry.name):
            raise InvalidValueError(
                f"{folder}: has files that end with {kinds[0]}, and {entry.name!r:.80}, whose "
                "ending must be in small letters; rename it, or move it to another folder"
            )
        # What is in there would be left out silently.
        if entry.is_dir() and any(is_grouped(path.name) for path in entry.rglob("*")):
            raise InvalidValueError(
                f"{folder}: has files that end with {kinds[0]}, and more of them in {entry.name!r}"
                "; all files must be in one folder; move them, or open each folder separately"
            )
    return [path.name for path in shards_in(folder, lambda name: name in names)]


def check_no_table_log(folder: Path) -> None:
    """Raise if something beside the files tells which of their rows count."""
    for name, what in _TABLE_LOGS.items():
        if (folder / name).is_dir():
            raise InvalidValueError(
                f"{folder}: is a table of {what} ({name}), whose log tells which files and rows "
                "count, and is not read here; write its present rows to parquet files, and open "
                "those"
            )
