"""A clock's sizes are those of its loader and its ranks: compared if given, derived if not."""

from __future__ import annotations

from typing import Any

import pytest
import torch.utils.data

from clock_loaders import Sized, feed, torch_loader
from clock_runs import Silent
from feedline.errors import InvalidValueError
from feedline.feed import Feed
from feedline.steps import Alone, StepScheduler
from feedline.torch import DataLoader
from loader_data import Ids
from refusals import refusal


def make(*sizes: Any, **options: Any) -> StepScheduler:
    return StepScheduler(*sizes, **{"num_epochs": 1, "preemption_signal": None, **options})


def plain(batch_size: int = 8, **sampler: Any) -> Any:
    """torch's own loader, with a sampler for ranks if its arguments are given."""
    data: Any = Ids(64)
    parts: Any = torch.utils.data.DistributedSampler(data, **sampler) if sampler else None
    return torch.utils.data.DataLoader(data, batch_size=batch_size, sampler=parts)


OURS: dict[str, Any] = {
    "torch": lambda: DataLoader(Ids(64), batch_size=8),
    "feed": lambda: feed(batch_size=8, num_samples=64),
    "plain torch": plain,
}


@pytest.mark.parametrize("kind", OURS)
def test_a_local_batch_size_that_is_not_the_loader_s_is_refused(kind: str) -> None:
    with pytest.raises(InvalidValueError, match="local_batch_size=4 must be 8, the loader's batch"):
        make(32, 4, 1, OURS[kind]())
    scheduler = make(32, 8, 1, OURS[kind]())
    assert [scheduler.num_samples for _ in scheduler] == [32, 32]


@pytest.mark.parametrize(
    "loader",
    [
        lambda: feed(batch_size=8, num_samples=64, world_size=2, rank=1),
        lambda: torch_loader(batch_size=8, num_samples=64, world_size=2, rank=1),
        lambda: plain(num_replicas=2, rank=1),
    ],
)
def test_a_number_of_ranks_that_is_not_the_loader_s_is_refused(loader: Any) -> None:
    with pytest.raises(InvalidValueError, match="dp_size=1 must be 2, the number of ranks"):
        make(32, 8, 1, loader())
    assert make(32, 8, 2, loader()).grad_acc_steps == 2
    assert make(dataloader=loader()).dp_size == 2


def test_ranks_of_a_loader_that_does_not_know_them_divide_the_processes() -> None:
    for size, grad_acc in ((1, 4), (2, 2), (4, 1)):
        scheduler = make(8, 2, size, Sized(5), peers=Silent(4))
        assert scheduler.grad_acc_steps == grad_acc
    assert make(8, 2, None, Sized(5), peers=Silent(4)).dp_size == 4
    for size in (3, 8):
        message = refusal(lambda size=size: make(24, 1, size, Sized(5), peers=Silent(4)))  # type: ignore[misc]
        assert f"dp_size={size} must be a divisor of 4, the number of processes" in message
    message = refusal(lambda: make(8, 2, 2, Sized(5)))
    assert "dp_size=2 must be a divisor of 1" in message


@pytest.mark.parametrize("kind", OURS)
def test_what_is_left_out_comes_from_the_loader(kind: str) -> None:
    scheduler = make(dataloader=OURS[kind](), global_batch_size=32)
    assert (scheduler.local_batch_size, scheduler.dp_size, scheduler.grad_acc_steps) == (8, 1, 4)
    assert make(dataloader=OURS[kind]()).global_batch_size == 8
    assert "global_batch_size=12" in refusal(lambda: make(12, dataloader=OURS[kind]()))


def test_a_loader_that_does_not_say_its_batch_size_needs_a_number() -> None:
    assert "local_batch_size is required" in refusal(lambda: make(dataloader=Sized(5)))
    assert make(None, 2, dataloader=Sized(5)).global_batch_size == 2


def test_a_loader_that_is_given_later_is_compared_too() -> None:
    scheduler = make(32, 8, 1, None, max_steps=3)
    assert "dataloader=None" in refusal(lambda: next(iter(scheduler)))
    with pytest.raises(InvalidValueError, match="local_batch_size=8 must be 4"):
        scheduler.dataloader = plain(4)
    assert scheduler.dataloader is None
    loader: Feed = feed(batch_size=8, num_samples=64)
    scheduler.dataloader = loader
    assert scheduler.dataloader is loader
    assert [len(batches) for batches in scheduler] == [4, 4]


def test_a_loader_that_is_replaced_brings_its_own_length() -> None:
    options: dict[str, Any] = {"preemption_signal": None, "peers": Alone()}
    scheduler = StepScheduler(4, 2, 1, [[1, 2]] * 20, max_steps=10, **options)
    assert (scheduler.epoch_len, scheduler.num_epochs) == (10, 1)
    scheduler.dataloader = [[1, 2]] * 4
    assert scheduler.epoch_len == 2
    assert len([step for _ in scheduler.epochs for step in scheduler]) == scheduler.max_steps == 10
    scheduler = StepScheduler(4, 2, 1, [[1, 2]] * 20, num_epochs=3, **options)
    scheduler.dataloader = [[1, 2]] * 4
    assert (scheduler.num_epochs, scheduler.max_steps) == (3, 6)
