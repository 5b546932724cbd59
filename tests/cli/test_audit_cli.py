"""`feedline audit`, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli_runs import check_refused, invoke, run_json
from feedline.runs import ConsumptionLog


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return invoke("audit", *arguments)


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
    assert (done.returncode, done.stderr) == (0, "")
    assert "audit: 4 samples, each exactly once" in done.stdout
    files = run(tmp_path / "rank0.log", tmp_path / "rank1.log", "--json")
    assert files.returncode == 0
    result = json.loads(files.stdout)
    assert result["ok"] is True
    assert result["epochs"][0]["num_once"] == 4


def test_lost_and_repeated_samples_exit_with_1_and_are_named(tmp_path: Path) -> None:
    write(tmp_path, [[0, 3], [1, 1]], sources={"web": 2, "books": 3})
    done = run(tmp_path)
    assert done.returncode == 1
    assert "2 samples lost: 2 (books 0), 4 (books 2)" in done.stdout
    assert "1 sample received too often: 1 (web 1)" in done.stdout
    assert "audit: failed" in done.stdout
    result = run_json("audit", tmp_path, code=1)
    assert result["ok"] is False
    (epoch,) = result["epochs"]
    assert (epoch["lost"], epoch["repeated"]) == ([2, 4], [1])
    assert epoch["lost_places"] == [
        {"index": 2, "source": "books", "source_index": 0},
        {"index": 4, "source": "books", "source_index": 2},
    ]
    assert epoch["repeated_places"] == [{"index": 1, "source": "web", "source_index": 1}]


def test_samples_that_are_none_are_told_without_a_place(tmp_path: Path) -> None:
    write(tmp_path, [[0, 1], [2, 7]], sources={"web": 2, "books": 1})
    done = run(tmp_path)
    assert done.returncode == 1
    assert "epoch 0: 1 sample outside the data: 7\n" in done.stdout


def test_ranks_that_parted_and_missing_logs_are_told(tmp_path: Path) -> None:
    write(tmp_path, [[0], [1], [2]], num_samples=3)
    (tmp_path / "rank1.log").unlink()
    with ConsumptionLog(
        tmp_path / "rank2.log", rank=2, world_size=3, run="a", info={"num_samples": 3}
    ) as log:
        log.record(epoch=0, step=1, batch=1, ids=[])
    done = run(tmp_path)
    assert done.returncode == 1
    assert "run a: the logs of ranks 1 of 3 are missing" in done.stdout
    assert "run a: ranks diverged at step 1; they had 1, 2 batches" in done.stdout
    (found,) = run_json("audit", tmp_path, code=1)["runs"]
    assert (found["parted_step"], found["missing_ranks"], found["ok"]) == (1, [1], False)


def test_long_lists_are_kept_on_their_lines(tmp_path: Path) -> None:
    write(tmp_path, [[100 * rank] for rank in range(40)], num_samples=4000)
    for rank in range(20):
        (tmp_path / f"rank{rank}.log").unlink()
    done = run(tmp_path)
    lines = done.stdout.splitlines()
    assert any(line.startswith("run a: the logs of ranks 0, 1, 2") for line in lines)
    assert any(line.endswith(", 14, 15, … of 40 are missing") for line in lines)
    assert any(line.startswith("epoch 0: 3,980 samples lost: 0, 1, 2") for line in lines)
    assert any(line.endswith(", 18, 19, …") for line in lines)


def test_an_unfinished_epoch_fails_only_where_it_should_be_complete(tmp_path: Path) -> None:
    write(tmp_path, [[0], [1]], is_end=False)
    done = run(tmp_path, "--samples", 5)
    assert done.returncode == 0
    assert "3 to come" in done.stdout
    assert run(tmp_path, "--samples", 5, "--complete").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["none"], "does not exist"),
        (["empty"], "contains no log"),
        (["logs"], "--samples is required"),
        (["logs", "--samples", "0"], "--samples=0"),
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
    check_refused(run(*arguments), text)


def test_names_of_runs_are_printed_as_they_are(tmp_path: Path) -> None:
    with ConsumptionLog(tmp_path / "a", rank=0, world_size=2, run="[red]run[/]") as log:
        log.record(epoch=0, step=0, batch=0, ids=[0])
    done = run(tmp_path, "--samples", 1)
    assert done.stdout.count("[red]run[/]") == 2


def test_without_rich_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [[0]], num_samples=1)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    done = run(tmp_path)
    assert done.returncode == 2
    assert "feedline[cli]" in done.stderr
    assert run(tmp_path, "--json").returncode == 0


def test_skipped_samples_are_named_and_are_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    info = {"sources": {"web": 2, "books": 3}}
    with ConsumptionLog(path, rank=0, world_size=1, run="a", info=info) as log:
        log.event("start")
        log.event("skipped", epoch=0, step=0, batch=0, ids=[3])
        is_real = [True, True, True, False, True]
        log.record(epoch=0, step=0, batch=0, ids=[0, 1, 2, 0, 4], is_real=is_real)
        log.event("epoch_end", epoch=0, step=0)
    done = run(tmp_path)
    assert done.returncode == 0
    assert "exactly once, 1 skipped" in done.stdout
    assert "1 sample skipped" in done.stdout
    assert "3 (books 1)" in done.stdout
    assert "audit: 4 samples, each exactly once, and 1 skipped" in done.stdout
    (epoch,) = run_json("audit", tmp_path)["epochs"]
    assert epoch["skipped_places"] == [{"index": 3, "source": "books", "source_index": 1}]
    assert [source["num_once"] for source in epoch["sources"]] == [2, 2]
    assert epoch["num_padded"] == 0
