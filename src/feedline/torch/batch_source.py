"""The source of a loader's batches: a store, the user's dataset, or one of Feedline's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from feedline.errors import InvalidValueError, check_choice, check_integer
from feedline.feed import Batching, DataPlan, RankOptions, Reading
from feedline.feed.called import called
from feedline.feed.preparation import SampleTransform, preparation_for
from feedline.feed.store_plans import TAILS, check_fitting, plan_for_store, plan_given
from feedline.plan import Order, Plan, SamplePlan, Sequential, Shuffled
from feedline.store import Store, is_store
from feedline.torch.delivering import InTurn, OnColumns
from feedline.torch.device.feeder import DEVICE_BUDGET, Feeder
from feedline.torch.feed_dataset import FeedDataset
from feedline.torch.lists import formed
from feedline.torch.loader_arguments import (
    as_is,
    check_dataset,
    check_left_out,
    check_no_batching,
    check_samples,
    collate_samples,
    collate_whole,
    plan_sampler_of,
)
from feedline.torch.sampler import BatchPlanSampler, PlanSampler, SampleSampler, describe_dataset


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """The arguments of a loader that decide which samples are in which batch, on which rank."""

    batch_size: int | None
    shuffle: bool | None
    sampler: Any
    batch_sampler: Any
    collate_fn: Callable[[Any], Any] | None
    drop_last: bool
    seed: int | str | None
    tail: str | None
    ranks: RankOptions

    @property
    def given(self) -> dict[str, Any]:
        """The given arguments that a sampler or a dataset may already decide."""
        defaults = {"peers": "auto", "desync_guard": True, "desync_timeout": 60.0}
        ranks = {name: value for name, value in self.ranks.items() if value != defaults.get(name)}
        return {"seed": self.seed, "tail": self.tail, **ranks}


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """The arguments of a loader that only apply to a store; None means the default."""

    window: int | str | None
    transform: Callable[[Any], Any] | None
    sample_transform: SampleTransform | None
    decode: Mapping[str, Any] | None
    on_error: str | None
    lists: str | None
    num_threads: int | str | None
    memory_budget: int | None
    device: Any
    device_budget: int | None
    reader_processes: int | None

    @property
    def reading(self) -> Reading:
        """How the store is read."""
        num_threads = "auto" if self.num_threads is None else self.num_threads
        return Reading(num_threads=num_threads, memory_budget=self.memory_budget)

    def feeder(self, dataset: FeedDataset[Any], num_workers: int) -> Feeder | None:
        """Return the way to the device; None if batches are moved one by one, or stay here."""
        is_prepared = dataset.preparation is not None
        if self.device is None or num_workers or is_prepared:
            reason = "num_workers=0" if num_workers else "a device"
            if is_prepared:
                reason = "whole slabs, and with decode or sample_transform batches come one by one"
            for name in ("device_budget", "reader_processes"):
                if getattr(self, name) is not None:
                    raise InvalidValueError(f"{name}={getattr(self, name)!r:.80} needs {reason}")
            return None
        budget = DEVICE_BUDGET if self.device_budget is None else self.device_budget
        return Feeder(self.device, dataset.reading, budget, self.reader_processes)


@dataclass(frozen=True, kw_only=True)
class BatchSource:
    """The arguments of torch's loader, and the sampler that counts.

    `torch_sampler` and `torch_batch_sampler` are passed to torch's two arguments. `on_device`
    changes a batch that was moved to the device; lists are formed after the move if `forms_later`.
    A dataset that nobody else has `is_own`. `num_samples` is the length of the dataset that the
    order was made for, if the loader made it.
    """

    dataset: Any
    sampler: PlanSampler[Any]
    batching: Batching
    collate_fn: Callable[[Any], Any] | None
    batch_size: int | None = None
    torch_sampler: Any = None
    torch_batch_sampler: Any = None
    drop_last: bool = False
    feeder: Feeder | None = None
    on_device: Callable[[Any], Any] | None = None
    forms_later: bool = False
    is_own: bool = False
    num_samples: int | None = None


def batch_source(
    dataset: Any, samples: SampleOptions, store: StoreOptions, num_workers: int
) -> BatchSource:
    """Return the source of a loader's batches, or raise if its arguments do not fit together."""
    is_plan = isinstance(samples.sampler, Plan | Order)
    if is_plan and samples.batch_sampler is not None:
        raise InvalidValueError("batch_sampler cannot be used when sampler is a plan; omit it")
    is_read = is_store(dataset) and (
        is_plan or (samples.sampler is None and samples.batch_sampler is None)
    )
    if is_read:
        source = _of_feed(_feed_dataset(dataset, samples, store), samples, store, num_workers)
        return replace(source, is_own=True)
    needs_store = {name: value for name, value in vars(store).items() if name != "device"}
    if isinstance(dataset, FeedDataset):
        needs_store.pop("device_budget")
        needs_store.pop("reader_processes")
    check_left_out(needs_store, "it needs a store, and no sampler")
    if isinstance(dataset, FeedDataset):
        check_no_batching(
            *(samples.sampler, samples.batch_sampler, samples.batch_size, samples.shuffle),
            samples.given,
        )
        return _of_feed(dataset, samples, store, num_workers)
    if is_plan:
        return _of_plan(dataset, samples)
    if samples.sampler is not None or samples.batch_sampler is not None:
        return _of_samplers(dataset, samples)
    num_samples = check_dataset(dataset)
    samples = replace(samples, sampler=_own_sampler(dataset, num_samples, samples), shuffle=None)
    samples = replace(samples, seed=None, tail=None, ranks=RankOptions())
    return replace(_of_samplers(dataset, samples), num_samples=num_samples)


