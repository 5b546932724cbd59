"""Walks through the data of a run, the places where a state is saved, and what comes after one.

A walk is one rank that hands out units: batches, samples, requests or steps, as lists of ids. It
uses only what a user would call, so that it works whatever is inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from feedline.plan import Cursor, Plan

__all__ = [
    "FEW_PLACES",
    "PLACES",
    "Case",
    "ChunkSamplerWalk",
    "PlanWalk",
    "SamplerWalk",
    "Saved",
    "Sizes",
    "Stage",
    "StepWalk",
    "Walk",
    "find_rest",
    "save_at",
]

#: How many units of later epochs are compared.
NUM_NEXT = 3


class Sizes(NamedTuple):
    """How many ranks there are, and how many samples each of them gets in a batch."""

    world_size: int
    batch_size: int


class Walk:
    """One rank of a loader, which begins the next epoch by itself.

    Args:
        thing: What has the state.
        ids_of: What a unit is, as JSON values.
    """

    def __init__(self, thing: Any, ids_of: Callable[[Any], Any]) -> None:
        self.thing = thing
        self.ids_of = ids_of
        self._running: Iterator[Any] = iter(())

    @property
    def epoch(self) -> int:
        epoch: int = self.thing.epoch
        return epoch

    def units(self) -> Iterator[Any]:
        """Begin a pass, and yield its units."""
        self._running = self._pass()
        return self._running

    def _pass(self) -> Iterator[Any]:
        for unit in self.thing:
            yield self.ids_of(unit)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.thing.state_dict()
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        self.thing.load_state_dict(state)

    def close(self) -> None:
        """End the pass, and what reads ahead for it."""
        for part in (self._running, self.thing):
            close = getattr(part, "close", None)
            if close is not None:
                close()


class SamplerWalk(Walk):
    """One rank of a sampler, which is told of the next epoch."""

    _has_ended = False

    def _pass(self) -> Iterator[Any]:
        if self._has_ended:
            self.thing.set_epoch(self.thing.epoch + 1)
        self._has_ended = False
        yield from super()._pass()
        self._has_ended = True


class ChunkSamplerWalk(Walk):
    """One rank of a chunk sampler; a unit is a load request, as the rows of each of its batches."""

    def __init__(self, sampler: Any, num_rows: int) -> None:
        super().__init__(sampler, _rows_of_request)
        self._num_rows = num_rows

    def _pass(self) -> Iterator[Any]:
        for request in self.thing.sample(self._num_rows):
            yield self.ids_of(request)


def _rows_of_request(request: Any) -> list[list[int]]:
    rows = [row for part in request["requests"] for row in range(part.start, part.stop)]
    return [[rows[place] for place in split] for split in request["splits"]]


class StepWalk(Walk):
    """One rank of a clock; a unit is the number of a step and its batches."""

    def _pass(self) -> Iterator[Any]:
        for batches in self.thing:
            yield [self.thing.step, *map(self.ids_of, batches)]


class PlanWalk(Walk):
    """One rank of a bare plan, whose state is a cursor as text."""

    def __init__(self, plan: Plan, sizes: Sizes, rank: int) -> None:
        super().__init__(None, lambda batch: batch.indices.tolist())
        self._plan = plan
        self._sizes = sizes._asdict()
        self._rank = rank
        self._segment = plan.segment(epoch=0, **self._sizes)
        self._num_done = 0
        self._has_ended = False

    @property
    def epoch(self) -> int:
        return self._segment.epoch

    def set_epoch(self, epoch: int) -> None:
        self._segment = self._plan.segment(epoch=epoch, **self._sizes)
        self._num_done = 0

    def _pass(self) -> Iterator[Any]:
        if self._has_ended:
            self.set_epoch(self.epoch + 1)
        self._has_ended = False
        for batch in self._segment.batches(self._rank, self._num_done):
            self._num_done += 1
            yield self.ids_of(batch)
        self._has_ended = True

    def state(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "cursor": self._segment.cursor(self._num_done).to_json()}

    def load(self, state: Mapping[str, Any]) -> None:
        cursor = Cursor.from_json(state["cursor"])
        self._segment = self._plan.resume(cursor, **self._sizes)
        self._num_done = self._segment.num_done


@dataclass(frozen=True)
class Stage:
    """What the ranks of a run do between two saves.

    Args:
        which: Which of the case's sizes the run has.
        take: How many units are consumed, in multiples of the case's `take`; or `"all"` for a pass
            to its end, or `"last"` for all units of it, without asking for one more.
        calls: What is called before that: a name, and its arguments.
        calls_after: What is called after that.
        num_epochs: How many whole passes come before all of that.
    """

    which: int = 0
    take: int | str = 1
    calls: tuple[tuple[str, Any], ...] = ()
    calls_after: tuple[tuple[str, Any], ...] = ()
    num_epochs: int = 0


PLACES: dict[str, tuple[Stage, ...]] = {
    "fresh": (Stage(take=0),),
    "mid-epoch": (Stage(),),
    "saved twice": (Stage(), Stage()),
    "after a resize": (Stage(), Stage(1)),
    "after two resizes": (Stage(), Stage(1), Stage(2)),
    "after the last unit": (Stage(take="last"),),
    "at the end of an epoch": (Stage(take="all"),),
    "in epoch 1": (Stage(num_epochs=1),),
    "at the start of epoch 2": (Stage(take=0, calls=(("set_epoch", 2),)),),
    "in epoch 2 after a resize": (Stage(calls=(("set_epoch", 2),)), Stage(2)),
}

FEW_PLACES = {
    name: PLACES[name]
    for name in (
        "mid-epoch",
        "after two resizes",
        "at the end of an epoch",
        "in epoch 2 after a resize",
    )
}


@dataclass(frozen=True)
class Case:
    """Something with a state.

    Args:
        build: Makes a walk of one rank: from a folder with the data, the sizes, and the rank.
        sizes: The sizes of a run; the others are those that a state of it can be loaded with.
        take: How many units a stage consumes.
        places: Where states are saved, by name.
        foreign: States of other systems that it loads, by name.
    """

    build: Callable[[Any, Sizes, int], Walk]
    sizes: tuple[Sizes, ...] = (Sizes(2, 3), Sizes(3, 2), Sizes(1, 4))
    take: int = 2
    places: Mapping[str, tuple[Stage, ...]] = field(default_factory=lambda: FEW_PLACES)
    foreign: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Saved(NamedTuple):
    """A state, the epoch in which it was saved, and the sizes of the run that saved it."""

    state: dict[str, Any]
    epoch: int
    sizes: Sizes


def save_at(case: Case, data: Any, place: str) -> Saved:
    """Go to a place, and save there on the last rank."""
    state: dict[str, Any] | None = None
    epoch, sizes = 0, case.sizes[0]
    for stage in case.places[place]:
        sizes = case.sizes[stage.which]
        with ExitStack() as open_walks:
            walk = case.build(data, sizes, sizes.world_size - 1)
            open_walks.callback(walk.close)
            if state is not None:
                walk.load(state)
            _go(case, data, stage, walk)
            state, epoch = walk.state(), walk.epoch
    assert state is not None
    return Saved(state, epoch, sizes)


def _go(case: Case, data: Any, stage: Stage, walk: Walk) -> None:
    for _ in range(stage.num_epochs):
        assert list(walk.units())
    for name, argument in stage.calls:
        getattr(walk.thing or walk, name)(argument)
    if stage.take == "all":
        assert list(walk.units())
    elif stage.take:
        count = case.take * int(stage.take) if stage.take != "last" else _length(case, data, stage)
        assert len(list(islice(walk.units(), count))) == count
    for name, argument in stage.calls_after:
        getattr(walk.thing, name)(argument)


def _length(case: Case, data: Any, stage: Stage) -> int:
    walk = case.build(data, case.sizes[stage.which], 0)
    count = sum(1 for _ in walk.units())
    walk.close()
    return count


def find_rest(case: Case, data: Any, saved: Saved, sizes: Sizes, rank: int) -> list[Any]:
    """Load a state on one rank, and return the rest of its epoch and the beginning of the next.

    These are pairs of an epoch and its units. How many passes they take is nobody's concern: one
    without units adds nothing.
    """
    walk = case.build(data, sizes, rank)
    try:
        walk.load(saved.state)
        found: list[Any] = []
        num_empty = num_next = 0
        while num_empty < 3:
            num_empty += 1
            for unit in walk.units():
                num_empty = 0
                if not found or found[-1][0] != walk.epoch:
                    found.append([walk.epoch, []])
                found[-1][1].append(unit)
                num_next += walk.epoch > saved.epoch
                if num_next == NUM_NEXT:
                    return found
        raise AssertionError(f"three passes without a unit after {found}")
    finally:
        walk.close()
