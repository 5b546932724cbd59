"""A data loader whose state counts the batches that the training loop has received."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Sampler

from feedline.errors import check_callable, check_flag, check_integer
from feedline.feed import Pass, Peers, PlannedLoader, RankOptions, Recorder
from feedline.feed.decoders import Decoder
from feedline.feed.iterables import become, is_iterable
from feedline.feed.map_batches import check_length
from feedline.feed.preparation import SampleTransform
from feedline.feed.skips import SkipCount
from feedline.feed.waits import TimedReads
from feedline.plan import Order, Plan
from feedline.torch.batch_source import SampleOptions, StoreOptions, batch_source
from feedline.torch.delivering import Arriving, Asked, Delivering
from feedline.torch.device.link import Link
from feedline.torch.device.moving import MovedAhead
from feedline.torch.feed_dataset import FeedDataset
from feedline.torch.in_lightning import check_caller, noted, original_of, remember
from feedline.torch.in_trainers import InTrainers
from feedline.torch.iterable_loader import IterableLoader
from feedline.torch.lists import formed
from feedline.torch.loader_arguments import MAX_WORKERS, as_is, check_exact
from feedline.torch.shield import Shielded, born_shielded
from feedline.torch.worker_errors import worker_errors
from feedline.words import several

Item = TypeVar("Item", covariant=True)


class Samples(Protocol[Item]):
    """What a loader reads: a store, a map-style dataset, or one of Feedline's iterable ones."""

    def __getitem__(self, index: Any, /) -> Item: ...


