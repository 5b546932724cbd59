"""Whatever bytes a matrix in zarr is made of, reading it harms neither process nor memory."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.errors import DamagedDataError
from feedline.store import open_anndata
from processes import finish, python
from zarr_damage import Header, edit, point_to, read_all, set_chunks
from zarr_data import write_anndata

NUM_ROWS = 60
HUGE = 2**40
FIRST_SHARD = "X/indices/c/0"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Matrices that are not damaged; those in shards have four chunks in each."""
    folder = tmp_path_factory.mktemp("sound")
    for name, options in {"": {}, "raw ": {"compressors": None}}.items():
        write_anndata(folder / f"{name}shards", NUM_ROWS, chunks=(16,), shards=(64,), **options)
        write_anndata(folder / f"{name}chunks", NUM_ROWS, chunks=(16,), **options)
    write_anndata(folder / "dense", NUM_ROWS, "dense")
    return folder


@pytest.fixture
def copy_of(sound: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(sound / name, tmp_path / "m.zarr"))


@pytest.fixture
def _little_memory() -> Iterator[None]:
    """Fail a test that has allocated much, even if it was never touched."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    finally:
        tracemalloc.stop()


def run_fuzz(sound: Path, work: Path, num_tries: int, seed: int) -> dict[str, Any]:
    """Read matrices with random damage in a process of their own, which must not crash."""
    with python("zarr_fuzz_job.py", str(sound), str(work), str(num_tries), str(seed)) as job:
        output = finish(job, timeout=300)
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert sum(report["counts"].values()) == num_tries
    return report


@pytest.fixture(scope="module")
def report(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_fuzz(sound, tmp_path_factory.mktemp("work") / "m.zarr", 150, seed=7)


@pytest.mark.slow
def test_random_damage_never_ends_the_process(report: dict[str, Any]) -> None:
    # Some damage cannot be seen, such as another value in a chunk without a checksum.
    assert report["counts"]["refused"] > 30
    assert report["counts"]["read"] > 10


@pytest.mark.slow
def test_random_damage_is_refused_as_such(report: dict[str, Any]) -> None:
    assert report["others"] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_much_random_damage_never_ends_the_process(seed: int, sound: Path, tmp_path: Path) -> None:
    run_fuzz(sound, tmp_path / "m.zarr", 1000, seed)


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize(
    ("name", "array", "chunks"),
    [
        ("chunks", "X/data", [HUGE]),
        ("chunks", "X/indices", [HUGE]),
        ("shards", "X/data", [HUGE]),
        ("shards", "X/indices", [HUGE]),
        ("dense", "X", [HUGE, 5]),
        ("dense", "X", [4, HUGE]),
        ("dense", "X", [2**20, 2**20]),
    ],
)
def test_huge_chunks_are_refused_before_any_memory_is_taken(
    name: str, array: str, chunks: list[int], copy_of: Callable[[str], Path]
) -> None:
    path = copy_of(name)
    edit(path / array, lambda header: set_chunks(header, chunks, chunks))
    with pytest.raises(DamagedDataError, match=r"has chunks of \d+ bytes, which must be at most"):
        read_all(path)


def huge(header: Header) -> None:
    header["shape"] = [HUGE * 2**10, *header["shape"][1:]]


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("array", ["data", "indices"])
def test_huge_arrays_are_refused_before_any_memory_is_taken(
    array: str, copy_of: Callable[[str], Path]
) -> None:
    path = copy_of("shards")
    edit(path / "X" / array, huge)
    with pytest.raises(DamagedDataError, match="of one length"):
        read_all(path)


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("array", ["X/indptr", "obs/number", "obs/label/codes"])
def test_a_huge_list_is_refused_before_any_memory_is_taken(
    array: str, copy_of: Callable[[str], Path]
) -> None:
    path = copy_of("shards")
    edit(path / array, huge)
    with pytest.raises(DamagedDataError):
        read_all(path)


OUTSIDE = [(0, HUGE), (10**6, 64), (2**63, 64), (0, 2**63), (0, 2**64 - 2), (5, 2**64 - 6)]


@pytest.mark.parametrize("name", ["shards", "raw shards"])
@pytest.mark.parametrize(
    ("offset", "num_bytes"),
    [
        *OUTSIDE,
        (0, 0),
        (2**64 - 8, 64),
    ],
)
def test_an_index_that_leads_out_of_its_shard_is_refused(
    name: str, offset: int, num_bytes: int, copy_of: Callable[[str], Path]
) -> None:
    path = copy_of(name)
    store = open_anndata(path)
    point_to(path / FIRST_SHARD, 1, offset, num_bytes, num_chunks=4)
    with pytest.raises(DamagedDataError, match="cannot be read"):
        store.fetch(np.arange(NUM_ROWS))


@pytest.mark.parametrize(("offset", "num_bytes"), [*OUTSIDE[2:], (2**64 - 8, 64)])
def test_an_index_that_leads_out_of_its_shard_is_refused_by_opening(
    offset: int, num_bytes: int, copy_of: Callable[[str], Path]
) -> None:
    path = copy_of("shards")
    point_to(path / FIRST_SHARD, 1, offset, num_bytes, num_chunks=4)
    with pytest.raises(DamagedDataError):
        open_anndata(path)
