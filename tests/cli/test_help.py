"""Help: every command has examples that parse, takes --json, and imports nothing that it can wait
for."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import feedline as package
from cli_runs import CONFIGS, invoke, run, write_config
from feedline.cli.commands import feedline
from feedline.runs import ConsumptionLog
from feedline.runs.run_config import RunConfig
from feedline.store import pack

ROOT = Path(__file__).parents[2]
COMMANDS = feedline.list_commands(click.Context(feedline))
FRAMEWORKS = {"torch", "jax", "pandas", "zarr", "pyarrow", "h5py", "scipy", "anndata"}
SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def check_parses(line: str) -> None:
    """Check that a command line has a command, and only options that it has."""
    words = shlex.split(line, comments=True)
    ends = [words.index(sign) for sign in ("&&", "|", ">", ">>") if sign in words]
    name, *arguments = words[1 : min(ends, default=len(words))]
    parent = click.Context(feedline, **feedline.context_settings)
    command = feedline.get_command(parent, name)
    assert command is not None, line
    command.make_context(name, arguments, parent=parent)


def examples_in(text: str) -> list[str]:
    """The command lines among the examples of a help text."""
    _, _, examples = text.partition("Examples:\n")
    return [line.strip() for line in examples.splitlines() if line.startswith("    feedline ")]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_that_parse_and_takes_json(name: str) -> None:
    done = invoke(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert invoke(name, "-h").stdout == done.stdout
    assert "--json " in done.stdout
    examples = examples_in(done.stdout)
    assert examples
    assert all(line.startswith(f"feedline {name}") for line in examples)
    for line in examples:
        check_parses(line)


def test_the_group_has_examples_that_parse() -> None:
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    examples = examples_in(done.stdout)
    assert examples
    for line in examples:
        check_parses(line)


def test_command_lines_in_the_documents_parse() -> None:
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    blocks = [b for path in documents for b in SHELL_BLOCK.findall(path.read_text("utf-8"))]
    lines = [line for block in blocks for line in block.splitlines()]
    lines = [line for line in lines if line.startswith("feedline ")]
    assert len(lines) > 10
    for line in lines:
        check_parses(line)


def test_a_line_that_does_not_parse_is_found() -> None:
    with pytest.raises(click.NoSuchOption):
        check_parses("feedline plan run.yaml --rnaks 4  # a comment")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_group_lists_what_each_command_says_of_itself(name: str) -> None:
    command = feedline.get_command(click.Context(feedline), name)
    assert command is not None
    shown = " ".join(invoke("--help").stdout.split())
    assert f" {name} {(command.help or '').splitlines()[0]}" in shown


def test_version_is_that_of_the_package() -> None:
    assert invoke("--version").stdout.split()[-1] == package.__version__


def modules_after(lines: list[str], cwd: Path) -> set[str]:
    """The modules that one fresh process has imported after these command lines."""
    code = (
        "import sys\n"
        "from feedline.cli import main\n"
        "for line in sys.argv[1:]:\n"
        "    sys.argv = ['feedline', *line.split()]\n"
        "    try: main()\n"
        "    except SystemExit as end: assert not end.code, line\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *lines], capture_output=True, text=True, timeout=60, cwd=cwd
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    return set(done.stderr.split())


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    heavy = {*FRAMEWORKS, "numpy", "yaml", "rich"}
    assert not heavy & modules_after(["--help", "--version"], tmp_path)
    # Also of each command, which a shell asks when it completes.
    names = sorted(COMMANDS)
    assert not heavy & modules_after([f"{name} --help" for name in names], tmp_path)


def test_questions_about_a_run_import_no_framework(tmp_path: Path) -> None:
    write_config(tmp_path / "run.yaml", CONFIGS["samples"])
    plan = RunConfig.from_dict(CONFIGS["samples"]).plan
    plan.segment(world_size=4, batch_size=8).cursor(5).save(tmp_path / "cursor.json")
    pack({"x": range(10)}, tmp_path / "packed")
    with ConsumptionLog(tmp_path / "a.log", rank=0, world_size=1, info={"num_samples": 1}) as log:
        log.record(epoch=0, step=0, batch=0, ids=[0])
    assert not {*FRAMEWORKS, "rich"} & modules_after(["plan run.yaml"], tmp_path)
    lines = [
        *("plan run.yaml --resize 4,3,5", "where run.yaml --step 0", "quality run.yaml"),
        *("inspect cursor.json --against run.yaml", "inspect packed", "inspect a.log"),
        *("audit a.log", "verify packed", "bench-data packed --seconds 0.01"),
    ]
    assert not FRAMEWORKS & modules_after(lines, tmp_path)
