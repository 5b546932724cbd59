"""Training loops in the style of torchtitan: a data-parallel rank, a mesh, batches without end.

Needs torch alone. A loader's state is a `Stateful` of `torch.distributed.checkpoint`: it is the
same on every rank, so it is saved once and loads on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from feedline.errors import DesyncError, InvalidValueError, check_integer
from feedline.feed import Alone, LoaderWrapper, Peers, PlannedLoader
from feedline.feed.delegation import asked_of
from feedline.plan import Order, Plan
from feedline.torch import DataLoader, TorchPeers
from feedline.words import several


class DataParallelPeers:
    """The data-parallel ranks of a job whose other processes share their data.

    The processes of one data-parallel rank, which differ in their tensor, pipeline or context
    parallel rank only, get the same batches. All processes of the job are compared before each
    epoch, and they decide together when to stop.

    Args:
        dp_rank: The data-parallel rank of this process.
        dp_world_size: The number of data-parallel ranks.

    Examples:
        >>> peers = DataParallelPeers(1, 4)
        >>> peers.rank, peers.world_size
        (1, 4)
    """

    def __init__(self, dp_rank: int, dp_world_size: int) -> None:
        self.world_size = check_integer("dp_world_size", dp_world_size, 1, 2**31)
        self.rank = check_integer("dp_rank", dp_rank, 0, self.world_size - 1)

    def __repr__(self) -> str:
        return f"DataParallelPeers({self.rank}, {self.world_size})"

    @property
    def reached(self) -> Peers:
        """The processes that this one can communicate with: all of the job."""
        if not dist.is_available() or not dist.is_initialized():
            return Alone()
        return _WholeJob(self.rank, self.world_size)

    maximum = asked_of("reached", "maximum", "Return the largest value of all processes.")
    gather = asked_of("reached", "gather", "Return the values of all processes of the job.")


class _WholeJob(TorchPeers):
    """All processes of a job, each with its data-parallel rank."""

    def __init__(self, dp_rank: int, dp_world_size: int) -> None:
        super().__init__()
        self._dp_rank, self._dp_world_size = dp_rank, dp_world_size

    def gather(self, value: Any, timeout: float) -> list[Any]:
        """Return the values of all processes, or raise unless each rank has as many of them."""
        told = super().gather([self._dp_rank, value], timeout)
        counts = [0] * self._dp_world_size
        for rank, _ in told:
            if rank < self._dp_world_size:
                counts[rank] += 1
        if len(set(counts)) > 1 or sum(counts) != len(told):
            listed = ", ".join(str(rank) for rank, _ in told)
            raise DesyncError(
                f"dp_rank is {listed} on the {len(told)} processes but each of the "
                f"{several(self._dp_world_size, 'data-parallel rank')} must be on equally many; "
                "take dp_rank and dp_world_size from the mesh, with data_parallel_rank(mesh)"
            )
        return [value for _, value in told]


def data_parallel_rank(mesh: DeviceMesh) -> tuple[int, int]:
    """Return the data-parallel rank of this process in a mesh, and the number of such ranks.

    The dimensions whose names begin with `dp`, such as `dp`, `dp_replicate` and `dp_shard`, tell
    ranks with different data. Processes that differ in the others alone (`tp`, `pp`, `cp`) get the
    same.

    Args:
        mesh: The mesh of all processes, with names.
    """
    names = mesh.mesh_dim_names or ()
    dims = [number for number, name in enumerate(names) if name.startswith("dp")]
    if not dims:
        raise InvalidValueError(
            f"mesh_dim_names={names} must have a name that begins with 'dp'; name the dimensions, "
            "or pass dp_rank and dp_world_size"
        )
    place = mesh.get_coordinate()
    if place is None:
        raise InvalidValueError(f"rank {dist.get_rank()} must be in the mesh; use a mesh of all")
    rank, world_size = 0, 1
    for dim in dims:
        rank = rank * mesh.size(dim) + place[dim]
        world_size *= mesh.size(dim)
    return rank, world_size


class Endless(LoaderWrapper):
    """The batches of a loader, epoch after epoch without end.

    Each epoch has its own order, and after the last batch of one comes the first of the next. The
    state is the loader's: it resumes in any epoch, on any number of ranks.

    Args:
        loader: The loader. `len()` is the number of batches in one of its epochs.

    Examples:
        >>> endless = Endless(DataLoader(list(range(6)), 2, shuffle=True))
        >>> batches = iter(endless)
        >>> [next(batches).tolist() for _ in range(4)]
        [[2, 3], [0, 4], [5, 1], [5, 4]]
        >>> endless.epoch, endless.next_epoch
        (1, 1)
    """

    loader: PlannedLoader

    def __init__(self, loader: PlannedLoader) -> None:
        if not isinstance(loader, PlannedLoader):
            raise InvalidValueError(
                f"loader={loader!r:.80} must have the same state on every rank, to be saved once "
                "for all; use a store or a map-style dataset. A loader of an iterable dataset has "
                "a state for each rank: save what its gather_state_dict() returns"
            )
        super().__init__(loader)

    def __iter__(self) -> Iterator[Any]:
        # A loader begins its next epoch by itself, and raises if an epoch has no batch.
        while True:
            yield from self.loader

    next_epoch = asked_of("loader", "next_epoch", PlannedLoader.next_epoch.__doc__)


def build_dataloader(
    dataset: Any,
    dp_rank: int | None = None,
    dp_world_size: int | None = None,
    *,
    mesh: DeviceMesh | None = None,
    batch_size: int = 1,
    shuffle: bool | None = None,
    sampler: Plan | Order | None = None,
    seed: int | str | None = None,
    tail: str | None = None,
    drop_last: bool = False,
    window: int | str | None = None,
    transform: Callable[[dict[str, Any]], Any] | None = None,
    collate_fn: Callable[[Any], Any] | None = None,
    num_workers: int = 0,
    persistent_workers: bool = False,
    pin_memory: bool = False,
    endless: bool = True,
    log: Any = None,
    desync_timeout: float = 60.0,
    options: Mapping[str, Any] | None = None,
) -> Endless | DataLoader[Any]:
    """Return a loader for the processes of a job with data parallelism and other kinds.

    It is what torchtitan calls a data loader: it is iterated over, and has `state_dict` and
    `load_state_dict`. `torch.distributed.checkpoint` saves it as it is, with `async_save` too.

    Args:
        dataset: What `feedline.torch.DataLoader` takes: a store, or a dataset.
        dp_rank: The data-parallel rank of this process; or pass `mesh`.
        dp_world_size: The number of data-parallel ranks.
        mesh: The mesh of all processes, which tells both; see `data_parallel_rank`.
        batch_size: The number of samples in a batch on one data-parallel rank.
        shuffle: Shuffle the samples, in a new order in each epoch.
        sampler: A plan or an order.
        seed: The seed of the shuffle.
        tail: What to do with the last samples of an epoch; see `feedline.torch.DataLoader`.
        drop_last: Drop an incomplete last batch.
        window: For a store: shuffle within a window of this many samples or chunks.
        transform: For a store: a function that is called with each batch.
        collate_fn: Makes a batch of the fetched samples of a dataset.
        num_workers: The number of processes that read and transform.
        persistent_workers: Keep the workers from one epoch to the next.
        pin_memory: Copy batches into pinned memory.
        endless: Begin the next epoch after the last batch of one. Else a pass is one epoch.
        log: A folder for a log of every batch, for `feedline audit`.
        desync_timeout: Seconds to wait for the other processes before each epoch.
        options: More arguments of `feedline.torch.DataLoader`, by name.

    Examples:
        >>> loader = build_dataloader(list(range(4)), 0, 1, batch_size=2, endless=False)
        >>> [batch.tolist() for batch in loader]
        [[0, 1], [2, 3]]
    """
    if mesh is not None:
        if dp_rank is not None or dp_world_size is not None:
            raise InvalidValueError(
                f"dp_rank={dp_rank} and dp_world_size={dp_world_size} cannot be used with mesh, "
                "which decides them; omit them"
            )
        dp_rank, dp_world_size = data_parallel_rank(mesh)
    if dp_rank is None or dp_world_size is None:
        raise InvalidValueError(
            f"dp_rank={dp_rank} and dp_world_size={dp_world_size} must both be given; pass them, "
            "or mesh"
        )
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size,
        shuffle,
        sampler,
        num_workers=num_workers,
        collate_fn=collate_fn,
        pin_memory=pin_memory,
        drop_last=drop_last,
        persistent_workers=persistent_workers,
        window=window,
        transform=transform,
        seed=seed,
        tail=tail,
        log=log,
        peers=DataParallelPeers(dp_rank, dp_world_size),
        desync_timeout=desync_timeout,
        **(options or {}),
    )
    # A loop over one epoch at a time needs the same of its loader.
    found = Endless(loader)
    return found if endless else loader
