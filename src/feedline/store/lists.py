"""Columns whose values differ in length: lists, bytes and text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, InvalidValueError, check_choice
from feedline.store.columns import KINDS_OF_LISTS, Column
from feedline.store.places import FlatPlaces, by_source
from feedline.store.pool import keep_freed
from feedline.store.slices import Numbers, copy_slices
from feedline.words import several

# Returns memory of some bytes.
Take = Callable[[int], NDArray[np.uint8]]


def new_memory(num_bytes: int) -> NDArray[np.uint8]:
    """Return memory of its own for some bytes."""
    return np.empty(num_bytes, np.uint8)


class Lists:
    """Some lists, byte strings or texts: all their values, and where each of them begins.

    List i is `values[offsets[i] : offsets[i + 1]]`. A text is held as UTF-8.

    Args:
        values: The values of all lists, one list after another.
        offsets: Where each list begins in `values`, and where the last one ends.
        kind: `"list"`, `"bytes"` or `"text"`.

    Examples:
        >>> lists = Lists(np.array([7, 8, 9]), np.array([0, 2, 2, 3]))
        >>> len(lists), lists[0].tolist(), lists[1:].lengths.tolist()
        (3, [7, 8], [0, 1])
        >>> Lists.of(["a", "bc"])[1]
        'bc'
    """

    def __init__(self, values: NDArray[Any], offsets: Numbers, kind: str = "list") -> None:
        self.values = values
        self.offsets = offsets
        self.kind = check_choice("kind", kind, KINDS_OF_LISTS)

    @classmethod
    def of(cls, items: Sequence[Any], dtype: Any = None) -> Lists:
        """Return some texts, byte strings or lists of numbers."""
        if items and all(isinstance(item, str) for item in items):
            encoded = [item.encode() for item in items]
            kind = "text"
        elif items and all(isinstance(item, bytes | bytearray | memoryview) for item in items):
            encoded = [bytes(item) for item in items]
            kind = "bytes"
        else:
            arrays = [np.asarray(item, dtype=dtype) for item in items]
            offsets = np.cumsum([0, *map(len, arrays)])
            filled = [array for array in arrays if len(array)] or arrays[:1]
            values = np.concatenate(filled) if filled else np.empty(0, dtype or np.float64)
            return cls(values, offsets)
        offsets = np.cumsum([0, *map(len, encoded)])
        return cls(np.frombuffer(b"".join(encoded), np.uint8), offsets, kind)

    @classmethod
    def none_of(cls, column: Column) -> Lists:
        """Return no lists, of a column."""
        values = np.empty((0, *column.shape), column.dtype)
        return cls(values, np.zeros(1, np.int64), column.kind)

    @classmethod
    def joined(cls, parts: Sequence[Lists]) -> Lists:
        """Return the lists of several, one after another."""
        if len(parts) == 1:
            return parts[0]
        values = np.concatenate([part.values for part in parts])
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(values, np.concatenate([[0], np.cumsum(lengths)]), parts[0].kind)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        of = f" of {self.values.dtype}" if self.kind == "list" else ""
        return f"<Lists: {several(len(self), self.kind if self.kind != 'bytes' else 'string')}{of}>"

    @property
    def lengths(self) -> Numbers:
        """The number of values in each list."""
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        """The bytes of all values and offsets."""
        return self.values.nbytes + self.offsets.nbytes

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Lists: ...
    def __getitem__(self, index: Any) -> Any:
        """Return one list as an array, `bytes` or `str`; or the lists of a slice."""
        if isinstance(index, slice):
            first, end, step = index.indices(len(self))
            if step != 1:
                return self.take(np.arange(first, end, step))
            edges = self.offsets[first : max(first, end) + 1]
            return Lists(self.values[edges[0] : edges[-1]], edges - edges[0], self.kind)
        number = range(len(self))[index]
        return self._item(int(self.offsets[number]), int(self.offsets[number + 1]))

    def __iter__(self) -> Iterator[Any]:
        for first, end in pairwise(self.offsets.tolist()):
            yield self._item(first, end)

    def _item(self, first: int, end: int) -> Any:
        found = self.values[first:end]
        if self.kind == "list":
            return found
        return found.tobytes() if self.kind == "bytes" else text_of(memoryview(found.tobytes()))

    def tolist(self) -> list[Any]:
        """Return all of them as Python values.

        Examples:
            >>> Lists.of([[1, 2], []], dtype=np.int64).tolist()
            [[1, 2], []]
        """
        if self.kind == "list":
            return [item.tolist() for item in self]
        keep_freed(self.values.nbytes)
        # A memoryview is cut faster than an array, and all items of one width come in one call.
        values = np.ascontiguousarray(self.values)
        lengths = self.lengths
        if self.kind == "bytes" and len(self) and lengths[0] > 0 and np.all(lengths == lengths[0]):
            items: list[bytes] = (
                values[self.offsets[0] : self.offsets[-1]].view(f"V{lengths[0]}").tolist()
            )
            return items
        view, edges = values.data, pairwise(self.offsets.tolist())
        if self.kind == "bytes":
            return [view[first:end].tobytes() for first, end in edges]
        return [text_of(view[first:end]) for first, end in edges]

    def take(self, rows: Numbers) -> Lists:
        """Return some of them, in the order of `rows`."""
        return ListSource.of(self).gather(rows)

    def padded(self, fill: Any = 0) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the lists as rows of one length, and where their values are.

        Examples:
            >>> values, is_there = Lists.of([[1, 2], [3]], dtype=np.int64).padded()
            >>> values.tolist(), is_there.tolist()
            ([[1, 2], [3, 0]], [[True, True], [True, False]])
        """
        lengths = self.lengths
        longest = int(lengths.max()) if len(lengths) else 0
        is_there: NDArray[np.bool_] = np.arange(longest) < lengths[:, None]
        padded = np.full((len(self), longest, *self.values.shape[1:]), fill, self.values.dtype)
        padded[is_there] = self.values[self.offsets[0] : self.offsets[-1]]
        return padded, is_there


