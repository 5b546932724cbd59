"""The guide page and the example of a trainer run, and its docstrings hold; in its environment."""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from document_blocks import BlockRunner, blocks_of
from known_trainers import ROOT, known_trainers
from processes import environment
from trainer_runner import ABORTED_AT_EXIT

NAME = os.environ["FEEDLINE_TRAINER"]
PAGE = ROOT / "docs" / "trainers" / f"{NAME}.md"
EXAMPLE = ROOT / "examples" / f"trainer_{NAME}.py"
COMMAND = re.compile(r"^ +((?:python|torchrun|accelerate|feedline) .*)$", re.MULTILINE)


def test_blocks_of_the_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = BlockRunner(PAGE, tmp_path)
    blocks = blocks_of(PAGE)
    assert "python" in {block.language for block in blocks}
    for block in blocks:
        runner.run(block)
    assert not runner.unused


def test_the_example_runs_as_its_docstring_says(tmp_path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(EXAMPLE.read_text(encoding="utf-8"))) or ""
    commands = COMMAND.findall(docstring)
    assert commands
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    folder = tmp_path / "run"
    folder.mkdir()
    for number, command in enumerate(commands):
        before = shutil.copytree(folder, tmp_path / f"before-{number}")
        for attempt in range(3):
            if attempt:
                # The one that was aborted may have finished its work.
                shutil.rmtree(folder)
                shutil.copytree(before, folder)
            here = command.replace("examples/", f"{EXAMPLE.parent}/")
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", here],
                cwd=folder,
                env={**environment(), "PATH": path},
                capture_output=True,
                text=True,
                timeout=300,
            )
            if ABORTED_AT_EXIT not in done.stderr:
                break
        assert done.returncode == 0, done.stdout + done.stderr


def test_examples_in_docstrings_hold() -> None:
    module = importlib.import_module(known_trainers()[NAME].module)
    failed, _ = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert not failed
