"""Commands as a user runs them, and run configs for them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from feedline.cli.commands import feedline
from forked import forked_run

__all__ = ["CONFIGS", "check_refused", "invoke", "run", "run_json", "write_config"]

CONFIGS: dict[str, dict[str, Any]] = {
    "samples": {"seed": 7, "ranks": 4, "batch_size": 8, "data": {"samples": 1003}},
    "mixture": {
        **{"seed": "x", "ranks": 3, "batch_size": 5, "tail": "pad", "grad_acc_steps": 2},
        "data": {
            "mixture": [
                {"name": "web", "samples": 900, "weight": 3},
                {"name": "books", "samples": 100, "weight": 1},
            ],
            "phases": [{"position": 500, "weights": {"books": 1}}],
        },
    },
    "buckets": {
        **{"seed": 1, "ranks": 2, "batch_size": 8, "tail": "even"},
        "data": {
            "buckets": [
                {"name": "wide", "samples": 301},
                {"name": "tall", "samples": 200, "batch_size": 3},
            ],
            "mode": "interleaved",
        },
    },
    "chunks": {
        **{"seed": 2, "ranks": 3, "batch_size": 4, "tail": "even", "epochs": 3},
        "data": {"chunks": {"num_chunks": 20, "chunk_size": 37, "preload": 2}},
    },
}


def write_config(path: Path, config: dict[str, Any]) -> Path:
    """Write a config; JSON is YAML too."""
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


#: What commands import, beside what every process of the fork server has.
COMMANDS = [
    f"feedline.cli.{name}"
    for name in ["audit", "bench_data", "inspect", "plan", "quality", "report", "where"]
]
COMMANDS += ["yaml", "rich.console", "rich.table", "feedline.report", "feedline.chunks"]
COMMANDS += ["feedline.runs.bench.advice", "feedline.runs.bench.measuring"]
PACK = ["feedline.cli.pack", "feedline.cli.verify", "rich.progress", "pyarrow.parquet"]
PACK += ["pyarrow.csv", "h5py", "zarr", "scipy.sparse"]


def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `feedline` with these arguments, in a process of its own."""
    preload = PACK if arguments[:1] == ("pack",) else COMMANDS
    return forked_run("-m", "feedline", *arguments, cwd=cwd, preload=preload)


def run_json(*arguments: object, cwd: Path | None = None, code: int = 0) -> Any:
    """Run `feedline` with --json, and return what it prints."""
    done = run(*arguments, "--json", cwd=cwd)
    assert (done.returncode, done.stderr) == (code, "")
    return json.loads(done.stdout)


def invoke(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `feedline` in this process, which is faster."""
    done = CliRunner().invoke(feedline, list(map(str, arguments)))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return subprocess.CompletedProcess([], done.exit_code, done.stdout, done.stderr)


def check_refused(done: subprocess.CompletedProcess[str], text: str, code: int = 2) -> None:
    """Check that a command failed with one line, which holds `text`, and printed nothing else."""
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert text in done.stderr
    assert done.stdout == ""
