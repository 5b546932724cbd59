"""Bytes and texts in mapped memory: made into Python values where they lie."""

from __future__ import annotations

import gc
import mmap
import subprocess
import sys
import weakref

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from feedline.errors import DamagedDataError
from feedline.store import Lists
from feedline.store.lists import FlatLists, ListSource
from feedline.store.placed_lists import PlacedLists

PAGE = mmap.PAGESIZE


def placed(lists: Lists, rows: list[int]) -> PlacedLists:
    flat = FlatLists([ListSource.of(lists)])
    places = np.array(rows, np.int64)
    return PlacedLists(*flat.places(np.zeros_like(places), places), flat.kind, flat)


@given(st.one_of(*[st.lists(item, min_size=1) for item in (st.binary(), st.text())]), st.data())
def test_values_are_those_that_lists_have(
    values: list[bytes] | list[str], data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=20))
    first, end = sorted(data.draw(st.tuples(*[st.integers(0, len(rows))] * 2)))
    found = placed(Lists.of(values), rows)
    found.touch()
    assert len(found) == len(rows)
    assert found.tolist() == [values[row] for row in rows]
    assert found[first:end].tolist() == [values[row] for row in rows[first:end]]


@pytest.mark.parametrize("kind", ["bytes", "text"])
@pytest.mark.parametrize("length", [0, 1, 7, 4096, 5000])
def test_values_of_one_length_keep_every_byte_zeros_included(length: int, kind: str) -> None:
    strings = [bytes(length), b"\1" + bytes(max(0, length - 1)), bytes(length)]
    values = strings if kind == "bytes" else [string.decode() for string in strings]
    assert placed(Lists.of(values), [2, 1, 0, 1]).tolist() == [values[row] for row in (2, 1, 0, 1)]


@pytest.mark.parametrize("num_pages", [1, 3])
def test_nothing_is_read_beside_the_memory(num_pages: int) -> None:
    # What follows a mapping may not be there at all: reading it would end the process.
    size = num_pages * PAGE
    memory = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    starts = np.array([0, 0, 1, size - 1, size, size - PAGE, PAGE - 1])
    lengths = np.array([0, size, size - 1, 1, 0, PAGE, min(2, size - PAGE + 1)])
    address = memory.__array_interface__["data"][0]
    found = PlacedLists(address + starts, lengths, "bytes", memory)
    found.touch()
    assert [len(value) for value in found.tolist()] == lengths.tolist()
    ends = found[4:5]
    ends.touch()
    assert ends.tolist() == [b""]


def test_values_outlive_the_memory_and_keep_none_of_it() -> None:
    memory = np.full(100, 7, np.uint8)
    lists = PlacedLists(
        np.array([memory.__array_interface__["data"][0]]), np.array([100]), "bytes", memory
    )
    values, gone = lists.tolist(), weakref.ref(memory)
    memory[:] = 8
    assert values == [b"\7" * 100]
    del memory, lists
    gc.collect()
    assert gone() is None


def test_a_text_that_is_not_utf_8_is_refused() -> None:
    lists = Lists(np.frombuffer(b"a\xff", np.uint8), np.array([0, 1, 2]), "text")
    assert placed(lists, [0, 0]).tolist() == ["a", "a"]
    with pytest.raises(DamagedDataError, match="not UTF-8"):
        placed(lists, [0, 1]).tolist()


# A loop holds a batch until it has the next one. Some of these batches are the last things on the
# heap when they are freed, and others are not.
_BATCHES = """
import resource, sys
import numpy as np
from feedline.store import Lists

lists = Lists(np.ones(512 * 4096, np.uint8), np.arange(513) * 4096, "bytes")
batch = None
for number in range(60):
    if number == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    batch = lists.tolist()
    if number % 3 == 0:
        batch = None
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only the GNU C library gives memory back")
def test_batches_of_bytes_get_the_memory_of_those_before() -> None:
    # Fresh memory would have 512 page faults a batch, in 50 batches.
    # A process that was forked would have others, of the memory that it shares.
    command = [sys.executable, "-c", _BATCHES]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 5 * 512
