"""Requests, counts and errors are those of annbatch's samplers, in all of its releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from chunk_requests import joined, rows_of, sampled
from feedline.chunks import (
    ClassSampler,
    DistributedSampler,
    LoadRequest,
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from feedline.errors import EmptyEpochError, FeedlineError, InvalidValueError
from feedline.feed import ChunkLoader
from feedline.store import MemoryMatrix

LABELS = np.repeat(["a", "b", "c"], [40, 60, 100])
MADE: dict[str, Callable[[], Sampler]] = {
    "sequential": lambda: SequentialSampler(10, 2, 5),
    "random": lambda: RandomSampler(10, 2, 5, rng=1),
    "drawn": lambda: RandomSampler(10, 2, 5, rng=1, replacement=True, num_samples=2000),
    "class": lambda: ClassSampler(10, 2, 5, classes=LABELS, num_samples=2000),
    "distributed": lambda: DistributedSampler(RandomSampler(10, 2, 5), dist_info=lambda: (1, 2)),
}


@pytest.mark.parametrize("name", MADE)
def test_requests_answer_to_both_keys_and_counts_to_both_names(name: str) -> None:
    sampler = MADE[name]()
    requests = list(sampler.sample(200))
    assert requests
    for request in requests:
        assert request["chunks"] == request["requests"]
    assert sampler.n_iters(200) == sampler.n_batches(200) == sum(len(r["splits"]) for r in requests)


class Whole(Sampler):
    """All rows in two requests; what is in a request, and how batches are counted, is left open."""

    key = "chunks"
    batch_size = 4
    shuffle = False

    def validate(self, n_obs: int) -> None:
        pass

    def _sample(self, n_obs: int) -> Iterator[LoadRequest]:
        for part in (slice(0, 7), slice(7, n_obs)):
            yield {self.key: [part]}  # type: ignore[misc]


class ByOldName(Whole):
    def n_iters(self, n_obs: int) -> int:
        return 2 + -(-(n_obs - 7) // 4)


class ByNewName(Whole):
    key = "requests"
    shuffle = True

    def n_batches(self, n_obs: int) -> int:
        return 2 + -(-(n_obs - 7) // 4)


@pytest.mark.parametrize("kind", [ByOldName, ByNewName])
def test_a_subclass_with_one_count_and_one_key_and_no_splits_works(kind: type[Whole]) -> None:
    sampler = kind()  # type: ignore[abstract]
    assert sampler.n_iters(20) == sampler.n_batches(20) == 6
    requests = list(sampler.sample(20))
    assert [request["chunks"] for request in requests] == [[slice(0, 7)], [slice(7, 20)]]
    assert all(request["requests"] == request["chunks"] for request in requests)
    sizes = [[len(split) for split in request["splits"]] for request in requests]
    assert sizes == [[4, 3], [4, 4, 4, 1]]
    first, second = (joined(sampled(kind(), 20)) for _ in range(2))  # type: ignore[abstract]
    assert first == second, "what is made is the same in every run"
    assert sorted(first) == list(range(20))
    assert (first == list(range(20))) != sampler.shuffle
    store = MemoryMatrix(np.arange(20)[:, None])
    loader = ChunkLoader(store, kind())  # type: ignore[abstract]
    assert [row for batch in loader for row in batch.rows.tolist()] == first
    assert len(loader) == 6


def test_made_splits_use_the_generator_of_the_sampler_and_differ_from_pass_to_pass() -> None:
    sampler = ByNewName()  # type: ignore[abstract]
    assert joined(sampled(sampler, 20)) != joined(sampled(sampler, 20))
    sampler.rng = np.random.default_rng(3)
    expected = np.random.default_rng(3).permutation(7)
    assert np.concatenate(next(sampler.sample(20))["splits"]).tolist() == expected.tolist()


def test_a_subclass_with_neither_count_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="n_batches"):
        Whole()  # type: ignore[abstract]


def test_a_count_that_asks_its_parent_follows_under_both_names() -> None:
    class Fewer(RandomSampler):
        def n_iters(self, n_obs: int) -> int:
            return super().n_iters(n_obs) - 1

    sampler = Fewer(10, 2, 5)
    assert (sampler.n_iters(200), sampler.n_batches(200)) == (39, 39)


class Foreign:
    """As annbatch's samplers until 0.1.6: one count, one key, and splits that it shuffles again."""

    batch_size, shuffle, has_position = 4, True, False
    rng = None
    mask = slice(0, None)

    def validate(self, n_obs: int) -> None:
        pass

    def n_iters(self, n_obs: int) -> int:
        return -(-n_obs // 4)

    def sample(self, n_obs: int) -> Iterator[dict[str, Any]]:
        places, rng = np.arange(8), np.random.default_rng(1)
        for start in range(self.mask.start, self.mask.stop or n_obs, 8):
            rng.shuffle(places)
            yield {"chunks": [slice(start, start + 8)], "splits": np.split(places, 2)}


def test_a_sampler_of_an_old_release_loses_nothing_while_it_is_read_ahead() -> None:
    loader = ChunkLoader(MemoryMatrix(np.arange(64)[:, None]), Foreign(), num_ahead=4)
    assert sorted(row for batch in loader for row in batch.rows.tolist()) == list(range(64))
    assert len(loader) == 16


def test_a_sampler_of_an_old_release_is_divided_over_ranks() -> None:
    rows = []
    for rank in range(2):
        inner: Any = Foreign()
        sampler = DistributedSampler(inner, dist_info=lambda rank=rank: (rank, 2))  # type: ignore[misc]
        rows += joined(sampled(sampler, 64))
    assert sorted(rows) == list(range(64))


def test_a_request_without_rows_is_refused() -> None:
    class Empty(ByOldName):
        key = "rows"

    with pytest.raises(InvalidValueError, match="must have 'requests' or 'chunks'"):
        list(Empty().sample(20))  # type: ignore[abstract]


def test_splits_cannot_be_made_without_a_batch_size() -> None:
    class NoSize(ByOldName):
        batch_size: Any = None

    with pytest.raises(InvalidValueError, match="batch_size=None must be an integer"):
        list(NoSize().sample(20))  # type: ignore[abstract]


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_framework_that_is_not_initialized_is_a_runtime_error_at_construction(
    framework: Any,
) -> None:
    pytest.importorskip(framework)
    with pytest.raises(RuntimeError, match=f"{framework}.*initialize") as caught:
        DistributedSampler(RandomSampler(4, 2, 4), dist_info=framework)
    assert isinstance(caught.value, FeedlineError)


# What a mask of a class sampler may be.

BAD_MASKS = {
    "beyond the labels": (slice(0, 201), r"mask\.stop=201 must be at most 200"),
    "in one run": (slice(0, 5), r"shortest run of equal labels in mask=slice\(0, 5\)"),
    "through a run": (slice(0, 45), "at most 5, .* here of 'b'"),
    "from within a run": (slice(35, None), "at most 5, .* here of 'a'"),
    "of classes without weight": (slice(110, 180), "a class with a weight above 0"),
}


@pytest.mark.parametrize("name", BAD_MASKS)
def test_a_mask_is_checked_at_construction_and_in_the_setter(name: str) -> None:
    mask, message = BAD_MASKS[name]
    options: dict[str, Any] = {
        "classes": LABELS,
        "num_samples": 100,
        "class_weights": [1, 1, 0] if "weight" in name else None,
    }
    with pytest.raises(InvalidValueError, match=message):
        ClassSampler(10, 2, 5, mask=mask, **options)
    sampler = ClassSampler(10, 2, 5, mask=slice(0, 100), **options)
    with pytest.raises(InvalidValueError, match=message):
        sampler.mask = mask
    assert sampler.mask == slice(0, 100), "one that is refused changes nothing"
    assert max(joined(sampled(sampler, 200))) < 100


@pytest.mark.parametrize("name", ["drawn", "class"])
def test_drawn_rows_are_read_in_slices_of_a_chunk(name: str) -> None:
    lengths = []
    for request in MADE[name]().sample(200):
        parts = list(request["requests"])
        assert [part.start for part in parts] == sorted(part.start for part in parts)
        assert len(set(rows_of(request).tolist())) == len(rows_of(request)), "no row is read twice"
        for part, after in zip(parts, [*parts[1:], None], strict=True):
            # Shorter only where drawn runs overlap, so that the rest of one ends there.
            is_joined = len(rows_of(request)) < 20
            assert part.stop - part.start == 10 or is_joined
            assert after is None or part.stop <= after.start
        lengths += [part.stop - part.start for part in parts]
        if name == "class":
            assert all(len(set(LABELS[part])) == 1 for part in parts)
    assert max(lengths) == 10
    assert lengths.count(10) > len(lengths) * 0.6


def test_rows_that_fill_no_batch_are_an_error_and_not_an_empty_epoch() -> None:
    sampler = RandomSampler(10, 2, 20, drop_last=True)
    for ask in (lambda: sampler.n_iters(15), lambda: next(sampler.sample(15))):
        with pytest.raises(EmptyEpochError):
            ask()
