"""Data that others wrote: equal to what their own readers say, and under every promise of ours."""

from __future__ import annotations

import pickle
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import feedline
from feedline.errors import DamagedDataError
from feedline.store import Store
from feedline.torch import DataLoader
from foreign import ID_COLUMNS, NAMES, data_of, expected_of, numbers_in


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(name: str) -> Store:
    return feedline.open(data_of(name))


def check_equal(found: Any, expected: Any) -> None:
    """Assert that a value is the library's own, of the same type."""
    if isinstance(expected, np.ndarray):
        assert np.asarray(found).dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected
        if isinstance(expected, bytes | str):
            assert type(found) is type(expected)


def numbers_of(name: str, store: Store) -> list[int]:
    """Return what numbers the samples of a fixture, in the order of the store."""
    return numbers_in(name, store[:])


def test_samples_are_those_of_the_librarys_own_reader(name: str) -> None:
    store, expected = opened(name), expected_of(name)
    assert len(store) == len(expected) >= 50
    for number, sample in enumerate(store):
        for column, value in expected[number].items():
            if value is None:
                assert sample[f"{column}/is_missing"]
            else:
                check_equal(sample[column], value)
    assert set(store.columns) >= set(expected[0])
    middle, column = len(store) // 2, ID_COLUMNS.get(name, "id")
    check_equal(store[middle][column], expected[middle][column])


def test_every_fixture_is_in_several_chunks_and_has_values_of_several_kinds(name: str) -> None:
    store = opened(name)
    # Megatron's files have no parts; ours are larger than a fixture.
    assert len(store.chunk_sizes) >= (1 if name == "megatron" else 3)
    assert numbers_of(name, store) == sorted(numbers_of(name, store))
    assert any(column.has_lists for column in store.columns.values())


def test_a_copy_in_another_process_is_the_same(name: str) -> None:
    store = opened(name)
    copy = pickle.loads(pickle.dumps(store))
    assert copy.fingerprint == store.fingerprint
    assert numbers_of(name, copy) == numbers_of(name, store)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_delivers_every_sample_once(name: str, num_workers: int) -> None:
    store = opened(name)
    loader = DataLoader(store, batch_size=7, shuffle=True, num_workers=num_workers)
    seen = [number for batch in loader for number in numbers_in(name, batch)]
    assert sorted(seen) == numbers_of(name, store)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_resizes_and_resumes_lose_and_repeat_nothing(name: str, data: st.DataObject) -> None:
    store = opened(name)
    state: dict[str, Any] | None = None
    seen: list[int] = []
    window = data.draw(st.sampled_from([None, "2 chunks"]))
    for is_last in (False, False, True):
        world_size = data.draw(st.integers(1, 3))
        batch_size = data.draw(st.integers(1, 9))
        loaders = [
            feedline.DataLoader(
                store,
                batch_size,
                shuffle=True,
                window=window,
                num_replicas=world_size,
                rank=rank,
                num_threads=rank % 2,
                with_mask=True,
            )
            for rank in range(world_size)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        left = loaders[0].num_batches_left()
        count = left if is_last else data.draw(st.integers(0, max(0, left - 1)))
        for loader in loaders:
            for batch, is_real in islice(loader, count):
                numbers = np.array(numbers_in(name, batch))
                seen += numbers[slice(None) if is_real is None else is_real].tolist()
        state = loaders[0].state_dict()
    assert sorted(seen) == numbers_of(name, store)


def test_a_file_that_is_replaced_while_in_use_is_refused(name: str, tmp_path: Path) -> None:
    source = data_of(name)
    for path in source.parent.glob("data*"):
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / path.name)
    store = feedline.open(tmp_path / source.name)
    _ = store.fingerprint, store[len(store) - 1]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    for path in files:
        if path.suffix not in (".json", ".idx") and ".feedline-index" not in path.parts:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
    store.close()
    with pytest.raises(DamagedDataError, match="was replaced while it was in use"):
        _ = store[:]
