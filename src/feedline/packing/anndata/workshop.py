"""What packing AnnData makes, and so may replace."""

from __future__ import annotations

import json
from pathlib import Path

from feedline.packing.workshop import Product

__all__ = ["MARK", "PACKED_ANNDATA"]

#: The attribute of a group that packing has written.
MARK = "feedline-pack"


def _is_packed(folder: Path) -> bool:
    if not folder.is_dir() or folder.is_symlink():
        return False
    try:
        return MARK in json.loads((folder / "zarr.json").read_bytes())["attributes"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


PACKED_ANNDATA = Product(
    _is_packed, "was not written by packing AnnData, so it will not be replaced"
)
