"""Loaders of other libraries become loaders with a place, whatever they can tell by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch.utils.data

from clock_loaders import MAKERS, Places, Sized, SizedPlaces, Unsized, feed, torch_loader
from feedline.errors import FeedlineError, InvalidValueError, PlanMismatchError
from feedline.feed import ForeignLoader, LoaderWrapper, as_loader
from feedline.torch import DataLoader, StepScheduler
from loader_data import Ids
from refusals import refusal

FOREIGN = ("list", "sized", "unsized", "sized places", "places", "plain torch")


def test_a_loader_is_taken_as_it_is() -> None:
    for loader in (feed(), torch_loader(), LoaderWrapper(feed())):
        assert as_loader(loader) is loader


def test_to_ask_for_a_loader_asks_none_of_its_attributes() -> None:
    class Costly(LoaderWrapper):
        @property
        def delivered(self) -> Any:
            raise AssertionError

        peers = batch_size = epoch = delivered

    loader = Costly(feed())
    assert as_loader(loader) is loader


@pytest.mark.parametrize("kind", FOREIGN)
def test_epochs_follow_each_other_and_stay_until_the_next_begins(kind: str) -> None:
    loader = as_loader(MAKERS[kind]())
    for epoch in range(3):
        numbers = [(loader.epoch, loader.delivered.number) for _ in loader]  # type: ignore[union-attr]
        assert numbers == [(epoch, number) for number in range(8)]
        assert loader.epoch == epoch
        assert (loader.state_dict()["epoch"], loader.state_dict()["num_batches"]) == (epoch + 1, 0)


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_place_is_found_again_from_every_batch(kind: str) -> None:
    def rest(loader: Any) -> list[Any]:
        return [str(batch) for batch in loader]

    whole = rest(as_loader(MAKERS[kind]()))
    loader = as_loader(MAKERS[kind]())
    for number, _ in enumerate(loader):
        for back in (0, 1):
            resumed = as_loader(MAKERS[kind]())
            resumed.load_state_dict(loader.state_before(back))
            if number + 1 - back < len(whole):
                assert rest(resumed) == whole[number + 1 - back :]


def test_a_state_within_a_group_is_refused_where_the_loader_cannot_tell_it() -> None:
    loader = ForeignLoader(SizedPlaces(8))
    loader.group_size = 3
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    assert loader.state_before(2)["loader"]["place"] == 3
    assert "num_batches=1 must be 0 or 2" in refusal(lambda: loader.state_before(1))
    stateless = as_loader([1, 2, 3])
    next(iter(stateless))
    assert "num_batches=2" in refusal(lambda: stateless.state_before(2))


def test_an_error_in_the_batch_that_is_read_ahead_comes_with_that_batch() -> None:
    class Failing(Places):
        def _batch(self, number: int) -> Any:
            if number == 2:
                raise RuntimeError("cannot be read")
            return super()._batch(number)

    loader = ForeignLoader(Failing(8))
    batches = iter(loader)
    assert next(batches) == [0]
    assert not loader.is_last
    assert next(batches) == [1]
    assert not loader.is_last, "the error is not this batch's"
    assert loader.state_dict() == {"epoch": 0, "num_batches": 2, "loader": {"epoch": 0, "place": 2}}
    with pytest.raises(RuntimeError, match="cannot be read"):
        next(batches)


def test_an_iterator_from_before_ends_when_another_begins() -> None:
    loader = as_loader([1, 2, 3])
    first = iter(loader)
    assert next(first) == 1
    assert list(loader) == [1, 2, 3]
    assert list(first) == []


def test_ranks_and_sizes_come_from_torch_s_sampler() -> None:
    data: Any = Ids(20)
    sampler: Any = torch.utils.data.DistributedSampler(data, num_replicas=4, rank=2)
    plain = as_loader(torch.utils.data.DataLoader(data, batch_size=5, sampler=sampler))
    assert (plain.batch_size, plain.peers.world_size, plain.peers.rank) == (5, 4, 2)
    alone = as_loader(torch.utils.data.DataLoader(data, batch_size=None))
    assert (alone.batch_size, alone.peers.world_size) == (None, 1)


def test_a_length_that_nobody_knows_is_a_type_error() -> None:
    loader = as_loader(Unsized(3))
    for ask in (loader.__len__, loader.num_batches_left):
        with pytest.raises(TypeError):
            ask()
    sized = as_loader(Sized(3))
    next(iter(sized))
    sized.load_state_dict(sized.state_dict())
    assert (len(sized), sized.num_batches_left()) == (3, 2)


@pytest.mark.parametrize("state", [None, {}, {"epoch": 0}, {"epoch": -1, "num_batches": 0}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    loader = as_loader([1, 2])
    with pytest.raises(FeedlineError):
        loader.load_state_dict(state)
    assert list(loader) == [1, 2]


class Samples:
    """A loader that knows its place in samples, so that batches may have another size."""

    def __init__(self, batch_size: int) -> None:
        self.size = batch_size
        self._place = 0

    def __len__(self) -> int:
        return 24 // self.size

    def state_dict(self) -> dict[str, Any]:
        return {"place": self._place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._place = state["place"]

    def __iter__(self) -> Iterator[int]:
        while self._place < 24:
            self._place += self.size
            yield self._place - self.size
        self._place = 0


def test_a_loader_resumes_in_batches_of_other_sizes_again_and_again() -> None:
    state, found = None, []
    for size, num_batches in ((1, 16), (4, 1), (4, 1)):
        loader = ForeignLoader(Samples(size))
        loader.sizes = {"local_batch_size": size}
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        found += [next(batches) for _ in range(num_batches)]
        state = loader.state_dict()
    assert found == [*range(16), 16, 20]
    assert loader.is_last
    assert loader.state_dict()["epoch"] == 1


def test_a_loader_without_a_state_refuses_other_sizes() -> None:
    first, second = ForeignLoader([1, 2, 3]), ForeignLoader([1, 2, 3])
    first.sizes, second.sizes = {"dp_size": 2}, {"dp_size": 3}
    next(iter(first))
    with pytest.raises(PlanMismatchError, match="saved with dp_size=2, but now it is dp_size=3"):
        second.load_state_dict(first.state_dict())
    list(first)
    second.load_state_dict(first.state_dict())
    assert second.epoch == 1


def test_an_order_that_nobody_can_repeat_is_not_resumed_in_its_middle() -> None:
    """Skipping batches of another shuffle would lose some samples and repeat others."""
    shuffled = as_loader(torch.utils.data.DataLoader(range(20), batch_size=4, shuffle=True))
    list(islice(shuffled, 2))
    resumed = as_loader(torch.utils.data.DataLoader(range(20), batch_size=4, shuffle=True))
    with pytest.raises(PlanMismatchError, match="RandomSampler draws another order"):
        resumed.load_state_dict(shuffled.state_dict())
    list(shuffled)
    resumed.load_state_dict(shuffled.state_dict())
    assert resumed.epoch == 1
    in_order = as_loader(torch.utils.data.DataLoader(range(20), batch_size=4))
    list(islice(in_order, 2))
    other = as_loader(torch.utils.data.DataLoader(range(20), batch_size=4))
    other.load_state_dict(in_order.state_dict())
    assert len(list(other)) == 3


@pytest.mark.parametrize("num_left", [1, 3])
def test_a_loader_that_was_shortened_is_not_taken_for_one_at_its_end(num_left: int) -> None:
    loader = as_loader([[1], [2], [3], [4]])
    list(islice(loader, 3))
    shortened = as_loader([[1], [2], [3]][:num_left])
    with pytest.raises(PlanMismatchError, match=rf"after 3 batches .* but list has {num_left} now"):
        shortened.load_state_dict(loader.state_dict())
    assert len(list(shortened)) == num_left


def test_a_stream_that_was_shortened_is_not_taken_for_one_at_its_end() -> None:
    class Stream:
        def __init__(self, num_batches: int) -> None:
            self.num_batches = num_batches

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.num_batches))

    loader, shortened = as_loader(Stream(4)), as_loader(Stream(2))
    list(islice(loader, 3))
    shortened.load_state_dict(loader.state_dict())
    for _ in range(2):
        with pytest.raises(PlanMismatchError, match=r"after 3 batches .* but Stream has 2 now"):
            next(iter(shortened))


def test_an_iterator_that_is_used_up_is_not_taken_for_an_empty_epoch() -> None:
    loader = as_loader(iter([[1], [2]]))
    assert list(loader) == [[1], [2]]
    with pytest.raises(InvalidValueError, match="is an iterator with no batches left"):
        next(iter(loader))


def test_the_state_of_one_of_our_loaders_is_not_taken_for_a_count_of_batches() -> None:
    ours = DataLoader(range(20), batch_size=2, shuffle=True)
    with StepScheduler(2, 2, 1, ours, num_epochs=1, preemption_signal=None) as clock:
        for _ in clock:
            if clock.step == 4:
                break
        state = clock.state_dict()
    plain = torch.utils.data.DataLoader(range(20), batch_size=2)
    with StepScheduler(2, 2, 1, plain, num_epochs=1, preemption_signal=None) as other:
        with pytest.raises(PlanMismatchError, match="saved with one of Feedline's loaders"):
            other.load_state_dict(state)
        assert other.step == 0
