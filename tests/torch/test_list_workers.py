"""Lists, bytes and text from workers: in shared memory, and the same as without workers."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from numpy.typing import NDArray

import feedline
from feedline.errors import DamagedDataError
from feedline.feed import chunking_of
from feedline.store import Column, Lists, Store
from feedline.store.lists import ListSource
from feedline.torch import DataLoader
from feedline.torch.regions import Regions, SharedColumns
from feedline.torch.worker_reads import WorkerReads
from forked import forked_python
from processes import is_running

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:The PyTorch API of nested tensors"
)

NUM_SAMPLES = 150
NAMES = ["id", "name", "blob", "tokens", "boxes", "when"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 9, NUM_SAMPLES)
    dates = [np.arange(n % 3).astype("datetime64[s]") for n in lengths]
    columns: dict[str, Any] = {
        "id": np.arange(NUM_SAMPLES),
        "name": Lists.of(["ä" * int(n) for n in lengths]),
        "blob": Lists.of([rng.bytes(int(n) * 100) for n in lengths]),
        "tokens": Lists.of([rng.integers(0, 99, n) for n in lengths], dtype=np.int32),
        "boxes": Lists.of([rng.random((n % 4, 4)) for n in lengths], dtype=np.float32),
        "when": Lists.of(dates, dtype="datetime64[s]"),
    }
    path = tmp_path_factory.mktemp("lists") / "data"
    feedline.pack(columns, path, chunk_samples=16, format="npy")
    return path


class OnlyReads(Store):
    """A store of the user's own: rows must be read, they cannot be copied from its memory."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def num_samples(self) -> int:
        return self._store.num_samples

    @property
    def chunk_sizes(self) -> NDArray[np.int64]:
        return self._store.chunk_sizes

    @property
    def columns(self) -> Mapping[str, Column]:
        return self._store.columns

    @property
    def fingerprint(self) -> str:
        return self._store.fingerprint

    def read(self, chunk: int, rows: NDArray[np.int64], out: Any = None) -> Any:
        return self._store.read(chunk, rows, out)

    def describe_row(self, chunk: int, row: int) -> str:
        return self._store.describe_row(chunk, row)


def regions_mapped() -> int:
    return Path("/proc/self/maps").read_text().count("feedline-batches")


def plain(value: Any) -> Any:
    """A value of a batch as Python values, with its type."""
    if isinstance(value, torch.Tensor):
        parts = value.unbind() if value.is_nested else [value]
        return value.dtype, [part.tolist() for part in parts]
    return [plain(part) if isinstance(part, torch.Tensor) else part for part in value]


def plain_batches(batches: Any) -> list[dict[str, Any]]:
    return [{name: plain(value) for name, value in batch.items()} for batch in batches]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited a minute in vain"
        time.sleep(0.01)


@pytest.mark.parametrize("form", ["list", "padded", "nested"])
@pytest.mark.parametrize("kind", ["mapped", "read"])
def test_lists_from_workers_are_those_without_workers_and_come_in_shared_memory(
    kind: str, form: str, folder: Path
) -> None:
    store = feedline.open(folder)
    chosen: Any = OnlyReads(store) if kind == "read" else store
    expected = plain_batches(DataLoader(store, 7, shuffle=True, lists=form))
    gc.collect()
    before = regions_mapped()
    loader = DataLoader(chosen, 7, shuffle=True, lists=form, num_workers=2)
    held = list(loader)
    assert regions_mapped() > before, "lists did not come in shared memory"
    assert list(held[0])[:3] == NAMES[:3]
    assert type(held[0]["blob"][0]) is bytes
    assert type(held[0]["name"][0]) is str
    assert plain_batches(held) == expected


def test_batches_that_the_loop_keeps_are_never_overwritten(folder: Path) -> None:
    def made(num_workers: int) -> Any:
        return DataLoader(
            feedline.open(folder),
            *(7, True),
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
        )

    loader, other = made(2), made(0)
    held, expected = [], []
    for _ in range(4):
        for number, (batch, same) in enumerate(zip(loader, other, strict=True)):
            # Some whole, of others a single list, which keeps the memory of all.
            if number % 3 == 0:
                held.append(plain(batch["tokens"]))
                expected.append(plain(same["tokens"]))
            elif number % 3 == 1:
                held.append(batch["tokens"][3:4])
                expected.append(plain(same["tokens"][3:4]))
    assert [plain(value) if isinstance(value[0], torch.Tensor) else value for value in held] == (
        expected
    )


def test_a_loader_of_torch_gets_the_same_lists(folder: Path) -> None:
    expected = plain_batches(DataLoader(feedline.open(folder), 7, shuffle=True))
    dataset: Any = DataLoader(feedline.open(folder), 7, shuffle=True).dataset
    loader: Any = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    assert plain_batches(loader) == expected


def with_count(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "count": [len(name) for name in batch["name"]]}


def test_a_transform_in_a_worker_gets_lists_and_texts(folder: Path) -> None:
    options: Any = {"shuffle": True, "transform": with_count}
    expected = plain_batches(DataLoader(feedline.open(folder), 7, **options))
    loader = DataLoader(feedline.open(folder), 7, num_workers=2, **options)
    assert plain_batches(loader) == expected


