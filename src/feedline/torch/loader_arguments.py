"""What a loader makes of the arguments that it is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, default_collate, default_convert

from feedline.errors import InvalidValueError
from feedline.torch.distributed import SampleSampler
from feedline.torch.plan_sampler import PlanSampler

__all__ = ["SampleBatches", "as_is", "check_no_batching", "collate_whole", "plan_sampler_of"]


def check_no_batching(
    sampler: Any, batch_sampler: Any, batch_size: int | None, shuffle: bool | None
) -> None:
    """Raise if batches are described that the dataset itself makes."""
    if sampler is not None or batch_sampler is not None or shuffle or batch_size not in (None, 1):
        raise InvalidValueError(
            f"batch_size={batch_size!r}, shuffle={shuffle!r} and samplers must be left out: the "
            "dataset makes its own batches; set these in its configuration"
        )


def plan_sampler_of(
    sampler: Any, batch_sampler: Any, batch_size: int | None
) -> tuple[PlanSampler[Any], int]:
    """Return our sampler in what a loader was given, and how many of its entries make a batch."""
    if type(batch_sampler) is BatchSampler:
        sampler, batch_size, batch_sampler = batch_sampler.sampler, batch_sampler.batch_size, None
    if batch_sampler is None:
        if isinstance(sampler, SampleSampler):
            return sampler, batch_size or 1
        if isinstance(sampler, PlanSampler):
            raise InvalidValueError(
                f"sampler={type(sampler).__name__} yields batches; give it as batch_sampler"
            )
    elif isinstance(batch_sampler, PlanSampler) and not isinstance(batch_sampler, SampleSampler):
        return batch_sampler, 1
    elif isinstance(batch_sampler, SampleSampler):
        raise InvalidValueError(
            f"batch_sampler={type(batch_sampler).__name__} yields samples; give it as sampler"
        )
    chosen = sampler if batch_sampler is None else batch_sampler
    raise InvalidValueError(
        f"sampler={type(chosen).__name__} must be one of Feedline's, which know their place; use "
        "feedline.torch.DistributedSampler or another of its samplers"
    )


class SampleBatches(BatchSampler):
    """torch's BatchSampler around one of our samplers, cutting batches out of whole blocks."""

    def __iter__(self) -> Iterator[list[int]]:
        assert isinstance(self.sampler, SampleSampler)
        return self.sampler.batches(self.batch_size, self.drop_last)


def as_is(batch: Any) -> Any:
    """Return a batch that a dataset has made, as it is."""
    return batch


def collate_whole(batch: Any) -> Any:
    """Return a fetched batch as tensors: a list of samples is stacked, anything else is a batch."""
    return default_collate(batch) if isinstance(batch, list) else _convert(batch)


def _convert(batch: Any) -> Any:
    # torch leaves this function untyped.
    return default_convert(batch)  # type: ignore[no-untyped-call]
