from __future__ import annotations

import json
import random
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from feedline.errors import CursorFormatError, InvalidValueError
from feedline.feed.state_text import from_plain, to_plain

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.binary().map(bytearray)
)
keys = st.text() | st.integers() | st.none() | st.tuples(st.integers(), st.text()) | st.just("!")
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.sets(st.integers())
        | st.frozensets(st.text())
    ),
    max_leaves=20,
)


def through_json(value: Any) -> Any:
    return from_plain(json.loads(json.dumps(to_plain(value))))


@given(values)
def test_states_come_back_as_they_were(value: Any) -> None:
    back = through_json(value)
    assert back == value
    assert repr(type(back)) == repr(type(value))


@pytest.mark.parametrize("kind", ["f4", "i8", "u1", "?", "c16", ">i4"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_arrays_come_back_with_type_and_shape(kind: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(kind)
    back = through_json({"a": array})["a"]
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert np.array_equal(back, array)
    back.fill(0)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 2), (3, 2)])
def test_tensors_come_back_with_type_and_shape(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape).to(kind)
    back = through_json([tensor])[0]
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back, tensor)


def test_states_of_generators_come_back() -> None:
    ours, theirs = random.Random(3), random.Random(4)
    theirs.setstate(through_json(ours.getstate()))
    assert theirs.random() == ours.random()
    rng, other = np.random.Generator(np.random.MT19937(3)), np.random.Generator(np.random.MT19937())
    other.bit_generator.state = through_json(rng.bit_generator.state)
    assert other.random() == rng.random()


@pytest.mark.parametrize("value", [object(), np.array([object()]), random.Random(0), lambda: 0])
def test_what_cannot_be_saved_is_named_with_its_place(value: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"state\['a'\]\[1\] is of type"):
        to_plain({"a": [1, value]})


@pytest.mark.parametrize(
    "plain",
    [
        {"!": "pickle", "of": ""},
        {"!": "array", "type": "O", "shape": [1], "of": "AAAAAAAAAAA="},
        {"!": "array", "type": "i8", "shape": [2**40], "of": "AAAA"},
        {"!": "tensor", "type": "load", "shape": [1], "of": ""},
        {"!": "tensor", "type": "int64", "shape": [9], "of": "AAAA"},
        {"!": "bytes", "of": "%"},
        {"!": "tuple", "of": 3},
        {"!": "dict", "of": [[[1], 2]]},
        {"!": "set", "of": [[1]]},
        {"!": None},
        {"!": []},
    ],
)
def test_damaged_states_are_one_clear_error(plain: Any) -> None:
    with pytest.raises(CursorFormatError, match="is damaged"):
        from_plain({"a": [plain]})


def test_deep_states_are_refused_both_ways() -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(InvalidValueError, match="nested deeper than 100 levels"):
        to_plain(deep)
    with pytest.raises(CursorFormatError, match="nested deeper"):
        from_plain(deep)
