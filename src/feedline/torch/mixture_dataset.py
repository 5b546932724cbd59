"""Several map-style datasets as one that knows the source of every item."""

from __future__ import annotations

import copy
import operator
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol, SupportsIndex

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Dataset, IterableDataset

from feedline.errors import CursorFormatError, InvalidValueError, PlanMismatchError
from feedline.words import several, shortened

#: The key of a source's number in samples that are dicts.
_SOURCE_KEY = "dataset_idx"


class MapSource(Protocol):
    """A source: `len()`, and an item for each index."""

    def __getitem__(self, index: int, /) -> Any:
        """Return the item at `index`."""


class MixtureDataset(Dataset[Any]):
    """Map-style datasets laid end to end, for `MixtureSampler` or any other sampler.

    `cumulative_sizes` is `[0, len(first), len(first) + len(second), …]`, as `MixtureSampler` takes
    it. The sizes are those at construction.

    Items that are dicts get the number of their source as `dataset_idx`; others come back
    untouched, and `source_of` and `sources_of` return the source of an index. With
    `with_source=True` every item comes as the pair `(item, source number)` instead, which torch's
    default collate turns into the batch and a tensor of source numbers; `names[number]` is the
    source's name.

    Args:
        datasets: The sources: anything with `len()` and items by index. A source may be empty.
        names: A unique name for each source; by default `"0"`, `"1"`, ….
        with_source: True returns each item with the number of its source, and False returns it
            alone. By default items that are dicts get it as `dataset_idx`.

    Examples:
        >>> mixture = MixtureDataset([["a", "b"], ["c"]], names=["web", "books"])
        >>> mixture.cumulative_sizes
        [0, 2, 3]
        >>> mixture[2], mixture.source_of(2)
        ('c', (1, 0))
        >>> MixtureDataset([["a", "b"], ["c"]], with_source=True)[2]
        ('c', 1)
        >>> MixtureDataset([[{"x": 5}], [{"x": 6}]])[1]
        {'x': 6, 'dataset_idx': 1}
    """

    def __init__(
        self,
        datasets: Iterable[MapSource],
        names: Sequence[str] | None = None,
        *,
        with_source: bool | None = None,
    ) -> None:
        if isinstance(datasets, Dataset) or not isinstance(datasets, Iterable):
            raise InvalidValueError(
                f"datasets is a {type(datasets).__name__} but must be a list of datasets; "
                "put even a single one into a list"
            )
        self.datasets = list(datasets)
        if not self.datasets:
            raise InvalidValueError("datasets=[] must hold at least one dataset")
        sizes = [_size_of(number, dataset) for number, dataset in enumerate(self.datasets)]
        self.cumulative_sizes = [0, *accumulate(sizes)]
        self.names = _check_names(names, len(self.datasets))
        self.with_source = None if with_source is None else bool(with_source)

    def __repr__(self) -> str:
        sizes = map(operator.sub, self.cumulative_sizes[1:], self.cumulative_sizes)
        parts = [f"{name} {size:,}" for name, size in zip(self.names[:6], sizes, strict=False)]
        listed = ", ".join(parts) + (", …" if len(self.names) > 6 else "")
        counts = f"{several(len(self.names), 'source')}, {several(len(self), 'sample')}"
        return shortened(f"<MixtureDataset: {counts}: {listed}>")

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: SupportsIndex) -> Any:
        source, local = self.source_of(index)
        return self._marked(self.datasets[source][local], source)

    def _marked(self, item: Any, source: int) -> Any:
        """Return an item with the number of its source, where that is wanted."""
        if self.with_source:
            return item, source
        if self.with_source is not None or not isinstance(item, dict):
            return item
        if _SOURCE_KEY in item:
            raise InvalidValueError(
                f"source {self.names[source]!r} has items with the key {_SOURCE_KEY!r} of their "
                "own, which would be lost; rename it, or pass with_source=False or True"
            )
        # A copy, of the same kind: the source may return the same dict again.
        marked = copy.copy(item)
        marked[_SOURCE_KEY] = source
        return marked

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the items at `indices`, in that order.

        Each source is asked once for all of its items if it has `__getitems__` itself.

        Examples:
            >>> MixtureDataset([["a", "b"], ["c"]]).__getitems__([2, 0, 1])
            ['c', 'a', 'b']
        """
        sources, locals_ = self.sources_of(indices)
        items: list[Any] = [None] * len(sources)
        for source in np.unique(sources).tolist():
            places = np.flatnonzero(sources == source)
            fetched = self._fetch(source, locals_[places].tolist())
            for place, item in zip(places.tolist(), fetched, strict=True):
                items[place] = self._marked(item, source)
        return items

    def _fetch(self, source: int, indices: list[int]) -> list[Any]:
        """Return the items of one source, at once if it can."""
        dataset = self.datasets[source]
        fetch_many = getattr(dataset, "__getitems__", None)
        if not callable(fetch_many):
            return [dataset[index] for index in indices]
        fetched = fetch_many(indices)
        # A batch that is collated already, such as a dict of arrays, has no order of items to keep.
        num_items = _num_items(fetched)
        if num_items != len(indices):
            length = "" if num_items is None else f" of length {num_items}"
            kind = f"a {type(fetched).__name__}{length}"
            raise InvalidValueError(
                f"__getitems__ of source {self.names[source]!r} returned {kind} for "
                f"{several(len(indices), 'index', 'indices')} but must return a list with one item "
                "for each; collate in the loader's collate_fn"
            )
        return list(fetched)

    def source_of(self, index: SupportsIndex) -> tuple[int, int]:
        """Return the number of the source that `index` belongs to, and the index inside it.

        Negative indices count from the end, as in a list.

        Examples:
            >>> MixtureDataset([["a", "b"], ["c"]]).source_of(-2)
            (0, 1)
        """
        given = operator.index(index)
        place = given + len(self) if given < 0 else given
        if not 0 <= place < len(self):
            raise self._out_of_range(given)
        # The rightmost start at or before the place: sources without items are passed over.
        source = bisect_right(self.cumulative_sizes, place) - 1
        return source, place - self.cumulative_sizes[source]

    def sources_of(self, indices: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the source numbers of many indices, and the indices inside those sources.

        Examples:
            >>> sources, locals_ = MixtureDataset([["a", "b"], ["c"]]).sources_of([0, 2, 1])
            >>> sources.tolist(), locals_.tolist()
            ([0, 1, 0], [0, 0, 1])
        """
        given = np.asarray(indices)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise InvalidValueError(
                f"indices has shape {given.shape} and holds {given.dtype} but must be a flat list "
                "of integers"
            )
        # Before the cast: an unsigned index could become a valid negative one.
        outside = np.flatnonzero((given < -len(self)) | (given >= len(self)))
        if outside.size:
            raise self._out_of_range(int(given[outside[0]]))
        places = given.astype(np.int64)
        places[places < 0] += len(self)
        starts = np.asarray(self.cumulative_sizes, dtype=np.int64)
        sources = np.searchsorted(starts, places, side="right") - 1
        return sources, places - starts[sources]

    @property
    def dataset_names(self) -> list[str]:
        """The names of the sources."""
        return self.names

    def state_dict(self) -> dict[str, Any]:
        """Return the states of those sources that have one, by name.

        The position in the data is in the state of the sampler or loader, not here.
        """
        own: dict[str, Any] = dict(zip(self.names, self.datasets, strict=True))
        states = {name: one.state_dict() for name, one in own.items() if hasattr(one, "state_dict")}
        return {"cumulative_sizes": list(self.cumulative_sizes), "datasets": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the states of the sources; sources and sizes must be those of the saved mixture."""
        if not isinstance(state, Mapping) or not isinstance(state.get("datasets"), Mapping):
            raise CursorFormatError(
                f"state={state!r:.80} must be what state_dict() of a MixtureDataset returned"
            )
        own: dict[str, Any] = dict(zip(self.names, self.datasets, strict=True))
        stateful = [name for name, one in own.items() if hasattr(one, "load_state_dict")]
        saved = {"datasets": sorted(state["datasets"]), "sizes": state.get("cumulative_sizes")}
        current = {"datasets": sorted(stateful), "sizes": self.cumulative_sizes}
        if saved != current:
            raise PlanMismatchError(
                f"the state is of sources {saved['datasets']} with the cumulative sizes "
                f"{saved['sizes']}, but this mixture has {current['datasets']} with "
                f"{current['sizes']}; use the same datasets",
                {key: (saved[key], current[key]) for key in saved if saved[key] != current[key]},
            )
        for name in stateful:
            own[name].load_state_dict(state["datasets"][name])

    def _out_of_range(self, index: int) -> IndexError:
        return IndexError(f"index={index} must be in [{-len(self)}, {len(self)})")


def _size_of(number: int, dataset: Any) -> int:
    """Return the length of a source, or raise if it has none or has no items by index."""
    kind = type(dataset).__name__
    problem = f"datasets[{number}] is a {kind} but must have a length and items by index"
    remedy = "iterable datasets cannot be mixed by index; use a map-style one"
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise InvalidValueError(f"{problem}; {remedy}")
    try:
        return len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise InvalidValueError(f"{problem} (len() says: {error}); {remedy}") from error


def _check_names(names: Sequence[str] | None, num_sources: int) -> list[str]:
    if names is None:
        return [str(number) for number in range(num_sources)]
    # A string is a sequence of strings, too, but never meant as one.
    is_list = isinstance(names, Sequence) and not isinstance(names, str)
    if not is_list or not all(isinstance(name, str) for name in names):
        raise InvalidValueError(f"names={names!r} must be a list of strings")
    listed = list(names)
    if len(listed) != num_sources:
        raise InvalidValueError(
            f"names={listed} has {several(len(listed), 'name')} but must have {num_sources}, one "
            "for each dataset"
        )
    if repeated := sorted({name for name in listed if listed.count(name) > 1}):
        raise InvalidValueError(
            f"names={listed} repeats {repeated} but must be distinct; rename all but one"
        )
    return listed


def _num_items(fetched: Any) -> int | None:
    """Return the number of items that a source returned, or None if they are not a list or rows."""
    if isinstance(fetched, np.ndarray | torch.Tensor):
        return int(fetched.shape[0]) if fetched.ndim else None
    return len(fetched) if isinstance(fetched, list) else None
