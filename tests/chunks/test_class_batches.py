"""Every batch of the class sampler is of one class: on all ranks, to the end, after any resize."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from chunk_requests import batches_of
from feedline.chunks import ClassSampler, DistributedSampler
from feedline.errors import InvalidValueError
from feedline.plan import Plan, Segment
from feedline.plan.batches import Place

LABELS = np.repeat(["b", "a", "c", "a", "b"], [40, 50, 33, 41, 36])
NUM_ROWS = len(LABELS)
# Chunks, how many make a window, and batch sizes for which a class is drawn equally often.
SHAPES = [(4, 3, (3, 6, 12)), (6, 4, (4, 12)), (5, 2, (1, 5)), (8, 2, (1, 2, 4, 8)), (4, 2, (8,))]


def sampler_of(rank: int, world_size: int, inner: ClassSampler, shards: str) -> DistributedSampler:
    return DistributedSampler(inner, dist_info=lambda: (rank, world_size), shards=shards)


def real_parts(segment: Segment, rank: int, start: int, stop: int) -> list[NDArray[np.int64]]:
    """Return the real rows of each batch, having checked that each batch is of one class."""
    parts = []
    for batch in segment.block(rank, start, stop):
        assert 0 < len(batch.indices) <= segment.batch_size
        assert len(set(LABELS[batch.indices])) == 1
        parts.append(batch.indices[batch.is_real])
    return parts


def places_in(segment: Segment, index: int) -> list[Place]:
    found = []
    for rank in range(segment.world_size):
        for batch in segment.batches(rank, 0):
            for slot in np.flatnonzero(batch.indices == index).tolist():
                found.append(Place(batch.number, rank, slot, bool(batch.is_real[slot])))
    return sorted(found)


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Any]:
    chunk_size, preload, batch_sizes = draw(st.sampled_from(SHAPES))
    sizes = st.tuples(st.integers(1, 7), st.sampled_from(batch_sizes))
    return {
        "shape": (chunk_size, preload),
        "options": {
            "num_samples": draw(st.integers(1, 400)),
            "drop_last": draw(st.booleans()),
            "rng": draw(st.integers(0, 2**40)),
            "class_weights": draw(st.sampled_from([None, [1, 5, 2], [0, 1, 3]])),
        },
        "stages": draw(st.lists(st.tuples(sizes, st.floats(0, 1)), min_size=1, max_size=6)),
    }


@given(runs())
def test_a_run_with_resizes_has_one_class_a_batch_and_every_draw_once(run: dict[str, Any]) -> None:
    def plan_of(batch_size: int) -> Plan:
        inner = ClassSampler(*run["shape"], batch_size, classes=LABELS, **run["options"])
        return sampler_of(0, 1, inner, "windows").plan(NUM_ROWS)

    first = plan_of(run["stages"][0][0][1])
    drawn = Counter(first.epoch_order(0).indices(np.arange(run["options"]["num_samples"])).tolist())
    cursor, got, stages = None, Counter[int](), run["stages"]
    for number, ((world_size, batch_size), part) in enumerate(stages):
        plan, sizes = plan_of(batch_size), {"world_size": world_size, "batch_size": batch_size}
        segment = plan.resume(cursor, **sizes) if cursor else Segment(plan=plan, **sizes)
        start = segment.num_done
        is_last = number == len(stages) - 1
        stop = segment.num_batches if is_last else start + int(part * (segment.num_batches - start))
        num_real = 0
        for rank in range(world_size):
            parts = real_parts(segment, rank, start, stop)
            assert len(parts) == stop - start
            num_real += sum(map(len, parts))
            got.update(row for rows in parts for row in rows.tolist())
        assert segment.num_real(start, stop) == num_real
        assert segment.num_left_after(stop) == sum(drawn.values()) - sum(got.values())
        cursor = segment.cursor(stop)
        if is_last:
            num_kept = sum(drawn.values()) - segment.num_dropped
            assert sum(got.values()) == num_kept
            assert got <= drawn
            assert run["options"]["drop_last"] or segment.num_dropped == 0
            for index in sorted(drawn)[:3]:
                assert segment.find(index) == places_in(segment, index)


@pytest.mark.parametrize("shards", ["windows", "contiguous"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("num_samples", [7, 60, 97, 240])
def test_every_rank_has_one_class_a_batch_to_the_last_round(
    num_samples: int, world_size: int, shards: str
) -> None:
    inner = ClassSampler(4, 3, 6, classes=LABELS, num_samples=num_samples, rng=3)
    counts = set()
    for rank in range(world_size):
        sampler = sampler_of(rank, world_size, inner, shards)
        batches = [b for request in sampler.sample(NUM_ROWS) for b in batches_of(request)]
        assert all(len(set(LABELS[batch])) == 1 for batch in batches)
        counts.add(len(batches))
        assert sampler.n_batches(NUM_ROWS) == len(batches)
    assert len(counts) == 1


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (4, 1), (1, 5)])
def test_a_saved_sampler_goes_on_elsewhere_with_one_class_a_batch(before: int, after: int) -> None:
    inner = ClassSampler(10, 3, 6, classes=LABELS, num_samples=400, rng=1)
    states, rows = set(), []
    for rank in range(before):
        sampler = sampler_of(rank, before, inner, "windows")
        batches = [b for request in sampler.sample(NUM_ROWS) for b in batches_of(request)]
        sampler = sampler_of(rank, before, inner, "windows")
        next(sampler.sample(NUM_ROWS))
        states.add(json.dumps(sampler.state_dict(2)))
        rows += [row for batch in batches[:2] for row in batch]
    (state,) = states
    for rank in range(after):
        sampler = sampler_of(rank, after, inner, "windows")
        sampler.load_state_dict(json.loads(state))
        batches = [b for request in sampler.sample(NUM_ROWS) for b in batches_of(request)]
        assert batches
        assert all(len(set(LABELS[batch])) == 1 for batch in batches)
        rows += [row for batch in batches for row in batch]
    # All draws, and padding where fewer than the ranks are left.
    assert 400 <= len(rows) < 400 + after


def test_reads_of_a_rank_are_whole_chunks_until_the_last_round() -> None:
    inner = ClassSampler(8, 2, 4, classes=LABELS, num_samples=16 * 3 * 5, rng=1)
    for rank in range(3):
        for request in sampler_of(rank, 3, inner, "windows").sample(NUM_ROWS):
            # Two chunks of eight rows for four batches; runs may overlap or be cut.
            assert len(request["splits"]) == 4
            assert sum(part.stop - part.start for part in request["requests"]) <= 16


def test_a_batch_size_that_cuts_a_class_is_refused() -> None:
    inner = ClassSampler(4, 3, 6, classes=LABELS, num_samples=60)
    with pytest.raises(InvalidValueError, match=r"batch_size=5 must divide 12, the number of"):
        inner.plan(NUM_ROWS).segment(world_size=1, batch_size=5)


# Contiguous shards.


def test_all_ranks_learn_that_one_of_them_has_nothing_to_draw() -> None:
    # Rank 1 of 3 has rows [20, 40): ends of two runs, each too short for a chunk.
    labels = np.repeat([0, 1, 2], [28, 10, 22])
    inner = ClassSampler(9, 4, 4, classes=labels, num_samples=36, class_weights=[1, 0, 1])
    for rank in range(3):
        for ask in ("validate", "n_batches", "sample"):
            sampler = sampler_of(rank, 3, inner, "contiguous")
            with pytest.raises(
                InvalidValueError, match=r"1 rank of 3 .*rank 1 has rows \[20, 40\)"
            ):
                list(getattr(sampler, ask)(len(labels)) or ())


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(5, 25)), min_size=1, max_size=12),
    st.integers(1, 9),
    st.integers(0, 8),
)
def test_shards_are_refused_if_and_only_if_one_of_them_holds_no_run(
    given_runs: list[tuple[int, int]], world_size: int, start: int
) -> None:
    labels = np.repeat(*(np.array(part) for part in zip(*given_runs, strict=True)))
    weights = [label % 2 for label in sorted(set(labels.tolist()))]
    chunk = min([length for label, length in _joined(labels) if label % 2] or [5])
    if not any(weights) or len(labels) - start < world_size:
        return
    inner = ClassSampler(chunk, 2, chunk, classes=labels, num_samples=50, class_weights=weights)
    size = (len(labels) - start) // world_size
    refused = []
    for rank in range(world_size):
        try:
            inner.order_on(start + rank * size, start + (rank + 1) * size, 0)
        except InvalidValueError:
            refused.append(rank)
    if refused:
        with pytest.raises(InvalidValueError, match=f"rank {refused[0]} has rows"):
            inner.check_shards(start, size, world_size)
    else:
        inner.check_shards(start, size, world_size)


def _joined(labels: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the label and the length of each run."""
    edges = [0, *(np.flatnonzero(np.diff(labels)) + 1).tolist(), len(labels)]
    return [(int(labels[a]), b - a) for a, b in pairwise(edges)]


def test_the_shapes_draw_a_class_equally_often() -> None:
    for chunk_size, preload, batch_sizes in SHAPES:
        assert len({math.lcm(chunk_size, size) for size in batch_sizes}) == 1
        assert all(chunk_size * preload % size == 0 for size in batch_sizes)
