"""Which files a source is made of, and of which kind they are."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from feedline.errors import InvalidValueError, PackError
from feedline.packing.batch import SourceFault

_KINDS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".npy": "npy",
}


def list_files(source: Iterable[str | os.PathLike[str]]) -> tuple[str, list[Path]]:
    """Return the kind of the files that a source names, and the files.

    A folder stands for the files in it, in the order of their names.
    """
    files: list[Path] = []
    for entry in source:
        path = Path(entry)
        files += _files_in(path) if path.is_dir() else [path]
    kinds = {kind_of(path): path for path in files}
    if len(kinds) > 1:
        first, second = list(kinds.values())[:2]
        raise InvalidValueError(
            f"source has {first.name} and {second.name}; all files must be of one kind, so pack "
            "each kind on its own"
        )
    for path in files:
        if not path.is_file():
            raise InvalidValueError(f"source={str(path)!r} must be a file, and there is none")
    return next(iter(kinds), "none"), files


def kind_of(path: Path) -> str:
    """Return the kind of a file by the ending of its name, or raise."""
    kind = _KINDS.get(path.suffix.lower())
    if kind is None:
        raise InvalidValueError(
            f"source={str(path)!r} must end in one of {', '.join(_KINDS)}; convert it, or give the "
            "files of a folder as a list"
        )
    return kind


def describe_files(kind: str, paths: Iterable[Path]) -> dict[str, Any]:
    """Return what tells whether files have changed, as JSON values."""
    files = []
    for path in paths:
        try:
            state = path.stat()
        except OSError as error:
            raise PackError(f"{path}: cannot be read ({error.strerror})") from None
        files.append([os.path.abspath(path), state.st_size, state.st_mtime_ns])
    return {"kind": kind, "files": files}


def check_unchanged(identity: dict[str, Any]) -> None:
    """Raise if files that `describe_files` told of have changed while they were read."""
    paths = [Path(path) for path, *_ in identity.get("files", ())]
    if paths and describe_files(identity["kind"], paths) != identity:
        raise SourceFault(
            "source has changed while it was packed, so what was read is a mixture; pack again "
            "when it is complete"
        )


def open_file(path: Path) -> io.FileIO:
    """Open a file of a source for reading, or raise."""
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise PackError(f"{path}: cannot be read ({error.strerror})") from None


def _files_in(folder: Path) -> list[Path]:
    """Return the files of a folder; markers such as `_SUCCESS` and hidden files are no data."""
    found = sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))
    for path in found:
        if path.is_dir():
            raise InvalidValueError(
                f"source={str(folder)!r} holds the folder {path.name!r} and must hold files only; "
                "give the files as a list"
            )
    return found
