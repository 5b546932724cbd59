"""Datasets that Hugging Face `datasets` saved to disk: Arrow streams, and what is in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from feedline.errors import DamagedDataError, StoreError
from feedline.store.paths import check_relative, file_in

_STATE, _INFO, _DICT = "state.json", "dataset_info.json", "dataset_dict.json"
_MAX_BYTES = 2**28


def matches(path: Path) -> bool:
    """Whether this is a folder that `Dataset.save_to_disk` wrote."""
    return (path / _STATE).is_file() and (path / _INFO).is_file()


def files_in(folder: Path) -> list[str]:
    """Return the names of the files with samples, in the order of the dataset."""
    path = folder / _STATE
    state = _load(folder, _STATE)
    if any(state.get(key) for key in ("_indices_data_files", "_indices_files")):
        raise StoreError(
            f"{path}: has a table of indices, in whose order the samples are; load the dataset "
            "with datasets.load_from_disk, call flatten_indices(), and save it again"
        )
    listed = state.get("_data_files")
    if not isinstance(listed, list) or not listed:
        raise DamagedDataError(f"{path}: '_data_files' must be a list of files; save it again")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in listed]
    checked = [check_relative(path, name) for name in names]
    for name in checked:
        if not name.endswith(".arrow"):
            raise DamagedDataError(f"{path}: lists {name!r:.80}, which must end with .arrow")
    if len(set(checked)) < len(checked):
        raise DamagedDataError(f"{path}: lists a file twice; save the dataset again")
    return checked


def splits_in(folder: Path) -> list[str]:
    """Return the names of the splits in a folder that `DatasetDict.save_to_disk` wrote."""
    path = folder / _DICT
    if not path.is_file():
        return []
    splits = _load(folder, _DICT).get("splits")
    if not isinstance(splits, list) or not splits:
        raise DamagedDataError(f"{path}: 'splits' must be a list of names; save it again")
    return [check_relative(path, name) for name in splits]


def _load(folder: Path, name: str) -> dict[str, Any]:
    path = file_in(folder, name)
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES} bytes")
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedDataError(
            f"{path}: cannot be read ({error!s:.200}); save the dataset again"
        ) from None
    return found
