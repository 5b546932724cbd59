"""Ranks talk once a step, whatever each of them asks, and say who is not where the others are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings

from clock_loaders import Sized, Unsized, feed, torch_loader
from feedline.errors import DesyncError
from feedline.feed import LoaderWrapper
from feedline.steps import StepScheduler
from thread_peers import ThreadPeers, on_ranks

QUESTIONS = (
    *("is_ckpt_step", "is_val_step", "sigterm_received", "stop_reason", "is_last_step"),
    *("is_last_batch", "is_remote_logging_step", "is_gc_step"),
)


def make(peers: Any, loader: Any = None, **options: Any) -> StepScheduler:
    """A clock of one of three ranks."""
    options = {"num_epochs": 2, "ckpt_every_steps": 100, "preemption_signal": None, **options}
    loader = [[number] for number in range(6)] if loader is None else loader
    return StepScheduler(peers.world_size, 1, peers.world_size, loader, peers=peers, **options)


def ask(scheduler: StepScheduler, rank: int) -> None:
    """Ask a number of questions that differs from rank to rank and from step to step."""
    for number in range((rank * 5 + scheduler.step * 3) % 11):
        getattr(scheduler, QUESTIONS[(number + rank) % len(QUESTIONS)])


@pytest.mark.parametrize("limit", ["max_steps", "num_epochs"])
def test_ranks_with_other_limits_are_told_before_the_first_step(limit: str) -> None:
    def run(peers: ThreadPeers) -> Any:
        return list(make(peers, **{limit: 3 if peers.rank == 1 else 5}))

    for error in on_ranks(3, run):
        assert isinstance(error, DesyncError)
        assert f"{limit} is 3 on rank 1 and 5 on rank 0, 2" in str(error)


@pytest.mark.parametrize("ckpt_every_steps", [1, 2, 5, 100])
@pytest.mark.parametrize("every_epoch", [True, False])
def test_ranks_talk_once_a_step_however_much_each_of_them_asks(
    ckpt_every_steps: int, every_epoch: bool
) -> None:
    def run(peers: ThreadPeers) -> Any:
        options = {"save_checkpoint_every_epoch": every_epoch, "val_every_steps": 2}
        scheduler = make(peers, ckpt_every_steps=ckpt_every_steps, **options)
        calls = []
        ask(scheduler, peers.rank)
        for _ in scheduler.epochs:
            ask(scheduler, peers.rank)
            for _ in scheduler:
                ask(scheduler, peers.rank)
                scheduler.state_dict()
                calls.append(peers.num_calls)
            ask(scheduler, peers.rank)
        return scheduler.step, peers.num_calls, calls

    results = on_ranks(3, run)
    for num_steps, num_calls, calls in results:
        assert num_steps == 12
        # The run may end with a checkpoint, and nothing is left to agree on after that.
        assert num_calls == 12
        assert all(before <= step + 1 for step, before in enumerate(calls))


@pytest.mark.parametrize("asker", [0, 2])
def test_a_request_of_any_rank_stops_all_after_the_same_step(asker: int) -> None:
    def run(peers: ThreadPeers) -> Any:
        scheduler = make(peers)
        steps = []
        for _ in scheduler.epochs:
            for _ in scheduler:
                if (peers.rank, scheduler.step) == (asker, 4):
                    scheduler.request_stop()
                steps.append((scheduler.step, scheduler.is_ckpt_step, scheduler.is_val_step))
        return steps, scheduler.stop_reason, scheduler.sigterm_received

    expected = [(step, step == 4, False) for step in range(5)]
    assert on_ranks(3, run) == [(expected, "a rank requested a stop", False)] * 3


def said_at(peers: ThreadPeers, steps: list[int], asker: int | None) -> str:
    """What a rank at a step of its own makes of what the others say, at once."""
    scheduler = make(peers, start_step=steps[peers.rank], max_steps=10**7)
    for _ in scheduler:
        if peers.rank == asker:
            scheduler.request_stop()
        try:
            _ = scheduler.is_ckpt_step
        except DesyncError as error:
            return str(error)
        break
    return ""


@settings(max_examples=30)
@given(steps=st.lists(st.integers(0, 10**6), min_size=2, max_size=4))
def test_a_rank_at_another_step_is_found_at_once(steps: list[int]) -> None:
    assume(len(set(steps)) > 1)
    said = on_ranks(len(steps), lambda peers: said_at(peers, steps, None))
    assert any(said)
    for rank, message in enumerate(said):
        if message:
            assert f"rank {rank} is at step {steps[rank]}, but others are not" in message


@pytest.mark.parametrize("asker", [0, 1])
def test_a_rank_at_another_step_is_found_although_the_run_stops(asker: int) -> None:
    steps = [4, 7]
    assert any(on_ranks(2, lambda peers: said_at(peers, steps, asker)))


class Leaky(LoaderWrapper):
    """A loader whose iterator somebody else can reach."""

    def __iter__(self) -> Iterator[Any]:
        self.batches = super().__iter__()
        return self.batches


TAKEN: dict[str, Callable[[Any], Any]] = {
    "from the clock's iterator": lambda loader: next(loader.batches),
    "from another one": lambda loader: next(iter(loader)),
    "all of them": list,
}


@pytest.mark.parametrize("how", TAKEN)
@pytest.mark.parametrize("kind", ["torch", "feed"])
def test_a_rank_whose_batches_somebody_else_takes_is_named_on_all(kind: str, how: str) -> None:
    def run(peers: ThreadPeers) -> Any:
        sizes = {"rank": peers.rank, "world_size": 3}
        loader = Leaky(torch_loader(**sizes) if kind == "torch" else feed(**sizes))
        options: dict[str, Any] = {"num_epochs": 2, "preemption_signal": None, "peers": peers}
        scheduler = StepScheduler(dataloader=loader, **options)
        steps = []
        try:
            for _ in scheduler:
                steps.append(scheduler.step)
                if peers.rank == 2 and scheduler.step == 1:
                    TAKEN[how](loader)
        except DesyncError as error:
            return steps, str(error)
        return steps, "ended"

    for steps, said in on_ranks(3, run):
        assert steps == [0, 1]
        assert "rank 2 has received other samples than its plan" in said


def test_a_loader_that_is_sent_to_a_checkpoint_before_its_clock_is_no_stranger() -> None:
    loader = torch_loader()
    scheduler = StepScheduler(dataloader=loader, num_epochs=2, preemption_signal=None)
    state = scheduler.state_dict()
    for _ in scheduler:
        if scheduler.step == 2:
            break
    loader.load_state_dict(state["dataloader"])
    scheduler.load_state_dict(state)
    assert [scheduler.step for _ in scheduler] == [*range(8)]


def test_ranks_that_ask_differently_and_leave_the_loop_stay_together() -> None:
    def run(peers: ThreadPeers) -> Any:
        scheduler = make(peers)
        steps = []
        for _ in range(4):
            for _ in scheduler:
                steps.append(scheduler.step)
                if peers.rank == 0:
                    _ = scheduler.is_ckpt_step
                break
        # The last step ends when the clock is asked for another one.
        scheduler.set_epoch(0)
        return steps

    assert on_ranks(2, run) == [[0, 1, 2, 3]] * 2


def test_ranks_that_ask_alike_and_leave_the_loop_stay_together() -> None:
    def run(peers: ThreadPeers) -> Any:
        scheduler = make(peers)
        steps = []
        for _ in range(4):
            for _ in scheduler:
                steps.append((scheduler.step, scheduler.is_ckpt_step))
                break
        return steps

    assert on_ranks(2, run) == [[(step, False) for step in range(4)]] * 2


@pytest.mark.parametrize("kind", [Sized, Unsized])
def test_ranks_whose_epochs_end_at_different_steps_are_told(kind: Any) -> None:
    def run(peers: ThreadPeers) -> Any:
        scheduler = make(peers, kind(5 if peers.rank == 0 else 4), max_steps=20)
        return [
            (scheduler.step, scheduler.is_ckpt_step) for _ in scheduler.epochs for _ in scheduler
        ]

    results = on_ranks(2, run, timeout=1.0)
    # Else one of them saves a checkpoint that the other knows nothing of, and waits for ever.
    assert any(isinstance(result, DesyncError) for result in results)


@pytest.mark.parametrize(("every", "sizes"), [(1, (5, 4)), (4, (6, 5))])
@pytest.mark.parametrize("kind", [Sized, Unsized])
def test_ranks_whose_epochs_end_right_after_a_checkpoint_do_not_part(
    kind: Any, every: int, sizes: tuple[int, int]
) -> None:
    said: list[list[bool]] = [[], []]

    def run(peers: ThreadPeers) -> Any:
        loader = kind(sizes[peers.rank])
        scheduler = make(peers, loader, max_steps=20, ckpt_every_steps=every)
        for _ in scheduler.epochs:
            for _ in scheduler:
                said[peers.rank].append(scheduler.is_ckpt_step)

    results = on_ranks(2, run, timeout=1.0)
    assert any(isinstance(result, DesyncError) for result in results)
    assert all(one == other for one, other in zip(*said, strict=False))
