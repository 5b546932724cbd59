"""Every property of a clock at every step of whole runs, beside a model that counts them out."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from clock_loaders import MAKERS, Sized, Unsized, each_with
from clock_runs import Model, Silent, epochs_of, records_of, scheduler_for, steps_of
from feedline.steps import StepSchedulerConfig, _calculate_max_steps, _calculate_num_epochs

NUM_BATCHES = 7

#: What is given to the clock, and what the model is told beside that.
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "epochs alone": ({"num_epochs": 2}, {}),
    "one epoch": ({"num_epochs": 1}, {}),
    "steps inside the second epoch": ({"max_steps": 9, "num_epochs": 3}, {}),
    "steps at the edge of an epoch": ({"max_steps": 7, "num_epochs": 3}, {}),
    "steps at the edge, accumulated": ({"max_steps": 3, "num_epochs": 3}, {}),
    "one step": ({"max_steps": 1, "num_epochs": 3}, {}),
    "epochs run out first": ({"max_steps": 1000, "num_epochs": 2}, {}),
    "checkpoints by cadence only": (
        {"num_epochs": 3, "ckpt_every_steps": 4, "save_checkpoint_every_epoch": False},
        {"ckpt_every": 4, "every_epoch": False},
    ),
    "checkpoints by both": ({"num_epochs": 3, "ckpt_every_steps": 4}, {"ckpt_every": 4}),
    "all cadences": (
        {
            **{"num_epochs": 3, "ckpt_every_steps": 5, "val_every_steps": 3},
            **{"log_remote_every_steps": 4, "gc_every_steps": 2},
        },
        {"ckpt_every": 5, "val_every": 3, "log_every": 4, "gc_every": 2},
    ),
    "everything at every step": (
        {"num_epochs": 2, "ckpt_every_steps": 1, "val_every_steps": 1, "gc_every_steps": 1},
        {"ckpt_every": 1, "val_every": 1, "gc_every": 1},
    ),
    "a later start": (
        {"num_epochs": 3, "start_step": 11, "start_epoch": 1, "val_every_steps": 3},
        {"start_step": 11, "start_epoch": 1, "val_every": 3},
    ),
    "a later start before max_steps": (
        {"num_epochs": 3, "start_step": 4, "max_steps": 6},
        {"start_step": 4},
    ),
    "a start at the end": ({"num_epochs": 2, "start_step": 5, "max_steps": 5}, {"start_step": 5}),
    "a start after the last epoch": ({"num_epochs": 2, "start_epoch": 2}, {"start_epoch": 2}),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("grad_acc", [1, 3])
@pytest.mark.parametrize("kind", [Sized, Unsized])
def test_each_step_is_as_the_model_says(name: str, grad_acc: int, kind: Any) -> None:
    options, more = RUNS[name]
    options = {"ckpt_every_steps": 10**6, **options}
    if kind is Unsized:
        options.setdefault("max_steps", 10**6)
    model = Model(
        epochs=epochs_of(lambda: Sized(NUM_BATCHES), options["num_epochs"]),
        grad_acc=grad_acc,
        max_steps=options.get("max_steps"),
        **more,
    )
    scheduler = scheduler_for(kind(NUM_BATCHES), grad_acc=grad_acc, **options)
    expected = model.records()
    assert records_of(scheduler) == expected
    assert scheduler.step == model.start_step + len(expected)
    assert scheduler.stop_reason is None
    for name in ("is_ckpt_step", "is_val_step", "is_last_step"):
        assert getattr(scheduler, name) is True, "the run has ended at its limit"
    for name in ("is_gc_step", "is_remote_logging_step", "is_last_batch"):
        assert getattr(scheduler, name) is False, "no step is out"


@given(
    num_batches=st.integers(1, 9),
    grad_acc=st.integers(1, 4),
    num_epochs=st.integers(1, 3),
    max_steps=st.none() | st.integers(1, 30),
    cadences=st.lists(st.integers(1, 7), min_size=4, max_size=4),
    every_epoch=st.booleans(),
    is_sized=st.booleans(),
)
def test_any_run_is_as_the_model_says(
    num_batches: int,
    grad_acc: int,
    num_epochs: int,
    max_steps: int | None,
    cadences: list[int],
    every_epoch: bool,
    is_sized: bool,
) -> None:
    model = Model(
        epochs=epochs_of(lambda: Sized(num_batches), num_epochs),
        grad_acc=grad_acc,
        max_steps=max_steps if is_sized else max_steps or 1000,
        every_epoch=every_epoch,
        **dict(zip(("ckpt_every", "val_every", "log_every", "gc_every"), cadences, strict=True)),
    )
    names = ("ckpt", "val", "log_remote", "gc")
    scheduler = scheduler_for(
        (Sized if is_sized else Unsized)(num_batches),
        grad_acc=grad_acc,
        num_epochs=num_epochs,
        max_steps=model.max_steps,
        save_checkpoint_every_epoch=every_epoch,
        **{f"{name}_every_steps": every for name, every in zip(names, cadences, strict=True)},
    )
    assert records_of(scheduler) == model.records()


@pytest.mark.parametrize(("kind", "grad_acc"), each_with(1, 3))
def test_any_loader_yields_what_plain_walks_through_it_yield(kind: str, grad_acc: int) -> None:
    make = MAKERS[kind]
    model = Model(epochs=epochs_of(make, 3), grad_acc=grad_acc)
    scheduler = scheduler_for(make(), grad_acc=grad_acc, num_epochs=3, max_steps=100)
    assert steps_of(records_of(scheduler)) == steps_of(model.records())


def test_defaults_follow_from_what_is_known() -> None:
    by_epochs = scheduler_for(Sized(7), grad_acc=3)
    assert (by_epochs.epoch_len, by_epochs.num_epochs, by_epochs.max_steps) == (3, 10, 30)
    assert by_epochs.ckpt_every_steps == 3, "once an epoch"
    by_steps = scheduler_for(Sized(7), grad_acc=3, max_steps=7)
    assert (by_steps.num_epochs, by_steps.max_steps) == (3, 7)
    unsized = scheduler_for(Unsized(7), grad_acc=3, max_steps=9)
    assert (unsized.epoch_len, unsized.num_epochs, unsized.ckpt_every_steps) == (None, 10, 4)
    assert scheduler_for(Unsized(7), max_steps=1).ckpt_every_steps == 1
    assert by_epochs.log_remote_every_steps == 1
    assert by_epochs.val_every_steps is None
    assert by_epochs.gc_every_steps is None


def test_lengths_of_runs_are_those_of_the_document() -> None:
    assert _calculate_max_steps(3, 7) == 21
    assert _calculate_max_steps(3, None) == 9223372036854775807
    assert _calculate_max_steps(3, None, 5) == 5
    assert [_calculate_num_epochs(steps, 7) for steps in (1, 7, 8)] == [1, 1, 2]
    assert _calculate_num_epochs(None, 7) == _calculate_num_epochs(9, None) == 10
    assert _calculate_num_epochs(None, None, 4) == 4


def test_a_configuration_builds_the_same_run() -> None:
    config = StepSchedulerConfig(
        global_batch_size=12,
        num_epochs=2,
        ckpt_every_steps=4,
        val_every_steps=3,
        preemption_signal=None,
    )
    scheduler = config.build(Sized(7), dp_group_size=2, local_batch_size=2, peers=Silent(2))
    model = Model(epochs=epochs_of(lambda: Sized(7), 2), grad_acc=3, ckpt_every=4, val_every=3)
    assert records_of(scheduler) == model.records()
    defaults = StepSchedulerConfig()
    assert (defaults.global_batch_size, defaults.num_epochs, defaults.max_steps) == (32, 10, None)
    assert (defaults.ckpt_every_steps, defaults.save_checkpoint_every_epoch) == (100, True)


def test_a_loader_without_a_length_is_read_one_batch_ahead_and_no_further() -> None:
    loader = Unsized(100)
    scheduler = scheduler_for(loader, grad_acc=3, max_steps=50)
    for batches in scheduler:
        assert loader.num_taken == 3 * scheduler.step + 4
        assert len(batches) == 3
        if scheduler.step == 5:
            break


def test_a_sized_loader_is_not_read_ahead() -> None:
    loader = Sized(100)
    scheduler = scheduler_for(loader, grad_acc=3, max_steps=5)
    records_of(scheduler)
    assert loader.num_taken == 15


def test_a_loader_that_has_less_than_it_said_is_told_of_and_ends_with_a_checkpoint() -> None:
    class Less(Sized):
        def __len__(self) -> int:
            return 9

    with pytest.warns(RuntimeWarning, match="ended after 7 batches, but its length is 9"):
        records = records_of(scheduler_for(Less(7), grad_acc=3, num_epochs=1))
    assert records == Model(epochs=epochs_of(lambda: Sized(7), 1), grad_acc=3).records()
