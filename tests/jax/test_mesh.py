"""Which processes share data, and what a device can hold. Four devices are expected."""

from __future__ import annotations

import copy
from typing import Any

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from feedline.errors import InvalidValueError
from feedline.jax.mesh import Placement, as_number, data_ranks, row_parts, sharding_of


def sharding(*spec: Any, shape: tuple[int, ...] = (4,), names: str = "d") -> NamedSharding:
    mesh = Mesh(np.array(jax.devices()).reshape(shape), tuple(names))
    return NamedSharding(mesh, PartitionSpec(*spec))


@given(
    num_groups=st.integers(1, 5),
    num_sharing=st.integers(1, 4),
    num_parts=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_processes_with_equal_rows_are_one_rank(
    num_groups: int, num_sharing: int, num_parts: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    parts = rng.permutation(num_groups * num_parts).reshape(num_groups, num_parts)
    groups = rng.permutation(np.repeat(np.arange(num_groups), num_sharing))
    held = {p: frozenset(parts[group].tolist()) for p, group in enumerate(groups.tolist())}
    ranks = data_ranks(held)
    assert set(ranks.values()) == set(range(num_groups))
    for a in held:
        for b in held:
            assert (ranks[a] == ranks[b]) == (held[a] == held[b])


def test_rows_that_are_shared_in_part_are_refused_with_the_processes_that_share_them() -> None:
    with pytest.raises(InvalidValueError, match="processes 0 and 2 hold some of the same rows"):
        data_ranks({0: frozenset({0, 1}), 1: frozenset({0, 1}), 2: frozenset({1, 2})})


def test_processes_with_differently_many_rows_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"process 0: 1, process 1: 2"):
        data_ranks({0: frozenset({0}), 1: frozenset({1, 2})})


def test_one_process_holds_all_rows_of_any_sharding() -> None:
    for one in (sharding("d"), sharding(), sharding("d", shape=(2, 2), names="dm")):
        assert row_parts(one) == {0: frozenset(range(4))}
        assert (Placement(one).rank, Placement(one).num_ranks) == (0, 1)


def test_an_array_of_fewer_axes_takes_the_first_axes_of_the_sharding() -> None:
    whole = sharding("d", "s", shape=(2, 2), names="ds")
    assert sharding_of(whole, 2) is whole
    put = Placement(whole).put({"tokens": np.zeros((4, 6)), "id": np.arange(4)}, 4)
    assert put["tokens"].sharding.spec == PartitionSpec("d", "s")
    assert put["id"].sharding.spec == PartitionSpec("d")
    assert {shard.data.shape for shard in put["tokens"].addressable_shards} == {(2, 3)}


@pytest.mark.parametrize("wrong", ["data", 3, SingleDeviceSharding, PartitionSpec("d")])
def test_another_sharding_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidValueError, match="must be 'auto', None, or a NamedSharding"):
        Placement(wrong)


def test_rows_that_do_not_divide_over_the_devices_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="batch_size=6 must be a multiple of 4"):
        Placement(sharding("d")).check_batch_size(6)
    Placement(sharding()).check_batch_size(6)
    Placement(sharding("d", shape=(2, 2), names="dm")).check_batch_size(6)


@pytest.mark.parametrize("wrong", [np.zeros((3, 2)), np.float32(1.5), 7])
def test_an_array_with_other_rows_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"batch\['y'\] has the shape .* must have 4 rows"):
        Placement("auto").put({"x": np.zeros(4), "y": wrong}, 4)
    assert Placement(None).put({"y": wrong}, 4)["y"].shape == np.shape(wrong)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**62])
def test_an_integer_that_jax_would_wrap_is_refused(value: int) -> None:
    with pytest.raises(InvalidValueError, match=f"batch x has the value {value}, which must be"):
        as_number(" x", np.array([1, value]))
    with pytest.raises(InvalidValueError, match="jax_enable_x64"):
        Placement(None).put({"x": np.array([1, value])}, 2)
    as_number(" x", np.array([2**31 - 1, -(2**31)]))


def test_an_unsigned_integer_that_fits_is_kept() -> None:
    put = Placement("auto").put(np.full(4, 2**32 - 1, np.uint64), 4)
    assert put.tolist() == [2**32 - 1] * 4
    with pytest.raises(InvalidValueError, match="4294967296"):
        as_number("", np.full(4, 2**32, np.uint64))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (["a", "b"], "a list of str"),
        ([np.zeros(2), np.zeros(3)], "a list of ndarray"),
        (np.array(["a", "b"]), "an array of <U1"),
        (np.array([None, 1]), "an array of object"),
        ("a", "of type str"),
    ],
)
def test_what_no_device_can_hold_is_refused_by_name(value: Any, kind: str) -> None:
    for one in ("auto", None):
        with pytest.raises(InvalidValueError, match=f"batch.*'y'.* is {kind}, which no device"):
            Placement(one).put({"x": np.zeros(4), "y": value}, 4)


def test_dates_come_as_integers() -> None:
    dates = np.array(["1970-01-02", "1970-01-03"] * 2, "datetime64[D]")
    assert Placement("auto").put(dates, 4).tolist() == [1, 2, 1, 2]


def test_a_copy_shares_the_devices() -> None:
    placement = Placement(sharding("d"))
    assert copy.deepcopy({"p": placement})["p"] is placement
