"""`feedline.DataLoader`: batches of a store as dicts of numpy arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from feedline.errors import check_callable, check_flag
from feedline.feed.called import called
from feedline.feed.decoders import Decoder
from feedline.feed.feed import FedBatch, Feed
from feedline.feed.iterable_arrays import IterableArrays
from feedline.feed.iterables import become, is_iterable
from feedline.feed.loader import PlannedLoader
from feedline.feed.logged import Recorder
from feedline.feed.passes import Pass
from feedline.feed.peers import Peers
from feedline.feed.preparation import Prepared, SampleTransform, preparation_for
from feedline.feed.prepared import PreparedPass
from feedline.feed.skips import SkipCount, marks_in
from feedline.feed.store_plans import plan_for_store
from feedline.plan import Order, Plan
from feedline.plan.seeds import Seed
from feedline.store import Store
from feedline.store.columns import Arrays, as_numbers
from feedline.store.live_dataset import is_live_dataset, open_live
from feedline.store.protocol import check_store

_OTHERS = " (feedline.torch.DataLoader takes datasets of your own too)"


class DataLoader(PlannedLoader):
    """Batches of a store as dicts of numpy arrays, one array a column.

    The state counts the batches that the loop has received, and loads on any number of ranks and
    with any batch size. When a pass has ended, the next one is the next epoch; after `break`, the
    next one restarts the epoch. `feedline.torch.DataLoader` is the same with tensors.

    Columns of type bfloat16 come as float32, which holds the same values.

    Args:
        store: The samples: what `feedline.open` returns, or a `datasets.Dataset` of Hugging Face.
            For an iterable dataset with a state, such as a streaming one of Hugging Face, the
            loader is an `IterableArrays`.
        batch_size: The number of samples in a batch.
        shuffle: Shuffle the samples, in a new order in each epoch.
        sampler: A plan or an order of the samples, in place of `shuffle`.
        window: Shuffle within a window of this many samples, or of `"8 chunks"`, so that few chunks
            are read at a time; by default the whole dataset is shuffled.
        seed: The seed of the shuffle and of `sample_transform`, by default 0.
        drop_last: Drop an incomplete last batch; the same as `tail="drop"`.
        tail: What to do with the last samples, if they do not fill a batch on each rank: `"even"`
            (the default) divides them evenly, each once, and repeats some only if there are fewer
            than ranks; `"pad"` fills the batch by repeating samples; `"drop"` drops them; `"exact"`
            raises an error.
        transform: A function that is called with each batch and returns the batch to deliver.
        sample_transform: A function that is called with each sample, a dict, and with a random
            generator of numpy's, and returns the sample to deliver; see `docs/transforms.md`. The
            generator depends on the seed, the epoch, the sample and the draw alone. Several threads
            call the function at the same time.
        decode: How columns of bytes are decoded, before `sample_transform`: `"jpeg"`, `"png"`,
            `"image"` (either, as RGB), `"wav"`, `"npy"`, or a function, by the name of the column.
        on_error: What to do with a sample that cannot be decoded or transformed: `"raise"` (the
            default), or `"skip"`. Then another sample of the batch stands in its place, with
            `is_real` False, and `num_skipped` counts it.
        with_mask: Yield `(batch, is_real)` pairs. `is_real` is False where a sample is padding.
        num_threads: The number of threads that read ahead; 0 reads in the loop's thread. `"auto"`
            is the cores of this process, divided by the ranks on this machine.
        memory_budget: Bytes that the batches read ahead or in use may take; by default 48 MiB,
            and 32 MiB for each thread after the first.
        num_replicas: The number of ranks; by default that of the process group, else 1.
        rank: The rank of this process; by default that in the process group, else 0.
        peers: The ranks, if `num_replicas` and `rank` are not given.
        log: A folder for a log of every batch, for `feedline audit`; or a recorder.
        desync_guard: Compare the ranks before each epoch, if they come from a process group.
        desync_timeout: Seconds that the guard waits for the other ranks.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> import feedline
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = feedline.pack({"x": np.arange(100)}, f"{folder.name}/data")
        >>> store = feedline.open(f"{folder.name}/data")
        >>> with DataLoader(store, batch_size=10, shuffle=True) as loader:
        ...     seen = [int(x) for batch in loader for x in batch["x"]]
        >>> sorted(seen) == list(range(100))
        True
        >>> folder.cleanup()
    """

    def __init__(
        self,
        store: Store,
        batch_size: int = 1,
        shuffle: bool = False,
        sampler: Plan | Order | None = None,
        *,
        window: int | str | None = None,
        seed: Seed | None = None,
        drop_last: bool = False,
        tail: str | None = None,
        transform: Callable[[Arrays], Any] | None = None,
        sample_transform: SampleTransform | None = None,
        decode: Mapping[str, str | Decoder] | None = None,
        on_error: str = "raise",
        with_mask: bool = False,
        num_threads: int | str = "auto",
        memory_budget: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        peers: Peers | str = "auto",
        log: str | os.PathLike[str] | Recorder | None = None,
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        if type(self) is DataLoader and is_iterable(store):
            become(self, IterableArrays, locals())
            return
        store = open_live(store) if is_live_dataset(store) else store
        check_store("store", store, others=_OTHERS)
        check_callable("transform", transform)
        plan = plan_for_store(
            store,
            shuffle=check_flag("shuffle", shuffle),
            sampler=sampler,
            window=window,
            seed=seed,
            tail=tail,
            drop_last=check_flag("drop_last", drop_last),
        )
        self.store = store
        self._preparation = preparation_for(
            store,
            plan,
            decode=decode,
            sample_transform=sample_transform,
            on_error=on_error,
            seed=seed,
        )
        self._skips = SkipCount()
        self.transform = transform
        self.with_mask = check_flag("with_mask", with_mask)
        self._feed = Feed(
            store,
            plan,
            batch_size=batch_size,
            world_size=num_replicas,
            rank=rank,
            num_threads=num_threads,
            memory_budget=memory_budget,
            peers=peers,
            desync_guard=desync_guard,
            desync_timeout=desync_timeout,
        )
        super().__init__(self._feed.position, log=log)

    @property
    def plan(self) -> Plan:
        """The order of the samples."""
        return self._feed.plan

    @property
    def num_skipped(self) -> int:
        """The number of samples that were skipped in the batches that this loader delivered."""
        return self._skips.num_skipped

    def _data_shown(self) -> str:
        return type(self.store).__name__

    def _batches(self, running: Pass) -> Iterator[Any]:
        if self._preparation is None:
            return self._feed.read(running, self._make, in_place=True)
        batches = self._feed.prepare(running, self._preparation)
        return PreparedPass(batches, running, partial(self._make_prepared, running), self._skips)

    def _make(self, batch: FedBatch) -> Any:
        made: Any = as_numbers(self.store.columns, batch.arrays)
        made = called("transform", self.transform, made)
        return (made, batch.is_real) if self.with_mask else made

    def _make_prepared(self, running: Pass, batch: Prepared, number: int) -> Any:
        assert self._preparation is not None
        made: Any = batch.columns
        if untouched := self._preparation.untouched:
            columns = self.store.columns
            made |= as_numbers(columns, {name: made[name] for name in untouched})
        made = called("transform", self.transform, made)
        return (made, marks_in(running.planned(number), batch.skips)) if self.with_mask else made

    def close(self) -> None:
        """Close the log and the store's open files."""
        super().close()
        self._feed.close()
