"""A loader that logs its batches writes the steps of its clock, and when the clock was closed."""

from __future__ import annotations

from typing import Any

import pytest

from clock_loaders import feed, torch_loader
from feedline.runs import LoggedLoader
from feedline.steps import StepScheduler


class Notes:
    """A recorder that remembers."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int]] = []
        self.events: list[str] = []

    def record(self, *, epoch: int, step: int, batch: int, ids: Any, **_: Any) -> None:
        self.batches.append((epoch, step, batch))

    def event(self, name: str, /, **fields: Any) -> None:
        self.events.append(name)


MAKERS: dict[str, Any] = {
    "torch": lambda notes: torch_loader(log=notes),
    "feed": lambda notes: feed(log=notes),
    "logged": lambda notes: LoggedLoader(torch_loader(), notes),
}


def run(loader: Any, **options: Any) -> list[int]:
    options = {"num_epochs": 2, "preemption_signal": None, **options}
    with StepScheduler(9, dataloader=loader, **options) as clock:
        return [clock.step for _ in clock.epochs for _ in clock]


@pytest.mark.parametrize("kind", MAKERS)
def test_batches_are_logged_under_the_steps_of_the_clock(kind: str) -> None:
    notes = Notes()
    assert run(MAKERS[kind](notes)) == [*range(6)]
    # Eight batches an epoch, three of them in a step.
    expected = [(e, 3 * e + batch // 3, batch) for e in range(2) for batch in range(8)]
    assert notes.batches == expected
    # A log that was opened by hand is ended by hand.
    ends = [] if kind == "logged" else ["stop"]
    assert notes.events[-1:] == (ends or ["epoch_end"])
    assert notes.events.count("stop") == len(ends)


def test_a_loader_logs_under_the_steps_of_its_latest_clock() -> None:
    notes = Notes()
    loader = feed(log=notes)
    run(loader, num_epochs=1)
    run(loader, num_epochs=1, start_step=40)
    assert [step for _, step, _ in notes.batches] == [
        0,
        0,
        0,
        1,
        1,
        1,
        2,
        2,
        *[40] * 3,
        *[41] * 3,
        42,
        42,
    ]


def test_a_step_that_the_user_chose_stays() -> None:
    notes = Notes()
    run(LoggedLoader(torch_loader(), notes, log_step=lambda: 7), num_epochs=1)
    assert {step for _, step, _ in notes.batches} == {7}
