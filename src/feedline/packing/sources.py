"""The sources of `pack`: their files, and their readers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from feedline.errors import InvalidValueError
from feedline.packing.arrays import ArraySource, NpyFiles, Records
from feedline.packing.formats import KINDS
from feedline.packing.ray_rows import RayRows, is_ray_dataset
from feedline.packing.rows import Source
from feedline.packing.selection import Selection
from feedline.packing.stores import StoreSource, path_of
from feedline.store.foreign.known import is_foreign
from feedline.store.formats import FILE_ENDINGS
from feedline.store.manifest import MANIFEST_NAME
from feedline.store.opening import open as open_store
from feedline.store.plain_files import check_no_table_log
from feedline.store.protocol import is_store

_ENDINGS = {ending: name for name, kind in KINDS.items() if kind.open for ending in kind.endings}


def open_source(source: Any, selection: Selection | None, num_threads: int) -> Source:
    """Return a reader of a source: files, stores, arrays or records."""
    if is_store(source):
        return StoreSource(source, selection)
    if is_ray_dataset(source):
        return RayRows(source, selection)
    paths = paths_of(source)
    if isinstance(source, Mapping):
        if len(paths) not in (0, len(source)):
            raise InvalidValueError("source must map all columns to arrays, or all to .npy files")
        if not paths:
            return ArraySource(source, selection)
        for path in paths:
            if _kind_of(path) != "npy":
                raise InvalidValueError(
                    f"source names {str(path)!r}; a mapping of columns must name .npy files"
                )
        columns = {str(name): [path] for name, path in zip(source, paths, strict=True)}
        return NpyFiles(columns, selection)
    if isinstance(source, str | os.PathLike) and _is_stored(paths[0]):
        return StoreSource(open_store(paths[0]), selection)
    if paths:
        kind, files = _list_files(source if isinstance(source, list | tuple) else paths)
        if kind == "npy" and isinstance(source, str | os.PathLike) and paths[0].is_dir():
            return NpyFiles({file.stem: [file] for file in files}, selection)
        reader = KINDS[kind].open if kind else None
        # A folder without files has no reader, and is refused for having no rows.
        return reader(files, selection, num_threads) if reader else Records([], selection)
    if isinstance(source, np.ndarray):
        return ArraySource({"data": source}, selection)
    if isinstance(source, Iterable) and not isinstance(source, bytes):
        return Records(source, selection)
    raise InvalidValueError(
        f"source={source!r:.80} must be a path, a list of paths, a store, a mapping of columns or "
        "of .npy files, or an iterable of records"
    )


def _is_stored(path: Path) -> bool:
    """Whether `feedline.open` opens what is at a path, and no reader here does."""
    if not path.is_dir():
        is_known = path.suffix.lower() in _ENDINGS or not path.exists()
        return not is_known and (path.suffix in (*FILE_ENDINGS, ".bin") or is_foreign(path))
    marks = (MANIFEST_NAME, f"*/{MANIFEST_NAME}", "zarr.json", ".zgroup", ".zarray")
    if any(next(path.glob(mark), None) is not None for mark in marks):
        return True
    # Some formats keep beside the files what tells which of their rows are there.
    has_folders = any(entry.is_dir() for entry in path.iterdir())
    endings = {entry.suffix.lower() for entry in path.iterdir() if entry.name[0] not in "._"}
    is_plain = not has_folders and len(endings) == 1 and endings <= _ENDINGS.keys()
    # Those of one kind would be packed and the others left out.
    is_mixed = len({_ENDINGS[ending] for ending in endings & _ENDINGS.keys()}) > 1
    return not is_plain and not is_mixed and is_foreign(path)


def paths_of(source: Any) -> list[Path]:
    """Return the paths that a source names, or that it reads from."""
    if is_store(source):
        found = path_of(source)
        return [] if found is None else [found]
    if isinstance(source, Mapping):
        source = list(source.values())
    entries = [source] if isinstance(source, str | os.PathLike) else source
    if not isinstance(entries, list | tuple):
        return []
    return [Path(entry) for entry in entries if isinstance(entry, str | os.PathLike)]


def with_absolute_paths(source: Any) -> Any:
    """Return a source with absolute paths, as other processes have other working directories."""
    if is_store(source):
        return source
    if isinstance(source, str | os.PathLike):
        return os.path.abspath(source)
    if paths_of(source):
        if isinstance(source, Mapping):
            return {name: with_absolute_paths(path) for name, path in source.items()}
        return [with_absolute_paths(path) for path in source]
    return source


def _list_files(entries: Iterable[str | os.PathLike[str]]) -> tuple[str, list[Path]]:
    """Return the kind of the files of a source, empty if there are none, and the files.

    A folder means the files in it, in the order of their names. Markers such as `_SUCCESS` and
    hidden files are ignored.
    """
    files: list[Path] = []
    for path in map(Path, entries):
        if not path.is_dir():
            files.append(path)
            continue
        check_no_table_log(path)
        found = sorted(entry for entry in path.iterdir() if not entry.name.startswith((".", "_")))
        if folders := [entry for entry in found if entry.is_dir()]:
            raise InvalidValueError(
                f"source={str(path)!r} contains the folder {folders[0].name!r} and must contain "
                "files only; pass the files as a list"
            )
        files += found
    kinds = {_kind_of(path): path for path in files}
    if len(kinds) > 1:
        first, second = list(kinds.values())[:2]
        raise InvalidValueError(
            f"source has {first.name} and {second.name}; all files must be of one kind; pack each "
            "kind separately"
        )
    for path in files:
        if not path.is_file():
            raise InvalidValueError(f"source={str(path)!r} does not exist; check the path")
    return next(iter(kinds), ""), files


def _kind_of(path: Path) -> str:
    """Return the kind of a file by its extension, or raise."""
    kind = _ENDINGS.get(path.suffix.lower())
    if kind is None:
        raise InvalidValueError(
            f"source={str(path)!r} must end in one of {', '.join(_ENDINGS)}, or be data that "
            "feedline.open opens; convert it, or pass the files of a folder as a list"
        )
    return kind
