"""Threads that share a segment: each gets its own blocks, wherever another one comes between."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import assume, given, reject, settings

import feedline.plan
from feedline.plan import EqualChunks, Plan, Segment, WindowPlan
from plan_kinds import any_plan, batch_sizes, fits, world_sizes

PLAN = str(Path(feedline.plan.__file__).parent)
Ask = tuple[int, int, int]


def interrupted(action: Callable[[], Any], at: int, between: Callable[[], Any]) -> tuple[Any, int]:
    """Run an action and, before its instruction number `at` in the rooms of plans, another one.

    Return what the first one returned, and the number of its instructions.
    """
    num_seen = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal num_seen
        if not frame.f_code.co_filename.startswith(PLAN):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            if num_seen == at:
                sys.settrace(None)
                between()
                sys.settrace(trace)
            num_seen += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return action(), num_seen
    finally:
        sys.settrace(before)


def listed(segment: Segment, ask: Ask) -> list[list[int]]:
    return [batch.indices.tolist() for batch in segment.block(*ask)]


@settings(max_examples=60)
@given(any_plan, world_sizes, batch_sizes, st.data())
def test_a_block_is_the_same_wherever_another_thread_comes_between(
    plan: Plan, world_size: int, batch_size: int, data: st.DataObject
) -> None:
    assume(fits(plan, batch_size))
    sizes = {"world_size": world_size, "batch_size": batch_size}
    try:
        num_batches = plan.segment(**sizes).num_batches
    except ValueError:
        # Too few samples for so many ranks.
        reject()
    asked = [
        (
            data.draw(st.integers(0, world_size - 1)),
            *sorted(data.draw(st.tuples(*[st.integers(0, num_batches)] * 2))),
        )
        for _ in range(3)
    ]
    check(plan, sizes, *asked, times=data.draw(st.lists(st.floats(0, 1), min_size=8, max_size=8)))


def check(
    plan: Plan, sizes: dict[str, int], before: Ask, ask: Ask, other: Ask, times: list[float]
) -> None:
    """Compare a block that another one interrupts with the same block of a thread alone."""

    def fresh() -> Segment:
        segment = plan.segment(**sizes)
        segment.block(*before)
        return segment

    expected, expected_other = listed(fresh(), ask), listed(fresh(), other)
    alone = fresh()
    _, total = interrupted(lambda: listed(alone, ask), -1, lambda: None)
    for time in times:
        segment, found = fresh(), []
        mine, _ = interrupted(
            lambda segment=segment: listed(segment, ask),
            int(time * total),
            lambda segment=segment, found=found: found.append(listed(segment, other)),
        )
        assert mine == expected
        assert found in ([expected_other], [])
        assert listed(segment, other) == expected_other


def test_windows_of_two_threads_do_not_mix() -> None:
    plan = WindowPlan(chunks=EqualChunks(num_samples=4000, chunk_size=20), preload=1, seed=1)
    times = np.linspace(0, 1, 300).tolist()
    check(plan, {"world_size": 2, "batch_size": 8}, (0, 2, 3), (0, 2, 4), (1, 0, 1), times)
