"""Chunks in the safetensors format: a header in JSON, then the values of one tensor after another.

The format is simple enough to be read here, so that mapping needs no framework and every number in
the header is checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, InvalidValueError
from feedline.store.chunk import OpenChunk
from feedline.store.columns import dtype_named
from feedline.store.mapped import map_file, view

_MAX_HEADER = 100_000_000
_METADATA = "__metadata__"
_ALIGNMENT = 64
_BYTES_AT_ONCE = 2**23
_TYPE_NAMES = {
    "BOOL": "bool",
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
}
_CODES = {name: code for code, name in _TYPE_NAMES.items()}


def open_safetensors(path: Path) -> OpenChunk:
    """Open a `.safetensors` file, with a column for each tensor."""
    bytes_ = map_file(path)
    header, start = _read_header(path, bytes_)
    arrays: dict[str, NDArray[Any]] = {}
    type_names: dict[str, str] = {}
    spans: list[tuple[int, int]] = []
    for name, entry in header.items():
        type_name, shape, begin, end = _check_entry(path, name, entry)
        dtype = dtype_named(type_name)
        array = view(bytes_, path=path, what=name, dtype=dtype, shape=shape, offset=start + begin)
        if begin + array.nbytes != end:
            raise DamagedDataError(
                f"{path}: {name!r} has {array.nbytes} bytes by its shape but [{begin}, {end}) by "
                "its data_offsets; it is damaged; write this chunk again"
            )
        arrays[name] = array
        type_names[name] = type_name
        spans.append((begin, end))
    _check_spans(path, spans, bytes_.size - start)
    return OpenChunk(path, arrays, type_names)


def write_safetensors(
    path: Path, arrays: Mapping[str, NDArray[Any]], type_names: Mapping[str, str]
) -> None:
    """Write arrays as a `.safetensors` file; `type_names` names the types that numpy lacks.

    The format allows no gaps, so the largest items come first: then every value is aligned.
    """
    entries: dict[str, Any] = {}
    end = 0
    for name in sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name)):
        array = arrays[name]
        type_name = type_names.get(name, array.dtype.name)
        code = _CODES.get(type_name)
        if code is None or dtype_named(type_name).itemsize != array.dtype.itemsize:
            raise InvalidValueError(
                f"{path}: {name!r} has type {type_name!r:.80}, carried by {array.dtype}, and must "
                f"have one of {', '.join(_CODES)}; convert it"
            )
        if array.ndim == 0 or name == _METADATA:
            raise InvalidValueError(
                f"{path}: {name!r} has {array.ndim} axes and must have at least 1, and any name "
                f"but {_METADATA!r}; reshape or rename it"
            )
        begin, end = end, end + array.nbytes
        entries[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [begin, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-(8 + len(header)) % _ALIGNMENT)
    if len(header) > _MAX_HEADER:
        raise InvalidValueError(
            f"{path}: the header has {len(header)} bytes and must have at most {_MAX_HEADER}; "
            "write fewer columns"
        )
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name in entries:
            for block in _blocks_of(arrays[name]):
                file.write(block.data)


def _blocks_of(array: NDArray[Any]) -> Iterator[NDArray[np.uint8]]:
    """Yield the little-endian bytes of an array in C order, copying only a part at a time."""
    if array.size == 0:
        return
    dtype = array.dtype.newbyteorder("<")
    num_rows = max(1, _BYTES_AT_ONCE // (array.nbytes // len(array)))
    for first in range(0, len(array), num_rows):
        block = np.ascontiguousarray(array[first : first + num_rows], dtype)
        yield block.reshape(-1).view(np.uint8)


def _read_header(path: Path, bytes_: NDArray[np.uint8]) -> tuple[dict[str, Any], int]:
    """Return the header without its metadata, and the offset of the values."""
    length = int.from_bytes(bytes_[:8].tobytes(), "little")
    if bytes_.size < 8 or length > min(_MAX_HEADER, bytes_.size - 8):
        raise DamagedDataError(
            f"{path}: the header has {length} bytes and must have at most {_MAX_HEADER} and fit in "
            f"the file, which has {bytes_.size}; it is truncated or damaged; write it again"
        )
    try:
        header = json.loads(
            bytes_[8 : 8 + length].tobytes().decode("utf-8"),
            object_pairs_hook=_refuse_duplicates,
        )
    except (ValueError, RecursionError) as error:
        raise DamagedDataError(
            f"{path}: the header is not JSON ({error!s:.200}); it is damaged; write it again"
        ) from None
    if not isinstance(header, dict):
        raise DamagedDataError(
            f"{path}: the header must be an object, not {type(header).__name__}; write it again"
        )
    header.pop(_METADATA, None)
    return header, 8 + length


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found


def _check_entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Return type name, shape, and the recorded start and end of a tensor in the data."""
    try:
        code, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        is_sound = all(
            type(number) is int and 0 <= number < 2**62 for number in (*shape, begin, end)
        )
    except (TypeError, KeyError, ValueError):
        is_sound = False
    if not is_sound:
        raise DamagedDataError(
            f"{path}: {name!r:.80} is {entry!r:.200} and must have dtype, shape and data_offsets, "
            "of integers of at least 0; it is damaged; write this chunk again"
        )
    if not isinstance(code, str) or code not in _TYPE_NAMES:
        raise DamagedDataError(
            f"{path}: {name!r:.80} has dtype {code!r:.80} and must have one of "
            f"{', '.join(_TYPE_NAMES)}; convert it"
        )
    if not shape:
        raise DamagedDataError(
            f"{path}: {name!r:.80} has 0 axes and must have at least 1, which counts the samples; "
            "save a tensor of one sample with shape (1,)"
        )
    return _TYPE_NAMES[code], shape, begin, end


def _check_spans(path: Path, spans: list[tuple[int, int]], num_bytes: int) -> None:
    """Raise unless the tensors fill the data, each byte once: the format demands it."""
    place = 0
    for begin, end in sorted(spans):
        if begin != place:
            raise DamagedDataError(
                f"{path}: a tensor begins at byte {begin} of the data but the one before ends at "
                f"{place}; they must not overlap or leave gaps; write this chunk again"
            )
        place = end
    if place != num_bytes:
        raise DamagedDataError(
            f"{path}: has {num_bytes} bytes of data but its header describes {place}; it is "
            "damaged; write this chunk again"
        )
