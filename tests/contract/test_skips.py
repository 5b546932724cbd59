"""Skipped batches, which every loader of the project leaves out; see `contract_loaders.KINDS`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from contract_loaders import Kind
from contract_ranks import Ranks, due, each_kind, ids_of, is_over
from examples import few_examples
from feedline.errors import InvalidValueError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@each_kind
def test_skipped_batches_are_left_out_and_the_others_stay_as_they_are(
    kind: Kind, folder: Path
) -> None:
    whole = ids_of(kind, kind.make(folder, 2, 1, 2))
    for variant in kind.variants:
        loader = kind.make(folder, 2, 1, 2, **variant)
        assert ids_of(kind, loader, 3) == whole[:3]
        # One batch comes, and two are left out; then the next two, at once.
        loader.skip_batches(2, after=1)
        assert loader.num_batches_left() == len(whole) - 5
        assert len(loader) == len(whole)
        state = loader.state_dict()
        assert ids_of(kind, loader, 1) == whole[3:4]
        loader.skip_batches(2)
        assert loader.num_batches_left() == len(whole) - 8
        assert ids_of(kind, loader) == whole[8:]
        following = ids_of(kind, loader)
        assert loader.epoch == 1
        loader.close()
        resumed = kind.make(folder, 2, 1, 2, **variant)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert resumed.state_dict() == state
        assert ids_of(kind, resumed) == [whole[3], *whole[6:]]
        assert ids_of(kind, resumed) == following, "a skip is over with its epoch"
        resumed.close()


@each_kind
def test_a_running_pass_that_is_skipped_from_cannot_go_on_unnoticed(
    kind: Kind, folder: Path
) -> None:
    loader = kind.make(folder, 2, 0, 2)
    running = iter(loader)
    next(running)
    loader.skip_batches(1)
    state = loader.state_dict()
    with pytest.raises(InvalidValueError, match="earlier pass"):
        # What was read ahead may come before the error does.
        for _ in running:
            pass
    assert loader.state_dict() == state


@each_kind
def test_a_skip_over_the_end_of_an_epoch_is_refused_and_changes_nothing(
    kind: Kind, folder: Path
) -> None:
    loader = kind.make(folder, 2, 0, 2)
    whole = ids_of(kind, loader, 2)
    state, num_left = loader.state_dict(), len(loader) - 2
    for skip in ({"num_batches": num_left + 1}, {"num_batches": 2, "after": num_left - 1}):
        with pytest.raises(InvalidValueError, match=f"epoch 0 has {num_left} batches left"):
            loader.skip_batches(**skip)
    for wrong in ({"num_batches": 0}, {"num_batches": 1, "after": -1}, {"num_batches": 1.5}):
        with pytest.raises(InvalidValueError, match="must be"):
            loader.skip_batches(**wrong)
    assert loader.state_dict() == state
    assert whole


@each_kind
def test_a_skip_of_all_that_is_left_ends_the_epoch(kind: Kind, folder: Path) -> None:
    following = Ranks(kind, folder, 2, 2)
    for loader in following.loaders:
        loader.set_epoch(1)
    expected = following.consume()
    ranks = Ranks(kind, folder, 2, 2)
    ranks.consume(2)
    for loader in ranks.loaders:
        loader.skip_batches(len(loader) - 2)
        assert loader.epoch == 0
    for sizes in [(2, 2), (3, 1)]:
        again = Ranks(kind, folder, *sizes)
        again.load(ranks.state())
        again.consume(1)
        assert {loader.epoch for loader in again.loaders} == {1}
    assert ranks.consume() == expected
    # The epoch has ended, so the next batches are those of the one after it.
    for loader in ranks.loaders:
        loader.skip_batches(1)
        assert loader.num_batches_left() == len(loader) - 1
        assert loader.epoch == 2


@each_kind
def test_a_skip_may_wait_for_the_state_that_a_trainer_loads(kind: Kind, folder: Path) -> None:
    loader = kind.make(folder, 2, 1, 2)
    whole = ids_of(kind, loader, 3)
    state = loader.state_dict()
    whole += ids_of(kind, kind.make(folder, 2, 1, 2))[3:]
    resumed = kind.make(folder, 2, 1, 2)
    resumed.skip_batches(2, after=1, on_load=True)
    assert resumed.num_batches_left() == len(whole)
    resumed.load_state_dict(state)
    assert resumed.num_batches_left() == len(whole) - 5
    assert ids_of(kind, resumed) == [whole[3], *whole[6:]]
    resumed.load_state_dict(state)
    assert ids_of(kind, resumed) == whole[3:], "it was for one state"


def skipped_by(kind: Kind, folder: Path, state: Any, sizes: Any, skip: Any) -> Counter[int]:
    """What runs would get that do not skip."""
    num_batches, after = skip
    real = []
    for count in (after, after + num_batches):
        ranks = Ranks(kind, folder, *sizes)
        ranks.load(state)
        real.append(ranks.consume(count) if count else Counter())
    return real[1] - real[0]


@each_kind
@few_examples(1 / 10)
@given(data=st.data())
def test_killed_resized_and_skipping_runs_leave_out_those_samples_and_no_others(
    kind: Kind, folder: Path, data: st.DataObject
) -> None:
    whole = due(kind, folder)
    real: Counter[int] = Counter()
    skipped: Counter[int] = Counter()
    state = Ranks(kind, folder, 1, 1).state()
    for _ in range(data.draw(st.integers(1, 4))):
        sizes = data.draw(st.integers(1, 4)), data.draw(st.sampled_from(kind.sizes))
        ranks = Ranks(kind, folder, *sizes)
        ranks.load(state)
        if is_over(ranks, 0):
            break
        num_left = ranks.count_left()
        if num_left and data.draw(st.booleans()):
            num_batches = data.draw(st.integers(1, min(3, num_left)))
            skip = num_batches, data.draw(st.integers(0, min(3, num_left - num_batches)))
            skipped += skipped_by(kind, folder, state, sizes, skip)
            for loader in ranks.loaders:
                loader.skip_batches(*skip)
            state = ranks.state()
            if is_over(ranks, 0):
                break
            assert ranks.count_left() == num_left - num_batches
        num_batches = data.draw(st.integers(1, 3))
        real += ranks.consume(num_batches, num_lost=data.draw(st.integers(0, 2)))
        state = ranks.saved[0]
    ranks = Ranks(kind, folder, 1, 1)
    ranks.load(state)
    if not is_over(ranks, 0):
        real += ranks.consume()
    assert not (real + skipped) - whole, "nothing comes that was skipped, and nothing twice"
    assert kind.drops or real + skipped == whole, "nothing else is left out"
