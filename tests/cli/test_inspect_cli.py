"""`feedline inspect`, as a user runs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cli_runs import CONFIGS, check_refused, invoke, run, run_json, write_config
from feedline.runs.run_config import RunConfig
from feedline.store import pack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a checkpoint, a config that fits it and one that does not."""
    write_config(tmp_path / "run.yaml", CONFIGS["samples"])
    write_config(tmp_path / "other.yaml", {**CONFIGS["samples"], "seed": 8, "tail": "pad"})
    plan = RunConfig.from_dict(CONFIGS["samples"]).plan
    plan.segment(world_size=4, batch_size=8, epoch=2).cursor(5).save(tmp_path / "cursor.json")
    return tmp_path


def test_a_checkpoint_is_described(folder: Path) -> None:
    done = run("inspect", "cursor.json", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("cursor.json: cursor\n")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["4", "8", "5"] in rows, "the table of the history"
    found = run_json("inspect", "cursor.json", cwd=folder)
    assert found["cursor"]["epoch"] == 2
    assert found["cursor"]["history"] == [{"world_size": 4, "batch_size": 8, "num_batches": 5}]


def test_a_cursor_that_fits_exits_with_0(folder: Path) -> None:
    done = run("inspect", "cursor.json", "--against", "run.yaml", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fits run.yaml: 26 batches of the epoch left" in done.stdout
    found = run_json("inspect", "cursor.json", "--against", "run.yaml", cwd=folder)
    assert found["fit"]["is_fit"] is True


def test_a_cursor_that_does_not_fit_exits_with_1(folder: Path) -> None:
    done = run("inspect", "cursor.json", "--against", "other.yaml", cwd=folder)
    assert (done.returncode, done.stderr) == (1, "")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["order.seed", "7", "8"] in rows
    assert ["tail", "drop", "pad"] in rows
    found = run_json("inspect", "cursor.json", "--against", "other.yaml", cwd=folder, code=1)
    assert found["fit"]["differences"] == {"order.seed": [7, 8], "tail": ["drop", "pad"]}


def test_a_packed_folder_is_described(folder: Path) -> None:
    pack({"x": np.zeros((50, 2), np.float32)}, folder / "packed", chunk_samples=20)
    done = run("inspect", "packed", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "num_samples: 50" in done.stdout
    assert ["x", "float32", "[2]"] in [line.split()[:3] for line in done.stdout.splitlines()]
    assert run_json("inspect", "packed", cwd=folder)["num_chunks"] == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["none.json"], "none.json: does not exist"),
        (["run.yaml"], "contains no cursor"),
        (["bad.json"], "is neither JSON nor a torch.save archive"),
        (["zip.pt"], "is not a torch.save archive"),
        (["."], "not a folder of chunks, a zarr matrix"),
        (["cursor.json", "--against", "none.yaml"], "none.yaml: does not exist"),
        (["packed", "--against", "run.yaml"], "contains no cursor"),
    ],
)
def test_bad_input_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str
) -> None:
    monkeypatch.chdir(folder)
    (folder / "bad.json").write_bytes(b"\x80\x02}.")
    (folder / "zip.pt").write_bytes(b"PK\x03\x04")
    if arguments[0] == "packed":
        pack({"x": np.arange(5)}, folder / "packed")
    check_refused(invoke("inspect", *arguments), text)


def test_a_checkpoint_beside_the_state_of_a_model_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from feedline.torch import DataLoader

    loader = DataLoader(range(100), batch_size=4, shuffle=True)
    next(iter(loader))
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(4, 2)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**state, "loader": loader.state_dict()}, tmp_path / "e.pt")
    done = run("inspect", tmp_path / "e.pt")
    assert done.returncode == 0, done.stderr
    assert "epoch" in done.stdout
