"""Ranks stop after the same step, save once, and go on exactly where they were."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from clock_job import CKPT_EVERY, NUM_EPOCHS
from forked import forked_ranks
from processes import finish, is_running, torchrun, wait_for

NUM_RANKS = 3
EPOCH_LEN = 5  # 50 samples, on three ranks 17 each: nine batches of two, two for each step
TERM, INT = int(signal.SIGTERM), int(signal.SIGINT)


class Scenario(NamedTuple):
    """Where a signal comes, and after which step all ranks must have stopped."""

    send: dict[str, Any]
    last_step: int
    reason: str
    loader: str = "feedline"
    preemption_signal: Any = "SIGTERM"


def by_rank(rank: int, step: int, moment: str, number: int = TERM) -> dict[str, Any]:
    sent = [[number, 0]]
    return {"rank": rank, "step": step, "moment": moment, "to": "self", "signals": sent}


def to_all(kind: str, step: int, moment: str, *numbers: int) -> dict[str, Any]:
    sent = [[number, 0] for number in numbers]
    return {"rank": None, "step": step, "moment": moment, "to": kind, "signals": sent}


# Checkpoints are due at steps 2, 5, 8, 11 and 14, validations at these and at 1, 3, 7, ….
SCENARIOS = {
    "at a checkpoint": Scenario(by_rank(1, 5, "train"), 5, "rank 1 got SIGTERM"),
    "between checkpoints": Scenario(by_rank(2, 1, "train"), 1, "rank 2 got SIGTERM"),
    # Right after a checkpoint, ranks have agreed on this step before it began.
    "after a checkpoint": Scenario(by_rank(2, 3, "train"), 4, "rank 2 got SIGTERM"),
    "in a validation": Scenario(by_rank(1, 3, "validate"), 4, "rank 1 got SIGTERM"),
    "in a validation at a checkpoint": Scenario(by_rank(0, 5, "validate"), 5, "rank 0 got SIGTERM"),
    "while rank 0 saves": Scenario(by_rank(0, 8, "save"), 8, "rank 0 got SIGTERM"),
    "at the last batch of an epoch": Scenario(by_rank(2, 4, "train"), 4, "rank 2 got SIGTERM"),
    "at the last step": Scenario(by_rank(1, 14, "train"), 14, "rank 1 got SIGTERM"),
    "to all process groups": Scenario(to_all("groups", 7, "train", TERM), 7, "rank 2 got SIGTERM"),
    "to all groups in a validation": Scenario(
        to_all("groups", 3, "validate", TERM, TERM), 4, "rank 2 got SIGTERM"
    ),
    "by another signal": Scenario(
        by_rank(2, 7, "train", INT), 7, "rank 2 got SIGINT", preemption_signal="int"
    ),
    "with a plain loader": Scenario(
        to_all("groups", 3, "validate", TERM), 4, "rank 2 got SIGTERM", loader="plain"
    ),
    "by either of two signals": Scenario(
        by_rank(0, 2, "train", INT), 2, "rank 0 got SIGINT", "plain", ["TERM", INT]
    ),
}


def described(name: str, loader: str, **options: Any) -> dict[str, Any]:
    run = {"name": name, "loader": loader, "load": None, "send": None}
    return {**run, "preemption_signal": "SIGTERM", **options}


def all_runs() -> list[dict[str, Any]]:
    """An uninterrupted run of each loader, one whose workers alone hear signals, and two runs of
    each scenario: until the signal, and on from there."""
    runs = [described("feedline", "feedline"), described("plain", "plain")]
    for loader in ("feedline", "plain"):
        told = to_all("workers", 1, "train", TERM, INT, TERM)
        runs.append(described(f"{loader} workers", loader, send=told))
    for name, scenario in SCENARIOS.items():
        options = {"preemption_signal": scenario.preemption_signal}
        runs.append(described(name, scenario.loader, send=scenario.send, **options))
        runs.append(described(f"{name} resumed", scenario.loader, load=name, **options))
    return runs


# The slow tests have torchrun itself.
@pytest.fixture(
    scope="module",
    params=[
        pytest.param(forked_ranks, id="forked"),
        pytest.param(torchrun, id="torchrun", marks=pytest.mark.slow),
    ],
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logs of all runs, made by one launch."""
    found = tmp_path_factory.mktemp("clock")
    job = json.dumps({"folder": str(found), "grace": None, "runs": all_runs()})
    with request.param("clock_job.py", NUM_RANKS, job) as launched:
        finish(launched, timeout=180)
    assert not any(is_running(int(path.read_text())) for path in found.glob("*.pid"))
    return found


