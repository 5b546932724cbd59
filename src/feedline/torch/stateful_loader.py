"""Feedline's samplers and datasets inside torchdata's StatefulDataLoader.

That loader saves and loads what it holds without saying what it is about to do: it loads a state
when its iterator is made, after `set_epoch`, and may then throw batches away to reach the step that
was saved. Both lose samples where nobody looks. So a sampler looks for the loader among its
callers, and refuses, or mends, what would not be exact. torchdata is not imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from feedline.errors import FeedlineError, InvalidValueError
from feedline.feed.position import Position
from feedline.words import several

_MODULE = "torchdata.stateful_dataloader.stateful_dataloader"
#: The iterators of that loader, and the name under which their constructors get a state.
ITERATOR, STATE = "_StatefulBaseDataLoaderIter", "next_iter_state"
#: What is read of a state.
STEPS_SINCE, FINISHED, SNAPSHOT = "_steps_since_snapshot", "_iterator_finished", "_snapshot"
MAIN_SNAPSHOT, NUM_WORKERS = "_main_snapshot", "_num_workers"
#: What is read of an iterator, and of the loader.
INDEX_SAMPLER, IN_ORDER = "_index_sampler", "in_order"
#: How far the loader is among the callers of a sampler, or of a dataset in a forked worker.
_MAX_FRAMES = 30
#: What a sampler adds to its state there: how many samples a step takes.
SIZES = "sizes"
_REMEDY = (
    "use feedline.torch.DataLoader, which resumes on any number of ranks and workers, also from "
    "this state: feedline.trainers.torchdata.resume(loader, state)"
)


class Caller(NamedTuple):
    """A StatefulDataLoader's iterator, and what its constructor was given, if it is being made."""

    iterator: Any
    loader: Any
    state: Mapping[str, Any] | None


def find_caller() -> Caller | None:
    """Return the iterator of a StatefulDataLoader that has called, or None."""
    module = sys.modules.get(_MODULE)
    if module is None:
        return None
    kind = getattr(module, ITERATOR, ())
    frame, found = sys._getframe(1).f_back, None
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        known = frame.f_locals
        owner = known.get("self")
        if found is None and isinstance(owner, kind):
            found = Caller(owner, None, None)
        elif found is not None and owner is not found.iterator:
            break
        if found is not None:
            state = known.get(STATE) if found.state is None else found.state
            found = Caller(owner, known.get("loader", found.loader), state)
        frame = frame.f_back
    return found


def check_pass(sampler: Any) -> None:
    """Raise if a StatefulDataLoader that begins a pass of a sampler could not resume it exactly."""
    caller = find_caller()
    if caller is None:
        return
    _check_order(caller)
    asked = getattr(caller.iterator, INDEX_SAMPLER, None)
    is_held = asked is sampler or hasattr(asked, "load_state_dict")
    # Its own batch sampler saves the sampler that it holds; that of torch does not.
    is_held = is_held or isinstance(asked, sys.modules[_MODULE].BatchSampler)
    if asked is not None and not is_held:
        raise InvalidValueError(
            f"batch_sampler={type(asked).__name__} has no state, so StatefulDataLoader would "
            f"replay {type(sampler).__name__} to resume, and lose samples on another number of "
            f"ranks; pass sampler={type(sampler).__name__}(...) and batch_size=..., or {_REMEDY}"
        )
    if caller.state is not None:
        check_workers(_num_workers_of(caller.state), caller.iterator._num_workers)


def check_batches_of_dataset() -> None:
    """Raise if a StatefulDataLoader makes batches of what a dataset of batches yields."""
    caller = find_caller()
    if caller is None or caller.loader is None:
        return
    _check_order(caller)
    if caller.loader.batch_size is not None:
        raise InvalidValueError(
            f"batch_size={caller.loader.batch_size} must be None: the dataset makes its own batches"
        )


def _check_order(caller: Caller) -> None:
    if not getattr(caller.loader, IN_ORDER, True):
        raise InvalidValueError(
            "in_order=False must be True: batches that arrive in any order cannot be counted, so "
            "StatefulDataLoader would lose some and repeat others; omit it"
        )


