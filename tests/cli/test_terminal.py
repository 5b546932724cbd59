"""Names from files cannot give orders to the terminal that they are printed on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from feedline.cli.commands import feedline
from feedline.cli.printing import escaped, one_line, print_table
from feedline.runs import ConsumptionLog
from feedline.store import pack

# An order to set the title, one of C1, and a mark that turns the reading direction around.
EVIL = "a\x1b]0;owned\x07b\x9b31mc\u202ed\u2066e\u200bf"


def check_safe(result: Result) -> str:
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    raw = result.output.replace("\n", "")
    assert raw.isprintable(), repr(result.output)
    return result.output


def run(*arguments: object) -> Result:
    return CliRunner().invoke(feedline, [str(argument) for argument in arguments])


@pytest.fixture
def evil_log(tmp_path: Path) -> Path:
    folder = tmp_path / EVIL
    info = {"sources": {EVIL: 2, "other": 2}, EVIL: EVIL}
    with ConsumptionLog(folder / "rank0.log", rank=0, world_size=2, run=EVIL, info=info) as log:
        log.event("start", **{EVIL: EVIL, "note": EVIL})
        log.record(epoch=0, step=0, batch=0, ids=[0, 0, 9])
        log.event(EVIL, epoch=0)
        log.event("epoch_end", epoch=0, step=0)
    return folder


@pytest.mark.parametrize("command", ["audit", "inspect"])
def test_names_in_a_log_are_escaped(command: str, evil_log: Path) -> None:
    output = check_safe(run(command, evil_log))
    assert r"\x1b]0;owned\x07" in output
    output = check_safe(run(command, evil_log / "rank0.log"))
    assert r"\u202e" in output


def test_names_in_a_report_command_are_escaped(evil_log: Path, tmp_path: Path) -> None:
    check_safe(run("report", evil_log, "-o", tmp_path / f"{EVIL}.html"))


def test_names_in_a_folder_are_escaped(tmp_path: Path) -> None:
    folder = tmp_path / EVIL
    pack({"x": np.arange(6)}, folder, chunk_samples=3)
    manifest = json.loads((folder / "metadata.json").read_text())
    manifest["columns"][0]["name"] = EVIL
    (folder / manifest["batch_files"][0]["path"]).rename(folder / f"{EVIL}.npy")
    manifest["batch_files"][0]["path"] = f"{EVIL}.npy"
    (folder / "metadata.json").write_text(json.dumps(manifest))
    assert r"\u202e" in check_safe(run("inspect", folder))
    assert r"\u202e" in check_safe(run("verify", folder))


def test_names_in_a_config_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / f"{EVIL}.yaml"
    names = json.dumps(EVIL)
    sources = f"{{name: {names}, samples: 9}}, {{name: b, samples: 5}}"
    path.write_text(f"batch_size: 2\ndata: {{mixture: [{sources}]}}\n")
    for arguments in (["plan"], ["where", "--step", "0"], ["where", "--index", "0"], ["quality"]):
        assert "owned" in check_safe(run(arguments[0], path, *arguments[1:]))
    check_safe(run("inspect", path))


def test_tables_escape_titles_headers_and_cells(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(EVIL, [EVIL], [[EVIL]])
    assert capsys.readouterr().out.replace("\n", "").isprintable()


def test_lines_stay_lines() -> None:
    assert escaped("one\ntwo\r\x85") == "one\ntwo\\r\\x85"
    assert one_line("one\ntwo") == "one two"
