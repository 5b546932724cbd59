"""A data loader for JAX, whose state counts the batches that the training loop has received."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from jax.sharding import NamedSharding

from feedline.errors import InvalidValueError, check_callable, check_flag, check_integer
from feedline.feed import Feed, Pass, Peers, PlannedLoader, Position
from feedline.feed.decoders import Decoder
from feedline.feed.iterables import is_iterable
from feedline.feed.loader import Log
from feedline.feed.map_batches import Fetching, Readers, check_length, num_samples_of
from feedline.feed.preparation import SampleTransform, preparation_for
from feedline.feed.reading import Reading
from feedline.feed.skips import SkipCount
from feedline.feed.store_plans import plan_for_store, plan_given, tail_named
from feedline.jax.ahead import PutAhead
from feedline.jax.mesh import MeshPeers, Placement
from feedline.jax.sources import MapSource, Source, StoreSource
from feedline.plan import Order, Plan, SamplePlan, Sequential, Shuffled
from feedline.plan.seeds import Seed
from feedline.store import is_store
from feedline.store.live_dataset import is_live_dataset, open_live

_MAX_WORKERS = 1024


class DataLoader(PlannedLoader):
    """Batches as JAX arrays over a mesh, with a state that counts the batches it has delivered.

    Each process reads its own part of a batch, and gets the whole as global arrays, the rows of
    rank 0 first. Processes that hold the same rows of a batch, such as those along a model-parallel
    axis, read the same samples. Batches are copied to the devices while the loop computes.

    The state does not depend on what was read ahead. It is the same in every process, and loads on
    any number of processes and with any batch size. When a pass has ended, the next one is the next
    epoch; after `break`, the next one restarts the epoch.

    As everywhere in JAX, 64-bit numbers come as 32-bit ones unless `jax_enable_x64` is set;
    integers that do not fit are an error.

    Args:
        dataset: A store, what `feedline.open` returns: a batch is a dict of arrays, one for each
            column. Or a map-style dataset: a batch is what its samples are, stacked. If it has
            `__getitems__`, a whole batch is fetched at once; if that returns one thing instead of a
            list, this is taken as the batch.
        batch_size: The number of samples in a batch on one rank; a global batch has this many rows
            for each rank.
        shuffle: Shuffle the samples, in a new order in each epoch.
        sampler: A plan or an order of the samples, in place of `shuffle`.
        sharding: How a batch lies on devices: a `NamedSharding` whose first axis is the rows.
            `"auto"` divides the rows over all devices of all processes. None makes arrays of this
            process alone, on its default device. An array with fewer axes than the sharding takes
            its first ones.
        num_ahead: The number of batches that are copied to the devices before they are asked for.
        window: For a store: shuffle within a window of this many samples, or of `"8 chunks"`, so
            that few chunks are read at a time; by default the whole dataset is shuffled.
        seed: The seed of the shuffle and of `sample_transform`, by default 0.
        drop_last: Drop an incomplete last batch; the same as `tail="drop"`.
        tail: What to do with the last samples, if they do not fill a batch on each rank: `"pad"`
            (the default) fills the batch by repeating samples, so that all batches have one shape
            and nothing is compiled twice; `"drop"` drops them; `"exact"` raises an error; `"even"`,
            whose last batches differ in size, needs `sharding=None`.
        transform: A function that is called with each batch of numpy arrays and returns the batch
            to deliver, in as many rows.
        sample_transform: For a store: a function that is called with each sample, a dict, and with
            a random generator of numpy's, and returns the sample to deliver; see
            `docs/transforms.md`. Several threads call it at the same time.
        decode: For a store: how columns of bytes are decoded, before `sample_transform`: `"jpeg"`,
            `"png"`, `"image"` (either, as RGB), `"wav"`, `"npy"`, or a function, by the name of
            the column.
        on_error: What to do with a sample that cannot be decoded or transformed: `"raise"` (the
            default), or `"skip"`. Then another sample of the batch stands in its place, with
            `is_real` False, and `num_skipped` counts it.
        collate_fn: For a map-style dataset: makes a batch of numpy arrays of a list of samples.
        with_mask: Yield `(batch, is_real)` pairs. `is_real` is False where a sample is padding:
            exclude these from a loss or an evaluation.
        num_threads: The number of threads that read ahead; 0 reads in the loop's thread. `"auto"`
            is the cores of this process, divided by the ranks on this machine.
        num_workers: For a map-style dataset: the number of processes that read, instead of threads.
            They are spawned, because JAX does not survive a fork: keep the start of a script under
            `if __name__ == "__main__":`.
        memory_budget: For a store: bytes that the batches read ahead or in use may take; by default
            48 MiB, and 16 MiB for each thread after the first.
        num_replicas: The number of ranks, with `sharding=None`; by default that of JAX's processes.
        rank: The rank of this process, with `sharding=None`; by default its index in JAX.
        peers: The ranks, with `sharding=None`, if `num_replicas` and `rank` are not given.
        log: A folder for a log of every batch, for `feedline audit`; or a recorder. Where processes
            share data, give one process of each rank a `ConsumptionLog`.
        desync_guard: Compare the processes before each epoch.
        desync_timeout: Seconds that the guard waits for the others, where the peers have a limit;
            JAX has its own.

    Examples:
        >>> loader = DataLoader([{"x": i} for i in range(100)], batch_size=10, shuffle=True)
        >>> batches = iter(loader)
        >>> next(batches)["x"].shape, next(batches)["x"].dtype.name
        ((10,), 'int32')
        >>> resumed = DataLoader([{"x": i} for i in range(100)], batch_size=20, shuffle=True)
        >>> resumed.load_state_dict(loader.state_dict())
        >>> sum(len(batch["x"]) for batch in resumed)
        80
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        sampler: Plan | Order | None = None,
        *,
        sharding: NamedSharding | str | None = "auto",
        num_ahead: int = 2,
        window: int | str | None = None,
        seed: Seed | None = None,
        drop_last: bool = False,
        tail: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        sample_transform: SampleTransform | None = None,
        decode: Mapping[str, str | Decoder] | None = None,
        on_error: str = "raise",
        collate_fn: Callable[[Any], Any] | None = None,
        with_mask: bool = False,
        num_threads: int | str = "auto",
        num_workers: int = 0,
        memory_budget: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        peers: Peers | str = "auto",
        log: Log = None,
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        for name, function in (("transform", transform), ("collate_fn", collate_fn)):
            check_callable(name, function)
        batch_size = check_integer("batch_size", batch_size, 1)
        num_workers = check_integer("num_workers", num_workers, 0, _MAX_WORKERS)
        self._num_ahead = check_integer("num_ahead", num_ahead, 0)
        self.with_mask = check_flag("with_mask", with_mask)
        self._skips = SkipCount()
        self._placement = Placement(sharding)
        if self._placement.is_given:
            self._placement.check_batch_size(batch_size)
        reading = Reading(num_threads=num_threads, memory_budget=memory_budget)
        ranks = _ranks(self._placement, num_replicas, rank, peers)
        ranks |= {"desync_guard": desync_guard, "desync_timeout": desync_timeout}
        order: dict[str, Any] = {
            "shuffle": check_flag("shuffle", shuffle),
            "sampler": sampler,
            "seed": seed,
            # Not asked for by a plan, which has a tail of its own.
            "tail": _tail(tail, drop_last, sampler),
            "drop_last": check_flag("drop_last", drop_last),
        }
        dataset = open_live(dataset) if is_live_dataset(dataset) else dataset
        self._check_data: Callable[[], None] | None = None
        if is_store(dataset):
            _check_left_out("a map-style dataset", collate_fn=collate_fn, num_workers=num_workers)
            plan = plan_for_store(dataset, window=window, **order)
            _check_tail(plan, self._placement)
            preparation = preparation_for(
                dataset,
                plan,
                decode=decode,
                sample_transform=sample_transform,
                on_error=on_error,
                seed=seed,
            )
            # The ranks are named by another name there.
            ranks["world_size"] = ranks.pop("num_replicas")
            feed = Feed(
                dataset,
                plan,
                batch_size=batch_size,
                num_threads=reading.num_threads,
                memory_budget=memory_budget,
                **ranks,
            )
            self._source: Source = StoreSource(feed, preparation, transform)
        else:
            _check_left_out(
                "a store",
                window=window,
                sample_transform=sample_transform,
                decode=decode,
                on_error=None if on_error == "raise" else on_error,
                memory_budget=memory_budget,
            )
            plan = _plan_for_samples(dataset, **order)
            _check_tail(plan, self._placement)
            fingerprint = getattr(dataset, "fingerprint", None)
            described = {"dataset": fingerprint if isinstance(fingerprint, str) else None}
            position = Position(plan, batch_size=batch_size, describe=described.copy, **ranks)
            readers = Readers(
                Fetching(dataset, collate_fn), num_threads=reading.count, num_workers=num_workers
            )
            self._source = MapSource(readers, position, transform)
            self._check_data = partial(check_length, dataset, num_samples_of(dataset))
        self._logs_in_folder = isinstance(log, str | os.PathLike)
        super().__init__(self._source.position, log=log)

    @property
    def plan(self) -> Plan:
        """The order of the samples."""
        return self.position.plan

    @property
    def sharding(self) -> NamedSharding | None:
        """The sharding of a batch; None for arrays of this process alone."""
        return self._placement.sharding

    @property
    def num_skipped(self) -> int:
        """The number of samples that were skipped in the batches that this loader delivered."""
        return self._skips.num_skipped

    def _data_shown(self) -> str:
        return self._source.shown

    def _batches(self, running: Pass) -> Iterator[Any]:
        if self._logs_in_folder and self._placement.shares_data:
            raise InvalidValueError(
                "log=FOLDER cannot be used where processes share data: each would log the same "
                "samples; pass log=ConsumptionLog(...) in one process of each rank, and no log in "
                "the others"
            )
        if self._check_data is not None:
            self._check_data()
        # A pass of its own: reading ahead must not move the loop's.
        ahead = Pass(running.segment, running.rank, running.batching)
        ahead.waits = running.waits
        return PutAhead(
            self._source.fetch(ahead),
            running,
            self._placement,
            num_ahead=self._num_ahead,
            with_mask=self.with_mask,
            count=self._skips,
        )

    def close(self) -> None:
        """Close the log, end workers, and close the store's open files."""
        super().close()
        self._source.close()


