"""torchdata's StatefulDataLoader: one that is exact with any workers, and a way out of its states.

Needs the extra `feedline[torchdata]`. Feedline's samplers and datasets also work in torchdata's own
loader, which refuses what it cannot do exactly; see `docs/trainers/torchdata.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import DataLoader as TorchDataLoader
from torchdata.stateful_dataloader import StatefulDataLoader as TheirLoader

from feedline.errors import CursorFormatError, FeedlineError, InvalidValueError
from feedline.feed import PlannedLoader
from feedline.plan import Cursor
from feedline.torch import DataLoader, FeedDataset
from feedline.torch.stateful_loader import FINISHED, MAIN_SNAPSHOT, SIZES, SNAPSHOT, STEPS_SINCE
from feedline.torch.worker_place import Phase, cursor_after

#: Where the parts of a state stand.
INDEX_SAMPLER_STATE, SAMPLER_ITER_STATE = "_index_sampler_state", "_sampler_iter_state"
SAMPLER_STATE, DATASET_STATE = "sampler_state", "dataset_state"
WORKER_SNAPSHOTS = "_worker_snapshots"


class StatefulDataLoader(DataLoader[Any], TheirLoader[Any]):
    """Feedline's loader, for code that asks for torchdata's `StatefulDataLoader`.

    It is an instance of that class and takes its arguments, and those of
    `feedline.torch.DataLoader`. Its state counts the batches that the training loop has received,
    is the same on every rank, and loads on any number of ranks and workers. It loads states that
    torchdata's own loader has saved with Feedline's samplers and datasets, too.

    Args:
        arguments: Those of `feedline.torch.DataLoader`, by position.
        snapshot_every_n_steps: Without effect: every state is exact, and costs nothing.
        options: Those of `feedline.torch.DataLoader`, by name.

    Examples:
        >>> loader = StatefulDataLoader(list(range(10)), batch_size=2, shuffle=True)
        >>> _ = next(iter(loader))
        >>> resumed = StatefulDataLoader(list(range(10)), batch_size=4, shuffle=True)
        >>> resumed.load_state_dict(loader.state_dict())
        >>> sum(len(batch) for batch in resumed)
        8
    """

    # torchdata's makes iterators that keep a state of their own.
    _get_iterator = TorchDataLoader._get_iterator

    def __init__(
        self, *arguments: Any, snapshot_every_n_steps: int | None = 1, **options: Any
    ) -> None:
        DataLoader.__init__(self, *arguments, **options)
        if _state_of(self.dataset):
            raise InvalidValueError(
                f"dataset={type(self.dataset).__name__} has a state of its own, which torchdata's "
                "loader saves in each worker, and which no other number of workers can load; keep "
                "what changes out of the dataset, or use torchdata's StatefulDataLoader"
            )
        self.snapshot_every_n_steps = snapshot_every_n_steps

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Resume from a saved state, of this class or of torchdata's; an error changes nothing."""
        if "cursor" not in state_dict and state_dict != {}:
            state_dict = _state_for(self, state_dict)
        if state_dict:
            super().load_state_dict(state_dict)


def resume(loader: PlannedLoader, state: Mapping[str, Any]) -> None:
    """Let one of Feedline's loaders resume from the state of a torchdata `StatefulDataLoader`.

    That loader must have had one of Feedline's samplers or datasets, in the same order. Ranks,
    workers and batch size may be others.

    Args:
        loader: The loader, such as a `feedline.torch.DataLoader`.
        state: What `state_dict()` of torchdata's loader returned, on any rank.
    """
    loader.load_state_dict(_state_for(loader, state))


def _state_of(dataset: Any) -> Any:
    """Return the state of a map-style dataset; None if it has none, or is one of Feedline's."""
    if isinstance(dataset, FeedDataset) or not isinstance(dataset, Stateful):
        return None
    return _own_state(dataset.state_dict())


def _own_state(state: Any) -> Any:
    """Return what a dataset's state holds beside what Feedline's own datasets put there."""
    if not isinstance(state, Mapping) or set(state) != {"cumulative_sizes", "datasets"}:
        return state
    return state["datasets"]


def _state_for(loader: PlannedLoader, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a Feedline loader at the place of a StatefulDataLoader's state."""
    plan = loader.position.plan
    start, phases = _found_in(state)
    cursor = cursor_after(plan, start, phases) if phases else Cursor.from_json(start)
    cursor = replace(cursor, has_ended=cursor.has_ended or bool(state.get(FINISHED)))
    return {"epoch": cursor.epoch, "cursor": cursor.to_json()}


def _found_in(state: Mapping[str, Any]) -> tuple[str, list[Phase]]:
    """Return the cursor in a state, and what was delivered since."""
    if not isinstance(state, Mapping) or FINISHED not in state:
        raise CursorFormatError(
            f"state={state!r:.80} must be what state_dict() of a StatefulDataLoader returned"
        )
    snapshot = state.get(SNAPSHOT)
    main = state if snapshot is None else snapshot[MAIN_SNAPSHOT]
    num_steps = int(state.get(STEPS_SINCE) or 0)
    in_batches = main.get(SAMPLER_ITER_STATE) or {}
    workers = [state] if snapshot is None else list(snapshot[WORKER_SNAPSHOTS].values())
    parts = [worker.get(DATASET_STATE) or {} for worker in workers]
    for found in (main.get(INDEX_SAMPLER_STATE), in_batches.get(SAMPLER_STATE)):
        if found and "cursor" in found:
            _check_no_state(parts)
            return found["cursor"], _steps_of(found, num_steps)
    if all("phases" in part for part in parts):
        return _of_workers(parts, num_steps)
    if "cursor" in parts[0]:
        return parts[0]["cursor"], []
    raise FeedlineError(
        "the state has no cursor: it is of a StatefulDataLoader without one of Feedline's samplers "
        "or datasets; resume it with that loader"
    )


def _check_no_state(parts: list[Mapping[str, Any]]) -> None:
    if any(_own_state(part) for part in parts):
        raise FeedlineError(
            "the state also has one of the dataset itself, for each worker, which would be lost; "
            "resume it with torchdata's StatefulDataLoader and as many workers"
        )


def _steps_of(found: Mapping[str, Any], num_steps: int) -> list[Phase]:
    """Return what was delivered since the snapshot of a sampler."""
    if not num_steps:
        return []
    if SIZES not in found:
        raise FeedlineError(
            f"the state was saved {num_steps} steps after its snapshot by an earlier release, "
            "which did not say how many samples a step takes; resume it with StatefulDataLoader on "
            "the same number of ranks, or use a state that was saved on a multiple of "
            "snapshot_every_n_steps"
        )
    world_size, batch_size, num_entries = found[SIZES]
    return [Phase(int(found["epoch"]), world_size, batch_size, num_steps * num_entries)]


def _of_workers(parts: list[Mapping[str, Any]], num_steps: int) -> tuple[str, list[Phase]]:
    """Return where the first phase of all workers began, and what they have sent together."""
    longest = max((part["phases"] for part in parts), key=len)
    phases = []
    for number, phase in enumerate(longest):
        sent = [part["phases"][number][3] for part in parts if number < len(part["phases"])]
        phases.append(Phase(*phase)._replace(num_sent=sum(sent)))
    last = phases[-1]
    return parts[0]["cursor"], [*phases[:-1], last._replace(num_sent=last.num_sent + num_steps)]
