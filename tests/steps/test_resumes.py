"""A run that goes on from any state is the rest of the run that was never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from clock_loaders import MAKERS, each_with
from clock_runs import (
    Model,
    Record,
    State,
    epochs_of,
    record_of,
    records_of,
    saved,
    scheduler_for,
    steps_of,
)
from feedline.torch import DataLoader, FolderConfig, LazyFolderDataset
from lazy_data import write_folder


def num_epochs_of(kind: str) -> int:
    """Workers are slow to start, so runs with them are shorter."""
    return 2 if "worker" in kind else 3


def make(kind: str, grad_acc: int, **options: Any) -> Any:
    options = {"num_epochs": num_epochs_of(kind), "max_steps": 1000, **options}
    return scheduler_for(MAKERS[kind](), grad_acc=grad_acc, **options)


def run_and_save(scheduler: Any) -> tuple[list[Record], list[tuple[int, State]]]:
    """Every step of a run, and states from every place of its loop with the step they lead to."""
    records: list[Record] = []
    states = [(0, saved(scheduler))]
    for _ in scheduler.epochs:
        states.append((len(records), saved(scheduler)))
        for batches in scheduler:
            records.append(record_of(scheduler, batches))
            states.append((len(records), saved(scheduler)))
        states.append((len(records), saved(scheduler)))
    return records, states


@pytest.mark.parametrize(("kind", "grad_acc"), each_with(1, 3))
def test_a_run_goes_on_from_every_state_of_every_place(kind: str, grad_acc: int) -> None:
    whole, states = run_and_save(make(kind, grad_acc))
    expected = Model(epochs=epochs_of(MAKERS[kind], num_epochs_of(kind)), grad_acc=grad_acc)
    assert steps_of(whole) == steps_of(expected.records())
    if "worker" in kind:
        # In the middle, at the last batch, and after the loop of an epoch.
        num_steps = len(whole) // 2
        states = [states[1], states[3], states[num_steps + 1], states[num_steps + 2]]
    for num_done, state in states:
        assert state["step"] == num_done
        scheduler = make(kind, grad_acc)
        scheduler.load_state_dict(state)
        assert scheduler.state_dict() == state, "loading and saving again changes nothing"
        assert records_of(scheduler) == whole[num_done:]


@pytest.mark.parametrize("kind", ["list", "unsized", "places", "plain torch", "feedline torch"])
@pytest.mark.parametrize("max_steps", [5, 8, 9])
def test_a_run_that_ended_has_nothing_left(kind: str, max_steps: int) -> None:
    options = {"max_steps": max_steps, "num_epochs": 3}
    scheduler = make(kind, 1, **options)
    whole, states = run_and_save(scheduler)
    assert len(whole) == max_steps
    for state in (states[-1][1], states[-2][1]):
        resumed = make(kind, 1, **options)
        resumed.load_state_dict(state)
        assert list(resumed.epochs) == []
        assert list(resumed) == []
        longer = make(kind, 1, **{**options, "max_steps": max_steps + 2})
        longer.load_state_dict(state)
        assert [record["step"] for record in records_of(longer)] == [max_steps, max_steps + 1]


RANDOM_KINDS = ["list", "unsized", "places", "sized places", "feedline torch", "feed", "chunks"]


@given(data=st.data(), kind=st.sampled_from(RANDOM_KINDS), grad_acc=st.integers(1, 4))
def test_any_sequence_of_saves_kills_and_resumes_is_one_run(
    data: st.DataObject, kind: str, grad_acc: int
) -> None:
    epochs = epochs_of(MAKERS[kind], 3)
    expected = Model(epochs=epochs, grad_acc=grad_acc, val_every=2).records()
    scheduler = make(kind, grad_acc, val_every_steps=2)
    records: list[Record] = []
    kept = 0, saved(scheduler)
    while len(records) < len(expected):
        what = data.draw(st.sampled_from(["step", "steps", "save", "kill", "epoch"]))
        if what == "kill":
            scheduler = make(kind, grad_acc, val_every_steps=2)
            scheduler.load_state_dict(kept[1])
            del records[kept[0] :]
            # So that it comes to an end: one step at least between two kills.
            what = "step"
        if what == "save":
            kept = len(records), saved(scheduler)
            continue
        num_steps = {"step": 1, "steps": 3, "epoch": 100}[what]
        for batches in scheduler:
            records.append(record_of(scheduler, batches))
            num_steps -= 1
            if data.draw(st.booleans()):
                kept = len(records), saved(scheduler)
            if not num_steps:
                break
    assert records == expected


def test_a_state_of_another_system_has_step_and_epoch() -> None:
    scheduler = make("feedline torch", 1)
    scheduler.load_state_dict({"step": 8, "epoch": 1})
    whole, _ = run_and_save(make("feedline torch", 1))
    assert records_of(scheduler) == whole[8:]


@pytest.mark.parametrize(
    ("kind", "num_steps"),
    [case for case in each_with(5, 8) if not str(case.values[0]).endswith("of its own")],
)
def test_a_run_that_was_stopped_while_it_saved_goes_on_from_there(
    kind: str, num_steps: int
) -> None:
    whole = Model(epochs=epochs_of(MAKERS[kind], 2)).records()
    scheduler = make(kind, 1, num_epochs=2, ckpt_every_steps=5)
    found = []
    for _ in scheduler.epochs:
        for batches in scheduler:
            found.append(record_of(scheduler, batches))
            if scheduler.step == num_steps - 1:
                assert scheduler.is_ckpt_step
                kept = saved(scheduler)
                scheduler.request_stop()
    assert len(found) == num_steps, "the planned checkpoint is the last one"
    for state in (kept, saved(scheduler)):
        resumed = make(kind, 1, num_epochs=2)
        resumed.load_state_dict(state)
        assert steps_of(records_of(resumed)) == steps_of(whole[num_steps:])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_run_over_a_folder_goes_on_from_every_state(num_workers: int, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data", [13, 10], "npy")
    config = FolderConfig(batch_size=3, seq_length=4)

    def fresh() -> Any:
        loader = DataLoader(LazyFolderDataset(folder, config), num_workers=num_workers)
        return scheduler_for(loader, grad_acc=3, num_epochs=2)

    def ids(batches: list[Any]) -> list[int]:
        return [int(one) for batch in batches for one in batch[0]["item"][:, -1]]

    def rest(scheduler: Any) -> list[Any]:
        return [(scheduler.step, ids(batches)) for _ in scheduler.epochs for batches in scheduler]

    whole = rest(fresh())
    assert sorted(one for _, group in whole[: len(whole) // 2] for one in group) == [*range(23)]
    scheduler = fresh()
    states = [
        (scheduler.step + 1, saved(scheduler), scheduler.num_samples)
        for _ in scheduler.epochs
        for _ in scheduler
    ]
    assert sum(count for *_, count in states) == 2 * 23
    for num_done, state, _ in states:
        resumed = fresh()
        resumed.load_state_dict(state)
        assert rest(resumed) == whole[num_done:]