def check_workers(saved: int, current: int) -> None:
    """Raise unless a state of a StatefulDataLoader is of as many workers."""
    if saved != current:
        raise InvalidValueError(
            f"num_workers={current} must be {saved}, that of the saved state: StatefulDataLoader "
            f"keeps a state for each worker; use as many, or {_REMEDY}"
        )


def _num_workers_of(state: Mapping[str, Any]) -> int:
    if SNAPSHOT not in state:
        return 0
    return int(state[SNAPSHOT][MAIN_SNAPSHOT][NUM_WORKERS])


def with_sizes(state: dict[str, Any], position: Position) -> dict[str, Any]:
    """Return the state of a sampler, for a StatefulDataLoader with what a step takes."""
    caller = find_caller()
    return state if caller is None else {**state, SIZES: _sizes_of(position, caller)}


def _sizes_of(position: Position, caller: Caller) -> list[int]:
    """Return the number of ranks, the samples of an entry, and the entries of a batch."""
    asked: Any = getattr(caller.iterator, INDEX_SAMPLER, None)
    is_theirs = isinstance(asked, sys.modules[_MODULE].BatchSampler)
    num_entries = int(asked.batch_size) if is_theirs else 1
    return [position.peers.world_size, position.batch_size, num_entries]


def settle(position: Position, state: Mapping[str, Any], asked: int) -> bool:
    """Make a position right that a StatefulDataLoader has loaded; return whether nothing is left.

    Args:
        position: It has loaded the state.
        state: The sampler's state.
        asked: The epoch that the position was in before; 0 if `set_epoch` was not called.
    """
    caller = find_caller()
    if caller is None or caller.state is None:
        return False
    num_steps, sizes = _num_discarded(caller.state), _sizes_of(position, caller)
    saved = state.get(SIZES)
    if num_steps and saved != sizes:
        refuse_discarding(num_steps, _shown_sizes(saved), _shown_sizes(sizes))
    is_finished, has_ended = bool(caller.state.get(FINISHED)), position.has_ended()
    if asked not in (0, position.epoch):
        num_left = 0 if is_finished or has_ended else position.num_batches_left()
        check_epoch(asked, position.epoch, num_left)
        position.set_epoch(asked)
        return False
    if is_finished:
        # The loader begins a new pass, of the same epoch until set_epoch is called.
        position.restart()
    return has_ended and not is_finished


def num_discarded() -> int | None:
    """Return how many batches a StatefulDataLoader throws away; None if none is being made."""
    caller = find_caller()
    return None if caller is None or caller.loader is None else _num_discarded(caller.state)


def _num_discarded(state: Mapping[str, Any] | None) -> int:
    return int((state or {}).get(STEPS_SINCE) or 0)


def shown_sizes(world_size: int, batch_size: int) -> str:
    """Return sizes for people."""
    return f"batches of {several(batch_size, 'sample')} on {several(world_size, 'rank')}"


def _shown_sizes(sizes: list[int] | None) -> str:
    return "unknown sizes" if sizes is None else shown_sizes(sizes[0], sizes[1] * sizes[2])


def refuse_discarding(num_steps: int, saved: str, current: str) -> NoReturn:
    """Raise, because batches would be thrown away that are not those that were delivered."""
    raise InvalidValueError(
        f"the state was saved {several(num_steps, 'step')} after its snapshot, in {saved}, and "
        f"this run has {current}: StatefulDataLoader would throw {several(num_steps, 'step')} of "
        "this run away to get there, and lose samples; resume with the same sizes, save on "
        f"multiples of snapshot_every_n_steps, or {_REMEDY}"
    )


def check_epoch(asked: int, loaded: int, num_left: int) -> None:
    """Raise if another epoch was asked for than the one that was loaded, and that has batches."""
    if num_left:
        raise FeedlineError(
            f"set_epoch({asked}) was called, but the state that StatefulDataLoader loads is in "
            f"epoch {loaded}, with {several(num_left, 'entry', 'entries')} left for each rank, "
            f"which would be lost; call set_epoch({loaded}) first, and set_epoch({loaded + 1}) "
            "when that epoch has ended"
        )