def steps_of(folder: Path, name: str, rank: int) -> tuple[list[Any], list[Any]]:
    """What a rank noted of each step, and at its end."""
    lines = (folder / f"{name}.rank{rank}.jsonl").read_text().splitlines()
    *steps, end = map(json.loads, lines)
    return steps, end


def saved_steps(folder: Path, name: str) -> list[int]:
    lines = (folder / f"{name}.saves.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


@pytest.mark.parametrize("name", SCENARIOS)
def test_all_ranks_stop_after_the_same_step_for_the_same_reason(name: str, folder: Path) -> None:
    scenario = SCENARIOS[name]
    for rank in range(NUM_RANKS):
        steps, end = steps_of(folder, name, rank)
        assert [step for _, step, _ in steps] == list(range(scenario.last_step + 1))
        assert end == ["stopped", scenario.last_step + 1, scenario.reason]


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_checkpoint_is_saved_once_and_the_last_one_at_the_stop(
    name: str, folder: Path
) -> None:
    last = SCENARIOS[name].last_step
    planned = [step for step in range(last) if (step + 1) % CKPT_EVERY == 0]
    assert saved_steps(folder, name) == [*planned, last]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_resumed_run_is_the_rest_of_the_uninterrupted_one(name: str, folder: Path) -> None:
    scenario = SCENARIOS[name]
    for rank in range(NUM_RANKS):
        whole, _ = steps_of(folder, scenario.loader, rank)
        stopped, _ = steps_of(folder, name, rank)
        resumed, end = steps_of(folder, f"{name} resumed", rank)
        assert stopped + resumed == whole
        assert end == ["stopped", NUM_EPOCHS * EPOCH_LEN, None]


@pytest.mark.parametrize("loader", ["feedline", "plain"])
def test_signals_to_workers_alone_change_nothing(loader: str, folder: Path) -> None:
    for rank in range(NUM_RANKS):
        assert steps_of(folder, f"{loader} workers", rank) == steps_of(folder, loader, rank)
    assert saved_steps(folder, f"{loader} workers") == saved_steps(folder, loader)


def test_the_ranks_of_a_step_have_all_samples_of_an_epoch_between_them(folder: Path) -> None:
    ranks = [steps_of(folder, "feedline", rank)[0] for rank in range(NUM_RANKS)]
    for epoch in range(NUM_EPOCHS):
        ids = {
            one
            for steps in ranks
            for of_epoch, _, batches in steps
            for batch in batches
            for one in batch
            if of_epoch == epoch
        }
        assert ids == set(range(50))


def test_a_rank_that_is_a_step_ahead_is_found_by_the_others(folder: Path) -> None:
    said = [(folder / f"parted.rank{rank}.txt").read_text() for rank in range(NUM_RANKS)]
    assert "rank 0 is at step 4, but others are not" in said[0]
    assert "rank 2 is at step 4, but others are not" in said[2]


@pytest.mark.slow
def test_a_second_signal_after_the_grace_period_ends_the_rank_at_once(tmp_path: Path) -> None:
    send = by_rank(1, 2, "train")
    # The second one counts as the first, the third does not.
    send["signals"] = [[TERM, 0], [TERM, 0], [TERM, 0.3]]
    runs = [described("late", "feedline", send=send)]
    job = json.dumps({"folder": str(tmp_path), "grace": 0.2, "runs": runs})
    with torchrun("clock_job.py", NUM_RANKS, job) as launched:
        wait_for(lambda: (tmp_path / "rank1.pid").exists(), launched)
        output, _ = launched.communicate(timeout=120)
    assert launched.returncode != 0
    assert "Signal 15 (SIGTERM)" in output
    lines = (tmp_path / "late.rank1.jsonl").read_text().splitlines()
    assert [json.loads(line)[1] for line in lines] == [0, 1, 2], "neither stopped nor went on"
    assert not (tmp_path / "late.saves.jsonl").exists()
    assert not any(is_running(int(path.read_text())) for path in tmp_path.glob("*.pid"))


def test_a_signal_before_the_first_step_is_heard_on_all_ranks(folder: Path) -> None:
    for rank in range(NUM_RANKS):
        before, after, *ended = json.loads((folder / f"heard.rank{rank}.json").read_text())
        assert before == [[False] * NUM_RANKS, False]
        assert after == [[number == 1 for number in range(NUM_RANKS)], True]
        assert ended == [[], 0, "rank 1 got SIGUSR2"]
