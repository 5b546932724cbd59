"""The class sampler: one class in each batch, drawn by weight, from runs that are long enough."""

from __future__ import annotations

import json
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from chunk_requests import batches_of, joined, sampled
from feedline.chunks import ClassSampler
from feedline.errors import InvalidValueError

LABELS = np.array(["b"] * 60 + ["a"] * 100 + ["c"] * 40 + ["b"] * 30)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(6, 40)), min_size=1, max_size=8),
    st.sampled_from([(3, 4, 6), (6, 2, 4), (2, 8, 8), (5, 3, 5)]),
    st.integers(1, 300),
    st.integers(0, 2**40),
)
def test_every_batch_comes_from_one_class(
    runs: list[tuple[int, int]], size: tuple[int, int, int], num_samples: int, seed: int
) -> None:
    labels = np.repeat([label for label, _ in runs], [length for _, length in runs])
    sampler = ClassSampler(*size, classes=labels, num_samples=num_samples, rng=seed)
    batches = sampled(sampler, len(labels))
    assert sum(map(len, batches)) == num_samples
    assert len(batches) == sampler.n_batches(len(labels)) == -(-num_samples // size[2])
    assert all(len(set(labels[batch])) == 1 for batch in batches)


def test_reads_are_runs_of_a_chunk_in_one_class() -> None:
    sampler = ClassSampler(10, 4, 20, classes=LABELS, num_samples=4000)
    for request in sampler.sample(230):
        for part in request["requests"]:
            assert len(set(LABELS[part])) == 1
            assert 0 < part.stop - part.start <= 10


@pytest.mark.slow
def test_classes_come_by_their_weights() -> None:
    weights = [1.0, 2.0, 5.0]
    sampler = ClassSampler(5, 4, 5, classes=LABELS, num_samples=100_000, class_weights=weights)
    drawn = LABELS[[batch[0] for batch in sampled(sampler, 230)]]
    for name, weight in zip("abc", weights, strict=True):
        share = weight / sum(weights)
        deviation = np.sqrt(share * (1 - share) / len(drawn))
        assert abs(np.mean(drawn == name) - share) < 5 * deviation


def test_a_class_without_weight_is_left_out_and_may_have_short_runs() -> None:
    labels = np.array(["x"] * 3 + ["y"] * 50)
    with pytest.raises(InvalidValueError, match=r"chunk_size=5 must be at most 3, .* 'x'"):
        ClassSampler(5, 2, 5, classes=labels, num_samples=100)
    sampler = ClassSampler(5, 2, 5, classes=labels, num_samples=100, class_weights=[0, 1])
    assert set(labels[joined(sampled(sampler, 53))]) == {"y"}
    sampler = ClassSampler(5, 2, 5, classes=labels, num_samples=100, class_weights=[-2, 1])
    assert set(labels[joined(sampled(sampler, 53))]) == {"y"}


@pytest.mark.slow
def test_rows_are_reached_about_equally_often_inside_a_class() -> None:
    labels = np.array(["a"] * 200 + ["b"] * 50)
    sampler = ClassSampler(4, 2, 8, classes=labels, num_samples=80_000, class_weights=[1, 0])
    counts = np.bincount(joined(sampled(sampler, 250)), minlength=250)
    assert counts[200:].sum() == 0
    mean = 20_000 * 4 / 197
    assert abs(counts[4:196] - mean).max() < 5 * np.sqrt(mean)


def test_a_categorical_is_understood() -> None:
    codes = np.repeat([1, 0], [30, 40])
    categorical = SimpleNamespace(codes=codes, categories=["late", "early"])
    sampler = ClassSampler(
        5, 2, 5, classes=categorical, num_samples=50, class_weights=[0, 1], rng=1
    )
    assert max(joined(sampled(sampler, 70))) < 30


def test_a_mask_narrows_the_rows() -> None:
    sampler = ClassSampler(5, 2, 5, classes=LABELS, num_samples=500, mask=slice(50, 170))
    rows = joined(sampled(sampler, 230))
    assert 50 <= min(rows) <= max(rows) < 170
    assert set(LABELS[rows]) == {"a", "b", "c"}


@given(st.integers(1, 24))
def test_a_saved_pass_goes_on(num_batches: int) -> None:
    def make() -> ClassSampler:
        return ClassSampler(5, 4, 10, classes=LABELS, num_samples=250, rng=4)

    whole = sampled(make(), 230)
    sampler = make()
    got = []
    for request in sampler.sample(230):
        got += batches_of(request)
        if len(got) >= num_batches:
            break
    resumed = make()
    resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict(num_batches))))
    rest = sampled(resumed, 230)
    assert joined(got[:num_batches] + rest) == joined(whole)


def test_epochs_differ_and_seeds_decide() -> None:
    sampler = ClassSampler(5, 4, 10, classes=LABELS, num_samples=250, rng=4)
    first, second = joined(sampled(sampler, 230)), joined(sampled(sampler, 230))
    assert first != second
    assert (
        joined(sampled(ClassSampler(5, 4, 10, classes=LABELS, num_samples=250, rng=4), 230))
        == first
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weights": [1, 2]}, "class_weights has 2 weights but must have 3"),
        ({"class_weights": [0, 0, 0]}, "one of them above 0"),
        ({"class_weights": [1, float("nan"), 1]}, "must be finite"),
        ({"classes": [["a", "b"]]}, "flat list"),
        ({"classes": []}, "flat list"),
        ({"classes": [None] * 230}, "missing labels"),
        ({"classes": np.full(230, np.nan)}, "missing labels"),
        (
            {"classes": SimpleNamespace(codes=np.array([0] * 20 + [-1]), categories=["a"])},
            "1 missing label",
        ),
        ({"num_samples": 0}, "num_samples=0 must be at least 1"),
    ],
)
def test_bad_classes_and_weights_are_refused(options: dict[str, object], message: str) -> None:
    arguments = {"classes": LABELS, "num_samples": 100, **options}
    with pytest.raises(InvalidValueError, match=message):
        ClassSampler(5, 2, 5, **arguments)  # type: ignore[arg-type]


def test_another_number_of_rows_is_refused() -> None:
    sampler = ClassSampler(5, 2, 5, classes=LABELS, num_samples=100)
    with pytest.raises(InvalidValueError, match="n_obs=231 must be 230"):
        sampler.validate(231)


def test_classes_that_are_not_a_list_are_refused() -> None:
    for classes in (None, "aabb"):
        with pytest.raises(InvalidValueError, match="classes must be a flat list"):
            ClassSampler(2, 2, 4, classes=classes, num_samples=4)