def shared_bytes(loader: Any) -> int:
    """The bytes of memory that the worker of a loader shares."""
    (worker,) = loader._iterator._workers
    total = 0
    for link in Path(f"/proc/{worker.pid}/fd").iterdir():
        try:
            if "feedline-batches" in os.readlink(link):
                total += link.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def test_lists_far_larger_than_the_mean_arrive_and_their_memory_goes_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = np.full(600, 50)
    sizes[200:300] = 5_000
    sizes[[100, 330, 331]] = 4 * 2**20
    blobs = [rng.bytes(int(size)) for size in sizes]
    columns: dict[str, Any] = {"id": np.arange(600), "blob": Lists.of(blobs)}
    feedline.pack(columns, tmp_path / "data", format="npy")
    # With this budget a worker reads one batch at a time.
    options: Any = {"num_workers": 1, "persistent_workers": True, "memory_budget": 2**20}
    loader: Any = DataLoader(feedline.open(tmp_path / "data"), 10, **options)
    most = 0
    for _ in range(2):
        for number, batch in enumerate(loader):
            assert batch["id"].tolist() == list(range(10 * number, 10 * number + 10))
            assert batch["blob"] == blobs[10 * number : 10 * number + 10]
            most = max(most, shared_bytes(loader))
    assert most >= 4 * 2**20, "the largest batches did not come in shared memory"
    assert most <= 20 * 2**20
    assert shared_bytes(loader) <= 2 * 2**20
    loader.close()


def test_text_that_is_not_utf_8_is_an_error_from_workers_too(tmp_path: Path) -> None:
    lists = Lists(np.frombuffer(b"a\xff", np.uint8), np.array([0, 1, 2]), "text")
    columns: dict[str, Any] = {"x": lists}
    feedline.pack(columns, tmp_path / "data", format="npy")
    loader = DataLoader(feedline.open(tmp_path / "data"), 1, num_workers=1)
    batches = iter(loader)
    assert next(batches)["x"] == ["a"]
    with pytest.raises(DamagedDataError, match="'x': a text is not UTF-8"):
        next(batches)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_does_not_count_a_batch_whose_texts_cannot_be_read(
    tmp_path: Path, num_workers: int
) -> None:
    lists = Lists(np.frombuffer(b"abcd\xfffgh", np.uint8), np.arange(9), "text")
    columns: dict[str, Any] = {"id": np.arange(8), "x": lists}
    feedline.pack(columns, tmp_path / "data", format="npy")
    loader = DataLoader(feedline.open(tmp_path / "data"), 2, num_workers=num_workers)
    batches = iter(loader)
    assert [next(batches)["id"].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(DamagedDataError):
        next(batches)
    assert loader.delivered is not None
    assert loader.delivered.number == 1
    resumed = DataLoader(feedline.open(tmp_path / "data"), 2, num_workers=num_workers)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(DamagedDataError):
        next(iter(resumed))
    loader.close()
    resumed.close()


def test_columns_of_lists_are_sent_without_their_values() -> None:
    region = Regions().lend(2**20)
    memory = region.lend()
    memory[:] = 7
    lists = Lists(memory, np.array([0, 10, 2**20]), "bytes")
    sent = pickle.dumps(SharedColumns({"x": lists}, region))
    assert len(sent) < 2000
    assert pickle.loads(sent)["x"].tolist() == [b"\7" * 10, b"\7" * (2**20 - 10)]


class Decodes(OnlyReads):
    """A store whose chunks are decoded when they are opened, each time anew."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.decoded: list[weakref.ref[ListSource]] = []

    @property
    def columns(self) -> Mapping[str, Column]:
        return {"blob": self._store.columns["blob"]}

    def row_sources(self, chunk: int) -> Any:
        rows = np.arange(self.chunk_sizes[chunk])
        source = ListSource.of(self._store.read(chunk, rows)["blob"])
        self.decoded.append(weakref.ref(source))
        return {"blob": source}


def test_a_worker_holds_the_chunks_of_its_latest_read_only(folder: Path) -> None:
    store = Decodes(feedline.open(folder))
    blobs = feedline.open(folder)[:]["blob"]
    reads = WorkerReads(store, chunking_of(store), Regions())
    for first in (0, 0, 48, 96):
        arrays, _ = reads.read(np.arange(first, first + 48))
        assert arrays["blob"].tolist() == list(blobs)[first : first + 48]
    assert len(store.decoded) == 9, "chunks of the same read were decoded again"
    gc.collect()
    assert sum(held() is not None for held in store.decoded) == 3


def test_nothing_is_left_of_a_process_that_was_killed(folder: Path) -> None:
    def left() -> set[str]:
        return set(os.listdir("/dev/shm"))

    with forked_python("list_job.py", str(folder), server="torch") as job:
        assert job.stdout is not None
        before = left()
        workers = [int(pid) for pid in job.stdout.readline().split()]
        assert len(workers) >= 2
        os.kill(job.pid, signal.SIGKILL)
        job.wait(timeout=60)
        wait_until(lambda: not any(map(is_running, workers)))
    assert not [name for name in left() - before if "feedline" in name or str(job.pid) in name]
