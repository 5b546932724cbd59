"""Iterable datasets: which ones can resume, and what is known not to be exact.

A dataset can resume if it, or its iterator, has `state_dict` and `load_state_dict`: the protocol of
torchdata, which the streaming datasets of Hugging Face have too.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from feedline.errors import InvalidValueError
from feedline.store import is_store
from feedline.words import several

_HUGGING_FACE = ("datasets.iterable_dataset", "IterableDataset")
_OURS = "feedline."
_PACK = (
    "or pack its samples once with feedline.pack and open them with feedline.open: then they "
    "shuffle, and resume on any number of ranks"
)


def is_iterable(dataset: Any) -> bool:
    """Whether samples come from this one after another, and not by number."""
    kind = type(dataset)
    if isinstance(dataset, type | str | bytes | Mapping) or is_store(dataset):
        return False
    if is_of_hugging_face(dataset):
        return True
    # Not `isinstance`: classes of torch have `__getitem__` only to say that they do not.
    names = {f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__}
    if any(name.startswith(_OURS) for name in names) or hasattr(kind, "state_before"):
        # Feedline's own datasets, and all loaders, have a position.
        return False
    if "torch.utils.data.dataset.IterableDataset" in names:
        return True
    has_numbers = hasattr(kind, "__getitem__") or hasattr(kind, "__getitems__")
    is_counted = hasattr(kind, "__len__") and not has_state(dataset)
    return hasattr(kind, "__iter__") and not has_numbers and not is_counted


def is_of_hugging_face(dataset: Any) -> bool:
    """Whether this is a streaming dataset of Hugging Face, by the name of its class."""
    return any((kind.__module__, kind.__name__) == _HUGGING_FACE for kind in type(dataset).__mro__)


def has_state(value: Any) -> bool:
    """Whether a dataset or an iterator has the two methods of the protocol."""
    return all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))


def become(loader: Any, kind: type[Any], given: Mapping[str, Any]) -> None:
    """Make a loader that is just being made one for iterables, if its arguments allow that.

    So one name serves all data, and shows its own parameters.

    Args:
        loader: The loader.
        kind: What it becomes.
        given: Its arguments by name, the dataset first.
    """
    parameters = inspect.signature(type(loader)).parameters
    taken = inspect.signature(kind).parameters
    passed: dict[str, Any] = {}
    for number, (name, parameter) in enumerate(parameters.items()):
        value = given[name]
        if number == 0:
            passed["dataset"] = value
        elif name in taken:
            passed[name] = value
        elif value is not False and not _is_same(value, parameter.default):
            refuse_argument(name, value)
    loader.__class__ = kind
    loader.__init__(**passed)


def refuse_argument(name: str, value: Any) -> NoReturn:
    """Raise because an argument would decide what an iterable dataset decides itself."""
    raise InvalidValueError(
        f"{name}={value!r:.80} cannot be used with an iterable dataset: it decides itself which "
        f"samples come, in which order and on which rank; omit {name}"
    )


def _is_same(value: Any, default: Any) -> bool:
    is_plain = isinstance(value, str | int | float)
    return value is default or (is_plain and bool(value == default))


def fresh_copy(dataset: Any) -> Any:
    """Return a copy to iterate over, so that each pass begins with the dataset as it was given."""
    # A cache that datasets of Hugging Face share with all of the process stays shared.
    cache = getattr(dataset, "_IterableDataset__hffs_cache", None)
    try:
        return copy.deepcopy(dataset, {} if cache is None else {id(cache): cache})
    except Exception as error:
        raise InvalidValueError(
            f"dataset={type(dataset).__name__} cannot be copied ({error}), but each pass begins "
            "with a copy; open files and connections in __iter__, not in __init__"
        ) from error


def check_resumable(dataset: Any, num_readers: int = 1) -> None:
    """Raise unless an iterable dataset can resume exactly, as far as that can be known.

    Args:
        dataset: The dataset.
        num_readers: The number of workers that read it.
    """
    name = type(dataset).__name__
    if isinstance(dataset, Iterator) and not has_state(dataset):
        raise InvalidValueError(
            f"dataset={name} is an iterator without a state, so a resumed run would lose samples "
            f"or repeat them; pass a dataset with state_dict and load_state_dict, {_PACK}"
        )
    if not has_state(dataset) and not _has_iterator_with_state(dataset):
        raise InvalidValueError(
            f"dataset={name} has no state, so a resumed run would lose samples or repeat them; "
            f"give it, or its iterator, state_dict and load_state_dict, {_PACK}"
        )
    if is_of_hugging_face(dataset):
        _check_hugging_face(dataset, num_readers)


def _has_iterator_with_state(dataset: Any) -> bool:
    if inspect.isgeneratorfunction(type(dataset).__iter__):
        return False
    return has_state(iter(fresh_copy(dataset)))


def _check_hugging_face(dataset: Any, num_readers: int) -> None:
    """Raise if the state of a dataset of Hugging Face leaves something out, or does not load."""
    parts = list(_parts(getattr(dataset, "_ex_iterable", None)))
    for part in parts:
        size = getattr(part, "buffer_size", 1)
        if type(part).__name__ == "BufferShuffledExamplesIterable" and size > 1:
            raise InvalidValueError(
                f"dataset=IterableDataset shuffles with buffer_size={size}, and its state does not "
                "hold the samples in the buffer, so a resumed run would lose them; use "
                "shuffle(buffer_size=1, max_buffer_input_shards=1), which shuffles the shards "
                f"alone, {_PACK}"
            )
        if type(part).__name__ == "InterleavedShardsExamplesIterable" and num_readers > 1:
            raise InvalidValueError(
                f"dataset=IterableDataset reads {part.max_input_shards} shards at a time, and a "
                f"state that one of {several(num_readers, 'worker')} has saved does not load then; "
                f"use shuffle(buffer_size=1, max_buffer_input_shards=1) or num_workers=1, {_PACK}"
            )
    formatting: Any = getattr(dataset, "_formatting", None)
    if getattr(formatting, "is_table", False) and any(getattr(p, "batched", False) for p in parts):
        raise InvalidValueError(
            f"dataset=IterableDataset has the format {formatting.format_type!r} and a batched map, "
            "and its state may skip a batch then; use another format, or map without batched=True, "
            f"{_PACK}"
        )


def _parts(part: Any) -> Iterator[Any]:
    """Yield the stages that a dataset of Hugging Face consists of."""
    if part is None:
        return
    yield part
    for inner in (getattr(part, "ex_iterable", None), *(getattr(part, "ex_iterables", None) or ())):
        yield from _parts(inner)


def check_split(dataset: Any, rank: int, world_size: int) -> None:
    """Raise if a dataset of Hugging Face is not divided over the ranks of the run."""
    if not is_of_hugging_face(dataset) or not hasattr(dataset, "_distributed"):
        return
    split = dataset._distributed
    if split is None and world_size > 1:
        raise InvalidValueError(
            "dataset=IterableDataset is not split by rank, so each of the "
            f"{several(world_size, 'rank')} would get all samples; pass "
            "datasets.distributed.split_dataset_by_node(dataset, rank, world_size)"
        )
    if split is not None and (split.rank, split.world_size) != (rank, world_size):
        raise InvalidValueError(
            f"dataset=IterableDataset is split for rank {split.rank} of {split.world_size}, but "
            f"this is rank {rank} of {world_size}; split it with these numbers"
        )
