"""Every number is checked when the clock is made, and every state when it is loaded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clock_loaders import Unsized
from clock_runs import Silent, records_of, saved, scheduler_for
from feedline.errors import CursorFormatError, FeedlineError, InvalidValueError
from feedline.steps import Alone, Cadence, StepScheduler, StepSchedulerConfig
from feedline.torch import StepScheduler as TorchStepScheduler
from refusals import refusal

GOOD: dict[str, Any] = {
    **{"global_batch_size": 4, "local_batch_size": 2, "dp_size": 1, "dataloader": [1, 2, 3]},
    "preemption_signal": None,
}
#: The least that each number may be, and whether it may be left out.
NUMBERS = {
    "global_batch_size": (1, True),
    "local_batch_size": (1, False),
    "dp_size": (1, True),
    "ckpt_every_steps": (1, True),
    "val_every_steps": (1, True),
    "log_remote_every_steps": (1, False),
    "loss_average_window_steps": (1, False),
    "gc_every_steps": (1, True),
    "start_step": (0, False),
    "start_epoch": (0, False),
    "num_epochs": (1, True),
    "max_steps": (1, True),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("make", [StepScheduler, TorchStepScheduler])
def test_every_number_is_checked_and_shown(name: str, make: Any) -> None:
    low, is_optional = NUMBERS[name]
    can_be_none = is_optional or name == "local_batch_size"
    for value in (low - 1, -7, 2.0, "3", True, [1], float("nan"), *([] if can_be_none else [None])):
        message = refusal(lambda value=value: make(**{**GOOD, name: value}))  # type: ignore[misc]
        assert f"{name}={value!r}" in message
        assert f"at least {low}" in message
    if is_optional:
        make(**{**GOOD, name: None}).close()


@pytest.mark.parametrize(
    ("total", "local", "size"), [(4, 3, 1), (2, 2, 2), (5, 2, 2), (1, 2, 1), (7, 7, 3)]
)
def test_a_global_batch_that_ranks_cannot_share_is_refused(
    total: int, local: int, size: int
) -> None:
    options: dict[str, Any] = {"preemption_signal": None, "peers": Silent(size)}
    message = refusal(lambda: StepScheduler(total, local, size, [1], **options))
    assert f"global_batch_size={total} must be a multiple of" in message
    assert f"{local} * {size} = {local * size}" in message


def test_a_loader_without_batches_or_without_an_end_is_refused() -> None:
    assert "dataloader has 0 batches" in refusal(lambda: scheduler_for([]))
    assert "max_steps is required when the loader has no length" in refusal(
        lambda: scheduler_for(Unsized(3))
    )
    assert "max_steps is required when the loader has no length" in refusal(
        lambda: scheduler_for(None)
    )
    scheduler = scheduler_for(None, max_steps=3)
    assert scheduler.epoch_len is None
    assert "dataloader=None" in refusal(lambda: next(iter(scheduler)))


@pytest.mark.parametrize("epoch", [-1, 1.0, "1", None, True])
def test_an_epoch_that_is_none_is_refused(epoch: Any) -> None:
    scheduler = scheduler_for([1, 2])
    assert f"epoch={epoch!r}" in refusal(lambda: scheduler.set_epoch(epoch))
    assert scheduler.epoch == 0


@pytest.mark.parametrize("name", ["val_every_steps", "gc_every_steps"])
def test_a_cadence_of_zero_is_told_how_to_say_never(name: str) -> None:
    for make in (Cadence, lambda **options: scheduler_for([1], **options)):
        message = refusal(
            lambda make=make: make(ckpt_every_steps=1, **{name: 0})  # type: ignore[misc]
        )
        assert "None for never" in message


@pytest.mark.parametrize("margin", [-1, float("nan"), "60", None])
def test_a_margin_is_seconds(margin: Any) -> None:
    message = refusal(lambda: scheduler_for([1], max_duration=60, deadline_margin=margin))
    assert f"deadline_margin={margin!r}" in message


@pytest.mark.parametrize("margin", [-1, "60"])
def test_a_margin_is_checked_without_a_duration_too(margin: Any) -> None:
    assert "deadline_margin=" in refusal(lambda: scheduler_for([1], deadline_margin=margin))


@pytest.mark.parametrize("state", [None, 3, "step", [], {}, {"step": 1}, {"epoch": 1}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    scheduler = scheduler_for([1, 2, 3])
    with pytest.raises(CursorFormatError, match="'step' and 'epoch'"):
        scheduler.load_state_dict(state)
    assert scheduler.state_dict()["step"] == 0


@pytest.mark.parametrize(
    ("name", "low"),
    [("step", 0), ("epoch", 0), ("num_batches", 0), ("dp_size", 1), ("local_batch_size", 1)],
)
def test_every_number_of_a_state_is_checked_and_shown(name: str, low: int) -> None:
    scheduler = scheduler_for([1, 2, 3])
    next(iter(scheduler))
    before = saved(scheduler)
    for value in (low - 1, 1.5, "1", None, True):
        message = refusal(
            lambda value=value: scheduler.load_state_dict(  # type: ignore[misc]
                {**before, name: value}
            )
        )
        assert f"{name}={value!r}" in message
        assert saved(scheduler) == before, "an error leaves the clock as it was"


def test_a_state_is_plain_values_with_the_documented_keys() -> None:
    scheduler = scheduler_for([1, 2, 3])
    state = scheduler.state_dict()
    assert (state["step"], state["epoch"]) == (0, 0)
    assert json.loads(json.dumps(state)) == state


@pytest.mark.parametrize(
    "name",
    ["WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "JAX_NUM_PROCESSES"],
)
@pytest.mark.parametrize("make", [StepScheduler, TorchStepScheduler])
def test_a_launcher_that_says_several_processes_is_heard(
    name: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "4")
    message = refusal(lambda: make(**GOOD))
    assert f"{name}=4" in message
    assert "peers=Alone()" in message
    config = StepSchedulerConfig(global_batch_size=4)
    assert f"{name}=4" in refusal(lambda: config.build([1, 2], 1, 2))
    with make(**GOOD, peers=Alone()) as scheduler:
        assert len(records_of_plain(scheduler)) == 20
    monkeypatch.setenv(name, "1")
    make(**GOOD).close()


def records_of_plain(scheduler: StepScheduler) -> list[Any]:
    return [batches for _ in scheduler.epochs for batches in scheduler]


def test_errors_are_of_the_tree() -> None:
    assert issubclass(InvalidValueError, FeedlineError)
    with pytest.raises(ValueError, match="dp_size=0"):
        StepScheduler(4, 2, 0, [1])
    assert len(records_of(scheduler_for([[1], [2]], num_epochs=1))) == 2
