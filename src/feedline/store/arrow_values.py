"""Arrow arrays as numpy's, without a copy where Arrow's memory has the same layout.

Everything is read from Arrow's buffers, and checked: a damaged file may claim anything. Where a
value is null, arrays hold zeros, and lists, bytes and texts are empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, StoreError
from feedline.store.arrow_types import OTHERS, Form, is_any
from feedline.store.columns import Column
from feedline.store.lists import ListSource
from feedline.store.slices import Numbers
from feedline.words import several

#: Where values are missing; None if none is.
Mask = NDArray[np.bool_] | None
_Values = NDArray[Any] | ListSource


class RaggedError(Exception):
    """Lists that should have one length differ; the lengths are the argument."""


def column_values(
    arrow: Any,
    where: str,
    pieces: Sequence[Any],
    steps: Sequence[str],
    form: Form,
    column: Column | None = None,
    *,
    as_lists: bool = False,
) -> tuple[_Values, Mask]:
    """Return the values of a leaf, and where they are missing.

    Args:
        arrow: The module pyarrow.
        where: What this is, for errors.
        pieces: The arrays of the column; together they are the rows of a chunk.
        steps: The fields to go to, in structs.
        form: How values of this type are held.
        column: The column that they must be values of, if that is decided. Without it, lists of
            one length give an array, and others a column of lists.
        as_lists: Read lists as lists, even if they have one length.
    """
    wants_lists = as_lists if column is None else column.has_lists
    arrays, masks = [], []
    for piece in pieces:
        array, is_missing = _field_of(arrow, piece, steps)
        arrays.append(array)
        masks.append(is_missing)
    read = _strings if form.kind != "array" else _lists
    is_array = form.kind == "array" and not (form.may_be_lists and wants_lists)
    if is_array:
        try:
            values, mask = _joined(
                [_array(arrow, where, *both) for both in zip(arrays, masks, strict=True)]
            )
            values = _with_axes(values, form)
            if column is not None and form.may_be_lists and len(values):
                _check_lengths(where, column, values.shape[1:])
            return values, mask
        except RaggedError as error:
            if not form.may_be_lists:
                raise _inner_lists(where, error) from None
            if column is not None:
                raise _ragged(where, column, error) from None
    try:
        lists, mask = _joined(
            [
                read(arrow, where, array, is_missing, form, column)
                for array, is_missing in zip(arrays, masks, strict=True)
            ]
        )
    except RaggedError as error:
        raise _inner_lists(where, error) from None
    if column is not None and column.kind == "list" and isinstance(lists, ListSource):
        _check_lengths(where, column, lists.column("").shape)
    return lists, mask


def _with_axes(values: Any, form: Form) -> NDArray[Any]:
    """Return values in the shape of their type: tensors are stored as flat lists."""
    sizes = [size for size in form.axes if size is not None]
    is_tensor = len(sizes) == len(form.axes) and values.ndim == 2 and len(sizes) > 1
    found: NDArray[Any] = values.reshape(len(values), *sizes) if is_tensor else values
    return found


def _check_lengths(where: str, column: Column, lengths: tuple[int, ...]) -> None:
    """Raise if the lists of a chunk all have one length, but another than those before."""
    if len(lengths) != len(column.shape):
        return
    first = 0 if column.has_lists else 1
    if lengths[first:] != column.shape[first:]:
        raise _inner_lists(where, RaggedError((*lengths[first:], *column.shape[first:])))
    if lengths != column.shape:
        raise _ragged(where, column, RaggedError(lengths[:1]))


def _ragged(where: str, column: Column, error: RaggedError) -> StoreError:
    name, least, most = column.name, np.min(error.args[0]), np.max(error.args[0])
    found = f"{most}" if least == most else f"{least} to {most}"
    return StoreError(
        f"{where} has lists of {found} values in this "
        f"chunk, but is {column} by the chunks before; open the data with lists=[{name!r:.80}] to "
        f"read lists of any length, pad them, or {OTHERS}"
    )


def _inner_lists(where: str, error: RaggedError) -> StoreError:
    return StoreError(
        f"{where} has lists of {np.min(error.args[0])} to {np.max(error.args[0])} values inside of "
        f"lists, which must all have the same length; pad them, or {OTHERS}"
    )


def _field_of(arrow: Any, array: Any, steps: Sequence[str]) -> tuple[Any, Mask]:
    """Return the array of a field in structs, and where it or a struct around it is null."""
    is_missing = _nulls(array)
    for step in steps:
        array = _storage(arrow, array)
        array = array.field(array.type.get_field_index(step))
        is_missing = _either(is_missing, _nulls(array))
    return _storage(arrow, array), is_missing


def _storage(arrow: Any, array: Any) -> Any:
    while isinstance(array.type, arrow.BaseExtensionType):
        array = array.storage
    return array


def _nulls(array: Any) -> Mask:
    validity = array.buffers()[0] if array.null_count else None
    return None if validity is None else ~_bits(validity, array.offset, len(array))


def _either(first: Mask, second: Mask) -> Mask:
    if first is None or second is None:
        return second if first is None else first
    return first | second


def _bits(buffer: Any, first: int, count: int) -> NDArray[np.bool_]:
    """Return bits as bools."""
    start = first // 8
    num_bytes = -(-(first + count) // 8) - start
    found = np.unpackbits(_view(buffer, np.dtype(np.uint8), start, num_bytes), bitorder="little")
    return found[first - 8 * start :][:count].view(np.bool_)


def _view(buffer: Any, dtype: np.dtype[Any], first: int, count: int) -> NDArray[Any]:
    """Return values in a buffer, or raise if it is shorter."""
    if not count:
        return np.empty(0, dtype)
    if buffer is None or (first + count) * dtype.itemsize > buffer.size or first < 0:
        found = 0 if buffer is None else buffer.size
        raise ValueError(f"a buffer of {found} bytes has no {first + count} values of {dtype}")
    return np.frombuffer(buffer, dtype, count, first * dtype.itemsize)


def _array(arrow: Any, where: str, array: Any, is_missing: Mask) -> tuple[NDArray[Any], Mask]:
    """Return values with an axis for each level of lists, or raise `RaggedError`."""
    array = _storage(arrow, array)
    if is_any(arrow, array.type, "is_dictionary"):
        indices, is_missing = _indices(arrow, where, array, is_missing)
        words = _storage(arrow, array.dictionary)
        values, are_nulls = _array(arrow, where, words, _nulls(words))
        is_missing = _either(is_missing, _at(are_nulls, indices))
        if not len(values):
            return np.zeros((len(indices), *values.shape[1:]), values.dtype), is_missing
        return _filled(values.take(indices, axis=0), is_missing), is_missing
    if is_any(arrow, array.type, "is_fixed_size_list"):
        length = int(array.type.list_size)
        inner = array.values.slice(array.offset * length, len(array) * length)
    elif hasattr(array, "values"):
        length, inner = _equal_lists(arrow, array, is_missing)
    else:
        return _filled(_numbers(arrow, array), is_missing), is_missing
    items, are_nulls = _array(arrow, where, inner, _nulls(inner))
    if are_nulls is not None:
        inside = are_nulls.reshape(len(array), length).any(axis=1)
        _refuse_nulls(where, int((inside if is_missing is None else inside & ~is_missing).sum()))
    return _filled(items.reshape(len(array), length, *items.shape[1:]), is_missing), is_missing


def _numbers(arrow: Any, array: Any) -> NDArray[Any]:
    buffer, first, count = array.buffers()[1], array.offset, len(array)
    type_ = array.type
    if is_any(arrow, type_, "is_boolean"):
        return _bits(buffer, first, count) if count else np.empty(0, np.bool_)
    if is_any(arrow, type_, "is_fixed_size_binary"):
        width = int(type_.byte_width)
        flat = _view(buffer, np.dtype(np.uint8), first * width, count * width)
        return flat.reshape(count, width)
    if is_any(arrow, type_, "is_date32"):
        return _view(buffer, np.dtype("<i4"), first, count).astype("datetime64[D]")
    if is_any(arrow, type_, "is_time32"):
        return _view(buffer, np.dtype("<i4"), first, count).astype(f"timedelta64[{type_.unit}]")
    if is_any(arrow, type_, "is_timestamp", "is_date64"):
        unit = "ms" if is_any(arrow, type_, "is_date64") else type_.unit
        return _view(buffer, np.dtype(f"<M8[{unit}]"), first, count)
    if is_any(arrow, type_, "is_time64", "is_duration"):
        return _view(buffer, np.dtype(f"<m8[{type_.unit}]"), first, count)
    return _view(buffer, np.dtype(type_.to_pandas_dtype()).newbyteorder("<"), first, count)


def _filled(values: NDArray[Any], is_missing: Mask) -> NDArray[Any]:
    """Return values with zeros where they are missing."""
    if is_missing is None:
        return values
    filled = values.copy()
    filled[is_missing] = np.zeros((), values.dtype)
    return filled


def _at(flags: Mask, indices: Numbers) -> Mask:
    return None if flags is None or not len(flags) else flags.take(indices)


def _indices(arrow: Any, where: str, array: Any, is_missing: Mask) -> tuple[Numbers, Mask]:
    """Return which word of its dictionary each value is; 0 where it is missing."""
    indices = _filled(_numbers(arrow, array.indices), is_missing).astype(np.int64)
    size = len(array.dictionary)
    there = indices if is_missing is None else indices[~is_missing]
    if len(there) and (there.min() < 0 or there.max() >= size):
        raise DamagedDataError(
            f"{where} has a value from {there.min()} to {there.max()} of a dictionary that has "
            f"{several(size, 'value')}; the file is damaged; write it again"
        )
    return indices, is_missing


def _edges(array: Any, is_missing: Mask) -> tuple[Numbers, Numbers]:
    """Return where each list begins among the values, and its length, or raise if it is outside."""
    if not len(array):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    if hasattr(array, "sizes"):
        starts, lengths = offsets, array.sizes.to_numpy(zero_copy_only=False).astype(np.int64)
    else:
        starts, lengths = offsets[:-1], np.diff(offsets)
    starts, lengths = _filled(starts, is_missing), _filled(lengths, is_missing)
    num_values = len(array.values)
    is_inside = starts.min() >= 0 and lengths.min() >= 0 and starts.max() <= num_values
    if not is_inside or lengths.max() > num_values or (starts + lengths).max() > num_values:
        raise ValueError(f"a list is not inside of the {num_values} values of all lists")
    return starts, lengths


def _equal_lists(arrow: Any, array: Any, is_missing: Mask) -> tuple[int, Any]:
    """Return the common length of all lists, and their values; or raise `RaggedError`."""
    starts, lengths = _edges(array, is_missing)
    if not len(lengths):
        return 0, array.values.slice(0, 0)
    length, first = int(lengths[0]), int(starts[0])
    if np.any(lengths != length):
        raise RaggedError(lengths)
    if not length:
        return 0, array.values.slice(0, 0)
    if not np.array_equal(starts, first + length * np.arange(len(starts))):
        # Views of lists may lie anywhere.
        rows = starts[:, None] + np.arange(length)
        return length, array.values.take(arrow.array(rows.reshape(-1)))
    return length, array.values.slice(first, length * len(starts))


def _lists(
    arrow: Any, where: str, array: Any, is_missing: Mask, form: Form, column: Column | None
) -> tuple[ListSource, Mask]:
    """Return lists of any lengths; lists inside of them have one length, or `RaggedError`."""
    if is_any(arrow, array.type, "is_dictionary"):
        indices, is_missing = _indices(arrow, where, array, is_missing)
        words = _storage(arrow, array.dictionary)
        source, are_nulls = _lists(arrow, where, words, _nulls(words), form, column)
        return _of_words(where, source, indices, _either(is_missing, _at(are_nulls, indices)))
    starts, lengths = _edges(array, is_missing)
    filled = lengths > 0
    first = int(starts[filled].min()) if filled.any() else 0
    end = int((starts + lengths).max()) if filled.any() else 0
    inner = array.values.slice(first, end - first)
    items, are_nulls = _array(arrow, where, inner, _nulls(inner))
    starts = np.where(filled, starts - first, 0)
    if are_nulls is not None:
        counts = np.concatenate([[0], np.cumsum(are_nulls)])
        _refuse_nulls(where, int(((counts[starts + lengths] - counts[starts]) > 0).sum()))
    shape = items.shape[1:]
    if column is not None and not len(items):
        # Without values, lists inside of lists do not tell how long they would be.
        shape = column.shape
    items = np.ascontiguousarray(items)
    value_bytes = items.dtype.itemsize * int(np.prod(shape))
    source = ListSource(
        items.reshape(-1).view(np.uint8),
        starts * value_bytes,
        lengths * value_bytes,
        type_name=form.type_name,
        shape=shape,
        where=where,
    )
    return source, is_missing


def _strings(
    arrow: Any, where: str, array: Any, is_missing: Mask, form: Form, column: Column | None
) -> tuple[ListSource, Mask]:
    """Return texts or bytes."""
    array = _storage(arrow, array)
    if is_any(arrow, array.type, "is_dictionary"):
        indices, is_missing = _indices(arrow, where, array, is_missing)
        words = _storage(arrow, array.dictionary)
        source, are_nulls = _strings(arrow, where, words, _nulls(words), form, column)
        return _of_words(where, source, indices, _either(is_missing, _at(are_nulls, indices)))
    if is_any(arrow, array.type, "is_string_view", "is_binary_view"):
        # Only a full check looks at where the texts are.
        array.validate(full=True)
        is_text = form.kind == "text"
        array = array.cast(arrow.large_string() if is_text else arrow.large_binary())
    is_large = is_any(arrow, array.type, "is_large_string", "is_large_binary")
    _, table, data = array.buffers()
    count = len(array) + 1 if len(array) else 0
    offsets = _view(table, np.dtype("<i8" if is_large else "<i4"), array.offset, count)
    offsets = offsets.astype(np.int64)
    lengths = _filled(np.diff(offsets), is_missing)
    memory = _view(data, np.dtype(np.uint8), 0, 0 if data is None else data.size)
    return ListSource(memory, offsets[:-1], lengths, kind=form.kind, where=where), is_missing


def _of_words(
    where: str, words: ListSource, indices: Numbers, is_missing: Mask
) -> tuple[ListSource, Mask]:
    """Return values of a dictionary; each lies there once."""
    none = np.zeros(len(indices), np.int64)
    starts = words.starts.take(indices) if len(words) else none
    lengths = words.lengths.take(indices) if len(words) else none
    return _same_kind(where, words, words.memory, starts, _filled(lengths, is_missing)), is_missing


def _same_kind(
    where: str, source: ListSource, memory: NDArray[np.uint8], starts: Numbers, lengths: Numbers
) -> ListSource:
    column = source.column("")
    return ListSource(
        memory,
        starts,
        lengths,
        kind=column.kind,
        type_name=column.type_name,
        shape=column.shape,
        where=where,
    )


def _joined(parts: Sequence[tuple[Any, Mask]]) -> tuple[_Values, Mask]:
    """Return the values of several pieces as those of one."""
    if len(parts) == 1:
        return parts[0]
    values = [part for part, _ in parts]
    is_missing = None
    if any(mask is not None for _, mask in parts):
        masks = [np.zeros(len(part), np.bool_) if mask is None else mask for part, mask in parts]
        is_missing = np.concatenate(masks)
    if isinstance(values[0], np.ndarray):
        shapes = {array.shape[1:] for array in values if len(array)}
        if len(shapes) > 1:
            raise RaggedError([shape[0] for shape in shapes])
        return np.concatenate([array for array in values if len(array)] or values[:1]), is_missing
    bases = np.cumsum([0, *(source.memory.size for source in values)])
    starts = [source.starts + base for source, base in zip(values, bases[:-1], strict=True)]
    memory = np.concatenate([source.memory for source in values])
    lengths = np.concatenate([source.lengths for source in values])
    return _same_kind("a column", values[0], memory, np.concatenate(starts), lengths), is_missing


def _refuse_nulls(where: str, count: int) -> None:
    if count:
        raise StoreError(
            f"{where} has nulls inside of {several(count, 'list')} and must have none; fill them, "
            f"or {OTHERS}"
        )