def _feed_dataset(
    store: Store, samples: SampleOptions, options: StoreOptions
) -> FeedDataset[dict[str, Any]]:
    if samples.batch_size is None:
        raise InvalidValueError(
            "batch_size=None must be an integer of at least 1: a store is read in batches"
        )
    plan = plan_for_store(
        store,
        shuffle=bool(samples.shuffle),
        sampler=samples.sampler,
        window=options.window,
        seed=samples.seed,
        tail=samples.tail,
        drop_last=samples.drop_last,
    )
    dataset: FeedDataset[dict[str, Any]] = FeedDataset(
        store,
        DataPlan(plan=plan, store=store),
        batch_size=check_integer("batch_size", samples.batch_size, 1),
        reading=options.reading,
        lists=options.lists or "list",
        **samples.ranks,
    )
    dataset.preparation = preparation_for(
        store,
        plan,
        decode=options.decode,
        sample_transform=options.sample_transform,
        on_error="raise" if options.on_error is None else options.on_error,
        seed=samples.seed,
    )
    return dataset


def _of_feed(
    dataset: FeedDataset[Any], samples: SampleOptions, store: StoreOptions, num_workers: int
) -> BatchSource:
    """Batches that a dataset makes itself; torch only carries them."""
    transform = store.transform
    if transform is not None and samples.collate_fn is not None:
        raise InvalidValueError("collate_fn and transform do the same for a store; use one of them")
    changes = transform or samples.collate_fn
    if changes is not None:
        # What a worker changes travels by torch's own ways, which must not reuse a batch's memory.
        dataset.lends_memory = False
        name = "collate_fn" if transform is None else "transform"
        changes = partial(called, name, changes)
    source = BatchSource(
        dataset=dataset,
        sampler=dataset.batches,
        batching=Batching(),
        collate_fn=changes or as_is,
        feeder=store.feeder(dataset, num_workers),
    )
    if dataset.preparation is None:
        return source
    if store.device is None or num_workers:
        return replace(source, collate_fn=as_is if changes is None else OnColumns(changes))
    # The change gets a batch that is on the device, with lists as the user asked.
    form = partial(formed, form=dataset.lists)
    on_device = None if changes is None else OnColumns(InTurn(form, changes))
    return replace(source, collate_fn=as_is, on_device=on_device, forms_later=True)


def _of_plan(dataset: Any, samples: SampleOptions) -> BatchSource:
    """Batches of the user's dataset in the order of a plan."""
    if samples.batch_size is None:
        raise InvalidValueError("batch_size=None must be an integer of at least 1 with a plan")
    plan = plan_given(
        samples.sampler,
        check_dataset(dataset),
        tail=samples.tail,
        drop_last=samples.drop_last,
        given={"shuffle": samples.shuffle or None, "seed": samples.seed},
    )
    sampler = BatchPlanSampler(
        plan,
        batch_size=check_integer("batch_size", samples.batch_size, 1),
        describe=partial(describe_dataset, dataset),
        **samples.ranks,
    )
    return BatchSource(
        dataset=dataset,
        sampler=sampler,
        batching=Batching(),
        collate_fn=_collation(dataset, samples.collate_fn),
        batch_size=1,
        torch_batch_sampler=sampler,
    )


def _own_sampler(dataset: Any, num_samples: int, samples: SampleOptions) -> SampleSampler:
    order: Order = Sequential(num_samples=num_samples)
    if samples.shuffle:
        order = Shuffled(num_samples=num_samples, seed=0 if samples.seed is None else samples.seed)
    tail = samples.tail
    if tail is None:
        tail = "drop" if samples.drop_last else "pad"
    return SampleSampler(
        SamplePlan(order=order, tail=check_choice("tail", tail, TAILS)),
        describe=partial(describe_dataset, dataset),
        **samples.ranks,
    )


def _of_samplers(dataset: Any, samples: SampleOptions) -> BatchSource:
    """Batches of the user's dataset in the order of one of our samplers."""
    check_samples(dataset, ("__getitem__",))
    if samples.batch_size is not None:
        # torch refuses the integers of numpy, with an error that shows a sound number.
        samples = replace(samples, batch_size=check_integer("batch_size", samples.batch_size, 1))
    makes_batches = samples.batch_sampler is not None or samples.batch_size is not None
    sampler, batching = plan_sampler_of(
        *(samples.sampler, samples.batch_sampler, samples.batch_size, samples.drop_last),
        {"shuffle": samples.shuffle or None, **samples.given},
    )
    if hasattr(type(dataset), "__len__"):
        check_fitting(sampler.plan, len(dataset), "sampler")
    collate_fn = samples.collate_fn
    return BatchSource(
        dataset=dataset,
        sampler=sampler,
        batching=batching,
        collate_fn=_collation(dataset, collate_fn) if makes_batches else collate_fn,
        batch_size=samples.batch_size,
        torch_sampler=samples.sampler,
        torch_batch_sampler=samples.batch_sampler,
        drop_last=samples.drop_last,
    )


def _collation(dataset: Any, collate_fn: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    """Return the collate function: a batch that was fetched whole is not stacked."""
    if collate_fn is not None:
        return collate_fn
    return collate_whole if hasattr(dataset, "__getitems__") else collate_samples