class DataLoader(InTrainers, PlannedLoader, TorchDataLoader[Item]):
    """torch's DataLoader with a state that counts the batches it has delivered.

    Over a store, what `feedline.open` returns, a batch is a dict of tensors, one for each column.
    Over a map-style dataset it is what torch's loader makes of the samples.

    It takes every argument of torch's loader. The state does not depend on workers or prefetching,
    and loading it costs no replay: the next pass begins at the next batch, on any number of ranks
    and workers and with any batch size. When a pass has ended, the next one is the next epoch.

    Args:
        dataset: A store. Or a map-style dataset: if it has `__getitems__`, a whole batch is fetched
            at once; if that returns one thing instead of a list, this is taken as the batch. Or one
            of Feedline's iterable datasets, such as `LazyFolderDataset`, which makes its own
            batches. For another iterable dataset with a state, such as a streaming one of Hugging
            Face, the loader is an `IterableLoader`.
        batch_size: The number of samples in a batch.
        shuffle: Shuffle the samples, in a new order in each epoch; only without a sampler.
        sampler: A plan or an order, such as `feedline.Subset` or `feedline.Weighted`; or one of
            Feedline's samplers of samples.
        batch_sampler: One of Feedline's samplers of batches.
        num_workers: The number of processes that read and transform; 0 reads in this process.
        collate_fn: Makes a batch of the fetched samples; for a store, use `transform`.
        pin_memory: Copy batches into pinned memory before they are delivered.
        drop_last: Drop an incomplete last batch.
        timeout: Seconds to wait for a worker; 0 means no limit.
        worker_init_fn: Called in each worker at its start, with the worker's number.
        multiprocessing_context: How workers are started, such as `"spawn"`.
        generator: Not supported: `seed` decides the order, the same on every rank.
        prefetch_factor: The number of batches that each worker prefetches, by default 2.
        persistent_workers: Keep the workers from one epoch to the next.
        pin_memory_device: The device that memory is pinned for.
        in_order: Must be True: batches that arrive in any order cannot be counted.
        window: For a store: shuffle within a window of this many samples, or of `"8 chunks"`, so
            that few chunks are read at a time; by default the whole dataset is shuffled.
        transform: For a store: a function that is called with each batch, in the workers if there
            are any, and returns the batch to deliver.
        sample_transform: For a store: a function that is called with each sample, a dict of numpy
            arrays, bytes and texts, and with a random generator of numpy's, and returns the sample
            to deliver; see `docs/transforms.md`. The generator depends on the seed, the epoch, the
            sample and the draw alone. It runs in the workers, or else in threads, in several at the
            same time.
        decode: For a store: how columns of bytes are decoded, before `sample_transform`: `"jpeg"`,
            `"png"`, `"image"` (either, as RGB), `"wav"`, `"npy"`, or a function, by the name of
            the column.
        on_error: What to do with a sample that cannot be decoded or transformed: `"raise"` (the
            default), or `"skip"`. Then another sample of the batch stands in its place, with
            `is_real` False, and `num_skipped` counts it.
        lists: For a store: what columns of lists are delivered as. `"list"` (the default) is a
            tensor for each sample; `"padded"` is one tensor with zeros at the end, and a bool
            tensor `"<column>/mask"` that is True where values are; `"nested"` is torch's nested
            tensor. Texts come as `list[str]`, bytes as `list[bytes]`, on any device.
        seed: The seed of the shuffle and of `sample_transform`, if there is no sampler; by default
            0. A plan has its own.
        tail: Without a sampler, what to do with the last samples, if they do not divide evenly over
            the ranks. For a store or with a plan, `"even"` (the default) divides them evenly, each
            once, and repeats some only if there are fewer than ranks; `"pad"` fills the batch by
            repeating samples. For other datasets `"even"` and `"pad"` (the default) are the same:
            they repeat up to one sample a rank. `"drop"` drops the samples (the default with
            `drop_last=True`, and of `DistributedSampler`), and `"exact"` raises an error.
        with_mask: Yield `(batch, is_real)` pairs. `is_real` is False where a sample is padding,
            repeated so that all ranks have equally many: exclude these from an evaluation.
        num_threads: For a store, without workers: the number of threads that read ahead; by default
            the cores of this process, divided by the ranks on this machine.
        memory_budget: For a store: bytes that the batches read ahead or in use may take, in each
            worker if there are any; by default 48 MiB, and 32 MiB for each thread after the first.
        device: The device that batches are delivered on, such as `"cuda"`; they are copied ahead,
            and ready for the current stream. A `transform` gets them there. By default batches stay
            in this process's memory. With a device, `memory_budget` counts pinned memory; its
            default is then 384 MiB and 48 MiB for each thread.
        device_budget: For a store, without workers: bytes of the device's memory for what is copied
            ahead, by default 2 GiB.
        reader_processes: For a store on a device, without workers: the number of processes that the
            reading threads are divided over, so that the training loop does not wait for them; 0
            keeps them in this process. By default one for every three threads if the device is a
            GPU. Stores on object storage, and those with lists, are read in this process.
        log: A folder for a log of every batch, for `feedline audit`; or a recorder, such as a
            `feedline.runs.ConsumptionLog`.
        num_replicas: The number of ranks; by default that of the process group, else 1.
        rank: The rank of this process; by default that in the process group, else 0.
        process_group: The group of ranks that get different data; by default all ranks.
        peers: The ranks, if `num_replicas` and `rank` are not given.
        desync_guard: Compare the ranks before each epoch, if they come from a process group.
        desync_timeout: Seconds that the guard waits for the other ranks.

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
        dataset: Samples[Item],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Plan | Order | Sampler[Any] | None = None,
        batch_sampler: Sampler[list[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        window: int | str | None = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        sample_transform: SampleTransform | None = None,
        decode: Mapping[str, str | Decoder] | None = None,
        on_error: str = "raise",
        lists: str | None = None,
        seed: int | str | None = None,
        tail: str | None = None,
        with_mask: bool = False,
        num_threads: int | str | None = None,
        memory_budget: int | None = None,
        device: torch.device | str | int | None = None,
        device_budget: int | None = None,
        reader_processes: int | None = None,
        log: str | os.PathLike[str] | Recorder | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        process_group: Any = None,
        peers: Peers | str = "auto",
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        if (made := original_of(dataset, sampler, batch_sampler)) is not None:
            self.__dict__.update(made.__getstate__())
            if batch_sampler is not None:
                self.__dict__["batch_sampler"] = batch_sampler
            return
        check_exact(in_order, generator)
        if type(self) is DataLoader and is_iterable(dataset):
            become(self, IterableLoader, locals())
            return
        num_workers = check_integer("num_workers", num_workers, 0, MAX_WORKERS)
        for name, function in (("transform", transform), ("collate_fn", collate_fn)):
            check_callable(name, function)
        source = batch_source(
            dataset,
            SampleOptions(
                batch_size=batch_size,
                shuffle=None if shuffle is None else check_flag("shuffle", shuffle),
                sampler=sampler,
                batch_sampler=batch_sampler,
                collate_fn=collate_fn,
                drop_last=check_flag("drop_last", drop_last),
                seed=seed,
                tail=tail,
                ranks=RankOptions(
                    num_replicas=num_replicas,
                    rank=rank,
                    process_group=process_group,
                    peers=peers,
                    desync_guard=desync_guard,
                    desync_timeout=desync_timeout,
                ),
            ),
            StoreOptions(
                window=window,
                transform=transform,
                sample_transform=sample_transform,
                decode=decode,
                on_error=None if on_error == "raise" else on_error,
                lists=lists,
                num_threads=num_threads,
                memory_budget=memory_budget,
                device=device,
                device_budget=device_budget,
                reader_processes=reader_processes,
            ),
            num_workers,
        )
        TorchDataLoader.__init__(
            self,
            source.dataset,
            batch_size=source.batch_size,
            sampler=source.torch_sampler,
            batch_sampler=source.torch_batch_sampler,
            num_workers=num_workers,
            collate_fn=source.collate_fn,
            pin_memory=pin_memory,
            drop_last=source.drop_last,
            timeout=timeout,
            worker_init_fn=Shielded.around(worker_init_fn),
            multiprocessing_context=multiprocessing_context,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
        )
        if isinstance(source.dataset, FeedDataset):
            # A worker sends all lists of a column as one tensor, unless a function there has them.
            source.dataset.forms_lists = not source.forms_later and (
                not num_workers or source.collate_fn is not as_is
            )
        self._sampler = source.sampler
        self._num_samples = source.num_samples
        # The ways to the device: one for a store's batches, one for those that others make.
        self._feeder = source.feeder
        self._on_device = source.on_device
        self._skips = SkipCount()
        self._link = None if device is None or source.feeder is not None else Link(device)
        self.with_mask = check_flag("with_mask", with_mask)
        #: What torch has asked for in the pass that has begun.
        self.asked_for = Asked()
        PlannedLoader.__init__(self, source.sampler.position, source.batching, log)
        remember(self, source.sampler, *((source.dataset,) if source.is_own else ()))

    @property
    def sampler(self) -> Any:
        """The sampler that decides which samples this rank gets, be it of samples or of batches."""
        return self._sampler

    @sampler.setter
    def sampler(self, sampler: Any) -> None:
        # torch sets it when it is made, to one of its own if the dataset or the sampler makes
        # batches.
        self._torch_sampler = sampler

    @property
    def batch_size(self) -> int | None:
        """The number of samples in a full batch on one rank; None if batches differ."""
        return super().batch_size

    @batch_size.setter
    def batch_size(self, batch_size: int | None) -> None:
        # torch sets it when it is made; what counts is the position's. Lightning makes a loader
        # again with what it finds here.
        self.__dict__["batch_size"] = batch_size

    @property
    def num_skipped(self) -> int:
        """The number of samples that were skipped in the batches that this loader delivered."""
        return self._skips.num_skipped

    def _data_shown(self) -> str:
        held = self.dataset.store if isinstance(self.dataset, FeedDataset) else self.dataset
        workers = f" with {several(self.num_workers, 'worker')}" if self.num_workers else ""
        return f"{type(held).__name__}{workers}"

    def _load_state(self, state: Mapping[str, Any]) -> None:
        check_caller(state)
        self._sampler.load_state_dict(state)

    def _batches(self, running: Pass) -> Iterator[Any]:
        if self._num_samples is not None:
            check_length(self.dataset, self._num_samples)
        self.asked_for = asked = Asked()
        if isinstance(self.dataset, FeedDataset):
            self.dataset.announce(running, self.num_workers, self._feeder)
        elif self._auto_collation:
            asked.batches = noted(self._sampler.batches(running), self.batch_sampler)
        else:
            asked.batches = self._sampler.entries(running)
        form: Callable[[Any], Any] | None = None
        is_formed = self._on_device is not None
        if isinstance(self.dataset, FeedDataset) and not (self.dataset.forms_lists or is_formed):
            form = partial(formed, form=self.dataset.lists)
        made = self._made()
        return Delivering(made, running, asked, self.with_mask, self._device, form, self._skips)

    def _made(self) -> Iterator[Any]:
        """Return the batches of the pass that has begun, before they are delivered."""
        if self._feeder is not None:
            made: Iterator[Any] = iter(self.dataset)
            return map(self.collate_fn, made)
        with born_shielded(self), worker_errors(self._iterator):
            batches: Iterator[Any] = TorchDataLoader.__iter__(self)
        if not isinstance(self.dataset, FeedDataset):
            batches = Arriving(batches, self.asked_for)
        if self.num_workers or not isinstance(self.dataset, FeedDataset):
            # Those of a store are timed where they are read.
            batches = TimedReads(batches, self.waits)
        if self._link is None:
            return batches
        moved = MovedAhead(batches, self._link, ahead=1, waits=self.waits)
        return moved if self._on_device is None else map(self._on_device, moved)

    @property
    def _device(self) -> torch.device | None:
        """The device that batches are delivered on; None if they stay where they are made."""
        link = self._link if self._feeder is None else self._feeder.link
        return None if link is None else link.device

    @property
    def _index_sampler(self) -> Any:
        # What torch takes indices from, in the order in which batches come back.
        return self._torch_sampler if isinstance(self.dataset, FeedDataset) else _Indices(self)

    def _asked(self) -> Any:
        return self.asked_for.latest

    def __getstate__(self) -> dict[str, Any]:
        # A copy resumes at the same position, with its own workers and batches.
        return {**self.__dict__, "asked_for": Asked(), "_iterator": None}

    def close(self) -> None:
        """End persistent workers, close the log, and give back pinned memory."""
        super().close()
        if self._feeder is not None:
            self._feeder.close()
        # torch ends the workers of an iterator when it is dropped.
        self._iterator = None


class _Indices:
    """What torch keeps while its workers live, and iterates over once per pass."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader.asked_for)

    def __len__(self) -> int:
        return len(self._loader)
