"""Bytes and texts of Arrow files, which stay in their files until they are delivered."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import DamagedDataError
from feedline.feed import Batching, Pass, Reading, chunking_of, read_slabs
from feedline.plan import SamplePlan, Sequential
from feedline.store import Lists
from feedline.store.placed_lists import PlacedLists
from feedline.torch import DataLoader

pa = pytest.importorskip("pyarrow")

NUM_SAMPLES = 300
ROW = bytes(range(256)) * 4


@pytest.fixture(scope="module")
def columns() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 9, NUM_SAMPLES).tolist()
    return {
        "id": np.arange(NUM_SAMPLES),
        "row": Lists.of([number.to_bytes(8, "little") + ROW for number in range(NUM_SAMPLES)]),
        "blob": Lists.of([rng.bytes(1000 * length) for length in lengths]),
        "name": Lists.of(["ä" * length for length in lengths]),
        "tokens": Lists.of([rng.integers(0, 99, length) for length in lengths], dtype=np.int32),
    }


def write(table: Any, path: Path) -> Path:
    """Write a table in record batches of a few rows."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=16)
    return path


@pytest.fixture(scope="module")
def path(columns: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    table = pa.table({name: values.tolist() for name, values in columns.items()})
    tokens = table.schema.get_field_index("tokens")
    table = table.cast(table.schema.set(tokens, pa.field("tokens", pa.list_(pa.int32()))))
    return write(table, tmp_path_factory.mktemp("in-place") / "data.arrow")


@pytest.mark.parametrize("options", [{"window": "3 chunks"}, {}], ids=["windows", "all"])
@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_every_sample_has_its_own_values(
    num_threads: int, options: dict[str, Any], path: Path, columns: dict[str, Any]
) -> None:
    loader = DataLoader(feedline.open(path), 7, True, num_threads=num_threads, **options)
    # All batches are kept: what is read later must not change them.
    held = list(loader)
    loader.close()
    seen = []
    for batch in held:
        for place, number in enumerate(batch["id"].tolist()):
            seen.append(number)
            for name in ("row", "blob", "name"):
                assert batch[name][place] == columns[name][number]
                assert type(batch[name][place]) is type(columns[name][number])
            assert batch["tokens"][place].tolist() == columns["tokens"][number].tolist()
    assert sorted(seen) == list(range(NUM_SAMPLES))


def test_workers_and_numpys_loader_deliver_the_same(path: Path) -> None:
    store = feedline.open(path)
    here = list(DataLoader(store, 7, shuffle=True))
    others = DataLoader(store, 7, shuffle=True, num_workers=1)
    plain = feedline.DataLoader(store, 7, shuffle=True)
    for batch, of_worker, of_numpy in zip(here, others, plain, strict=True):
        for name in ("row", "blob", "name"):
            assert batch[name] == of_worker[name] == of_numpy[name]


def test_a_pass_continues_when_its_store_is_closed(path: Path, columns: dict[str, Any]) -> None:
    store = feedline.open(path)
    batches = iter(DataLoader(store, 7))
    first = list(islice(batches, 3))
    store.close()
    found = [value for batch in [*first, *batches] for value in batch["row"]]
    assert found == columns["row"].tolist()


def test_only_bytes_and_texts_stay_in_place_and_only_if_asked(path: Path) -> None:
    store = feedline.open(path)
    plan = SamplePlan(order=Sequential(num_samples=NUM_SAMPLES))

    def first_slab(**options: Any) -> dict[str, type]:
        running = Pass(plan.segment(world_size=1, batch_size=5), 0, Batching())
        slabs = read_slabs(store, chunking_of(store), running, Reading(), **options)
        found = {name: type(array) for name, array in next(slabs).arrays.items()}
        slabs.close()
        return found

    lists = {"row": Lists, "blob": Lists, "name": Lists, "tokens": Lists}
    assert first_slab() == {"id": np.ndarray, **lists}
    placed = dict.fromkeys(("row", "blob", "name"), PlacedLists)
    assert first_slab(in_place=True) == {"id": np.ndarray, **lists, **placed}


def test_text_that_is_not_utf_8_is_an_error_at_its_batch(tmp_path: Path) -> None:
    buffers = [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff")]
    table = pa.table({"x": pa.Array.from_buffers(pa.string(), 2, buffers)})
    batches = iter(DataLoader(feedline.open(write(table, tmp_path / "x.arrow")), 1))
    assert next(batches)["x"] == ["a"]
    with pytest.raises(DamagedDataError, match="not UTF-8"):
        next(batches)
