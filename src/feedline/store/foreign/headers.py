"""Arrays that carry their type and shape with them, sample by sample, read in a few calls.

A dataset has one column for them. It is an array if all have one shape, a list if only the first
axis differs, and otherwise a list of all values beside a column with the shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, InvalidValueError
from feedline.store.columns import Column, dtype_named
from feedline.store.slices import Numbers, Windows
from feedline.words import several

Bytes = NDArray[np.uint8]
#: The end of the name of a column with the shapes of another one's values.
SHAPE = "/shape"

_MOST_AXES = 63
_MOST_SIZE = 2**48


class Span(NamedTuple):
    """Where the values of one field lie in the memory of a chunk, in bytes."""

    starts: Numbers
    lengths: Numbers

    def without(self, num_bytes: Any, where: str) -> Span:
        """Return the values behind a header, or raise if one is shorter than its header."""
        if np.any(self.lengths < num_bytes):
            raise DamagedDataError(
                f"{where}: an array is shorter than its header; copy or write the file again"
            )
        return Span(self.starts + num_bytes, self.lengths - num_bytes)


class Found(NamedTuple):
    """What the headers of a chunk say: one type, the shape of each array, and where they lie."""

    type_name: str
    shapes: NDArray[np.int64]
    values: Span


#: Reads headers: takes the memory of a chunk, where values lie, and what this is, for errors.
Reader = Callable[[Bytes, Span, str], Found]


@dataclass(frozen=True)
class Shapes:
    """The type and the least and largest sizes of the arrays of a column.

    Args:
        type_name: Their type.
        low: The least size of each axis.
        high: The largest size of each axis.
    """

    type_name: str
    low: tuple[int, ...]
    high: tuple[int, ...]

    @classmethod
    def of(cls, found: Found) -> Shapes:
        """Return what a chunk has; it has at least one array."""
        low, high = found.shapes.min(axis=0).tolist(), found.shapes.max(axis=0).tolist()
        return cls(found.type_name, tuple(low), tuple(high))

    @classmethod
    def load(cls, saved: Any) -> Shapes:
        """Return what `dump` gave, or raise `ValueError`."""
        type_name, low, high = saved
        dtype_named(type_name)
        if len(low) != len(high) or not all(type(n) is int and n >= 0 for n in (*low, *high)):
            raise ValueError("sizes must be integers")
        return cls(type_name, tuple(low), tuple(high))

    def dump(self) -> list[Any]:
        """Return it as JSON values."""
        return [self.type_name, list(self.low), list(self.high)]

    def merged(self, other: Shapes, where: str) -> Shapes:
        """Return what two chunks have together, or raise if they do not go together."""
        check_one("type", [self.type_name, other.type_name], where)
        check_one("number of axes", [len(self.low), len(other.low)], where)
        low = tuple(map(min, self.low, other.low))
        return Shapes(self.type_name, low, tuple(map(max, self.high, other.high)))

    def columns(self, name: str, mean_bytes: int) -> list[Column]:
        """Return the columns that hold all of them."""
        if self.low == self.high:
            return [Column(name, self.type_name, self.low)]
        if self.low[1:] == self.high[1:] and 0 not in self.low[1:]:
            shape = self.low[1:]
            return [Column(name, self.type_name, shape, kind="list", mean_bytes=mean_bytes)]
        return [
            Column(name, self.type_name, kind="list", mean_bytes=mean_bytes),
            Column(name + SHAPE, "int64", (len(self.low),)),
        ]


def check_one(what: str, values: Any, where: str) -> Any:
    """Return what all values are, or raise if they differ: one column cannot hold them."""
    distinct = np.unique(np.asarray(values)).tolist()
    if len(distinct) > 1:
        raise InvalidValueError(
            f"{where}: has arrays of several kinds: {what} {', '.join(map(str, distinct[:5]))}, "
            "which must be the same in all samples; write it again as arrays of one kind, or as "
            "several columns"
        )
    return distinct[0]


def check_found(type_name: str, shapes: NDArray[Any], values: Span, where: str) -> Found:
    """Return arrays whose sizes and bytes agree, or raise."""
    item_bytes = dtype_named(type_name).itemsize
    with np.errstate(over="ignore", invalid="ignore"):
        # As floats no product overflows, and all that a file can have are exact.
        needed = np.prod(shapes.astype(np.float64), axis=1) * item_bytes
    is_wild = shapes.size and shapes.max() > _MOST_SIZE
    if is_wild or np.any(needed != values.lengths):
        raise DamagedDataError(
            f"{where}: the shape of an array does not fit its bytes; copy or write the file again"
        )
    return Found(type_name, shapes.astype(np.int64), values)


def numbers_at(memory: Bytes, starts: Numbers, count: int, dtype: str) -> NDArray[Any]:
    """Return `count` numbers at each start, a row for each; all lie in the memory."""
    width = count * np.dtype(dtype).itemsize
    if not width or not len(starts):
        return np.empty((len(starts), count), dtype)
    address = memory.__array_interface__["data"][0]
    items = np.asarray(Windows(address, memory.size, width, is_read_only=True))
    return items[starts].view(dtype).reshape(len(starts), count)


@dataclass(frozen=True)
class Flat:
    """Reads flat arrays of one type, which have no header.

    Args:
        type_name: Their type.
    """

    type_name: str

    def __call__(self, memory: Bytes, span: Span, where: str) -> Found:
        """Return the arrays of a chunk."""
        sizes = span.lengths // dtype_named(self.type_name).itemsize
        return check_found(self.type_name, sizes[:, None], span, where)


@dataclass(frozen=True)
class Words:
    """Reads headers of 32-bit words: the type, the number of axes, the size of each.

    The order of their bytes is found by the type: a small number, but in one order only.

    Args:
        types: The types by their codes, which are at least 1 where both orders occur.
    """

    types: Mapping[int, str]

    def __call__(self, memory: Bytes, span: Span, where: str) -> Found:
        """Return the arrays of a chunk."""
        sizes = span.without(8, where)
        heads = numbers_at(memory, span.starts, 2, "<u4")
        order = ">" if heads[0, 0] >= 2**24 else "<"
        heads = heads.view(f"{order}u4")
        code = check_one("type", heads[:, 0], where)
        num_axes = check_axes(check_one("number of axes", heads[:, 1], where), where)
        values = sizes.without(4 * num_axes, where)
        shapes = numbers_at(memory, sizes.starts, num_axes, f"{order}u4")
        return check_found(type_of(self.types, code, where), shapes, values, where)


@dataclass(frozen=True)
class Pictures:
    """Reads raw images, whose headers have the width, the height and the name of the mode."""

    def __call__(self, memory: Bytes, span: Span, where: str) -> Found:
        """Return the images of a chunk, as arrays."""
        names = span.without(12, where)
        heads = numbers_at(memory, span.starts, 3, "<u4").astype(np.int64)
        num_signs = check_one("length of the mode", heads[:, 2], where)
        if not 1 <= num_signs <= 8:
            raise DamagedDataError(
                f"{where}: the mode of an image has {several(num_signs, 'sign')} and must have 1 "
                "to 8; copy or write the file again"
            )
        values = names.without(num_signs, where)
        modes = numbers_at(memory, names.starts, 1, f"S{num_signs}")
        mode = check_one("mode", modes, where).decode("latin-1")
        if mode not in _MODES:
            raise InvalidValueError(
                f"{where}: has raw images of mode {mode!r}, which must be one of "
                f"{', '.join(_MODES)}; write them again as png or jpeg"
            )
        type_name, *last = _MODES[mode]
        width, height = heads[:, 0], heads[:, 1]
        shapes = np.stack([height, width, *(np.full_like(width, size) for size in last)], axis=1)
        return check_found(type_name, shapes, values, where)


def type_of(types: Mapping[int, str], code: int, where: str) -> str:
    """Return the type with a code, or raise."""
    if code not in types:
        raise DamagedDataError(
            f"{where}: an array has type {code}, which must be one of {', '.join(map(str, types))};"
            " copy or write the file again, or use a newer feedline"
        )
    return types[code]


def check_axes(num_axes: int, where: str) -> int:
    """Return a number of axes, or raise if numpy cannot have so many."""
    if num_axes > _MOST_AXES:
        raise DamagedDataError(
            f"{where}: an array has {num_axes} axes and must have at most {_MOST_AXES}; copy or "
            "write the file again"
        )
    return num_axes


# Of images: the type of their values, and how many each pixel has.
_MODES: dict[str, tuple[Any, ...]] = {
    **{"L": ("uint8",), "P": ("uint8",), "LA": ("uint8", 2), "PA": ("uint8", 2)},
    **{"RGB": ("uint8", 3), "YCbCr": ("uint8", 3), "LAB": ("uint8", 3), "HSV": ("uint8", 3)},
    **{"RGBA": ("uint8", 4), "RGBX": ("uint8", 4), "CMYK": ("uint8", 4)},
    **{"I;16": ("uint16",), "I": ("int32",), "F": ("float32",)},
}