class ListSource:
    """A column of lists in the memory of a chunk, of which some are copied many times.

    The lists may lie anywhere in `memory`, in any order.

    Args:
        memory: The bytes of a chunk.
        starts: The byte at which each list begins.
        lengths: The number of bytes of each list.
        kind: `"list"`, `"bytes"` or `"text"`.
        type_name: The type of the values.
        shape: The shape of one value.
        where: What this is, for errors.

    Examples:
        >>> memory = np.frombuffer(b"hello, world", np.uint8)
        >>> source = ListSource(memory, np.array([7, 0]), np.array([5, 5]), kind="text")
        >>> source.gather(np.array([1, 0, 1])).tolist()
        ['hello', 'world', 'hello']
    """

    def __init__(
        self,
        memory: NDArray[np.uint8],
        starts: Numbers,
        lengths: Numbers,
        *,
        kind: str = "list",
        type_name: str = "uint8",
        shape: tuple[int, ...] = (),
        where: str = "a column",
    ) -> None:
        self._memory = memory
        self.address: int = memory.__array_interface__["data"][0]
        self.starts, self.lengths = _checked(memory, starts, lengths, where)
        total = int(self.lengths.sum())
        mean = -(-total // max(1, len(self.lengths)))
        self._column = Column("", type_name, shape, kind=kind, mean_bytes=mean)
        value_bytes = self._column.value_bytes
        if value_bytes > 1 and np.any(self.lengths % value_bytes):
            wrong = int(self.lengths[self.lengths % value_bytes > 0][0])
            raise DamagedDataError(
                f"{where}: a list has {several(wrong, 'byte')}, which must be a multiple of "
                f"{value_bytes}; write it again"
            )

    @classmethod
    def of(
        cls, lists: Lists, *, type_name: str | None = None, where: str = "a column"
    ) -> ListSource:
        """Return lists as a source, without a copy."""
        values = lists.values
        if not values.flags.c_contiguous:
            values = np.ascontiguousarray(values)
        column = Column("", type_name or values.dtype.name, values.shape[1:])
        starts = lists.offsets[:-1] * column.row_bytes
        lengths = lists.lengths * column.row_bytes
        return cls(
            values.reshape(-1).view(np.uint8),
            starts,
            lengths,
            kind=lists.kind,
            type_name=column.type_name,
            shape=column.shape,
            where=where,
        )

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """The bytes of the memory and of the tables."""
        return self._memory.nbytes + self.starts.nbytes + self.lengths.nbytes

    @property
    def memory(self) -> NDArray[np.uint8]:
        """The memory that the lists lie in."""
        return self._memory

    def column(self, name: str) -> Column:
        """Return the column that these are the values of."""
        found = self._column
        return Column(
            name, found.type_name, found.shape, kind=found.kind, mean_bytes=found.mean_bytes
        )

    def gather(self, rows: Numbers) -> Lists:
        """Return the lists of some rows, which are known to be in range."""
        return gather_lists(
            self.address + self.starts.take(rows), self.lengths.take(rows), self._column
        )


class FlatLists:
    """The lists of several sources as those of one.

    Args:
        sources: The sources, of one column.
    """

    def __init__(self, sources: Sequence[ListSource]) -> None:
        self._sources = sources
        self._places = FlatPlaces(sources)
        self._lengths = None
        if self._places.is_table:
            self._lengths = np.concatenate([source.lengths for source in sources])
        self._column = sources[0].column("")

    def gather(self, numbers: Numbers, rows: Numbers, take: Take = new_memory) -> Lists:
        """Return list `rows[i]` of source `numbers[i]`, for each i, in memory from `take`."""
        return gather_lists(*self.places(numbers, rows), self._column, take)

    @property
    def kind(self) -> str:
        """What the lists are: `"list"`, `"bytes"` or `"text"`."""
        return self._column.kind

    def places(self, numbers: Numbers, rows: Numbers) -> tuple[Numbers, Numbers]:
        """Return the address and the bytes of list `rows[i]` of source `numbers[i]`."""
        if self._lengths is not None:
            lengths = self._lengths.take(self._places.numbers(numbers, rows))
        else:
            lengths = np.empty(len(rows), np.int64)
            for number, mine in by_source(numbers):
                lengths[mine] = self._sources[number].lengths.take(rows[mine])
        return self._places.addresses(numbers, rows), lengths


#: What a column of lists is stored as, in chunks that hold arrays only.
LIST_PARTS = ("values", "offsets")


def source_of_parts(
    values: NDArray[Any], offsets: NDArray[Any], kind: str, type_name: str | None, where: str
) -> ListSource:
    """Return lists that are stored as two arrays, or raise if these do not fit together."""
    is_plain = offsets.ndim == 1 and offsets.dtype == np.int64 and len(offsets)
    if not is_plain or offsets.min() < 0 or offsets.max() > len(values):
        raise DamagedDataError(
            f"{where}: offsets must be a list of int64 between 0 and {len(values)}, the number of "
            "values; write this chunk again"
        )
    return ListSource.of(Lists(values, offsets, kind), type_name=type_name, where=where)


def gather_lists(
    addresses: Numbers, lengths: Numbers, column: Column, take: Take = new_memory
) -> Lists:
    """Return the lists at some addresses, as values of a column, in memory that `take` returns."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    memory = take(int(offsets[-1]))
    copy_slices(addresses, lengths, memory)
    if column.value_bytes > 1:
        offsets //= column.value_bytes
    values = memory.view(column.dtype).reshape(-1, *column.shape)
    return Lists(values, offsets, column.kind)


def text_of(encoded: memoryview) -> str:
    """Return a text of its UTF-8, or raise."""
    try:
        return str(encoded, "utf-8")
    except UnicodeDecodeError as error:
        raise DamagedDataError(
            f"a text is not UTF-8 ({error.reason} at byte {error.start}); write it again as "
            "UTF-8, or read the column as bytes"
        ) from None


def _checked(
    memory: NDArray[np.uint8], starts: Any, lengths: Any, where: str
) -> tuple[Numbers, Numbers]:
    """Return the tables as int64, or raise if a list is not inside the memory."""
    starts, lengths = (np.asarray(part) for part in (starts, lengths))
    if starts.shape != lengths.shape or starts.ndim != 1:
        raise InvalidValueError(
            f"{where}: has {starts.size} starts and {lengths.size} lengths, which must be two "
            "flat lists of one length"
        )
    if memory.dtype != np.uint8 or memory.ndim != 1 or not memory.flags.c_contiguous:
        raise InvalidValueError(f"{where}: memory must be a flat, contiguous array of uint8")
    starts, lengths = (part.astype(np.int64, copy=False) for part in (starts, lengths))
    if len(starts):
        # Neither sum can overflow when both parts are within the memory.
        is_inside = starts.min() >= 0 and lengths.min() >= 0 and starts.max() <= memory.size
        is_inside = is_inside and lengths.max() <= memory.size
        if not is_inside or (starts + lengths).max() > memory.size:
            raise DamagedDataError(
                f"{where}: a value lies outside of its chunk, which has "
                f"{several(memory.size, 'byte')}; the file is truncated or damaged; write it again"
            )
    return starts, lengths


def empty_arrays(columns: Mapping[str, Column]) -> dict[str, NDArray[Any] | ListSource]:
    """Return the arrays and sources of a chunk without samples."""
    none = np.empty(0, np.int64)
    return {
        name: ListSource(
            np.empty(0, np.uint8),
            none,
            none,
            kind=column.kind,
            type_name=column.type_name,
            shape=column.shape,
        )
        if column.has_lists
        else np.empty((0, *column.shape), column.dtype)
        for name, column in columns.items()
    }
