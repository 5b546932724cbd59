"""Samples become a batch, or an error names those that do not fit together."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from feedline.errors import InvalidValueError
from feedline.feed.stacking import stack_samples
from feedline.store import Lists


class Pair(NamedTuple):
    """A sample of two values."""

    left: Any
    right: Any


def test_numbers_and_arrays_of_one_shape_are_stacked() -> None:
    batch = stack_samples(
        [{"n": 1, "f": 0.5, "b": True, "x": np.full((2, 3), 7, np.float32)}] * 2, [3, 4]
    )
    assert {name: (v.dtype.name, v.shape) for name, v in batch.items()} == {
        "n": ("int64", (2,)),
        "f": ("float64", (2,)),
        "b": ("bool", (2,)),
        "x": ("float32", (2, 2, 3)),
    }


def test_arrays_of_several_lengths_become_lists() -> None:
    batch = stack_samples([np.arange(2, dtype=np.int16), np.arange(0, dtype=np.int16)], [3, 4])
    assert isinstance(batch, Lists)
    assert batch.values.dtype == np.int16
    assert batch.tolist() == [[0, 1], []]


def test_lists_by_nature_stay_lists_where_lengths_are_equal() -> None:
    batch = stack_samples([{"x": np.arange(2), "y": np.arange(2)}] * 2, [3, 4], {"x"})
    assert isinstance(batch["x"], Lists)
    assert batch["y"].shape == (2, 2)


@pytest.mark.parametrize("shapes", [((2, 4, 3), (5, 4, 3)), ((2, 3), (2, 4)), ((2,), (2, 2))])
def test_other_shapes_become_a_list_of_arrays(shapes: tuple[tuple[int, ...], ...]) -> None:
    batch = stack_samples([np.zeros(shape) for shape in shapes], [3, 4])
    assert [array.shape for array in batch] == list(shapes)


def test_texts_bytes_dicts_and_tuples_are_gone_through() -> None:
    samples = [{"t": "a", "b": b"1", "in": {"p": Pair(1, (np.ones(2), "z"))}}] * 2
    batch = stack_samples(samples, [3, 4])
    assert batch["t"] == ["a", "a"]
    assert batch["b"] == [b"1", b"1"]
    pair = batch["in"]["p"]
    assert isinstance(pair, Pair)
    assert pair.left.tolist() == [1, 1]
    assert pair.right[0].shape == (2, 2)
    assert pair.right[1] == ["z", "z"]


def test_tensors_and_lists_of_numbers_count_as_arrays() -> None:
    batch = stack_samples([{"x": torch.ones(2), "y": [1, 2]}] * 3, [1, 2, 3])
    assert batch["x"].shape == batch["y"].shape == (3, 2)
    assert batch["x"].dtype == np.float32


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        ([{"x": None}, {"x": None}], "sample 3: 'x' = None cannot be part of a batch"),
        ([{"x": object()}] * 2, "sample 3: 'x' = <object .*object"),
        ([{"x": [[1], [1, 2]]}] * 2, "sample 3: 'x' = .*inhomogeneous"),
        (
            [{"x": 1}, {"y": 1}],
            "sample 4: a dict with the keys y must be .* keys x, as in sample 3",
        ),
        ([{"x": 1}, {"x": 0.5}], "sample 4: 'x' = of type float64 must be of type int64"),
        ([{"x": "a"}, {"x": b"a"}], "sample 4: 'x' = bytes must be str"),
        ([{"x": np.ones(2)}, {"x": "a"}], "sample 4: 'x' = 'a' cannot be part of a batch"),
        ([(1, 2), (1,)], "sample 4: a tuple of 1 must be a tuple of 2"),
        ([{"a": {"b": 1}}, {"a": 1}], "sample 4: 'a' = int must be a dict with the keys b"),
        ([{"x": np.ma.array([1, 2], mask=[0, 1])}] * 2, "it has masked values, which"),
        ([torch.ones(1, requires_grad=True)] * 2, "sample 3: .*detach"),
    ],
)
def test_what_does_not_fit_together_is_named(samples: list[Any], text: str) -> None:
    with pytest.raises(InvalidValueError, match=text):
        stack_samples(samples, [3, 4])
