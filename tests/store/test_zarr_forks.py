"""Matrices in zarr can be read in a forked child, and reading leaves zarr's settings alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zarr

from feedline.errors import InvalidValueError
from feedline.store import open_anndata
from forked import forked_python
from processes import finish
from zarr_data import write_anndata


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("data")
    return [write_anndata(folder / f"{kind}.zarr", 100, kind) for kind in ("csr", "dense")]


def check_fork(before: str, fork: str, data: list[Path], timeout: float = 45) -> None:
    """Fail unless a child reads well; one that hangs is killed."""
    job = {"data": list(map(str, data)), "before": before, "fork": fork, "timeout": timeout}
    preload = ["zarr", "scipy.sparse"]
    with forked_python("fork_job.py", json.dumps(job), preload=preload) as run:
        finish(run, timeout=60)


@pytest.mark.parametrize("fork", ["os", "multiprocessing"])
@pytest.mark.parametrize(
    "before",
    ["read", *(pytest.param(b, marks=pytest.mark.slow) for b in ("nothing", "open", "nested"))],
)
def test_a_forked_child_reads_what_was_written(before: str, fork: str, data: list[Path]) -> None:
    check_fork(before, fork, data)


@pytest.mark.parametrize("fork", ["os", "multiprocessing"])
def test_a_child_reads_after_its_parent_used_zarrs_on_its_own(fork: str, data: list[Path]) -> None:
    check_fork("elsewhere", fork, data)


@pytest.mark.parametrize("fork", ["os", "multiprocessing"])
def test_a_child_reads_where_zarrs_was_chosen_for_everything(fork: str, data: list[Path]) -> None:
    check_fork("chosen", fork, data)


def test_reading_leaves_the_settings_of_zarr_alone(data: list[Path]) -> None:
    before = zarr.config.get("codec_pipeline.path"), repr(zarr.config.config)
    for path in data:
        store = open_anndata(path, obs=["number", "label"])
        assert store.fetch(np.arange(100)).num_rows == 100
        with pytest.raises(InvalidValueError, match="requests"):
            store.fetch(np.array([100]))
    assert (zarr.config.get("codec_pipeline.path"), repr(zarr.config.config)) == before


def test_the_settings_of_zarr_do_not_change_what_is_read(data: list[Path]) -> None:
    chosen = "zarrs.ZarrsCodecPipeline"
    rows = [open_anndata(path).fetch(np.arange(100)).take(np.arange(9)) for path in data]
    with zarr.config.set({"codec_pipeline.path": chosen}):
        for path, expected in zip(data, rows, strict=True):
            found = open_anndata(path).fetch(np.arange(100)).take(np.arange(9))
            assert abs(found - expected).sum() == 0
        assert zarr.config.get("codec_pipeline.path") == chosen
