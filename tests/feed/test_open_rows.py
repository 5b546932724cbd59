"""Rows of many chunks are copied at once while the store can keep all of them open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from numpy.typing import NDArray

import feedline
from feedline.feed.gathering import Workplace, chunking_of, gather
from feedline.feed.open_rows import _MOST_AT_ONCE, OpenRows
from feedline.feed.preparation import Preparation
from feedline.feed.prepared import PickedBatches
from feedline.feed.slab_jobs import cut
from feedline.plan import Block
from feedline.store import FolderStore, places
from feedline.store.columns import make_out

NUM_CHUNKS, CHUNK_ROWS = 3 * _MOST_AT_ONCE, 5
NUM_ROWS = NUM_CHUNKS * CHUNK_ROWS


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parquet file of very many row groups, with an array, a text and a list."""
    table = pa.table(
        {
            "id": pa.array(range(NUM_ROWS), pa.int64()),
            "text": pa.array([f"{'ab' * (n % 7)}{n}" for n in range(NUM_ROWS)]),
            "list": pa.array([[n] * (n % 4) for n in range(NUM_ROWS)], pa.list_(pa.int32())),
        }
    )
    path = tmp_path_factory.mktemp("many") / "data.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=CHUNK_ROWS)
    return path


def gathered(store: Any, indices: NDArray[np.int64], workplace: Workplace) -> dict[str, Any]:
    bounds = np.array([0, len(indices)])
    block = Block(first=0, indices=indices, bounds=bounds)
    (job,) = cut(block, chunking_of(store), 1)
    arrays = make_out(store.columns, len(indices), None)
    gather(store, job, arrays, workplace)
    return arrays


def check(found: dict[str, Any], indices: NDArray[np.int64]) -> None:
    assert found["id"].tolist() == indices.tolist()
    assert list(found["text"]) == [f"{'ab' * (n % 7)}{n}" for n in indices.tolist()]
    assert found["list"].tolist() == [[n] * (n % 4) for n in indices.tolist()]


@pytest.mark.parametrize("in_table", [2**20, 0], ids=["in a table", "source by source"])
def test_rows_of_more_chunks_than_a_set_may_have(
    in_table: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_MOST_IN_TABLE", in_table)
    store, workplace = feedline.open(path), Workplace()
    rng = np.random.default_rng(0)
    # Some chunks at first, all of them later.
    for count in (2 * NUM_CHUNKS // 3, NUM_ROWS, NUM_ROWS):
        indices = rng.permutation(NUM_ROWS)[:count]
        check(gathered(store, indices, workplace), indices)
        kept = workplace.rows._many
        assert kept is not None
        needed = np.unique(indices // CHUNK_ROWS)
        assert set(needed.tolist()) <= set(kept.sources)


def test_chunks_that_do_not_fit_are_read_one_after_another(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, workplace = FolderStore.of_file(path, cache_bytes=2**10), Workplace()
    asked: list[int] = []
    original = store.row_sources
    monkeypatch.setattr(store, "row_sources", lambda chunk: asked.append(chunk) or original(chunk))
    for seed in range(2):
        indices = np.random.default_rng(seed).permutation(NUM_ROWS)
        check(gathered(store, indices, workplace), indices)
        assert workplace.rows._many is None
        assert len(store._open_chunks._chunks) < NUM_CHUNKS
    # All of them would be held at once.
    assert len(asked) <= 16
    (said,) = caplog.messages
    assert said.startswith(f"{NUM_ROWS} samples lie in {NUM_CHUNKS} chunks, more than are kept")


def test_a_store_that_only_reads_is_not_told_that_its_chunks_do_not_fit(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = feedline.open(path)
    monkeypatch.setattr(store, "row_sources", lambda chunk: None)
    indices = np.random.default_rng(0).permutation(NUM_ROWS)
    check(gathered(store, indices, Workplace()), indices)
    assert caplog.messages == []


def test_an_error_names_the_row_that_was_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = FolderStore._open

    def fails(self: FolderStore, chunk: int) -> Any:
        if chunk == 200:
            raise OSError("the disk is gone")
        return original(self, chunk)

    monkeypatch.setattr(FolderStore, "_open", fails)
    store = feedline.open(path)
    with pytest.raises(feedline.errors.StoreError, match=r"group 200, row \d: .*the disk is gone"):
        gathered(store, np.arange(NUM_ROWS)[::-1].copy(), Workplace())


def test_a_worker_that_prepares_batches_keeps_rows_ready_from_one_to_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = feedline.open(path)
    made: list[int] = []
    original = OpenRows.of

    def counted(sources: Any, *others: Any) -> Any:
        made.append(len(sources))
        return original(sources, *others)

    monkeypatch.setattr(OpenRows, "of", counted)
    order = feedline.Sequential(num_samples=NUM_ROWS)
    segment = feedline.SamplePlan(order=order).segment(world_size=1, batch_size=1)
    preparation = Preparation(store=store, sample_transform=lambda sample, rng: sample)
    batches = PickedBatches(preparation, chunking_of(store), segment, 0, range(3 * CHUNK_ROWS))
    ids = [batch.columns["id"].item() for batch in batches]
    assert ids == list(range(3 * CHUNK_ROWS))
    assert made == [1, 1, 1]
