"""Feedline's loaders in Ray Train, and packed stores in Ray Data; see `docs/trainers/ray.md`.

Needs the extra `feedline[ray]`. In a worker of Ray Train a loader finds its rank by itself, and
`ray.train.torch.prepare_data_loader` passes loaders of `feedline.torch` on.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from feedline.errors import CursorFormatError, InvalidValueError, MissingDataError, check_integer
from feedline.feed import LoaderWrapper, PlannedLoader
from feedline.feed.iterable_loader import IterableLoader
from feedline.lazy import moved
from feedline.store.writing import open_whole
from feedline.trainers.ray_board import Meeting

if TYPE_CHECKING:
    from feedline.trainers.ray_data import StoreDatasource, read_store

# Ray Data is imported only by those who read with it.
_MOVED = {
    "StoreDatasource": "feedline.trainers.ray_data",
    "read_store": "feedline.trainers.ray_data",
}
__getattr__ = moved(__name__, _MOVED)

__all__ = ["RayPeers", "StoreDatasource", "load_state", "read_store", "save_state"]

#: The file of a checkpoint that has the states.
STATES = "feedline.json"
_VERSION = 1
# Where Ray makes the loader that moves batches, by name; the second is that of Ray Train V2.
WRAPPER = "_WrappedDataLoader"
WRAPPER_MODULES = ("ray.train.torch.train_loop_utils", "ray.train.v2.torch.train_loop_utils")

# V1 tells here whether this process is a worker, and V2 there whether it is in use.
SESSION = "ray.train._internal.session"
V2_CONSTANTS = "ray.train.v2._internal.constants"
# What Ray's storage has that tells runs apart; a trial is one of V1.
STORAGE_NAMES = ("storage_fs_path", "experiment_dir_name", "trial_dir_name")

# The latest meeting of this process, and the attempt that it is for.
_meetings: dict[tuple[str, int, int], Meeting] = {}


class RayPeers:
    """The workers of a Ray Train run; `peers="auto"` finds them.

    Rank and world size are those of `ray.train.get_context()`. Where the workers have a group of
    torch or JAX, Feedline uses that to communicate; else the workers meet at an actor of Ray.

    Args:
        rank: The rank of this worker.
        world_size: The number of workers.

    Examples:
        >>> peers = RayPeers(0, 1)
        >>> peers.rank, peers.world_size, peers.gather("here", timeout=60)
        (0, 1, ['here'])
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self.world_size = check_integer("world_size", world_size, 1, 2**31)
        self.rank = check_integer("rank", rank, 0, self.world_size - 1)

    def __repr__(self) -> str:
        return f"<RayPeers: rank {self.rank} of {self.world_size}>"

    def maximum(self, value: int) -> int:
        """Return the largest value of all workers."""
        return max(int(told) for told in self._gather(value, None))

    def gather(self, value: Any, timeout: float) -> list[Any]:
        """Return the values of all workers, by rank."""
        return self._gather(value, timeout)

    def _gather(self, value: Any, timeout: float | None) -> list[Any]:
        if self.world_size == 1:
            return [value]
        return _meeting(self.rank, self.world_size).gather(value, timeout)


def find(process_group: Any | None) -> RayPeers | None:
    """Return the workers of Ray Train, or None if this process is not one of them.

    Args:
        process_group: A group of torch, which then says who the ranks are.
    """
    context = None if process_group is not None else _context()
    return None if context is None else RayPeers(context.get_world_rank(), context.get_world_size())


def _context() -> Any:
    """Return the context of Ray Train in a worker; None elsewhere."""
    # V1 has a context everywhere, and says rank 0 of 1 outside of workers, with a warning.
    session = sys.modules.get(SESSION)
    is_v1_worker = session is not None and session.get_session() is not None
    if not is_v1_worker and not _is_v2():
        return None
    try:
        context: Any = sys.modules["ray.train"].get_context()
        context.get_world_size()
    except (RuntimeError, DeprecationWarning):
        # V2 has none outside of workers; and what Ray Tune runs is no worker of Ray Train.
        return None
    return context


