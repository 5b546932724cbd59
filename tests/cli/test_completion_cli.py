"""`feedline completion`, in the shells that are there."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli_runs import check_refused, invoke, run, run_json

needs_bash = pytest.mark.skipif(
    shutil.which("bash") is None or sys.platform == "win32", reason="needs bash"
)

# Calls the function that bash calls when the tab key is hit, and prints what it offers. A command
# that asks bash for the names of files says so by compopt, which works only after a real tab.
TAB = """
source ./script
compopt() { echo "compopt:" "$@"; }
COMP_WORDS=("$@")
COMP_CWORD=$(( $# - 1 ))
_feedline_completion feedline
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def bash(tmp_path: Path) -> Path:
    """A folder with the script, a command `feedline` and what to run for a tab."""
    command = tmp_path / "bin" / "feedline"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m feedline "$@"\n')
    command.chmod(0o755)
    (tmp_path / "script").write_text(run("completion", "bash").stdout)
    (tmp_path / "tab.sh").write_text(TAB)
    return tmp_path


def tab(folder: Path, *words: str) -> list[str]:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "tab.sh", *words],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")[:-1]


@needs_bash
def test_bash_completes_commands_options_choices_and_files(bash: Path) -> None:
    assert tab(bash, "feedline", "pl") == ["plan"]
    assert tab(bash, "feedline", "plan", "--r") == ["--ranks", "--resize"]
    assert tab(bash, "feedline", "completion", "") == ["bash", "zsh", "fish"]
    assert tab(bash, "feedline", "inspect", "c") == ["compopt: -o default", ""]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("feedline ", ["audit", "inspect", "pack", "plan", "quality", "verify", "where"]),
        ("feedline pack --format ", ["safetensors", "npy", "pt", "parquet"]),
        ("feedline where run.yaml --checkpoint x", ["file"]),
        ("feedline inspect a.json --against x", ["file"]),
        ("feedline audit a b --config x", ["file"]),
        ("feedline pack a b", ["file"]),
        ("feedline verify x", ["file"]),
    ],
)
def test_commands_offer_what_can_come_next(words: str, offered: list[str]) -> None:
    asked = {
        "_FEEDLINE_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = subprocess.run(
        [sys.executable, "-m", "feedline"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=60,
    )
    found = [line.removeprefix("plain,").partition(",")[0] for line in done.stdout.splitlines()]
    assert set(offered) <= set(found)
    if offered == ["file"]:
        assert found == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_have_the_syntax_of_their_shells(tmp_path: Path, shell: str) -> None:
    script = invoke("completion", shell).stdout
    assert "_FEEDLINE_COMPLETE" in script
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script)
    done = subprocess.run([path, "-n", tmp_path / "script"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_shell_is_that_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert invoke("completion").stdout == invoke("completion", "fish").stdout
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    check_refused(invoke("completion"), "SHELL='/bin/tcsh' must be one of bash, zsh, fish")
    monkeypatch.delenv("SHELL")
    check_refused(invoke("completion"), "pass one, as in feedline completion bash")


def test_json_has_the_script() -> None:
    found = run_json("completion", "zsh")
    assert found == {"shell": "zsh", "script": invoke("completion", "zsh").stdout[:-1]}
    assert json.loads(invoke("completion", "bash", "--json").stdout)["shell"] == "bash"
