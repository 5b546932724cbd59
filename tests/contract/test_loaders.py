"""The contract, which every loader of the project keeps; see `contract_loaders.KINDS`."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from contract_loaders import KINDS, NUM_SAMPLES, Kind
from contract_ranks import Ranks, due, each_kind, ids_of, is_over
from examples import few_examples
from feedline.errors import EmptyEpochError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

# Equal, and exactly once.


@each_kind
def test_a_loader_says_what_the_protocol_asks(kind: Kind, folder: Path) -> None:
    loader = kind.make(folder, 3, 1, 4)
    assert (loader.peers.rank, loader.peers.world_size) == (1, 3)
    assert loader.batch_size == 4
    assert loader.delivered is None
    assert loader.epoch == 0
    assert len(loader) == loader.num_batches_left()
    assert set(loader.state_dict()) == {"epoch", "cursor"}
    assert isinstance(loader.state_dict()["cursor"], str)
    loader.close()


@each_kind
@pytest.mark.parametrize("world_size", [1, 2, pytest.param(3, marks=pytest.mark.slow), 5])
def test_ranks_cover_every_sample_exactly_once_in_equally_many_batches(
    kind: Kind, world_size: int, folder: Path
) -> None:
    whole = due(kind, folder)
    assert kind.repeats or whole == Counter(range(NUM_SAMPLES))
    # Batches of one sample, which are many, are tried on many ranks.
    for batch_size in kind.sizes if world_size > 2 else kind.sizes[1:]:
        ranks = Ranks(kind, folder, world_size, batch_size)
        assert {len(loader) for loader in ranks.loaders} == {ranks.count_left()}
        num_batches = len(ranks.loaders[0])
        real = ranks.consume()
        assert ranks.num_taken == num_batches
        assert not real - whole, "nothing comes twice"
        num_lost = sum((whole - real).values())
        assert num_lost < world_size * batch_size if kind.drops else num_lost == 0


@each_kind
def test_records_know_how_many_samples_all_ranks_got(kind: Kind, folder: Path) -> None:
    ranks = Ranks(kind, folder, 3, 4)
    passes = [iter(loader) for loader in ranks.loaders]
    for _ in range(len(ranks.loaders[0])):
        for running in passes:
            next(running)
        records = [loader.delivered for loader in ranks.loaders]
        total = sum(record.num_real or 0 for record in records if record is not None)
        assert {r.num_real_of_all_ranks for r in records if r is not None} == {total}


@each_kind
def test_what_comes_does_not_depend_on_threads_or_workers(kind: Kind, folder: Path) -> None:
    expected = None
    for variant in kind.variants:
        loader = kind.make(folder, 2, 1, 4, **variant)
        found = [ids_of(kind, loader), ids_of(kind, loader)]
        assert expected is None or found == expected
        expected = found
        loader.close()


# Resuming.


@each_kind
def test_a_state_saved_after_any_batch_goes_on_at_the_next_one(kind: Kind, folder: Path) -> None:
    loader = kind.make(folder, 2, 1, 4, **kind.variants[-1])
    states = [loader.state_dict()]
    whole = []
    for batch in loader:
        whole.append(list(kind.ids_of(batch)))
        states.append(json.loads(json.dumps(loader.state_dict())))
    following = ids_of(kind, loader)
    loader.close()
    for number, state in enumerate(states):
        resumed = kind.make(folder, 2, 1, 4)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        is_end = number == len(whole)
        expected = following if is_end else whole[number:]
        assert resumed.num_batches_left() == len(expected)
        assert len(resumed) == len(whole)
        assert ids_of(kind, resumed) == expected
        assert resumed.epoch == (1 if is_end else 0)


@each_kind
def test_the_state_counts_what_the_loop_received_and_not_what_was_read_ahead(
    kind: Kind, folder: Path
) -> None:
    plain = kind.make(folder, 2, 0, 4)
    expected = [plain.state_dict()]
    expected += [plain.state_dict() for _ in plain]
    for variant in kind.variants:
        loader = kind.make(folder, 2, 0, 4, **variant)
        running = iter(loader)
        for number, state in enumerate(expected):
            assert loader.state_dict() == state
            for back in range(min(number, 3) + 1):
                assert loader.state_before(back) == expected[number - back]
            next(running, None)
        loader.close()


@each_kind
@few_examples(1 / 5)
@given(data=st.data())
def test_killed_and_resized_runs_consume_every_sample_once(
    kind: Kind, folder: Path, data: st.DataObject
) -> None:
    epoch = data.draw(st.integers(0, 2))
    whole = due(kind, folder, epoch)
    real: Counter[int] = Counter()
    ranks = Ranks(kind, folder, 1, 1)
    ranks.loaders[0].set_epoch(epoch)
    state = ranks.state()
    for _ in range(data.draw(st.integers(0, 4))):
        sizes = data.draw(st.integers(1, 4)), data.draw(st.sampled_from(kind.sizes))
        ranks = Ranks(kind, folder, *sizes)
        ranks.load(state)
        if is_over(ranks, epoch):
            break
        num_left = ranks.count_left()
        num_batches = data.draw(st.integers(1, 3))
        real += ranks.consume(num_batches, num_lost=data.draw(st.integers(0, 2)))
        assert ranks.num_taken == min(num_batches, num_left)
        state = ranks.saved[0]
    ranks = Ranks(kind, folder, 1, 1)
    ranks.load(state)
    if not is_over(ranks, epoch):
        real += ranks.consume()
    assert not real - whole, "nothing comes twice"
    assert kind.drops or real == whole, "nothing is lost"
    assert {loader.epoch for loader in ranks.loaders} == {epoch}


# Epochs.


@each_kind
def test_the_next_pass_after_the_last_batch_is_the_next_epoch(kind: Kind, folder: Path) -> None:
    loader = kind.make(folder, 2, 0, 4)
    first = ids_of(kind, loader)
    state = loader.state_dict()
    assert (loader.epoch, state["epoch"]) == (0, 0)
    loader.set_epoch(0)
    assert loader.state_dict() == state, "the epoch that it is in does not move it"
    second = ids_of(kind, loader)
    assert loader.epoch == 1
    assert second != first
    loader.set_epoch(0)
    assert ids_of(kind, loader) == first
    loader.set_epoch(7)
    assert loader.state_dict()["epoch"] == 7
    assert ids_of(kind, loader) not in (first, second)


@each_kind
def test_a_pass_that_is_broken_off_is_begun_again_whatever_was_read_ahead(
    kind: Kind, folder: Path
) -> None:
    expected = ids_of(kind, kind.make(folder, 2, 0, 4))
    for variant in kind.variants:
        loader = kind.make(folder, 2, 0, 4, **variant)
        for count in (1, 0, 3):
            assert ids_of(kind, loader, count) == expected[:count]
            assert loader.num_batches_left() == len(expected)
        assert ids_of(kind, loader) == expected
        assert loader.epoch == 0
        loader.close()


@each_kind
def test_a_rest_that_makes_no_batch_ends_its_epoch_and_nothing_else(
    kind: Kind, folder: Path
) -> None:
    """Near its end an epoch is resumed on so many ranks that its rest gives none a batch."""
    ranks = Ranks(kind, folder, 1, 1)
    num_batches = len(ranks.loaders[0])
    ranks.consume(num_batches - 1)
    state = ranks.state()
    for sizes in [(4, max(kind.sizes)), (3, 1), (5, 2)]:
        resized = Ranks(kind, folder, *sizes)
        resized.load(state)
        num_left = resized.count_left()
        real = resized.consume()
        assert resized.num_taken == num_left
        assert {loader.epoch for loader in resized.loaders} == {0}
        assert sum(real.values()) == (1 if num_left else 0)
        assert num_left or kind.drops
        following = Ranks(kind, folder, *sizes)
        for loader in following.loaders:
            loader.set_epoch(1)
        assert resized.count_left() == following.count_left() == len(resized.loaders[0])
        expected, found = following.consume(), resized.consume()
        assert found == expected
        assert {loader.epoch for loader in resized.loaders} == {1}


@each_kind
def test_a_finished_epoch_on_other_sizes_is_followed_by_the_next_one(
    kind: Kind, folder: Path
) -> None:
    ranks = Ranks(kind, folder, 2, 4)
    ranks.consume()
    state = ranks.state()
    for sizes in [(3, 4), (1, 1), (2, 4)]:
        resized = Ranks(kind, folder, *sizes)
        resized.load(state)
        assert resized.count_left() == len(resized.loaders[0])
        assert len(resized.loaders[0]) == len(kind.make(folder, sizes[0], 0, sizes[1]))
        resized.consume()
        assert resized.num_taken == len(resized.loaders[0])
        assert {loader.epoch for loader in resized.loaders} == {1}


@each_kind
def test_an_epoch_that_ended_without_a_batch_has_ended_for_whoever_loads_its_state(
    kind: Kind, folder: Path
) -> None:
    ranks = Ranks(kind, folder, 1, 1)
    ranks.consume(len(ranks.loaders[0]) - 1)
    resized = Ranks(kind, folder, 4, max(kind.sizes))
    resized.load(ranks.state())
    resized.consume()
    again = Ranks(kind, folder, 4, max(kind.sizes))
    again.load(resized.state())
    again.consume(1)
    assert {loader.epoch for loader in again.loaders} == {1}


@each_kind
def test_a_copy_goes_on_at_the_place_of_its_loader(kind: Kind, folder: Path) -> None:
    loader = kind.make(folder, 2, 0, 4)
    ids_of(kind, loader)
    following = ids_of(kind, copy.deepcopy(loader))
    first = ids_of(kind, loader, 3)
    assert loader.epoch == 1
    assert following[:3] == first
    assert first + ids_of(kind, copy.deepcopy(loader)) == following


@pytest.mark.parametrize("name", ["feed, dropping", "torch, dropping"])
def test_an_epoch_without_a_batch_is_an_error(name: str, folder: Path) -> None:
    loader = KINDS[name].make(folder, 2, 0, NUM_SAMPLES)
    for use in (lambda: len(loader), loader.num_batches_left, lambda: next(iter(loader))):
        with pytest.raises(EmptyEpochError, match="num_batches=0 must be at least 1"):
            use()