def _is_v2() -> bool:
    """Whether Ray Train V2 is in use; releases that lack it are V1."""
    constants = sys.modules.get(V2_CONSTANTS)
    return constants is not None and bool(constants.is_v2_enabled())


def _meeting(rank: int, world_size: int) -> Meeting:
    """Return the meeting of the workers of this attempt, which all loaders here share."""
    worker = ray.get_runtime_context().get_actor_id() or ""
    key = worker, rank, world_size
    if key not in _meetings:
        _meetings.clear()
        _meetings[key] = Meeting(_run(), rank, world_size)
    return _meetings[key]


def _run() -> str:
    """Return what all workers of this run share, and no other run on the cluster has."""
    storage = _context().get_storage()
    names = [str(getattr(storage, name, "")) for name in STORAGE_NAMES]
    return json.dumps([ray.get_runtime_context().get_job_id(), *names])


# Loaders of torch.


def fit() -> None:
    """Let `ray.train.torch.prepare_data_loader` pass loaders of Feedline on.

    A loader calls this when it is made after `ray.train.torch` was imported. Ray would wrap it into
    one that reads a batch ahead, whose state is then wrong by a batch.
    """
    for name in WRAPPER_MODULES:
        module = sys.modules.get(name)
        theirs = getattr(module, WRAPPER, None)
        if module is not None and theirs is not None and not hasattr(theirs, "_feedline"):
            setattr(module, WRAPPER, _passing(theirs))


def _passing(theirs: Any) -> Any:
    """Return Ray's wrapper of loaders, which leaves those of Feedline as they are."""

    class WrappedDataLoader(theirs):
        _feedline = True

        def __new__(cls, base_dataloader: Any, device: Any, auto_transfer: bool) -> Any:
            if isinstance(base_dataloader, PlannedLoader | IterableLoader | LoaderWrapper):
                return placed(base_dataloader, device)
            return super().__new__(cls)

    WrappedDataLoader.__name__ = WrappedDataLoader.__qualname__ = theirs.__name__
    return WrappedDataLoader


def placed(loader: Any, device: Any) -> Any:
    """Return a loader as it is, once its batches come on a device.

    Args:
        loader: The loader.
        device: The device of this worker, as a device of torch.
    """
    place = getattr(loader, "deliver_on", None)
    if place is not None:
        place(device)
    elif device.type != "cpu":
        raise InvalidValueError(
            f"loader={loader!r:.80} cannot be moved to device={str(device)!r} any more; make it "
            "with device=ray.train.torch.get_device(), and pass move_to_device=False"
        )
    return loader


# The state in checkpoints.


def save_state(folder: str | os.PathLike[str], /, *, num_unapplied: int = 0, **parts: Any) -> None:
    """Write the states of loaders and clocks into the folder of a checkpoint.

    The states are the same on every rank, so the rank that reports the checkpoint calls this.

    Args:
        folder: The folder that `ray.train.Checkpoint.from_directory` is called with.
        num_unapplied: The number of the latest batches whose gradients were not applied yet, if a
            step takes several. They come again after the checkpoint is loaded.
        parts: Loaders and clocks, each by a name.

    Examples:
        >>> import tempfile
        >>> from feedline.torch import DataLoader
        >>> loader = DataLoader(list(range(10)), batch_size=4)
        >>> _ = next(iter(loader))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_state(folder, loader=loader)
        ...     resumed = DataLoader(list(range(10)), batch_size=3)
        ...     load_state(folder, loader=resumed), [batch.tolist() for batch in resumed]
        (True, [[4, 5, 6], [7, 8, 9]])
    """
    num_unapplied = check_integer("num_unapplied", num_unapplied, 0)
    _check_parts(parts)
    states = {name: _state_of(name, part, num_unapplied) for name, part in parts.items()}
    try:
        text = json.dumps({"version": _VERSION, "states": states})
    except TypeError as error:
        raise InvalidValueError(
            f"a state must consist of JSON values ({error}); use one of Feedline's loaders, or "
            "save the state of the other one yourself"
        ) from None
    with open_whole(Path(folder) / STATES) as file:
        file.write(text.encode())


