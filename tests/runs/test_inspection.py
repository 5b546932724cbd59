"""Checkpoints, folders and matrices are told apart, and cursors are compared field by field."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_runs import CONFIGS
from feedline.errors import CursorFormatError, FeedlineError, InvalidValueError, UnsafeDataError
from feedline.feed import Feed
from feedline.plan import Cursor
from feedline.plan.cursor import CURSOR_FORMAT
from feedline.runs.inspection import compare, inspect_path, read_checkpoint
from feedline.runs.run_config import RunConfig
from feedline.steps.run_state import RunState
from feedline.store import FolderStore, pack


def save(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.fixture
def cursor() -> Cursor:
    config = RunConfig.from_dict(CONFIGS["samples"])
    return config.plan.segment(world_size=4, batch_size=8).cursor(5)


def test_cursors_are_found_wherever_they_are_kept(tmp_path: Path, cursor: Cursor) -> None:
    state = {"epoch": 0, "cursor": cursor.to_dict()}
    clock = RunState(step=5, epoch=0, num_batches=5, dp_size=4, dataloader=state).to_dict()
    kept = {
        "": (cursor.to_dict(), "cursor"),
        "cursor": (state, "state of a loader or sampler"),
        "sampler.cursor": ({"sampler": state, "data": "x"}, "state of a loader or sampler"),
        "dataloader.cursor": (clock, "state of a StepScheduler"),
        "clock.dataloader.cursor": ({"clock": clock, "lr": 0.1}, "state of a StepScheduler"),
        "[1].cursor": ([1, state], "state of a loader or sampler"),
        "data.cursor": (
            {"note": f"{{{CURSOR_FORMAT}", "data": {"epoch": 0, "cursor": cursor.to_json()}},
            "state of a loader or sampler",
        ),
    }
    for found_at, (content, kind) in kept.items():
        found = read_checkpoint(save(tmp_path / "a.json", content))
        assert (found.cursor, found.found_at, found.kind) == (cursor, found_at, kind)


def test_a_clock_without_data_is_told(tmp_path: Path) -> None:
    state = RunState(step=5, epoch=1, num_batches=3).to_dict()
    found = inspect_path(save(tmp_path / "a.json", state))
    assert found.kind == "state of a StepScheduler"
    assert found.cursor is None
    assert found.facts["clock"]["step"] == 5


@pytest.mark.parametrize("content", ["{}", "[]", "3", '{"a": 1}', "null", '{"format": 7}'])
def test_json_without_a_cursor_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(CursorFormatError, match="contains no cursor"):
        inspect_path(tmp_path / "a.json")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"PK\x03\x04broken", b"[" * 100_000])
def test_files_that_are_no_checkpoint_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(CursorFormatError, match="a: "):
        inspect_path(tmp_path / "a")


def test_damaged_cursors_and_clocks_are_refused(tmp_path: Path, cursor: Cursor) -> None:
    damaged = {**cursor.to_dict(), "fingerprint": "0"}
    with pytest.raises(CursorFormatError, match="does not match the fields"):
        inspect_path(save(tmp_path / "a.json", damaged))
    with pytest.raises(InvalidValueError, match="step=-1"):
        inspect_path(save(tmp_path / "a.json", {"step": -1, "epoch": 0, "num_batches": 0}))
    with pytest.raises(InvalidValueError, match="does not exist"):
        inspect_path(tmp_path / "none")
    with pytest.raises(InvalidValueError, match="not a folder of chunks"):
        inspect_path(tmp_path)


def test_zip_files_without_a_checkpoint_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/b", "x")
    with pytest.raises(CursorFormatError, match=r"not a torch\.save archive"):
        inspect_path(tmp_path / "a.pt")


def test_pt_files_are_read_without_running_them(tmp_path: Path, cursor: Cursor) -> None:
    torch = pytest.importorskip("torch")
    state = {"epoch": 0, "cursor": cursor.to_dict()}
    torch.save({"model": {"w": torch.ones(3)}, "lr": 0.1, "data": state}, tmp_path / "a.pt")
    found = read_checkpoint(tmp_path / "a.pt")
    assert (found.cursor, found.found_at) == (cursor, "data.cursor")
    torch.save({"path": Path("x"), "data": state}, tmp_path / "b.pt")
    with pytest.raises(UnsafeDataError, match=r"it was not run\. Save the state_dict\(\)"):
        read_checkpoint(tmp_path / "b.pt")


def test_every_field_that_differs_is_listed(cursor: Cursor) -> None:
    same = RunConfig.from_dict({**CONFIGS["samples"], "ranks": 7, "batch_size": 3})
    fit = compare(cursor, same)
    rest = same.plan.resume(cursor, world_size=7, batch_size=3)
    assert (fit.is_fit, fit.num_batches_left) == (True, rest.num_batches)
    other = {**CONFIGS["samples"], "seed": 8, "tail": "pad", "data": {"samples": 1004}}
    fit = compare(cursor, RunConfig.from_dict(other))
    assert not fit.is_fit
    assert fit.differences == {
        "order.num_samples": (1003, 1004),
        "order.seed": (7, 8),
        "tail": ("drop", "pad"),
    }


def test_a_cursor_that_is_further_than_the_plan_does_not_fit() -> None:
    config = RunConfig.from_dict(CONFIGS["samples"])
    beyond = Cursor(fields=config.plan.fields, history=((4, 8, 10**6),))  # type: ignore[arg-type]
    fit = compare(beyond, config)
    assert not fit.is_fit
    assert "num_batches=1000000 must be in" in fit.reason


def test_cursors_of_a_feed_are_compared_with_the_data_too(tmp_path: Path) -> None:
    pack({"x": np.arange(100)}, tmp_path / "data", chunk_samples=10)
    given = {"ranks": 1, "batch_size": 5, "data": {"folder": "data", "preload": 2}}
    config = RunConfig.from_dict(given, folder=tmp_path)
    with Feed(FolderStore(tmp_path / "data"), config.plan, batch_size=5) as feed:
        next(iter(feed))
        found = read_checkpoint(save(tmp_path / "a.json", feed.state_dict()))
    assert found.cursor is not None
    fit = compare(found.cursor, config)
    assert (fit.is_fit, fit.num_batches_left) == (True, 19)
    pack({"x": np.arange(100) + 1}, tmp_path / "data", chunk_samples=10, overwrite=True)
    fit = compare(found.cursor, RunConfig.from_dict(given, folder=tmp_path))
    assert not fit.is_fit
    assert "data.fingerprint" in fit.differences


def test_folders_and_splits_are_described(tmp_path: Path) -> None:
    pack({"x": np.arange(100)}, tmp_path / "one", chunk_samples=30)
    facts = inspect_path(tmp_path / "one").facts
    assert (facts["num_samples"], facts["num_chunks"], facts["bytes_per_sample"]) == (100, 4, 8)
    assert facts["chunk_samples"] == {"fewest": 10, "most": 30}
    pack({"x": np.arange(100)}, tmp_path / "two", split=0.1)
    found = inspect_path(tmp_path / "two")
    assert {name: split["num_samples"] for name, split in found.facts.items()} == {
        "train": 90,
        "validation": 10,
    }
    (tmp_path / "one" / "metadata.json").write_text("{")
    with pytest.raises(FeedlineError, match="is not JSON"):
        inspect_path(tmp_path / "one")


def test_matrices_are_described(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array(tmp_path / "x.zarr", shape=(20, 3), chunks=(5, 3), dtype="f4")
    array[:] = np.ones((20, 3))
    found = inspect_path(tmp_path / "x.zarr")
    assert found.kind == "zarr matrix"
    assert (found.facts["shape"], found.facts["layout"]) == ([20, 3], "dense")