def _ranks(
    placement: Placement, num_replicas: int | None, rank: int | None, peers: Peers | str
) -> dict[str, Any]:
    """Return who shares the data: JAX's processes, as they lie in the mesh, or as given."""
    is_auto = isinstance(peers, str) and peers == "auto"
    given = {"num_replicas": num_replicas, "rank": rank, "peers": None if is_auto else peers}
    if placement.is_global:
        for name, value in given.items():
            if value is not None:
                raise InvalidValueError(
                    f"{name}={value!r:.80} cannot be used with a sharding, which says what rows "
                    "each process holds; omit it, or use sharding=None"
                )
    if is_auto and num_replicas is None and rank is None:
        return {"num_replicas": None, "rank": None, "peers": MeshPeers(placement)}
    return {"num_replicas": num_replicas, "rank": rank, "peers": peers}


def _tail(tail: str | None, drop_last: bool, sampler: Any) -> str | None:
    if tail is None and not drop_last and not isinstance(sampler, Plan):
        return "pad"
    return tail


def _check_tail(plan: Plan, placement: Placement) -> None:
    """Raise if ranks could get batches of differing sizes, of which no global array is made."""
    if placement.is_global and plan.tail not in ("pad", "drop", "exact"):
        raise InvalidValueError(
            f"tail={plan.tail!r} must be 'pad', 'drop' or 'exact' with a sharding: the last "
            "batches of ranks would differ in size, and a global array needs equal parts; use "
            "tail='pad' and with_mask=True, or sharding=None"
        )


def _check_left_out(needs: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None and value != 0:
            raise InvalidValueError(f"{name}={value!r:.80} cannot be used, it needs {needs}")


def _plan_for_samples(
    dataset: Any,
    *,
    shuffle: bool,
    sampler: Plan | Order | None,
    seed: Seed | None,
    tail: str | None,
    drop_last: bool,
) -> Plan:
    """Return the order of the samples of a map-style dataset."""
    if is_iterable(dataset):
        raise InvalidValueError(
            f"dataset={type(dataset).__name__} is iterable, and has no samples by number; use "
            "feedline.DataLoader, which yields numpy arrays, or a map-style dataset, or pack its "
            "samples with feedline.pack"
        )
    num_samples = num_samples_of(dataset)
    if sampler is not None:
        given = {"shuffle": shuffle or None, "seed": seed}
        return plan_given(sampler, num_samples, tail=tail, drop_last=drop_last, given=given)
    order: Order = Sequential(num_samples=num_samples)
    if shuffle:
        order = Shuffled(num_samples=num_samples, seed=0 if seed is None else seed)
    return SamplePlan(order=order, tail=tail_named(tail, drop_last))
