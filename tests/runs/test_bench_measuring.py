"""Every stage is measured on the user's own data, or it is told why not."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from feedline.errors import FeedlineError, InvalidValueError, StoreError
from feedline.packing import pack
from feedline.runs.bench import figures as named
from feedline.runs.bench.gathers import Gathering
from feedline.runs.bench.measuring import BenchOptions, free_memory, measure_data
from feedline.runs.bench.page_cache import cached_share, drop_from_cache
from feedline.runs.bench.storage import Storage, data_files, files_of_chunks
from feedline.runs.bench.timing import repeated
from feedline.store import FolderStore
from feedline.store.paths import is_cached
from store_formats import FORMATS, open_format

NUM_SAMPLES = 100
QUICK = BenchOptions(seconds=0.01, batch_size=8)


# Mapped chunks, decoded ones, a file of tokens, and a matrix.
KINDS = ("safetensors", "table.parquet", "tokens.bin", "matrix.zarr")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("formats")
    for name in KINDS:
        FORMATS[name](folder / name, NUM_SAMPLES)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    """Ten chunks of ten rows of 4 KiB."""
    pack(
        {"x": np.arange(100 * 512).reshape(100, 512)},
        tmp_path / "packed",
        chunk_samples=10,
        progress=False,
    )
    return FolderStore(tmp_path / "packed")


@pytest.mark.parametrize("name", KINDS)
def test_every_stage_of_every_format_is_measured_or_told_why_not(name: str, written: Path) -> None:
    store = open_format(written, name)
    found = measure_data(store, written / name, QUICK)
    rates = {(f.stage, f.name): f for f in found.figures}
    for stage, what in (
        (named.STORAGE, named.COLD),
        (named.STORAGE, named.DIRECT),
        (named.GATHER, named.COLD_ROWS),
    ):
        assert ((stage, what) in rates) != (what in found.missing)
    assert (named.STORAGE, named.WARM) in rates
    assert [f.name for f in found.batches] == [named.SHUFFLE, named.WINDOWS]
    assert min(found.gathers) == 1
    assert {found.auto_threads, max(1, found.num_threads)} <= set(found.gathers)
    assert (named.LINK, named.COPIES) not in rates
    is_decoded = name in ("table.parquet", "matrix.zarr")
    assert found.is_decoded is is_decoded
    assert ((named.DECODE, "whole chunks") in rates) is is_decoded
    assert (found.num_samples, found.num_chunks) == (NUM_SAMPLES, len(store.chunk_sizes))
    row_bytes = sum(column.row_bytes for column in store.columns.values())
    assert found.row_bytes == row_bytes
    for figure in found.figures:
        assert figure.rows_per_second > 0
        stored = found.file_bytes / NUM_SAMPLES if figure.stage == named.STORAGE else row_bytes
        assert figure.bytes_per_second == pytest.approx(figure.rows_per_second * stored)
    # The store is still of use.
    assert len(store[:3]) == len(store.columns)


def test_options_say_what_is_measured(store: FolderStore) -> None:
    options = BenchOptions(
        seconds=0.01, batch_size=3, num_threads=2, window=25, memory_budget=2**20, row_share=0.5
    )
    found = measure_data(store, store.folder, options)
    assert (found.batch_size, found.num_threads, found.window) == (3, 2, "25 samples")
    assert {1, 2} <= set(found.gathers)
    warm = found.find(named.STORAGE, named.WARM)
    assert warm is not None
    # Half of each sample is enough, so there are twice as many.
    stored = found.file_bytes / found.num_samples
    assert warm.rows_per_second == pytest.approx(2 * warm.bytes_per_second / stored)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"seconds": 0.0}, "seconds=0.0"),
        ({"seconds": 61.0}, r"seconds=61 must be in \(0, 60\]"),
        ({"num_threads": "many"}, "num_threads='many'"),
        ({"memory_budget": 0}, "memory_budget=0"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidValueError, match=told):
        BenchOptions(**wrong)  # type: ignore[arg-type]


def test_wrong_windows_and_budgets_are_told_before_anything_is_measured(store: FolderStore) -> None:
    with pytest.raises(InvalidValueError, match="window='eight'"):
        measure_data(store, store.folder, BenchOptions(window="eight", seconds=60))


def test_samples_without_bytes_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "empty.npy", np.zeros((5, 0)))
    store = FolderStore.of_file(tmp_path / "empty.npy")
    with pytest.raises(InvalidValueError, match="5 samples of 0 bytes"):
        measure_data(store, tmp_path, QUICK)


def test_files_are_dropped_from_the_page_cache_or_it_is_told_why_not(store: FolderStore) -> None:
    files = data_files(store, store.folder)
    for file in files:
        file.read_bytes()
    before = cached_share(files)
    assert before in (1.0, None)
    reason = drop_from_cache(files)
    assert reason is None or "page cache" in reason
    if reason is None:
        with files[0].open("rb", buffering=0) as file:
            assert not is_cached(file.fileno(), files[0].stat().st_size)
        # Of what was asked for, some may still have been on its way.
        assert (cached_share(files[1:]) or 0) < 0.5


def test_asking_for_the_cached_share_does_not_change_it(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(2**23))
    if drop_from_cache([tmp_path / "data"]) is None:
        shares = [cached_share([tmp_path / "data"]) for _ in range(3)]
        assert max(share or 0 for share in shares) < 0.5


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs a file system in memory")
def test_files_that_lie_in_memory_are_not_called_cold() -> None:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        (folder / "data").write_bytes(bytes(2**16))
        assert "page cache" in (drop_from_cache([folder / "data"]) or "")
        assert isinstance(Storage([folder / "data"], 1).cold(0.01), str)
    finally:
        shutil.rmtree(folder)


def test_a_cold_reading_ends_with_the_files_and_a_warm_one_repeats_them(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(5_000_001))
    storage = Storage([tmp_path / "data"], 2)
    cold, warm, direct = storage.cold(1e-9), storage.warm(0.1), storage.direct(0.05)
    if not isinstance(cold, str):
        assert 0 < cold.amount <= 5_000_001
    if not isinstance(direct, str):
        assert direct.amount > 0
    assert warm.amount > 5_000_001


def test_of_much_data_files_spread_over_it_are_read(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}" for number in range(10)]
    for file in files:
        file.write_bytes(bytes(1000))
    storage = Storage(files, 1, most_bytes=3000)
    for file in (f for number, f in enumerate(files) if number not in (0, 3, 6)):
        file.unlink()
    assert storage.warm(0.01).amount % 1000 == 0


def test_a_file_that_shrinks_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(10_000))
    storage = Storage([tmp_path / "data"], 1)
    os.truncate(tmp_path / "data", 5_000)
    with pytest.raises(StoreError, match="fewer bytes than before"):
        storage.warm(0.01)


def test_files_without_data_are_refused(tmp_path: Path, store: FolderStore) -> None:
    for file in data_files(store, store.folder):
        os.truncate(file, 0)
    with pytest.raises(StoreError, match="has 0 files with data"):
        data_files(store, store.folder)


def test_rows_are_gathered_from_chunks_spread_over_the_data(store: FolderStore) -> None:
    gathering = Gathering(store, most_bytes=20 * 4096)
    files = data_files(store, store.folder)
    for file in files[1:-1]:
        file.unlink()
    gathering.warm_up(10)
    assert gathering.rate(2, 0.01).amount > 0
    assert gathering.cold_rows(3).amount == 3 * 64


def test_only_rows_that_were_read_in_time_are_gathered(store: FolderStore) -> None:
    gathering = Gathering(store, most_bytes=2**30)
    gathering.warm_up(0)
    for file in data_files(store, store.folder)[1:]:
        file.unlink()
    assert gathering.rate(1, 0.01).amount > 0


def test_only_files_of_chosen_chunks_are_dropped(store: FolderStore, written: Path) -> None:
    files = data_files(store, store.folder)
    assert files_of_chunks(store, [0, 9], files) == [files[0], files[9]]
    matrix = open_format(written, "matrix.zarr")
    files = data_files(matrix, written / "matrix.zarr")
    assert files_of_chunks(matrix, [0], files) == files


def test_decoding_counts_every_row_of_each_chunk(written: Path) -> None:
    gathering = Gathering(open_format(written, "table.parquet"), most_bytes=2**30)
    # One round at least, then as many as there is time for.
    assert gathering.decoding(1, 1e-9).amount in (13, NUM_SAMPLES % 13)
    times = (0.2 * 2**power for power in range(8))
    assert any(gathering.decoding(2, seconds).amount >= NUM_SAMPLES for seconds in times)


def test_an_error_in_a_thread_reaches_the_caller() -> None:
    def fail(_: int) -> int:
        raise FeedlineError("broken")

    with pytest.raises(FeedlineError, match="broken"):
        repeated(fail, 2, 10)


def test_free_memory_is_within_that_of_the_machine() -> None:
    found = free_memory()
    if hasattr(os, "sysconf") and found is not None:
        assert 0 < found <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
