"""What `pack` takes as a source, and which reader serves it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from feedline.errors import InvalidValueError
from feedline.packing.arrays import ArraySource, NpyFiles, Records
from feedline.packing.batch import Source
from feedline.packing.files import kind_of, list_files
from feedline.packing.settings import Selection
from feedline.packing.table_files import CsvFiles, JsonlFiles, ParquetFiles


def open_source(source: Any, selection: Selection | None, num_threads: int) -> Source:
    """Return a reader of a source: files, arrays or records."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.is_dir() and list_files([path])[0] == "npy":
            return NpyFiles({file.stem: [file] for file in list_files([path])[1]}, selection)
        return _open_files([path], selection, num_threads)
    if isinstance(source, np.ndarray):
        return ArraySource({"data": source}, selection)
    if isinstance(source, Mapping):
        return _open_mapping(source, selection)
    if isinstance(source, list | tuple) and any(isinstance(e, str | os.PathLike) for e in source):
        return _open_files(source, selection, num_threads)
    if isinstance(source, Iterable) and not isinstance(source, bytes):
        return Records(source, selection)
    raise InvalidValueError(
        f"source={source!r:.80} must be a path, a list of paths, a mapping of arrays or of .npy "
        "files, or an iterable of records"
    )


def paths_of(source: Any) -> list[Path]:
    """Return the paths that a source names."""
    if isinstance(source, Mapping):
        source = list(source.values())
    entries = [source] if isinstance(source, str | os.PathLike) else source
    if not isinstance(entries, list | tuple):
        return []
    return [Path(entry) for entry in entries if isinstance(entry, str | os.PathLike)]


def _open_files(paths: Iterable[Any], selection: Selection | None, num_threads: int) -> Source:
    kind, files = list_files(paths)
    if kind == "parquet":
        return ParquetFiles(files, selection)
    if kind == "csv":
        return CsvFiles(files, selection, num_threads)
    if kind == "jsonl":
        return JsonlFiles(files, selection, num_threads)
    # A folder without files ends here too, and is refused for having no rows.
    return NpyFiles({"data": files}, selection) if files else Records([], selection)


def _open_mapping(source: Mapping[str, Any], selection: Selection | None) -> Source:
    are_paths = {isinstance(value, str | os.PathLike) for value in source.values()}
    if are_paths == {True}:
        paths = {str(name): Path(path) for name, path in source.items()}
        for path in paths.values():
            if kind_of(path) != "npy":
                raise InvalidValueError(
                    f"source names {str(path)!r}; a mapping of columns must name .npy files"
                )
        return NpyFiles({name: [path] for name, path in paths.items()}, selection)
    if True in are_paths:
        raise InvalidValueError("source must map all columns to arrays, or all to .npy files")
    return ArraySource(source, selection)
