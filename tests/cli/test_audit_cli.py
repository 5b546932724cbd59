"""`feedline audit`, as a user runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from feedline.cli.commands import feedline as commands
from feedline.runs import ConsumptionLog


def run(*arguments: object) -> Result:
    return CliRunner().invoke(commands, ["audit", *map(str, arguments)])


def write(folder: Path, ranks: list[list[int]], *, is_end: bool = True, **info: Any) -> None:
    for rank, ids in enumerate(ranks):
        path = folder / f"rank{rank}.log"
        with ConsumptionLog(path, rank=rank, world_size=len(ranks), run="a", info=info) as log:
            log.event("start")
            log.record(epoch=0, step=0, batch=0, ids=ids)
            if is_end:
                log.event("epoch_end", epoch=0, step=0)


def test_a_clean_training_exits_with_0(tmp_path: Path) -> None:
    write(tmp_path, [[0, 3], [2, 1]], num_samples=4)
    done = run(tmp_path)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "audit: 4 samples, each exactly once" in done.stdout
    files = run(tmp_path / "rank0.log", tmp_path / "rank1.log", "--json")
    assert files.exit_code == 0
    result = json.loads(files.stdout)
    assert result["ok"] is True
    assert result["epochs"][0]["num_once"] == 4


def test_lost_and_repeated_samples_exit_with_1_and_are_named(tmp_path: Path) -> None:
    write(tmp_path, [[0, 3], [1, 1]], sources={"web": 2, "books": 3})
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "2 samples lost: 2 (books 0), 4 (books 2)" in done.stdout
    assert "1 sample received too often: 1 (web 1)" in done.stdout
    assert "audit: failed" in done.stdout
    result = json.loads(run(tmp_path, "--json").stdout)
    assert result["ok"] is False
    assert result["epochs"][0]["lost"] == [2, 4]


def test_ranks_that_parted_and_missing_logs_are_told(tmp_path: Path) -> None:
    write(tmp_path, [[0], [1], [2]], num_samples=3)
    (tmp_path / "rank1.log").unlink()
    with ConsumptionLog(
        tmp_path / "rank2.log", rank=2, world_size=3, run="a", info={"num_samples": 3}
    ) as log:
        log.record(epoch=0, step=1, batch=1, ids=[])
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "run a: the logs of ranks 1 of 3 are not there" in done.stdout
    assert "run a: ranks parted at step 1; they had 1, 2 batches" in done.stdout


def test_an_unfinished_epoch_fails_only_where_it_should_be_complete(tmp_path: Path) -> None:
    write(tmp_path, [[0], [1]], is_end=False)
    done = run(tmp_path, "--samples", 5)
    assert done.exit_code == 0
    assert "3 to come" in done.stdout
    assert run(tmp_path, "--samples", 5, "--complete").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["none"], "no such log"),
        (["empty"], "holds no log"),
        (["logs"], "--samples must be given"),
        (["logs", "--samples", "0"], "num_samples=0"),
        (["damaged"], "header"),
        (["logs", "damaged"], "header"),
        ([], "Missing argument"),
    ],
)
def test_bad_input_exits_with_2_and_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write(tmp_path / "logs", [[0]])
    whole = (tmp_path / "logs" / "rank0.log").read_bytes()
    (tmp_path / "damaged").write_bytes(whole.replace(b'"rank":0', b'"rank":1'))
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert text in done.stderr
    assert done.stdout == ""


def test_names_of_runs_are_printed_as_they_are(tmp_path: Path) -> None:
    with ConsumptionLog(tmp_path / "a", rank=0, world_size=2, run="[red]run[/]") as log:
        log.record(epoch=0, step=0, batch=0, ids=[0])
    done = run(tmp_path, "--samples", 1)
    assert done.stdout.count("[red]run[/]") == 2


def test_without_rich_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [[0]], num_samples=1)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    done = run(tmp_path)
    assert done.exit_code == 2
    assert "feedline[cli]" in done.stderr
    assert run(tmp_path, "--json").exit_code == 0
