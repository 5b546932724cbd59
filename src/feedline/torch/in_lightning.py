"""What Lightning does to loaders, where nothing but the loader itself can see it.

For `predict` Lightning makes every loader again, from its class and its attributes, with a wrapper
around its batch sampler that notes the indices. Such a loader is the one that its parts came from.

Lightning loads the state of a loader after it has read its length. What that breaks is mended by
`feedline.trainers.lightning.FeedlineCallback`, and refused without it.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

from torch.utils.data import IterableDataset

from feedline.errors import InvalidValueError
from feedline.torch.sampler import BatchPlanSampler, PlanSampler
from feedline.words import several

# By a sampler or a dataset, the loader that uses it. Not an attribute: these travel to workers.
_loaders: WeakKeyDictionary[Any, ReferenceType[Any]] = WeakKeyDictionary()
_PACKAGES = ("lightning.pytorch.", "pytorch_lightning.")


def remember(loader: Any, *parts: Any) -> None:
    """Remember the loader that these parts belong to."""
    for part in parts:
        _loaders[part] = ref(loader)


def original_of(dataset: Any, sampler: Any, batch_sampler: Any) -> Any:
    """Return the loader that Lightning makes again with these arguments; None for a new one.

    Args:
        dataset: The dataset, which is the loader's own if it reads a store or an iterable.
        sampler: The sampler; of a loader that reads a store, its own sampler of batches.
        batch_sampler: The batch sampler, in the wrapper of Lightning.
    """
    wrapped = getattr(batch_sampler, "_batch_sampler", None)
    part: Any = None
    if wrapped is not None:
        part = wrapped if isinstance(wrapped, PlanSampler) else getattr(wrapped, "sampler", None)
    elif isinstance(sampler, BatchPlanSampler):
        part = sampler
    elif isinstance(dataset, IterableDataset):
        part = dataset
    found = _loaders.get(part) if isinstance(part, PlanSampler | IterableDataset) else None
    loader = None if found is None else found()
    if wrapped is not None and loader is not None:
        _warn_of_padding(loader)
    return loader


def _warn_of_padding(loader: Any) -> None:
    num_padded = loader.position.next_segment().num_padded
    if num_padded and not loader.with_mask:
        warnings.warn(
            f"{several(num_padded, 'prediction')} more than samples: some come twice, so that all "
            "ranks have equally many; use with_mask=True to tell which are real",
            RuntimeWarning,
            stacklevel=4,
        )


def noted(batches: Iterator[Any], batch_sampler: Any) -> Iterator[Any]:
    """Yield batches of indices, and tell them to the wrapper of Lightning if there is one."""
    if not hasattr(batch_sampler, "_batch_sampler"):
        return batches
    batch_sampler.seen_batch_indices = []
    return _noting(batches, batch_sampler.seen_batch_indices)


def _noting(batches: Iterator[Any], seen: list[Any]) -> Iterator[Any]:
    for indices in batches:
        seen.append(indices)
        yield indices


def check_caller(state: Mapping[str, Any]) -> None:
    """Raise if Lightning itself loads a state from the middle of an epoch, without the callback."""
    frame: FrameType | None = sys._getframe(1)
    caller = ""
    while frame is not None and (not caller or _is_below(caller)):
        caller, frame = frame.f_globals.get("__name__", ""), frame.f_back
    if caller.startswith(_PACKAGES) and place_in(state).is_amid:
        raise InvalidValueError(
            "Lightning has read the number of batches before it loads this state, from the middle "
            "of an epoch, so samples could be lost; add "
            "feedline.trainers.lightning.FeedlineCallback() to the callbacks of the Trainer"
        )


def _is_below(module: str) -> bool:
    return module.startswith("feedline.") and not module.startswith("feedline.trainers.")


class SavedPlace(NamedTuple):
    """Where a state was saved: its epoch, and whether that had begun or ended."""

    epoch: int
    has_begun: bool
    has_ended: bool

    @property
    def is_amid(self) -> bool:
        """Whether the state is from the middle of its epoch."""
        return self.has_begun and not self.has_ended

    @property
    def next_epoch(self) -> int:
        """The epoch of the batch that comes next."""
        return self.epoch + self.has_ended


def place_in(state: Mapping[str, Any]) -> SavedPlace:
    """Return the place in a state of a loader; a state that cannot be read is in mid-epoch.

    Examples:
        >>> place_in({"epoch": 2, "cursor": '{"history":[[2,8,5]]}'}).is_amid
        True
    """
    cursor = state.get("cursor")
    if isinstance(cursor, str):
        cursor = json.loads(cursor)
    if isinstance(cursor, Mapping) and "ranks" in cursor:
        cursor = cursor["ranks"][0]
    epoch = int(state.get("epoch", 0))
    if not isinstance(cursor, Mapping):
        return SavedPlace(epoch, True, False)
    has_ended = bool(cursor.get("ended") or cursor.get("has_ended"))
    return SavedPlace(epoch, bool(cursor.get("history") or cursor.get("num_batches")), has_ended)
