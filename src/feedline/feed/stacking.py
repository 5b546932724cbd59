"""Samples made into a batch: equal shapes are stacked, differing lengths become lists."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError
from feedline.store import Lists

_REMEDY = "return arrays, numbers, texts, bytes, or dicts and tuples of them"


def stack_samples(samples: Sequence[Any], ids: Sequence[int], lists: Container[str] = ()) -> Any:
    """Return one batch of samples, or raise an error that names those that do not fit together.

    Arrays and numbers of one shape are stacked. Arrays of up to two axes that differ in length only
    become `Lists`, and others a list of arrays. Texts and bytes become a list. Dicts and tuples are
    gone through.

    Args:
        samples: The samples.
        ids: Their numbers, for errors.
        lists: The names of values that become `Lists` even if all are of one length.

    Examples:
        >>> batch = stack_samples([{"x": 1, "t": "a"}, {"x": 2, "t": "b"}], [7, 8])
        >>> batch["x"].tolist(), batch["t"]
        ([1, 2], ['a', 'b'])
        >>> stack_samples([np.arange(2), np.arange(3)], [7, 8]).tolist()
        [[0, 1], [0, 1, 2]]
    """
    return _stacked(samples, ids, "", lists)


def _stacked(values: Sequence[Any], ids: Sequence[int], name: str, lists: Container[str]) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        _check_alike(values, ids, name, _keys_of)
        inside = f"{name}/" if name else ""
        return {
            key: _stacked([value[key] for value in values], ids, f"{inside}{key}", lists)
            for key in first
        }
    if isinstance(first, str | bytes):
        _check_alike(values, ids, name, _kind_of)
        return list(values)
    if isinstance(first, tuple):
        _check_alike(values, ids, name, _length_of)
        parts = [
            _stacked(part, ids, f"{name}[{place}]", lists)
            for place, part in enumerate(zip(*values, strict=True))
        ]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    arrays = [_as_array(value, index, name) for value, index in zip(values, ids, strict=True)]
    _check_alike(arrays, ids, name, _dtype_of)
    shape = arrays[0].shape
    is_equal = all(array.shape == shape for array in arrays)
    if is_equal and not (shape and name in lists):
        return np.stack(arrays) if shape else np.array(arrays)
    # Pictures that happen to have one width are not lists of rows.
    is_listed = 0 < len(shape) < 3 or name in lists
    if is_listed and all(array.ndim and array.shape[1:] == shape[1:] for array in arrays):
        return Lists(np.concatenate(arrays), np.cumsum([0, *map(len, arrays)]))
    return arrays


def _as_array(value: Any, index: int, name: str) -> NDArray[Any]:
    """Return a value as an array: a number, a list of numbers, or a tensor in this memory."""
    why = ""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        why = " (it has masked values, which a batch cannot mark)"
    elif value is not None and not isinstance(value, str | bytes | Mapping):
        try:
            array = np.asarray(value)
            if array.dtype.kind in "biufcmM":
                return array
            why = f" ({array.dtype})"
        except Exception as error:
            why = f" ({error})"
    raise InvalidValueError(
        f"sample {index}: {_named(name)}{value!r:.80} cannot be part of a batch{why}; {_REMEDY}"
    )


def _check_alike(values: Sequence[Any], ids: Sequence[int], name: str, kind_of: Any) -> None:
    """Raise if samples are of different kinds, which would depend on what meets in a batch."""
    kinds = [kind_of(value) for value in values]
    for kind, index in zip(kinds, ids, strict=True):
        if kind != kinds[0]:
            raise InvalidValueError(
                f"sample {index}: {_named(name)}{kind} must be {kinds[0]}, as in sample {ids[0]} "
                "of the same batch; return the same keys and types for every sample"
            )


def _named(name: str) -> str:
    return f"{name!r:.80} = " if name else ""


def _keys_of(value: Any) -> str:
    listed = sorted(map(str, value)) if isinstance(value, Mapping) else None
    return _kind_of(value) if listed is None else f"a dict with the keys {', '.join(listed):.200}"


def _length_of(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else _kind_of(value)


def _kind_of(value: Any) -> str:
    return type(value).__name__


def _dtype_of(array: NDArray[Any]) -> str:
    return f"of type {array.dtype.name}"
