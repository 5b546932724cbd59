"""Files tied to ranks: every strategy by its definition, and nothing lost, repeated or shared."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given

from examples import few_examples
from feedline.errors import InvalidValueError, PlanMismatchError
from feedline.plan import (
    FILE_STRATEGIES,
    Cursor,
    FileSharesPlan,
    PastSegment,
    Place,
    Replay,
    Segment,
)
from plan_kinds import same_batches, seeds, through_json
from refusals import refusal

file_sizes = st.lists(st.integers(0, 12), min_size=1, max_size=14).filter(any)
world_sizes = st.integers(1, 9)
batch_sizes = st.integers(1, 8)
epochs = st.integers(0, 3)


def files_by_definition(num_files: int, rank: int, world_size: int) -> list[int]:
    """Rank r of W has files r, r + W, r + 2W, …"""
    return [file for file in range(num_files) if file % world_size == rank]


def counts_by_definition(sizes: list[int], world_size: int) -> list[int]:
    return [
        sum(sizes[file] for file in files_by_definition(len(sizes), rank, world_size))
        for rank in range(world_size)
    ]


def target_by_definition(sizes: list[int], strategy: str, world_size: int) -> int | None:
    """How many samples every rank gets, or None where there is no such number."""
    counts = counts_by_definition(sizes, world_size)
    if strategy == "exact":
        return counts[0] if len(set(counts)) == 1 else None
    if strategy == "undersampling":
        return min(counts) or None
    for rank in range(world_size):
        files = files_by_definition(len(sizes), rank, world_size) or [rank % len(sizes)]
        if not any(sizes[file] for file in files):
            return None
    return max(counts)


def starts_of(sizes: list[int]) -> list[int]:
    return np.cumsum([0, *sizes]).tolist()


def samples_of(sizes: list[int], files: list[int]) -> list[int]:
    starts = starts_of(sizes)
    return [index for file in files for index in range(starts[file], starts[file] + sizes[file])]


@st.composite
def possible(draw: st.DrawFn) -> tuple[FileSharesPlan, int]:
    """A plan and a number of ranks that it can serve."""
    strategy = draw(st.sampled_from(FILE_STRATEGIES))
    world_size = draw(world_sizes)
    if strategy == "exact":
        size, rounds = draw(st.integers(1, 9)), draw(st.integers(1, 4))
        sizes = [size] * (world_size * rounds)
        if rounds > 1 and draw(st.booleans()):
            # Unequal files whose sums are equal on every rank.
            sizes[:world_size] = [0] * world_size
            sizes[-world_size:] = [2 * size] * world_size
    else:
        sizes = draw(file_sizes)
    assume(target_by_definition(sizes, strategy, world_size) is not None)
    plan = FileSharesPlan(
        sizes=sizes, strategy=strategy, shuffle=draw(st.booleans()), seed=draw(seeds)
    )
    return plan, world_size


def entries_of(segment: Segment, rank: int, start: int = 0) -> list[tuple[int, bool]]:
    """The samples of a rank in order, with whether each is real."""
    return [
        (index, is_real)
        for batch in segment.batches(rank, start)
        for index, is_real in zip(batch.indices.tolist(), batch.is_real.tolist(), strict=True)
    ]


# How many.


@given(file_sizes, st.sampled_from(FILE_STRATEGIES), world_sizes)
def test_targets_are_those_of_the_definitions(
    sizes: list[int], strategy: str, world_size: int
) -> None:
    plan = FileSharesPlan(sizes=sizes, strategy=strategy)
    assert plan.own_samples(world_size) == counts_by_definition(sizes, world_size)
    expected = target_by_definition(sizes, strategy, world_size)
    if expected is None:
        with pytest.raises(InvalidValueError):
            plan.target_samples(world_size)
        with pytest.raises(InvalidValueError):
            plan.segment(world_size=world_size, batch_size=1)
    else:
        assert plan.target_samples(world_size) == expected


@given(possible(), batch_sizes, epochs)
def test_every_rank_gets_the_target_in_the_same_number_of_batches(
    case: tuple[FileSharesPlan, int], batch_size: int, epoch: int
) -> None:
    plan, world_size = case
    target = plan.target_samples(world_size)
    segment = plan.segment(world_size=world_size, batch_size=batch_size, epoch=epoch)
    assert segment.num_batches == -(-target // batch_size)
    num_full, rest = divmod(target, batch_size)
    for rank in range(world_size):
        sizes = [len(batch.indices) for batch in segment.batches(rank)]
        assert sizes == [batch_size] * num_full + [rest] * (rest > 0)


@given(possible(), batch_sizes, epochs)
def test_real_entries_are_every_sample_once_less_what_is_dropped(
    case: tuple[FileSharesPlan, int], batch_size: int, epoch: int
) -> None:
    plan, world_size = case
    segment = plan.segment(world_size=world_size, batch_size=batch_size, epoch=epoch)
    entries = [entry for rank in range(world_size) for entry in entries_of(segment, rank)]
    real = Counter(index for index, is_real in entries if is_real)
    assert all(count == 1 for count in real.values())
    assert plan.num_indices - len(real) == segment.num_dropped
    assert sum(not is_real for _, is_real in entries) == segment.num_padded
    if plan.strategy != "undersampling":
        assert segment.num_dropped == 0
    if plan.strategy != "oversampling":
        assert segment.num_padded == 0


@given(possible(), batch_sizes, epochs)
def test_ranks_read_their_own_files_and_no_others(
    case: tuple[FileSharesPlan, int], batch_size: int, epoch: int
) -> None:
    plan, world_size = case
    sizes = np.asarray(plan.sizes).tolist()
    segment = plan.segment(world_size=world_size, batch_size=batch_size, epoch=epoch)
    for rank in range(world_size):
        files = files_by_definition(len(sizes), rank, world_size) or [rank % len(sizes)]
        assert plan.files_of(rank, world_size).tolist() == files
        own = set(samples_of(sizes, files))
        assert {index for index, _ in entries_of(segment, rank)} <= own


@given(possible(), batch_sizes, epochs)
def test_a_file_is_finished_before_the_next_is_begun(
    case: tuple[FileSharesPlan, int], batch_size: int, epoch: int
) -> None:
    plan, world_size = case
    segment = plan.segment(world_size=world_size, batch_size=batch_size, epoch=epoch)
    for rank in range(world_size):
        own = len(samples_of(np.asarray(plan.sizes).tolist(), plan.files_of(rank, world_size)))
        first_pass = np.array([index for index, _ in entries_of(segment, rank)][:own])
        files = plan.chunks.rows_of(first_pass)[0]
        assert np.count_nonzero(np.diff(files)) == len(set(files.tolist())) - 1


def test_a_single_file_serves_one_rank_alike_in_every_strategy() -> None:
    seen = []
    for strategy in FILE_STRATEGIES:
        plan = FileSharesPlan(sizes=[10], strategy=strategy)
        segment = plan.segment(world_size=1, batch_size=4)
        assert (segment.num_batches, segment.num_padded, segment.num_dropped) == (3, 0, 0)
        seen.append(entries_of(segment, 0))
    assert seen[0] == seen[1] == seen[2]
    assert sorted(index for index, _ in seen[0]) == list(range(10))


# What cannot be.


@given(file_sizes, world_sizes)
def test_exact_lists_every_odd_rank_with_its_files_and_counts(
    sizes: list[int], world_size: int
) -> None:
    counts = counts_by_definition(sizes, world_size)
    assume(len(set(counts)) > 1)
    names = [f"part-{number}.pt" for number in range(len(sizes))]
    plan = FileSharesPlan(sizes=sizes, strategy="exact", names=names)
    message = refusal(lambda: plan.segment(world_size=world_size, batch_size=2))
    assert "balanced" in message
    lines = message.splitlines()[1:]
    usual = int(message.split("Most ranks have ")[1].split(".")[0])
    assert counts.count(usual) == max(counts.count(count) for count in counts)
    expected = []
    for rank, count in enumerate(counts):
        if count != usual:
            files = files_by_definition(len(sizes), rank, world_size)
            listed = ", ".join(f"{names[file]}: {sizes[file]}" for file in files)
            samples = "sample" if count == 1 else "samples"
            expected.append(f"rank {rank}: {count} {samples}, files: {listed or 'none'}")
    assert lines == expected


def test_files_without_names_are_called_by_number() -> None:
    plan = FileSharesPlan(sizes=[3, 3, 4], strategy="exact")
    assert "file 2: 4" in refusal(lambda: plan.target_samples(3))


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c", "d"]])
def test_names_that_are_not_one_for_each_file_are_refused(names: list[str]) -> None:
    with pytest.raises(InvalidValueError, match="names"):
        FileSharesPlan(sizes=[1, 2, 4], strategy="exact", names=names).target_samples(3)


@pytest.mark.parametrize("strategy", ["exact", "undersampling"])
def test_ranks_without_files_are_an_error_that_says_what_to_do(strategy: str) -> None:
    plan = FileSharesPlan(sizes=[5, 5], strategy=strategy)
    message = refusal(lambda: plan.segment(world_size=4, batch_size=1))
    assert "balanced" in message
    if strategy == "undersampling":
        assert "rank 2, 3" in message
        assert "2 files" in message


def test_very_many_ranks_without_files_are_not_all_listed() -> None:
    plan = FileSharesPlan(sizes=[5], strategy="undersampling")
    message = refusal(lambda: plan.target_samples(1000))
    assert "and 991 more" in message
    assert len(message) < 500


def test_a_rank_with_only_empty_files_cannot_repeat_anything() -> None:
    plan = FileSharesPlan(sizes=[5, 0, 5, 0], strategy="oversampling")
    assert "rank 1 of 2" in refusal(lambda: plan.segment(world_size=2, batch_size=1))
    assert plan.target_samples(1) == 10
    borrowed = FileSharesPlan(sizes=[5, 0], strategy="oversampling")
    assert "empty files" in refusal(lambda: borrowed.segment(world_size=4, batch_size=1))


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": []},
        {"sizes": [0, 0]},
        {"sizes": [-1, 4]},
        {"sizes": [1.5]},
        {"sizes": 5},
        {"sizes": [[1, 2]]},
        {"sizes": None},
        {"sizes": [2**62, 2**62]},
        {"strategy": "balanced"},
        {"strategy": None},
        {"seed": None},
        {"seed": 1.5},
    ],
)
def test_wrong_values_are_refused_at_once(change: dict[str, Any]) -> None:
    given_values: dict[str, Any] = {"sizes": [1, 2], "strategy": "exact"} | change
    assert refusal(lambda: FileSharesPlan(**given_values))


@pytest.mark.parametrize("world_size", [0, -1, 1.0, True, None])
def test_wrong_world_sizes_are_refused(world_size: Any) -> None:
    plan = FileSharesPlan(sizes=[4, 4], strategy="exact")
    assert "world_size" in refusal(lambda: plan.target_samples(world_size))
    assert "world_size" in refusal(lambda: plan.segment(world_size=world_size, batch_size=1))


# Passes.


@given(possible(), batch_sizes, epochs)
def test_a_rank_repeats_only_when_its_pass_is_over(
    case: tuple[FileSharesPlan, int], batch_size: int, epoch: int
) -> None:
    plan, world_size = case
    sizes = np.asarray(plan.sizes).tolist()
    segment = plan.segment(world_size=world_size, batch_size=batch_size, epoch=epoch)
    for rank in range(world_size):
        own = samples_of(sizes, plan.files_of(rank, world_size).tolist())
        entries = entries_of(segment, rank)
        for first in range(0, len(entries), len(own)):
            part = [index for index, _ in entries[first : first + len(own)]]
            assert len(set(part)) == len(part)
            if len(part) == len(own):
                assert sorted(part) == own
        is_borrowed = rank >= len(sizes)
        assert [is_real for _, is_real in entries] == [
            not is_borrowed and place < len(own) for place in range(len(entries))
        ]


@given(file_sizes, world_sizes, batch_sizes)
def test_undersampling_never_repeats(sizes: list[int], world_size: int, batch_size: int) -> None:
    assume(target_by_definition(sizes, "undersampling", world_size) is not None)
    plan = FileSharesPlan(sizes=sizes, strategy="undersampling")
    segment = plan.segment(world_size=world_size, batch_size=batch_size)
    seen = [index for rank in range(world_size) for index, _ in entries_of(segment, rank)]
    assert len(set(seen)) == len(seen) == world_size * min(counts_by_definition(sizes, world_size))


def test_ranks_that_borrow_one_file_read_it_in_other_orders() -> None:
    plan = FileSharesPlan(sizes=[30, 30], strategy="oversampling")
    segment = plan.segment(world_size=8, batch_size=30)
    orders = {tuple(segment.batch(rank, 0).indices.tolist()) for rank in range(0, 8, 2)}
    assert len(orders) == 4
    assert all(sorted(order) == list(range(30)) for order in orders)


# Order.


@given(possible(), batch_sizes, epochs)
def test_without_shuffling_files_and_rows_come_in_order(
    case: tuple[FileSharesPlan, int], batch_size: int, epoch: int
) -> None:
    plan, world_size = case
    plan = replace(plan, shuffle=False)
    sizes = np.asarray(plan.sizes).tolist()
    target = plan.target_samples(world_size)
    segment = plan.segment(world_size=world_size, batch_size=batch_size, epoch=epoch)
    for rank in range(world_size):
        own = samples_of(sizes, plan.files_of(rank, world_size).tolist())
        expected = (own * (target // len(own) + 1))[:target]
        assert [index for index, _ in entries_of(segment, rank)] == expected


def test_no_two_files_epochs_ranks_or_passes_share_a_shuffle() -> None:
    """Patterns of 24 rows: a second one by chance would be one in 10**23."""
    size, num_files, world_size, num_passes = 24, 6, 2, 3
    # A third rank's worth of one large file makes the others go round three times.
    plan = FileSharesPlan(
        sizes=[size] * num_files + [0, size * num_files], strategy="oversampling", seed=5
    )
    patterns: list[tuple[int, ...]] = []
    file_orders: list[tuple[int, ...]] = []
    for epoch in range(8):
        segment = plan.segment(world_size=world_size, batch_size=size, epoch=epoch)
        entries = np.array([index for index, _ in entries_of(segment, 0)])
        assert len(entries) == size * (num_files // world_size) * num_passes
        for part in entries.reshape(-1, size):
            files, rows = plan.chunks.rows_of(part)
            assert len(set(files.tolist())) == 1
            patterns.append(tuple(rows.tolist()))
        files = plan.chunks.rows_of(entries)[0]
        file_orders += map(tuple, files[::size].reshape(num_passes, -1).tolist())
    for rank in range(1, 4):
        # The same files on other ranks, and other numbers of ranks.
        segment = FileSharesPlan(sizes=[size] * 4, strategy="exact", seed=5).segment(
            world_size=4, batch_size=size
        )
        patterns.append(tuple((segment.batch(rank, 0).indices % size).tolist()))
    assert len(set(patterns)) == len(patterns)
    assert len(set(file_orders)) > 1
    assert all(sorted(pattern) == list(range(size)) for pattern in patterns)


def test_every_seed_has_its_own_order() -> None:
    seen = set()
    for seed in [*range(50), "0", "a", -1, 2**70]:
        plan = FileSharesPlan(sizes=[20, 20], strategy="exact", seed=seed)
        segment = plan.segment(world_size=2, batch_size=20)
        seen.add(tuple(segment.batch(0, 0).indices.tolist()))
        seen.add(tuple((segment.batch(1, 0).indices - 20).tolist()))
    assert len(seen) == 108


def test_the_order_is_pinned_by_the_plan_alone() -> None:
    def build() -> list[list[int]]:
        plan = FileSharesPlan(sizes=[5, 7, 6], strategy="oversampling", seed=3)
        segment = plan.segment(world_size=2, batch_size=4, epoch=2)
        return [batch.indices.tolist() for batch in segment.batches(1)]

    assert build() == build()


# Asking.


@given(possible(), batch_sizes, epochs, st.data())
def test_blocks_are_what_single_batches_are(
    case: tuple[FileSharesPlan, int], batch_size: int, epoch: int, data: st.DataObject
) -> None:
    plan, world_size = case
    segment = plan.segment(world_size=world_size, batch_size=batch_size, epoch=epoch)
    rank = data.draw(st.integers(0, world_size - 1))
    stop = data.draw(st.integers(0, segment.num_batches))
    start = data.draw(st.integers(0, stop))
    fresh = replace(plan).segment(world_size=world_size, batch_size=batch_size, epoch=epoch)
    block = list(segment.block(rank, start, stop))
    assert [batch.number for batch in block] == list(range(start, stop))
    for batch in block:
        alone = fresh.batch(rank, batch.number)
        assert alone.indices.tolist() == batch.indices.tolist()
        assert alone.is_real.tolist() == batch.is_real.tolist()


@given(possible(), batch_sizes, epochs, st.data())
def test_find_says_what_the_batches_hold(
    case: tuple[FileSharesPlan, int], batch_size: int, epoch: int, data: st.DataObject
) -> None:
    plan, world_size = case
    segment = plan.segment(world_size=world_size, batch_size=batch_size, epoch=epoch)
    done = data.draw(st.integers(0, segment.num_batches))
    other_size = data.draw(batch_sizes)
    resumed = plan.resume(segment.cursor(done), world_size=world_size, batch_size=other_size)
    for asked in (segment, resumed):
        places: dict[int, set[Place]] = {index: set() for index in range(plan.num_indices)}
        for rank in range(world_size):
            for batch in asked.batches(rank, 0):
                for slot, index in enumerate(batch.indices.tolist()):
                    place = Place(batch.number, rank, slot, bool(batch.is_real[slot]))
                    places[index].add(place)
        for index, expected in places.items():
            found = asked.find(index)
            assert len(found) == len(set(found))
            assert set(found) == expected


def test_more_orders_than_are_kept_change_nothing() -> None:
    """A rank of one sample goes round once for each sample of the others."""
    plan = FileSharesPlan(sizes=[1, 300], strategy="oversampling")
    segment = plan.segment(world_size=2, batch_size=7)
    assert [index for index, _ in entries_of(segment, 0)] == [0] * 300
    assert len(segment.find(0)) == 300
    assert sum(place.is_real for place in segment.find(0)) == 1
    assert len(segment.find(17)) == 1


# Resuming.


@given(possible(), batch_sizes, epochs, st.data())
def test_resuming_at_any_batch_goes_on_with_the_very_next_one(
    case: tuple[FileSharesPlan, int], batch_size: int, epoch: int, data: st.DataObject
) -> None:
    plan, world_size = case
    segment = plan.segment(world_size=world_size, batch_size=batch_size, epoch=epoch)
    done = data.draw(st.integers(0, segment.num_batches))
    cursor = through_json(segment.cursor(done))
    assert cursor == segment.cursor(done)
    resumed = replace(plan).resume(cursor, world_size=world_size, batch_size=batch_size)
    assert resumed.num_done == done
    same_batches(segment, resumed, done)


@few_examples(2)
@given(possible(), epochs, st.data())
def test_resuming_with_other_batch_sizes_goes_on_with_the_very_next_sample(
    case: tuple[FileSharesPlan, int], epoch: int, data: st.DataObject
) -> None:
    plan, world_size = case
    segment = plan.segment(world_size=world_size, batch_size=data.draw(batch_sizes), epoch=epoch)
    whole = [entries_of(segment, rank) for rank in range(world_size)]
    received: list[list[tuple[int, bool]]] = [[] for _ in range(world_size)]
    for _ in range(data.draw(st.integers(1, 4))):
        stop = data.draw(st.integers(segment.num_done, segment.num_batches))
        for rank in range(world_size):
            for batch in segment.block(rank, segment.num_done, stop):
                received[rank] += zip(batch.indices.tolist(), batch.is_real.tolist(), strict=True)
        segment = plan.resume(
            through_json(segment.cursor(stop)),
            world_size=world_size,
            batch_size=data.draw(batch_sizes),
        )
        left = [len(entries) - len(got) for entries, got in zip(whole, received, strict=True)]
        padded = [
            sum(not is_real for _, is_real in entries[len(got) :])
            for entries, got in zip(whole, received, strict=True)
        ]
        if segment.num_done == 0:
            assert segment.num_padded == sum(padded)
            assert segment.history == () or segment.num_left == sum(left)
    for rank in range(world_size):
        received[rank] += entries_of(segment, rank, segment.num_done)
    assert received == whole


@given(possible(), batch_sizes, st.data())
def test_another_number_of_ranks_in_an_epoch_is_refused_with_what_to_do(
    case: tuple[FileSharesPlan, int], batch_size: int, data: st.DataObject
) -> None:
    plan, world_size = case
    other = data.draw(world_sizes.filter(lambda size: size != world_size))
    segment = plan.segment(world_size=world_size, batch_size=batch_size)
    done = data.draw(st.integers(1, segment.num_batches))
    with pytest.raises(PlanMismatchError) as caught:
        plan.resume(segment.cursor(done), world_size=other, batch_size=batch_size)
    message = str(caught.value)
    assert f"world_size={other} must be {world_size}" in message
    assert "balanced" in message
    assert plan.strategy in message
    assert caught.value.differences == {"world_size": (world_size, other)}


def test_another_number_of_ranks_is_fine_between_epochs_and_before_the_first_batch() -> None:
    plan = FileSharesPlan(sizes=[4] * 12, strategy="exact")
    cursor = plan.segment(world_size=4, batch_size=3).cursor(0)
    resumed = plan.resume(through_json(cursor), world_size=3, batch_size=5)
    assert resumed.num_left == 48
    same_batches(resumed, plan.segment(world_size=3, batch_size=5), 0)


def test_a_cursor_at_the_end_has_nothing_left() -> None:
    plan = FileSharesPlan(sizes=[4, 5], strategy="oversampling")
    segment = plan.segment(world_size=2, batch_size=2)
    for batch_size in (2, 3):
        rest = plan.resume(segment.cursor(3), world_size=2, batch_size=batch_size)
        assert list(rest.batches(0)) == []
        assert segment.num_left_after(3) == 0


@given(possible(), batch_sizes, epochs)
def test_replay_sees_what_was_consumed(
    case: tuple[FileSharesPlan, int], batch_size: int, epoch: int
) -> None:
    plan, world_size = case
    first = plan.segment(world_size=world_size, batch_size=batch_size, epoch=epoch)
    second = plan.resume(first.cursor(1), world_size=world_size, batch_size=batch_size + 1)
    replay = Replay(
        plan=plan,
        epoch=epoch,
        world_size=world_size,
        batch_size=batch_size + 1,
        history=second.history,
    )
    for rank in range(world_size):
        got = replay.batch(rank=rank, number=0)
        assert got.indices.tolist() == first.batch(rank, 0).indices.tolist()
        for batch in second.batches(rank):
            again = replay.batch(rank=rank, number=1 + batch.number)
            assert again.indices.tolist() == batch.indices.tolist()


# What the plan says of itself.


def test_every_field_that_decides_the_order_changes_the_fingerprint() -> None:
    plan = FileSharesPlan(sizes=[4, 4, 8], strategy="oversampling", seed=1)
    changes: list[dict[str, Any]] = [
        {"sizes": [4, 8, 4]},
        {"sizes": [4, 4, 9]},
        {"sizes": [4, 4, 8, 0]},
        {"strategy": "undersampling"},
        {"shuffle": False},
        {"seed": 2},
        {"seed": "1"},
    ]
    others = [replace(plan, **change) for change in changes]
    prints = [plan.fingerprint, *(other.fingerprint for other in others)]
    assert len(set(prints)) == len(prints)
    cursor = plan.segment(world_size=1, batch_size=2).cursor(1)
    for other, change in zip(others, changes, strict=True):
        assert other.describe() != plan.describe()
        with pytest.raises(PlanMismatchError, match=next(iter(change))):
            other.resume(cursor, world_size=1, batch_size=2)


def test_names_and_types_of_sizes_change_nothing() -> None:
    plan = FileSharesPlan(sizes=[4, 4, 8], strategy="oversampling")
    named = replace(plan, names=["a", "b", "c"])
    typed = replace(plan, sizes=np.array([4, 4, 8], dtype=np.uint16))
    assert plan.fields == named.fields == typed.fields
    assert plan.fingerprint == named.fingerprint == typed.fingerprint


def test_asking_never_changes_a_plan() -> None:
    sizes = np.array([4, 4, 8])
    plan = FileSharesPlan(sizes=sizes, strategy="oversampling")
    fields, before = plan.fields, plan.segment(world_size=2, batch_size=3)
    first = [entries_of(before, rank) for rank in range(2)]
    before.find(3)
    plan.segment(world_size=3, batch_size=1).block(2, 0, 3)
    assert [entries_of(before, rank) for rank in range(2)] == first
    assert plan.fields == fields
    assert sizes.tolist() == [4, 4, 8]


def test_a_plan_keeps_its_sizes_when_the_callers_array_changes() -> None:
    sizes = np.array([4, 4, 8])
    plan = FileSharesPlan(sizes=sizes, strategy="oversampling")
    fingerprint, own = plan.fingerprint, plan.own_samples(2)
    sizes[0] = 100
    assert (plan.fingerprint, plan.own_samples(2)) == (fingerprint, own)


def test_a_cursor_has_no_rank_and_goes_through_json() -> None:
    plan = FileSharesPlan(sizes=[4, 4, 8], strategy="oversampling", seed="ü")
    segment = plan.segment(world_size=2, batch_size=3, epoch=7)
    cursor = segment.cursor(2)
    again = Cursor.from_json(cursor.to_json())
    assert again == cursor
    assert again.history == (PastSegment(2, 3, 2),)
    assert (again.epoch, again.fingerprint) == (7, plan.fingerprint)


def test_a_million_files_cost_no_table_of_samples() -> None:
    sizes = np.full(10**6, 10**9, dtype=np.int64)
    plan = FileSharesPlan(sizes=sizes, strategy="exact")
    segment = plan.segment(world_size=8, batch_size=4)
    assert segment.num_batches == 10**15 // 8 // 4
    batch = segment.batch(5, 10**12)
    files = plan.chunks.rows_of(batch.indices)[0]
    assert set((files % 8).tolist()) == {5}
    assert segment.find(int(batch.indices[2])) == [Place(10**12, 5, 2, True)]
