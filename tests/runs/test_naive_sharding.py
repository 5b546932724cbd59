"""The model of naive sharding does what such a run would do, sample by sample."""

from __future__ import annotations

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from feedline.plan import PastSegment
from feedline.runs.naive_sharding import NaiveSharding


def shares_in_batches(
    num_samples: int, world_size: int, batch_size: int, drops_last: bool
) -> list[list[list[int]]]:
    """The batches of each rank, from its own share of the order."""
    ranks = []
    for rank in range(world_size):
        share = list(range(num_samples))[rank::world_size]
        batches = [share[i : i + batch_size] for i in range(0, len(share), batch_size)]
        ranks.append([b for b in batches if len(b) == batch_size or not drops_last])
    return ranks


def train(num_samples: int, parts: list[PastSegment], drops_last: bool) -> tuple[Counter[int], int]:
    """What is consumed when every step needs all ranks, and how many ranks wait at the end."""
    consumed: Counter[int] = Counter()
    step = 0
    waiting = 0
    for number, (world_size, batch_size, num_batches, _) in enumerate(parts):
        ranks = shares_in_batches(num_samples, world_size, batch_size, drops_last)
        is_last = number == len(parts) - 1
        num_done = 0
        while (is_last or num_done < num_batches) and all(step < len(r) for r in ranks):
            for batches in ranks:
                consumed.update(batches[step])
            step, num_done = step + 1, num_done + 1
        if is_last:
            fewest = min(len(batches) for batches in ranks)
            waiting = sum(len(batches) > fewest for batches in ranks)
    return consumed, waiting


sizes = st.tuples(st.integers(1, 7), st.integers(1, 5), st.integers(0, 12))


@given(
    num_samples=st.integers(1, 150),
    parts=st.lists(sizes, min_size=1, max_size=4),
    drops_last=st.booleans(),
)
@example(num_samples=150, parts=[(7, 5, 3), (1, 2, 3), (2, 1, 4), (1, 1, 0)], drops_last=True)
def test_the_model_agrees_with_a_run_step_by_step(
    num_samples: int, parts: list[tuple[int, int, int]], drops_last: bool
) -> None:
    past = [PastSegment(*part) for part in parts]
    model = NaiveSharding(num_samples=num_samples, parts=past, drops_last=drops_last)
    consumed, waiting = train(num_samples, past, drops_last)
    assert model.num_consumed == consumed.total()
    assert model.num_lost == num_samples - len(consumed)
    assert model.num_repeated == consumed.total() - len(consumed)
    assert model.num_waiting_ranks == waiting
    assert model.hangs == (waiting > 0)
    ranks = shares_in_batches(num_samples, *past[-1][:2], drops_last)
    counts = [len(batches) for batches in ranks]
    assert (model.fewest_batches, model.most_batches) == (min(counts), max(counts))


def test_one_sample_too_many_hangs_a_run() -> None:
    run = NaiveSharding(num_samples=65, parts=[PastSegment(8, 4, 0)], drops_last=False)
    assert run.hangs
    assert (run.fewest_batches, run.most_batches, run.num_waiting_ranks) == (2, 3, 1)


def test_fewer_ranks_repeat_and_more_ranks_lose() -> None:
    smaller = [PastSegment(8, 4, 10), PastSegment(4, 4, 0)]
    larger = [PastSegment(4, 4, 10), PastSegment(8, 4, 0)]
    run = NaiveSharding(num_samples=3200, parts=smaller, drops_last=True)
    assert (run.num_repeated, run.num_lost) == (160, 0)
    run = NaiveSharding(num_samples=3200, parts=larger, drops_last=True)
    assert (run.num_repeated, run.num_lost) == (0, 160)
