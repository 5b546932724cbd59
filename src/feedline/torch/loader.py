"""A data loader that knows what the training loop has received."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from feedline.errors import check_choice
from feedline.feed import Batching, Pass, PlannedLoader, RankOptions, Recorder
from feedline.plan import Order, SamplePlan, Sequential, Shuffled
from feedline.runs import RunLog
from feedline.torch.feed_dataset import FeedDataset
from feedline.torch.loader_arguments import (
    as_is,
    check_dataset,
    check_exact,
    check_no_batching,
    collate_whole,
    plan_sampler_of,
)
from feedline.torch.sampler import PlanSampler, SampleSampler, describe_dataset
from feedline.torch.shield import Shielded, born_shielded

Item = TypeVar("Item")
_TAILS = ("drop", "pad", "even", "exact")
_RANK_OPTIONS = tuple(RankOptions.__annotations__)


class DataLoader(PlannedLoader, TorchDataLoader[Item]):  # type: ignore[misc]
    """torch's DataLoader with a state that counts the batches it has delivered.

    It takes every argument of torch's loader. The state does not depend on workers or prefetching,
    and loading it costs no replay: the next pass begins at the next batch, on any number of ranks
    and workers and with any batch size. When a pass has ended, the next one is the next epoch.

    Args:
        dataset: A map-style dataset. If it has `__getitems__`, a whole batch is fetched at once; if
            that returns one thing instead of a list, this is taken as the batch. Or one of
            Feedline's iterable datasets, such as `LazyFolderDataset`, which makes its own batches.
        batch_size: The number of samples in a batch, with `sampler`.
        shuffle: Without a sampler, whether samples are shuffled.
        sampler: One of Feedline's samplers of samples.
        batch_sampler: One of Feedline's samplers of batches.
        seed: The seed of the order, where this loader decides it; by default 0.
        tail: Without a sampler, what happens to samples that do not divide evenly over the ranks:
            `"pad"` repeats the first ones (the default; see `with_mask`), `"drop"` leaves them out
            (the default with `drop_last=True`, and that of `DistributedSampler`), `"even"` is
            `"pad"` here, and `"exact"` raises an error.
        with_mask: Yield `(batch, is_real)` pairs. `is_real` is False where a sample is padding,
            that is, repeated so that all ranks have as many: leave these out of an evaluation.
        log: A folder for a log of every batch, for `feedline audit`; or a recorder, such as a
            `feedline.runs.ConsumptionLog`.
        **options: What torch's DataLoader takes, where `drop_last` leaves out an incomplete last
            batch; and, where neither a sampler nor the dataset says it, who the ranks are:
            `num_replicas`, `rank`, `process_group`, `peers`, `desync_guard` and `desync_timeout`;
            see `feedline.feed.RankOptions`.

    Examples:
        >>> loader = DataLoader(list(range(100)), batch_size=10, shuffle=True)
        >>> batches = iter(loader)
        >>> _ = next(batches), next(batches)
        >>> resumed = DataLoader(list(range(100)), batch_size=25, shuffle=True)
        >>> resumed.load_state_dict(loader.state_dict())
        >>> sum(len(batch) for batch in resumed)
        80
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any | None = None,
        batch_sampler: Any | None = None,
        *,
        seed: int | str | None = None,
        tail: str | None = None,
        with_mask: bool = False,
        log: str | os.PathLike[str] | Recorder | None = None,
        **options: Any,
    ) -> None:
        check_exact(options)
        ranks = {name: options.pop(name) for name in _RANK_OPTIONS if name in options}
        given = {"seed": seed, "tail": tail, **ranks}
        drop_last = bool(options.get("drop_last", False))
        # In batches of the dataset's own making, or one by one, torch must not make batches.
        makes_batches = batch_sampler is not None or batch_size is not None
        if isinstance(dataset, FeedDataset):
            check_no_batching(sampler, batch_sampler, batch_size, shuffle, given)
            plan_sampler: PlanSampler[Any] = dataset.batches
            batching, makes_batches, batch_size = Batching(), False, None
            options.setdefault("collate_fn", as_is)
        elif sampler is None and batch_sampler is None:
            num_samples = check_dataset(dataset)
            order: Order = Sequential(num_samples=num_samples)
            if shuffle:
                order = Shuffled(num_samples=num_samples, seed=0 if seed is None else seed)
            if tail is None:
                tail = "drop" if drop_last else "pad"
            plan_sampler = SampleSampler(
                SamplePlan(order=order, tail=check_choice("tail", tail, _TAILS)),
                describe=partial(describe_dataset, dataset),
                **ranks,
            )
            sampler, shuffle = plan_sampler, None
            batching = Batching(batch_size or 1, drop_last and makes_batches)
        else:
            plan_sampler, batching = plan_sampler_of(
                sampler, batch_sampler, batch_size, drop_last, given
            )
        if makes_batches and hasattr(dataset, "__getitems__") and not options.get("collate_fn"):
            options["collate_fn"] = collate_whole
        options["worker_init_fn"] = Shielded.around(options.get("worker_init_fn"))
        TorchDataLoader.__init__(
            self,
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            **options,
        )
        self._sampler = plan_sampler
        self.with_mask = with_mask
        #: What torch has asked for in the pass that has begun.
        self.asked_for = _Asked()
        recorder = RunLog(log, self) if isinstance(log, str | os.PathLike) else log
        PlannedLoader.__init__(self, plan_sampler.position, batching, recorder)

    @property
    def batch_size(self) -> int | None:
        """The number of samples of a full batch on one rank; None if batches differ."""
        return super().batch_size

    @batch_size.setter
    def batch_size(self, batch_size: int | None) -> None:
        # torch sets it when it is made; what counts is the position's.
        pass

    def _load_state(self, state: Mapping[str, Any]) -> None:
        self._sampler.load_state_dict(state)

    def _batches(self, running: Pass) -> Iterator[Any]:
        self.asked_for = asked = _Asked()
        if isinstance(self.dataset, FeedDataset):
            self.dataset.announce(running, self.num_workers)
        elif self._auto_collation:
            asked.batches = self._sampler.batches(running)
        else:
            asked.batches = self._sampler.entries(running)
        with born_shielded(self):
            return _Delivering(TorchDataLoader.__iter__(self), running, asked, self.with_mask)

    @property
    def _index_sampler(self) -> Any:
        # What torch takes indices from, in the order in which batches come back.
        return super()._index_sampler if isinstance(self.dataset, FeedDataset) else _Indices(self)

    def _asked(self) -> Any:
        return self.asked_for.latest

    def __getstate__(self) -> dict[str, Any]:
        # A copy goes on at the same place, with workers and batches of its own.
        return {**self.__dict__, "asked_for": _Asked(), "_iterator": None}

    def close(self) -> None:
        """End the workers that are kept from one epoch to the next, and the log."""
        super().close()
        # torch ends the workers of an iterator when it is dropped.
        self._iterator = None


