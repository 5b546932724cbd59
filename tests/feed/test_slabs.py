"""Memory of a slab is used again when the last view of it is gone, and not before."""

from __future__ import annotations

import gc
import threading
import weakref
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from numpy.typing import NDArray

from feedline.feed.gathering import arrays_in, bytes_for, layout_of
from feedline.store import Column
from feedline.store.pool import SizedPool, SlabPool

COLUMNS = {"x": Column("x", "int64", (3,)), "y": Column("y", "uint8"), "z": Column("z", "bfloat16")}

columns = st.lists(
    st.tuples(
        st.sampled_from(["bool", "int8", "uint16", "float32", "int64", "complex128", "bfloat16"]),
        st.lists(st.integers(0, 5), max_size=3),
    ),
    max_size=5,
).map(
    lambda listed: {
        f"c{number}": Column(f"c{number}", type_name, tuple(shape))
        for number, (type_name, shape) in enumerate(listed)
    }
)


def address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def owner_of(lease: NDArray[Any]) -> weakref.ref[Any]:
    """What really has the memory, below the lease."""
    assert isinstance(lease.base, memoryview)
    return weakref.ref(lease.base.obj)


def hold_slice(lease: NDArray[np.uint8]) -> Any:
    return lease[3:5]


def hold_typed(lease: NDArray[np.uint8]) -> Any:
    return lease[:16].view(np.int64).reshape(2, 1)[1:]


def hold_column(lease: NDArray[np.uint8]) -> Any:
    return arrays_in(lease, COLUMNS, 2)["y"]


def hold_tensor(lease: NDArray[np.uint8]) -> Any:
    return torch.from_numpy(lease[8:16])[2:4]


def hold_buffer(lease: NDArray[np.uint8]) -> Any:
    return memoryview(lease[1:2])


def hold_row_iterator(lease: NDArray[np.uint8]) -> Any:
    return iter(lease.reshape(4, -1))


HOLDERS = [hold_slice, hold_typed, hold_column, hold_tensor, hold_buffer, hold_row_iterator]


@pytest.mark.parametrize("hold", HOLDERS, ids=lambda hold: hold.__name__)
def test_memory_is_not_lent_again_while_any_view_is_held(hold: Any) -> None:
    pool = SlabPool(256, max_free=4)
    lease = pool.take(200)
    owner = owner_of(lease)
    held = hold(lease)
    del lease
    gc.collect()
    others = [pool.take(256) for _ in range(5)]
    assert all(owner_of(other)() is not owner() for other in others)
    del held
    gc.collect()
    again = pool.take(1)
    assert owner_of(again)() is owner()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=40))
def test_no_two_live_views_ever_share_memory(steps: list[tuple[bool, int]]) -> None:
    pool = SlabPool(64, max_free=2)
    held: list[tuple[NDArray[np.int64], int]] = []
    for number, (takes, which) in enumerate(steps):
        if takes or not held:
            view = pool.take(64).view(np.int64)[which % 8 :]
            view[:] = number
            held.append((view, number))
        else:
            del held[which % len(held)]
        assert all(np.all(view == value) for view, value in held)


def test_only_so_many_unused_slabs_are_kept() -> None:
    pool = SlabPool(64, max_free=2)
    leases = [pool.take(64) for _ in range(6)]
    owners = [owner_of(lease) for lease in leases]
    assert len({id(owner()) for owner in owners}) == 6
    leases.clear()
    gc.collect()
    assert sum(owner() is not None for owner in owners) == 2


def test_more_than_a_slab_is_lent_but_not_kept() -> None:
    pool = SlabPool(64, max_free=2)
    large = pool.take(65)
    assert large.nbytes == 65
    gone = weakref.ref(large)
    del large
    assert gone() is None
    assert pool.take(64).nbytes == 64


def test_views_outlive_their_pool() -> None:
    pool = SlabPool(64, max_free=2)
    view = pool.take(64)[8:16]
    view[:] = 7
    owner = owner_of(view.base)
    del pool
    gc.collect()
    assert view.tolist() == [7] * 8
    del view
    gc.collect()
    assert owner() is None


def test_threads_never_get_the_same_memory() -> None:
    pool = SlabPool(800, max_free=3)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(400):
            mine = pool.take(800).view(np.int64)
            mine[:] = number
            other = pool.take(800).view(np.int64)
            other[:] = -number
            if not (np.all(mine == number) and np.all(other == -number)):
                wrong.append(number)
            del mine, other

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_memory_of_about_one_size_is_used_again_by_as_many_as_were_asked_for() -> None:
    pool = SizedPool(max_bytes=400_000)
    kept = pool.take(100_000)
    kept[:] = 7
    free = address(pool.take(100_001))
    for num_bytes in (99_000, 100_000, 101_000):
        found = pool.take(num_bytes)
        assert found.nbytes == num_bytes
        assert address(found) == free
        found[:] = 9
        del found
    # A view of it is as good as itself.
    view = kept[10:20].view(np.uint8)
    del kept
    pool.take(100_000)[:] = 9
    assert (view == 7).all()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**20)), min_size=1))
def test_lent_and_unused_memory_never_take_more_than_allowed_unless_more_is_lent(
    steps: list[tuple[int, int]],
) -> None:
    pool = SizedPool(max_bytes=2**20)
    held: dict[int, np.ndarray] = {}
    for slot, num_bytes in steps:
        held.pop(slot, None)
        held[slot] = pool.take(num_bytes)
        assert held[slot].nbytes == num_bytes
        held[slot][:] = slot
        lent = sum(size for _, size in pool._lent.values())
        assert pool.num_bytes <= max(2**20, lent)
        assert all((memory == number).all() for number, memory in held.items())
    held.clear()
    assert pool.num_bytes <= 2**20


def test_memory_is_not_used_again_for_much_less() -> None:
    pool = SizedPool(max_bytes=2**21)
    large = address(pool.take(2**20))
    small = pool.take(2**17)
    assert address(small) != large
    assert address(pool.take(2**20)) == large


@given(columns, st.integers(0, 20))
def test_columns_lie_one_after_another_and_aligned(
    columns: dict[str, Column], num_rows: int
) -> None:
    layout = layout_of(columns, num_rows)
    assert list(layout) == list(columns)
    for name, (start, end) in layout.items():
        assert start % 64 == 0
        assert end - start == columns[name].row_bytes * num_rows
    for (_, end), (start, _) in pairwise(layout.values()):
        assert end <= start < end + 64
    assert bytes_for(columns, num_rows) == max((end for _, end in layout.values()), default=0)


@given(columns, st.integers(0, 20))
def test_arrays_have_the_columns_types_and_shapes_and_do_not_overlap(
    columns: dict[str, Column], num_rows: int
) -> None:
    memory = np.zeros(bytes_for(columns, num_rows), np.uint8)
    arrays = arrays_in(memory, columns, num_rows)
    for number, (name, array) in enumerate(arrays.items(), start=1):
        assert array.dtype == columns[name].dtype
        assert array.shape == (num_rows, *columns[name].shape)
        assert array.flags.c_contiguous
        if array.size:
            assert np.shares_memory(array, memory)
        # As bytes: a bool holds no more than one bit.
        array.reshape(-1).view(np.uint8)[:] = number
    for number, (name, (start, end)) in enumerate(layout_of(columns, num_rows).items(), start=1):
        assert np.all(memory[start:end] == number), name