def load_state(source: Any = None, /, **parts: Any) -> bool:
    """Let loaders and clocks resume from a checkpoint; return whether there is one.

    All ranks call this before the first batch. Their number may be another one than that of the run
    that saved.

    Args:
        source: A checkpoint of Ray, or a folder; by default `ray.train.get_checkpoint()`, which is
            the latest one after a worker or a node has failed.
        parts: The loaders and clocks, by the names that they were saved with.

    Examples:
        >>> from feedline.torch import DataLoader
        >>> load_state(loader=DataLoader(list(range(10)), batch_size=4))
        False
    """
    _check_parts(parts)
    if source is None:
        source = None if _context() is None else sys.modules["ray.train"].get_checkpoint()
    if source is None:
        return False
    # A checkpoint of Ray says that it is a path, and refuses to be one.
    is_theirs = hasattr(source, "as_directory")
    with source.as_directory() if is_theirs else nullcontext(source) as folder:
        states = _states_in(Path(folder))
    if set(states) != set(parts):
        raise InvalidValueError(
            f"parts={sorted(parts)} must be those of the checkpoint, {sorted(states)}; pass the "
            "same names as to save_state"
        )
    for name, part in parts.items():
        part.load_state_dict(states[name])
    return True


def _check_parts(parts: Mapping[str, Any]) -> None:
    """Refuse what has no state that is the same on every rank."""
    if not parts:
        raise InvalidValueError("parts is empty and must have at least 1; pass loader=loader")
    for name, part in parts.items():
        if not _is_ours(part) or not hasattr(part, "load_state_dict"):
            raise InvalidValueError(
                f"{name}={part!r:.80} must be one of Feedline's loaders or clocks, whose state is "
                "the same on every rank; save the states of others yourself, for each rank"
            )
        held = _innermost(part)
        # Of other loaders without a state, batches are counted, which are the same on all ranks.
        is_own = isinstance(held, IterableLoader) or (
            not _is_ours(held) and hasattr(held, "state_dict")
        )
        if is_own and part.peers.world_size > 1:
            raise InvalidValueError(
                f"{name}={held!r:.80} has a state for each of the {part.peers.world_size} ranks, "
                "and a checkpoint has one for all; pack the dataset with feedline.pack, or save "
                "the state of each rank yourself"
            )


def _is_ours(part: Any) -> bool:
    return any(kind.__module__.startswith("feedline.") for kind in type(part).__mro__)


def _innermost(part: Any) -> Any:
    """Return the loader that wrappers and clocks hold."""
    while _is_ours(part):
        held = getattr(part, "dataloader", None) or getattr(part, "loader", None)
        if held is None:
            break
        part = held
    return part


def _state_of(name: str, part: Any, num_unapplied: int) -> Any:
    if not num_unapplied:
        return part.state_dict()
    if not hasattr(part, "state_before"):
        raise InvalidValueError(
            f"num_unapplied={num_unapplied} must be 0 for {name}={type(part).__name__}, whose "
            "state is that after a whole step; save it between two steps"
        )
    return part.state_before(num_unapplied)


def _states_in(folder: Path) -> dict[str, Any]:
    path = folder / STATES
    if not path.exists():
        raise MissingDataError(
            f"{folder} has no {STATES}, the states of loaders; call save_state with the folder "
            "before ray.train.report"
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        version, states = found["version"], dict(found["states"])
    except (ValueError, KeyError, TypeError):
        raise CursorFormatError(
            f"{path}: must be what save_state has written; use an earlier checkpoint"
        ) from None
    if version != _VERSION:
        raise CursorFormatError(
            f"{path}: version={version} must be {_VERSION}; load it with the release of Feedline "
            "that saved it"
        )
    return states
