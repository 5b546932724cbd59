"""Checks of a loader's arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, IterableDataset, default_convert
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from feedline.errors import InvalidValueError
from feedline.feed import Batching
from feedline.torch.sampler import PlanSampler, SampleSampler

#: A number of workers beyond this is a mistake that would fill the memory with processes.
MAX_WORKERS = 1024


def check_exact(in_order: bool, generator: Any) -> None:
    """Raise if an option of torch's loader would break resuming, or would be ignored."""
    if not in_order:
        raise InvalidValueError(
            "in_order=False must be True: batches that arrive in any order cannot be counted, so "
            "a resumed run would lose some and repeat others; omit it"
        )
    if generator is not None:
        raise InvalidValueError(
            "generator cannot be used: seed= decides the order, the same on every rank; use seed="
        )


def check_dataset(dataset: Any) -> int:
    """Return the number of samples of a map-style dataset, or raise."""
    if isinstance(dataset, IterableDataset):
        raise InvalidValueError(
            f"dataset={type(dataset).__name__} is iterable, and has no samples by number for a "
            "plan or a sampler; omit sampler, or use a map-style dataset"
        )
    check_samples(dataset)
    return len(dataset)


def check_samples(dataset: Any, needs: tuple[str, ...] = ("__len__", "__getitem__")) -> None:
    """Raise unless samples can be read from this by number."""
    lacks = [name for name in needs if not hasattr(type(dataset), name)]
    if hasattr(type(dataset), "__getitems__"):
        lacks = [name for name in lacks if name != "__getitem__"]
    is_text = isinstance(dataset, str | bytes)
    # A mapping of numbers to samples is a dataset; one of columns is not.
    is_columns = isinstance(dataset, Mapping) and len(dataset) > 0 and 0 not in dataset
    if not lacks and not is_text and not is_columns:
        return
    remedy = f"give it {' and '.join(lacks)}"
    if isinstance(dataset, str | bytes | os.PathLike):
        remedy = f"open it with feedline.open({dataset!r:.80})"
    elif isinstance(dataset, type):
        remedy = f"make one, such as {dataset.__name__}()"
    elif is_columns:
        remedy = "pack the columns with feedline.pack, and open them with feedline.open"
    elif dataset is None:
        remedy = "pass the data"
    raise InvalidValueError(
        f"dataset={dataset!r:.80} must be a store, which feedline.open returns, or a map-style "
        f"dataset, with __len__ and __getitem__; {remedy}"
    )


def check_no_batching(
    sampler: Any,
    batch_sampler: Any,
    batch_size: int | None,
    shuffle: bool | None,
    given: Mapping[str, Any],
) -> None:
    """Raise if arguments describe batches that the dataset makes itself."""
    if sampler is not None or batch_sampler is not None or shuffle or batch_size not in (None, 1):
        raise InvalidValueError(
            f"batch_size={batch_size!r}, shuffle={shuffle!r} and samplers cannot be used: the "
            "dataset makes its own batches; configure the dataset instead"
        )
    _check_left_out(given, "the dataset")


def plan_sampler_of(
    sampler: Any,
    batch_sampler: Any,
    batch_size: int | None,
    drop_last: bool,
    given: Mapping[str, Any],
) -> tuple[PlanSampler[Any], Batching]:
    """Return our sampler in what a loader was given, and how its entries make batches."""
    if type(batch_sampler) is BatchSampler:
        sampler, batch_size, batch_sampler, drop_last = (
            *(batch_sampler.sampler, batch_sampler.batch_size, None),
            batch_sampler.drop_last,
        )
    if batch_sampler is None:
        if isinstance(sampler, SampleSampler):
            _check_left_out(given, "the sampler")
            return sampler, Batching(batch_size or 1, drop_last and batch_size is not None)
        if isinstance(sampler, PlanSampler):
            raise InvalidValueError(
                f"sampler={type(sampler).__name__} yields batches; pass it as batch_sampler"
            )
    elif isinstance(batch_sampler, SampleSampler):
        raise InvalidValueError(
            f"batch_sampler={type(batch_sampler).__name__} yields samples; pass it as sampler"
        )
    elif isinstance(batch_sampler, PlanSampler):
        _check_left_out(given, "the sampler")
        return batch_sampler, Batching()
    chosen = sampler if batch_sampler is None else batch_sampler
    raise InvalidValueError(
        f"sampler={type(chosen).__name__} must be a plan or one of Feedline's samplers, which can "
        "resume; use feedline.torch.DistributedSampler"
    )


def _check_left_out(given: Mapping[str, Any], owner: str) -> None:
    """Raise if an argument is given that the sampler or the dataset decides."""
    check_left_out(given, f"because {owner} decides it; set it in {owner}")


def check_left_out(given: Mapping[str, Any], why: str) -> None:
    """Raise if an argument is given that does not fit the others."""
    for name, value in given.items():
        if value is not None:
            raise InvalidValueError(f"{name}={value!r:.80} cannot be used, {why}")


def as_is(batch: Any) -> Any:
    """Return a complete batch unchanged."""
    return batch


def collate_samples(batch: list[Any]) -> Any:
    """Return samples as one batch, as torch does, and single numbers of type uint64 too."""
    return collate(batch, collate_fn_map=_COLLATIONS)


def _collate_uint64(batch: list[Any], *, collate_fn_map: Any = None) -> torch.Tensor:
    # torch makes tensors of such arrays, but not of such numbers.
    return torch.from_numpy(np.array(batch, np.uint64))


_COLLATIONS = {**default_collate_fn_map, np.uint64: _collate_uint64}


def collate_whole(batch: Any) -> Any:
    """Return a fetched batch as tensors: a list of samples is stacked, anything else is a batch."""
    if isinstance(batch, list):
        return collate_samples(batch)
    return default_convert(batch)