class _Indices:
    """What torch keeps for as long as its workers live, and iterates over once a pass."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader.asked_for)

    def __len__(self) -> int:
        return len(self._loader)


class _Asked:
    """The indices that torch takes from a pass, noted until their batch has come."""

    def __init__(self) -> None:
        self.batches: Iterator[Any] = iter(())
        self.waiting: deque[Any] = deque()
        #: What was asked for to get the latest batch; None of a dataset that is not asked.
        self.latest: Any = None

    def __iter__(self) -> Iterator[Any]:
        # A generator, because torch makes an iterator twice at times and uses the second one.
        for indices in self.batches:
            self.waiting.append(indices)
            yield indices

    def take(self) -> None:
        """Take note that a batch has come, or has failed."""
        self.latest = self.waiting.popleft() if self.waiting else None


@dataclass(eq=False)
class _Delivering(Iterator[Any]):
    """An iterator of torch's loader that tells its pass what it hands out."""

    batches: Iterator[Any]
    running: Pass
    asked: _Asked
    with_mask: bool
    num_failed: int = 0

    def __next__(self) -> Any:
        try:
            batch = next(self.batches)
        except StopIteration:
            raise
        except Exception:
            # The loop may go on after an error; then the batch that failed has been passed over.
            self.num_failed += 1
            self.asked.take()
            raise
        self.running.deliver(1 + self.num_failed)
        self.num_failed = 0
        self.asked.take()
        return (batch, self._mask()) if self.with_mask else batch

    def _mask(self) -> torch.Tensor:
        block = self.running.planned(self.running.num_delivered - 1)
        if block.is_real is None:
            return torch.ones(len(block.indices), dtype=torch.bool)
        return torch.from_numpy(block.is_real)

    def __len__(self) -> int:
        return self.running.num_batches
