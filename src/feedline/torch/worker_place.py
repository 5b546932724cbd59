"""The place of a worker that torchdata's StatefulDataLoader saves and loads.

A worker knows what it has sent itself, and saves that. What all of them have sent is where the
training loop is. When a state is loaded, each worker tells the others its part through the memory
that they share. The loader waits for all workers before it asks for a batch, so that each of them
can then count on the others.

What a worker has sent is counted in *phases*: one for each epoch, world size and batch size since
the loader's first worker was asked for its first batch. A worker that was not asked since a resume
knows nothing of the latest phase; the others tell it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from feedline.errors import CursorFormatError, InvalidValueError
from feedline.plan import Cursor, Plan, Segment
from feedline.torch import stateful_loader
from feedline.torch.shared_pass import MAX_PHASES, SharedPass
from feedline.words import several

#: Makes the batches with these numbers, of a segment.
Make = Callable[[Segment, range], Iterator[Any]]
_KEYS = ("cursor", "num_workers", "phases")


class Phase(NamedTuple):
    """Batches that were sent in one epoch, to so many ranks and of one size."""

    epoch: int
    world_size: int
    batch_size: int
    num_sent: int

    @property
    def kind(self) -> tuple[int, int, int]:
        """What makes two phases one."""
        return self[:3]


class WorkerPass(Iterator[Any]):
    """The batches of one worker in a pass, counted.

    Args:
        batches: The batches of this worker.
        start: The cursor where the first phase began, as JSON.
        phases: What this worker has sent before; the last phase goes on.
        num_workers: How many workers there are.
    """

    def __init__(
        self, batches: Iterator[Any], start: str, phases: list[Phase], num_workers: int
    ) -> None:
        self._batches = batches
        self._state = {"cursor": start, "num_workers": num_workers}
        self._phases = phases
        self._num_sent = 0

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            raise
        except Exception:
            # The loader goes on with the batch behind it.
            self._num_sent += 1
            raise
        self._num_sent += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return where the first phase began, and what this worker has sent since."""
        *before, last = self._phases
        now = last._replace(num_sent=last.num_sent + self._num_sent)
        return {**self._state, "phases": [list(phase) for phase in (*before, now)]}


def begun(make: Make, segment: Segment, worker: int, num_workers: int) -> WorkerPass:
    """Return the pass of a worker that begins with a segment."""
    numbers = range(segment.num_done + worker, segment.num_batches, num_workers)
    phase = Phase(segment.epoch, segment.world_size, segment.batch_size, 0)
    start = segment.cursor(segment.num_done).to_json()
    return WorkerPass(make(segment, numbers), start, [phase], num_workers)


class ResumedPass(Iterator[Any]):
    """A pass that begins where all workers together had stopped, once a batch is asked for.

    Args:
        make: Makes the batches.
        state: What this worker has saved.
        plan: The order.
        sizes: The world size and batch size of this run.
        shared: Where the workers tell each other what they have sent.
        worker: The number of this worker.
        num_discarded: How many batches the loader throws away, to reach the step that was saved.
    """

    def __init__(
        self,
        make: Make,
        state: Mapping[str, Any],
        plan: Plan,
        sizes: Mapping[str, int],
        shared: SharedPass,
        worker: int,
        num_discarded: int,
    ) -> None:
        self._make, self._state, self._plan, self._sizes = make, state, plan, sizes
        self._shared, self._worker, self._num_discarded = shared, worker, num_discarded
        self._own = [Phase(*phase) for phase in state["phases"]]
        if len(self._own) >= MAX_PHASES:
            raise InvalidValueError(
                f"the state has {several(len(self._own), 'change')} of sizes since its pass began "
                f"but StatefulDataLoader supports fewer than {MAX_PHASES}; finish the epoch with "
                "feedline.torch.DataLoader"
            )
        shared.tell(worker, [list(phase) for phase in self._own])
        self._running: WorkerPass | None = None

    def __next__(self) -> Any:
        if self._running is None:
            self._running = self._begun()
        return next(self._running)

    def _begun(self) -> WorkerPass:
        num_workers = int(self._state["num_workers"])
        told = [Phase(*phase) for phase in self._shared.told(num_workers)]
        cursor = cursor_after(self._plan, self._state["cursor"], told)
        segment = self._plan.resume(cursor, **self._sizes)
        asked = self._shared.epoch
        if asked not in (0, segment.epoch):
            left = 0 if cursor.has_ended else segment.num_batches - segment.num_done
            stateful_loader.check_epoch(asked, segment.epoch, left)
            segment = segment.plan.segment(epoch=asked, **self._sizes)
        elif cursor.has_ended:
            # What the tail policy has dropped stays dropped.
            segment = replace(segment, num_done=segment.num_batches)
        now = Phase(segment.epoch, segment.world_size, segment.batch_size, 0)
        if self._num_discarded and told[-1].kind != now.kind:
            stateful_loader.refuse_discarding(
                self._num_discarded,
                *(stateful_loader.shown_sizes(p.world_size, p.batch_size) for p in (told[-1], now)),
            )
        mine = [phase.num_sent for phase in self._own] + [0] * (len(told) - len(self._own))
        phases = [p._replace(num_sent=sent) for p, sent in zip(told, mine, strict=True)]
        if told[-1].kind != now.kind:
            phases.append(now)
        first = sum(phase.num_sent for phase in told) % num_workers
        start = segment.num_done + (self._worker - first) % num_workers
        batches = self._make(segment, range(start, segment.num_batches, num_workers))
        return WorkerPass(batches, self._state["cursor"], phases, num_workers)

    def state_dict(self) -> dict[str, Any]:
        """Return what was loaded, until a batch is sent."""
        return dict(self._state) if self._running is None else self._running.state_dict()


def cursor_after(plan: Plan, start: str, phases: list[Phase]) -> Cursor:
    """Return where the training loop was, after all workers had sent what these phases count."""
    cursor = Cursor.from_json(start)
    for phase in phases:
        if phase.epoch != cursor.epoch:
            cursor = replace(cursor, epoch=phase.epoch, history=(), has_ended=False)
        then = plan.resume(cursor, world_size=phase.world_size, batch_size=phase.batch_size)
        number = min(then.num_done + phase.num_sent, then.num_batches)
        cursor = replace(then.cursor(number), has_ended=number == then.num_batches)
    return cursor


def check_state(state: Mapping[str, Any], num_workers: int) -> None:
    """Raise unless a state is what a worker has saved, of as many workers."""
    if not isinstance(state, Mapping) or not all(name in state for name in _KEYS):
        raise CursorFormatError(
            f"state={state!r:.80} must be what a worker of StatefulDataLoader has saved; load what "
            "its state_dict() returned"
        )
    stateful_loader.check_workers(int(state["num_workers"]), num_workers)
