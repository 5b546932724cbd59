"""A mixture is its sources end to end, and every item can be traced to its source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from feedline.errors import CursorFormatError, InvalidValueError, PlanMismatchError
from feedline.torch.mixture_dataset import MixtureDataset


class OneByOne(Dataset[tuple[str, int]]):
    """Items that say where they come from."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[str, int]:
        # Not even a negative index may reach a source.
        assert 0 <= index < self.size
        assert type(index) is int
        return self.name, index


class AtOnce(OneByOne):
    """The same, fetched many at a time; it counts how often."""

    num_calls = 0

    def __getitems__(self, indices: list[int]) -> list[tuple[str, int]]:
        self.num_calls += 1
        return [super(AtOnce, self).__getitem__(index) for index in indices]


class Rows(Dataset[torch.Tensor]):
    """Rows of a tensor, a whole batch of them by one indexing."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.data[index]

    def __getitems__(self, indices: list[int]) -> Any:
        return self.data[indices]


@st.composite
def mixtures(draw: st.DrawFn) -> MixtureDataset:
    kinds = draw(st.lists(st.sampled_from([OneByOne, AtOnce]), min_size=1, max_size=5))
    made = [kind(str(number), draw(st.integers(0, 6))) for number, kind in enumerate(kinds)]
    return MixtureDataset(made, with_source=draw(st.booleans()))


def everything(mixture: MixtureDataset) -> list[Any]:
    """What a plain concatenation of the sources holds."""
    pairs = [
        ((source.name, local), number)
        for number, source in enumerate(mixture.datasets)
        for local in range(len(source))
    ]
    return pairs if mixture.with_source else [item for item, _ in pairs]


@given(mixtures())
def test_a_mixture_is_its_sources_end_to_end(mixture: MixtureDataset) -> None:
    expected = everything(mixture)
    assert len(mixture) == len(expected)
    assert [mixture[index] for index in range(len(mixture))] == expected
    assert list(mixture) == expected


@given(mixtures(), st.data())
def test_many_items_come_in_the_order_asked_for_with_one_call_a_source(
    mixture: MixtureDataset, data: st.DataObject
) -> None:
    expected = everything(mixture)
    places = range(-len(mixture), len(mixture))
    indices = data.draw(st.lists(st.sampled_from(places), max_size=20)) if places else []
    assert mixture.__getitems__(indices) == [expected[index] for index in indices]
    assert all(getattr(source, "num_calls", 0) <= 1 for source in mixture.datasets)


@given(mixtures())
def test_sources_of_agrees_with_source_of_and_with_the_items(mixture: MixtureDataset) -> None:
    indices = range(-len(mixture), len(mixture))
    sources, locals_ = mixture.sources_of(np.array(indices, dtype=np.int64))
    pairs = list(zip(sources.tolist(), locals_.tolist(), strict=True))
    assert pairs == [mixture.source_of(index) for index in indices]
    for index, (source, local) in zip(indices, pairs, strict=True):
        item = mixture[index][0] if mixture.with_source else mixture[index]
        assert item == (str(source), local)


@given(mixtures(), st.integers(0, 3))
def test_an_index_out_of_range_is_an_index_error_everywhere(
    mixture: MixtureDataset, beyond: int
) -> None:
    for index in (len(mixture) + beyond, -len(mixture) - 1 - beyond):
        message = rf"index={index} must be in \["
        for ask in (mixture.__getitem__, mixture.source_of):
            with pytest.raises(IndexError, match=message):
                ask(index)
        for ask_many in (mixture.__getitems__, mixture.sources_of):
            with pytest.raises(IndexError, match=message):
                ask_many([index])


def test_cumulative_sizes_start_at_zero_and_count_empty_sources() -> None:
    mixture = MixtureDataset([[], "ab", [], [1], []])
    assert mixture.cumulative_sizes == [0, 0, 2, 2, 3, 3]
    assert [mixture.source_of(index) for index in range(3)] == [(1, 0), (1, 1), (3, 0)]


def test_an_unsigned_index_does_not_become_a_negative_one() -> None:
    with pytest.raises(IndexError, match=str(2**64 - 1)):
        MixtureDataset(["ab"]).sources_of(np.array([2**64 - 1], dtype=np.uint64))


def test_numpy_and_torch_integers_are_indices() -> None:
    mixture = MixtureDataset([AtOnce("a", 2), OneByOne("b", 2)])
    assert mixture[np.int32(3)] == mixture[torch.tensor(3)] == ("b", 1)
    assert mixture.__getitems__(torch.tensor([3, 0])) == [("b", 1), ("a", 0)]


@pytest.mark.parametrize("bad", [[0.0], [[0]], ["0"], [True], 0])
def test_indices_that_are_not_a_flat_list_of_integers_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidValueError, match="flat list of integers"):
        MixtureDataset(["ab"]).sources_of(bad)


def test_names_are_numbers_unless_given() -> None:
    assert MixtureDataset(["ab", "c"]).names == ["0", "1"]
    assert MixtureDataset(["ab", "c"], ["web", "books"]).names == ["web", "books"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a"], r"has 1 name but must have 2"),
        (["a", "b", "c"], r"has 3 names but must have 2"),
        ([], r"has 0 names but must have 2"),
        (["a", "a"], r"repeats \['a'\] but must be distinct"),
        ("ab", r"must be a list of strings"),
        ([1, 2], r"must be a list of strings"),
        (3, r"must be a list of strings"),
    ],
)
def test_names_that_do_not_fit_are_refused(names: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        MixtureDataset([[1], [2]], names)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class StreamWithLength(Stream):
    def __len__(self) -> int:
        return 3


class Unsized(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("bad", [Stream(), StreamWithLength(), Unsized(), iter([1]), {1, 2}, 5])
def test_a_source_without_a_length_or_items_is_refused_by_number(bad: Any) -> None:
    with pytest.raises(InvalidValueError, match=rf"datasets\[1\] is a {type(bad).__name__} but"):
        MixtureDataset([[1, 2], bad])


@pytest.mark.parametrize("bad", [OneByOne("a", 3), 5, None])
def test_one_dataset_in_place_of_a_list_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidValueError, match="must be a list of datasets"):
        MixtureDataset(bad)


def test_a_mixture_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="at least one dataset"):
        MixtureDataset([])


class Collated(OneByOne):
    """Returns a batch in place of the items; `answer` makes it."""

    def __init__(self, answer: Any) -> None:
        super().__init__("c", 4)
        self.answer = answer

    def __getitems__(self, indices: list[int]) -> Any:
        return self.answer(indices)


@pytest.mark.parametrize(
    "answer",
    [
        lambda indices: {"x": indices, "y": indices},
        lambda indices: (indices, indices),
        lambda indices: indices[:-1],
        lambda indices: [*indices, 0],
        lambda indices: None,
        lambda indices: iter(indices),
        lambda indices: torch.tensor(1),
        lambda indices: torch.zeros(3, 2),
    ],
    ids=["dict", "tuple", "short", "long", "none", "iterator", "scalar", "rows"],
)
def test_a_source_that_does_not_return_one_item_an_index_is_refused(answer: Any) -> None:
    mixture = MixtureDataset([[1], Collated(answer)], ["plain", "collated"])
    with pytest.raises(InvalidValueError, match=r"'collated' returned .* for 2 indices"):
        mixture.__getitems__([1, 0, 2])


def test_rows_of_a_tensor_that_came_at_once_are_its_items() -> None:
    first, second = torch.arange(8).reshape(4, 2), torch.arange(100, 106).reshape(3, 2)
    mixture = MixtureDataset([Rows(first), Rows(second)])
    items = mixture.__getitems__([6, 0, 4])
    assert [item.tolist() for item in items] == [[104, 105], [0, 1], [100, 101]]


def test_mixtures_nest() -> None:
    inner = MixtureDataset([AtOnce("a", 2), AtOnce("b", 1)])
    outer = MixtureDataset([OneByOne("c", 1), inner], with_source=True)
    expected = [(("b", 0), 1), (("c", 0), 0), (("a", 1), 1)]
    assert outer.__getitems__([3, 0, 2]) == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_gets_every_item_with_the_number_of_its_source(num_workers: int) -> None:
    sources = [
        Rows(torch.arange(10)),
        list(torch.arange(100, 107)),
        Subset(Rows(torch.arange(200, 220)), range(0, 20, 4)),
    ]
    mixture = MixtureDataset(sources, with_source=True)
    loader = DataLoader(mixture, batch_size=4, shuffle=True, num_workers=num_workers)
    received = [
        pair for x, number in loader for pair in zip(x.tolist(), number.tolist(), strict=True)
    ]
    assert all(value // 100 == number for value, number in received)
    assert sorted(value for value, _ in received) == [
        *range(10),
        *range(100, 107),
        *range(200, 220, 4),
    ]


def test_a_loader_asks_a_source_once_a_batch() -> None:
    sources = [AtOnce("a", 6), AtOnce("b", 6)]
    mixture = MixtureDataset(sources)
    loader = DataLoader(mixture, batch_sampler=[[0, 6, 1, 7], [11, 5], [2, 3]], collate_fn=list)
    assert list(loader) == [
        [("a", 0), ("b", 0), ("a", 1), ("b", 1)],
        [("b", 5), ("a", 5)],
        [("a", 2), ("a", 3)],
    ]
    assert [source.num_calls for source in sources] == [3, 2]


class Dicts(Dataset[dict[str, int]]):
    """Samples that are dicts, which the source keeps and returns again, and a state."""

    def __init__(self, size: int) -> None:
        self.samples = [{"x": number} for number in range(size)]
        self.num_read = 0

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, int]:
        self.num_read += 1
        return self.samples[index]

    def state_dict(self) -> dict[str, int]:
        return {"num_read": self.num_read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.num_read = state["num_read"]


def test_samples_that_are_dicts_get_the_number_of_their_source() -> None:
    sources = [Dicts(2), Dicts(3), OneByOne("b", 1)]
    mixture = MixtureDataset(sources, names=["web", "books", "code"])
    expected = [{"x": 0, "dataset_idx": 0}, {"x": 2, "dataset_idx": 1}, ("b", 0)]
    for _ in range(2):
        assert [mixture[index] for index in (0, 4, 5)] == expected
        assert mixture.__getitems__([0, 4, 5]) == expected
    assert sources[0].samples == [{"x": 0}, {"x": 1}], "the source's own are not changed"  # type: ignore[attr-defined]
    assert mixture.dataset_names == ["web", "books", "code"]
    loader = DataLoader(MixtureDataset(sources[:2]), batch_size=5)
    assert next(iter(loader))["dataset_idx"].tolist() == [0, 0, 1, 1, 1]


def test_dicts_come_back_untouched_where_that_is_asked_for() -> None:
    assert MixtureDataset([Dicts(2)], with_source=False)[1] == {"x": 1}
    assert MixtureDataset([Dicts(2)], with_source=True)[1] == ({"x": 1}, 0)


def test_a_key_of_the_source_itself_is_not_overwritten() -> None:
    with pytest.raises(InvalidValueError, match="'web' has items with the key 'dataset_idx'"):
        MixtureDataset([[{"dataset_idx": 7}]], names=["web"])[0]


def test_the_states_of_the_sources_are_saved_and_loaded_by_name() -> None:
    def make(*sizes: int) -> MixtureDataset:
        sources = [*map(Dicts, sizes), OneByOne("c", 4)]
        return MixtureDataset(sources, names=["web", "books", "code"][: len(sources)])

    before = make(2, 3)
    for index in (0, 2, 3, 8):
        before[index]
    state = before.state_dict()
    after = make(2, 3)
    after.load_state_dict(state)
    assert after.state_dict() == state
    assert [source.num_read for source in after.datasets[:2]] == [1, 2]  # type: ignore[attr-defined]
    for other in (make(2, 4), make(2)):
        with pytest.raises(PlanMismatchError, match="use the same datasets"):
            other.load_state_dict(state)
        assert [source.num_read for source in other.datasets[:1]] == [0]  # type: ignore[attr-defined]
    with pytest.raises(CursorFormatError, match="must be what state_dict"):
        after.load_state_dict({"epoch": 3})
