"""The columns of a store, and the names of their types."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, InvalidValueError, check_choice
from feedline.words import one_line

# Values are arrays, or `Lists` in columns of lists, bytes and text.
Arrays = dict[str, Any]

# numpy has no bfloat16; its bits are carried as uint16.
_CARRIERS = {"bfloat16": np.dtype("<u2")}
_PLAIN = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
        *(f"datetime64[{unit}]" for unit in ("D", "s", "ms", "us", "ns")),
        *(f"timedelta64[{unit}]" for unit in ("s", "ms", "us", "ns")),
    )
}

_MAX_ROW_BYTES = 2**48

_MOST_NAMED = 5

#: The kinds of columns whose values differ in length.
KINDS_OF_LISTS = ("list", "bytes", "text")
#: The end of the name of a column that tells where values of another one are missing.
MISSING = "/is_missing"
#: The types that values may have.
TYPE_NAMES = (*_PLAIN, *_CARRIERS)


@one_line
@dataclass(frozen=True)
class Column:
    """One value of every sample: its name, its type and its shape.

    `dtype` is the numpy type that carries the values. `type_name` differs from it for bfloat16,
    whose bits are carried as uint16.

    Args:
        name: The name.
        type_name: The type of its values; `"uint8"` for bytes and text.
        shape: The shape of one value; empty for a single number. In a list, that of each element.
        kind: `"array"` if all samples have values of one shape; `"list"`, `"bytes"` or `"text"` if
            they differ in length.
        mean_bytes: For lists, bytes and text: about the bytes of a sample.

    Examples:
        >>> Column("tokens", "int32", (128,)).row_bytes
        512
    """

    name: str
    type_name: str
    shape: tuple[int, ...] = ()
    kind: str = "array"
    mean_bytes: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        dtype_named(self.type_name)
        check_choice("kind", self.kind, ("array", *KINDS_OF_LISTS))
        if self.kind in ("bytes", "text") and (self.type_name, self.shape) != ("uint8", ()):
            raise InvalidValueError(
                f"column {self.name!r:.80} of {self.kind} has type {self.type_name} and shape "
                f"{self.shape}, which must be uint8 and ()"
            )
        if self.value_bytes > _MAX_ROW_BYTES:
            raise InvalidValueError(
                f"column {self.name!r:.80} has {self.value_bytes} bytes in a sample, which must be "
                f"at most {_MAX_ROW_BYTES}"
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type that carries the values."""
        return dtype_named(self.type_name)

    @property
    def has_lists(self) -> bool:
        """Whether values differ in length."""
        return self.kind != "array"

    @property
    def value_bytes(self) -> int:
        """The number of bytes of a value, or of an element of a list."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """The number of bytes of a sample in an array; 0 for lists, which are not in one."""
        return 0 if self.has_lists else self.value_bytes

    @property
    def sample_bytes(self) -> int:
        """About the number of bytes of a sample."""
        return self.mean_bytes + 8 if self.has_lists else self.value_bytes

    def describe(self) -> dict[str, Any]:
        """Return the column as JSON values."""
        described = {"name": self.name, "dtype": self.type_name, "shape": list(self.shape)}
        lists = {"kind": self.kind, "mean_bytes": self.mean_bytes} if self.has_lists else {}
        return described | lists

    def __str__(self) -> str:
        if self.kind in ("bytes", "text"):
            return self.kind
        one = f"{self.type_name}{list(self.shape) if self.shape else ''}"
        return f"list of {one}" if self.has_lists else one


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the little-endian numpy type that carries values of a named type, or raise."""
    found = _PLAIN.get(name) or _CARRIERS.get(name)
    if found is None:
        raise InvalidValueError(f"dtype={name!r:.80} must be one of {', '.join(TYPE_NAMES)}")
    return found


def is_carried(dtype: np.dtype[Any]) -> bool:
    """Whether a store can hold values of this numpy type."""
    return dtype.name in _PLAIN


def with_masks(names: Sequence[str], known: Collection[str]) -> list[str]:
    """Return names of columns, each with the one that tells where its values are missing.

    Examples:
        >>> with_masks(["y", "x"], ["x", "x/is_missing", "y"])
        ['y', 'x', 'x/is_missing']
    """
    both = (part for name in names for part in (name, name + MISSING))
    return list(dict.fromkeys(part for part in both if part in names or part in known))


def as_numbers(columns: Mapping[str, Column], arrays: Arrays) -> Arrays:
    """Return arrays with bfloat16, which numpy lacks, converted to float32; and texts as texts.

    Examples:
        >>> as_numbers({"x": Column("x", "bfloat16")}, {"x": np.array([0x3FC0], "<u2")})
        {'x': array([1.5], dtype=float32)}
    """
    return {name: _as_values(columns[name], array) for name, array in arrays.items()}


def _as_values(column: Column, array: Any) -> Any:
    if column.kind in ("bytes", "text"):
        return array.tolist()
    if column.type_name not in _CARRIERS:
        return array
    if column.has_lists:
        return type(array)(_as_float32(array.values), array.offsets)
    return _as_float32(array)


def _as_float32(bits: NDArray[Any]) -> NDArray[Any]:
    """Return bfloat16 as float32: the upper half of its bits."""
    wide: NDArray[Any] = bits.astype(np.uint32) << 16
    return wide.view(np.float32)


def make_out(columns: Mapping[str, Column], num_rows: int, out: Arrays | None) -> Arrays:
    """Return arrays for `num_rows` samples: new ones, or `out` if it fits.

    Lists have no place in advance: whoever reads them adds them.
    """
    arrays = [column for column in columns.values() if not column.has_lists]
    if out is None:
        return {c.name: np.empty((num_rows, *c.shape), c.dtype) for c in arrays}
    for column in arrays:
        array = out.get(column.name)
        if (
            array is None
            or array.shape != (num_rows, *column.shape)
            or array.dtype != column.dtype
            or not array.flags.c_contiguous
            or not array.flags.writeable
        ):
            raise InvalidValueError(
                f"out[{column.name!r}] must be a writable, C-contiguous array of "
                f"{column.dtype} with shape {(num_rows, *column.shape)}"
            )
    return out


def columns_of(arrays: Mapping[str, Any], type_names: Mapping[str, str]) -> list[Column]:
    """Return the columns of arrays whose first axis counts samples, and of sources of lists.

    `type_names` names the types that differ from the array's own, such as bfloat16.
    """
    return [
        Column(name, type_names.get(name, array.dtype.name), tuple(array.shape[1:]))
        if isinstance(array, np.ndarray)
        else array.column(name)
        for name, array in arrays.items()
    ]


def check_columns(path: Any, expected: Mapping[str, Column], found: Mapping[str, Column]) -> None:
    """Raise an error that names the file, unless it has the expected columns."""
    wrong = [f"column {name!r:.80} is missing" for name in expected if name not in found]
    for name, column in expected.items():
        if name in found and found[name] != column:
            wrong.append(f"column {name!r:.80} is {found[name]} and should be {column}")
    if wrong:
        more = f"; and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
        raise DamagedDataError(
            f"{path}: {'; '.join(wrong[:_MOST_NAMED])}{more}; all chunks of a folder must have the "
            "same columns; write this one again"
        )
