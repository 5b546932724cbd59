"""Comparing files with the hashes that their index has of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, InvalidValueError
from feedline.store.extras import import_extra

_XXHASH = ("xxh128", "xxh3_64", "xxh3_128", "xxh64", "xxh32")


def check_hashes(path: Path, data: NDArray[np.uint8], hashes: Mapping[str, Any]) -> None:
    """Raise unless a file has the hash that stands in its index.

    One of several hashes is compared: one that Python knows, else one of xxhash.
    """
    ours = [name for name in hashes if name in hashlib.algorithms_guaranteed]
    # Those take a length, which an index does not have.
    ours = [name for name in ours if not name.startswith("shake_")]
    others = [name for name in _XXHASH if name in hashes]
    if ours:
        name, found = ours[0], hashlib.new(ours[0], data.data, usedforsecurity=False).hexdigest()
    elif others:
        library = import_extra("xxhash", extra="mds", what="hashes of xxhash")
        name, found = others[0], getattr(library, others[0])(data.data).hexdigest()
    else:
        raise InvalidValueError(
            f"{path}: its hashes {', '.join(map(str, hashes)):.80} are not known; omit verify=True"
        )
    if found != hashes[name]:
        raise DamagedDataError(
            f"{path}: has {name} {found} but should have {hashes[name]!r:.80}; it is damaged or "
            "was changed; copy it again"
        )
