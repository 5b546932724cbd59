"""Lists of any length as tensors: a list of tensors, padded, or a nested tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, InvalidValueError
from feedline.store import Column, Lists
from feedline.store.placed_lists import PlacedLists

#: What lists may be delivered as.
FORMS = ("list", "padded", "nested")
#: The end of the name of the tensor that tells where padded lists have values.
MASK = "/mask"
# Unsigned types that torch cannot mask, and the signed ones of the same bytes.
_SIGNED = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}


def as_tensor(array: NDArray[Any], type_name: str) -> torch.Tensor:
    """Return an array as a tensor of a column's type, without a copy; dates as int64."""
    if array.dtype.kind in "mM":
        array = array.view(np.int64)
    elif array.dtype == np.uint64:
        # numpy has two types of this name, and torch takes one.
        array = array.view(np.uint64)
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if type_name == "bfloat16" else tensor


class TensorLists(NamedTuple):
    """Lists whose values are one tensor, on any device.

    Args:
        values: The values of all lists, one list after another.
        offsets: Where each list begins, and where the last one ends; in this process's memory.
    """

    values: torch.Tensor
    offsets: NDArray[np.int64]

    def split(self, sizes: Sequence[int]) -> list[TensorLists]:
        """Return the lists of each batch."""
        edges = np.cumsum([0, *sizes]).tolist()
        cuts = self.offsets[edges].tolist()
        values = self.values.split_with_sizes([end - first for first, end in pairwise(cuts)])
        return [
            TensorLists(part, self.offsets[first : end + 1] - cut)
            for part, first, end, cut in zip(values, edges[:-1], edges[1:], cuts[:-1], strict=True)
        ]

    def moved(self, move: Callable[[torch.Tensor], torch.Tensor]) -> TensorLists:
        """Return the same lists with their values elsewhere."""
        return TensorLists(move(self.values), self.offsets)

    def pin_memory(self) -> TensorLists:
        """Return the same lists in pinned memory; torch's loader calls this."""
        return self.moved(torch.Tensor.pin_memory)

    def clone(self) -> TensorLists:
        """Return a copy that shares no memory."""
        return TensorLists(self.values.clone(), self.offsets)

    def as_list(self) -> list[torch.Tensor]:
        """Return a tensor for each list."""
        return list(self.values.split_with_sizes(np.diff(self.offsets).tolist()))

    def as_nested(self) -> torch.Tensor:
        """Return a nested tensor."""
        offsets = self._sent(self.offsets)
        nested: torch.Tensor = torch.nested.nested_tensor_from_jagged(self.values, offsets)
        return nested

    def as_padded(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the lists with zeros up to the longest, and where their values are."""
        lengths = np.diff(self.offsets)
        longest = int(lengths.max()) if len(lengths) else 0
        inside = torch.arange(longest, device=self.values.device)
        is_there = inside < self._sent(lengths)[:, None]
        if not len(self.values):
            return self.values.new_zeros((len(lengths), longest, *self.values.shape[1:])), is_there
        places = self._sent(self.offsets[:-1])[:, None] + inside
        values = self.values.view(_SIGNED.get(self.values.dtype, self.values.dtype))
        padded = values[places.clamp_(max=len(values) - 1)]
        shape = (*is_there.shape, *[1] * (self.values.dim() - 1))
        padded.masked_fill_(~is_there.view(shape), 0)
        return padded.view(self.values.dtype), is_there

    def _sent(self, numbers: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(numbers).to(self.values.device, non_blocking=True)


def column_as_tensor(array: Any, column: Column) -> Any:
    """Return what is read of a column as a tensor, without a copy; bytes and text stay as is."""
    if isinstance(array, PlacedLists):
        return array
    if not isinstance(array, Lists):
        return as_tensor(array, column.type_name)
    if array.kind != "list":
        return array
    return TensorLists(as_tensor(array.values, column.type_name), array.offsets)


def prepared_as_tensors(value: Any, columns: Mapping[str, Column]) -> Any:
    """Return a batch of prepared samples as tensors; `columns` are those that were not touched."""
    if isinstance(value, Mapping):
        return {
            name: column_as_tensor(part, columns[name])
            if name in columns
            else prepared_as_tensors(part, {})
            for name, part in value.items()
        }
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value).reshape(value.shape)
        return as_tensor(array if array.flags.writeable else array.copy(), array.dtype.name)
    if isinstance(value, Lists):
        return TensorLists(as_tensor(value.values, value.values.dtype.name), value.offsets)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(prepared_as_tensors(part, {}) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(prepared_as_tensors(part, {}) for part in value)
    return value


def cut_column(values: Any, sizes: list[int]) -> Sequence[Any]:
    """Return the values of each batch."""
    if isinstance(values, torch.Tensor):
        return values.split_with_sizes(sizes)
    if isinstance(values, TensorLists):
        return values.split(sizes)
    return [values[first:end] for first, end in pairwise(accumulate(sizes, initial=0))]


def formed(batch: Any, form: str) -> Any:
    """Return a batch whose lists have the form that the user asked for; texts are `list[str]`.

    Examples:
        >>> lists = TensorLists(torch.tensor([1, 2, 3]), np.array([0, 2, 3]))
        >>> formed({"x": lists}, "padded")["x"].tolist()
        [[1, 2], [3, 0]]
    """
    if isinstance(batch, TensorLists):
        return batch.as_nested() if form == "nested" else batch.as_list()
    if isinstance(batch, Lists | PlacedLists):
        return batch.tolist()
    if isinstance(batch, Mapping):
        made: dict[str, Any] = {}
        for name, value in batch.items():
            if isinstance(value, TensorLists) and form == "padded":
                if name + MASK in batch:
                    raise InvalidValueError(
                        f"lists='padded' makes a mask {name + MASK!r:.80}, but that is a column "
                        "too; use another form of lists, or rename the column"
                    )
                made[name], made[name + MASK] = value.as_padded()
            else:
                made[name] = _formed_column(name, value, form)
        return made
    if isinstance(batch, tuple) and not hasattr(batch, "_fields"):
        return tuple(formed(part, form) for part in batch)
    return batch


def _formed_column(name: str, value: Any, form: str) -> Any:
    try:
        return formed(value, form)
    except DamagedDataError as error:
        raise DamagedDataError(f"column {name!r}: {error}") from None
