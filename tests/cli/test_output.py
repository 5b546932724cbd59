"""What commands print, wherever it goes: odd names, early readers, interrupts, little memory."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cli_runs import CONFIGS, check_refused, invoke, run, write_config
from feedline.cli import quality
from feedline.cli.commands import feedline
from feedline.runs import ConsumptionLog
from feedline.runs.run_config import RunConfig


def test_names_are_on_one_line_without_signs_that_a_terminal_obeys() -> None:
    done = invoke("plan", "two\nlines \x1b[31m.yaml")
    check_refused(done, "two lines \\x1b[31m.yaml: does not exist")


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text elsewhere")
def test_names_that_are_no_text_can_be_printed(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.json")
    plan = RunConfig.from_dict(CONFIGS["samples"]).plan
    plan.segment(world_size=1, batch_size=1).cursor(0).save(tmp_path / name)
    done = run("inspect", name, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("\\udcff.json: cursor")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
def test_a_reader_that_leaves_early_is_no_failure(tmp_path: Path) -> None:
    write_config(tmp_path / "run.yaml", CONFIGS["samples"])
    command = f"{shlex.quote(sys.executable)} -m feedline where run.yaml --step 0"
    done = subprocess.run(
        ["sh", "-c", f"{command} | head -c 5"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("epoch", "")


def test_an_interrupt_is_told_and_exits_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(quality, "load_config", interrupted)
    done = CliRunner().invoke(feedline, ["quality", "run.yaml"])
    assert (done.exit_code, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "Interrupted.\n")


def test_what_memory_cannot_hold_is_told(tmp_path: Path) -> None:
    with ConsumptionLog(tmp_path / "a.log", rank=0, world_size=1) as log:
        log.record(epoch=0, step=0, batch=0, ids=[0])
    config = tmp_path / "run.yaml"
    config.write_text(f"batch_size: 1\ndata: {{samples: {2**47}}}\n")
    check_refused(invoke("audit", tmp_path, "--config", config), "out of memory")


def test_tables_are_not_cut_where_nobody_looks(tmp_path: Path) -> None:
    path = tmp_path.joinpath(*["folder" * 8] * 4, "run.log")
    with ConsumptionLog(path, rank=0, world_size=1) as log:
        log.record(epoch=0, step=0, batch=0, ids=[0])
    assert str(path.resolve()) in invoke("inspect", tmp_path).stdout


def test_without_a_command_the_help_is_shown() -> None:
    done = run()
    assert "Commands:" in done.stdout + done.stderr


def test_commands_of_others_keep_their_own_traces() -> None:
    @click.command()
    def broken() -> None:
        raise RuntimeError("a bug")

    feedline.add_command(broken)
    try:
        done = CliRunner().invoke(feedline, ["broken"])
    finally:
        del feedline.commands["broken"]
    assert isinstance(done.exception, RuntimeError)
