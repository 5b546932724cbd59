"""Scripts of users pass mypy's strict mode: the examples, the README's and those of the docs.

The examples annotate their functions. Documents need not: functions without annotations count as
annotated with `Any`, and what is in them is checked. One process checks all of them, with the
settings and the cache of `make lint`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from document_blocks import blocks_of

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: The settings of documents are those of modules of this package; see pyproject.toml.
PACKAGE = "documents"

#: Whatever a dataset yields, its loader is one of the same.
INFERRED = """
from typing import Any, assert_type

from torch.utils.data import Dataset

import feedline
from feedline.feed import Feed
from feedline.plan import SamplePlan, Shuffled, Weighted
from feedline.torch import DataLoader, StepScheduler


class Words(Dataset[str]):
    def __getitem__(self, index: int) -> str:
        return str(index)

    def __len__(self) -> int:
        return 10


class Floats:
    def __getitem__(self, index: int) -> float:
        return index / 2

    def __len__(self) -> int:
        return 10


assert_type(DataLoader(Words()), DataLoader[str])
assert_type(DataLoader([1, 2, 3], batch_size=2, shuffle=True), DataLoader[int])
assert_type(DataLoader(Floats(), sampler=Weighted([1.0] * 10)), DataLoader[float])
words: Dataset[str] = Words()
assert_type(DataLoader(words, num_workers=2), DataLoader[str])
store = feedline.open("data")
assert_type(store[3], dict[str, Any])
assert_type(DataLoader(store, 64, window="8 chunks"), DataLoader[dict[str, Any]])
assert_type(feedline.DataLoader(store, 64).state_dict(), dict[str, Any])

loader = DataLoader(store, batch_size=64, shuffle=True)
clock = StepScheduler(dataloader=loader, ckpt_every_steps=100, num_epochs=2)
for epoch in clock.epochs:
    assert_type(epoch, int)
    for batches in clock:
        assert_type(batches, list[Any])
feed = Feed(store, SamplePlan(order=Shuffled(num_samples=len(store))), batch_size=8)
"""
#: Each line is wrong, and must be found.
WRONG = """
import feedline
from feedline.plan import BucketPlan
from feedline.steps import StepSchedulerConfig
from feedline.torch import DataLoader, DistributedSampler, FeedDataset, StepScheduler

DataLoader([1, 2], num_worker=2)
DataLoader([1, 2], num_replicas="2")
DistributedSampler([1, 2], num_replica=2)
StepScheduler(ckpt_every_step=10)
StepSchedulerConfig().build([1], 1, 1, progres=True)
BucketPlan.from_lengths([1, 2], num_buckets=1, shuffle=True)
feedline.DataLoader(feedline.open("data"), desync_gard=False)
"""


def write_scripts(folder: Path) -> list[Path]:
    """Write the scripts of all documents to files, and return where these are.

    A script is a block that names its file; the other blocks of the README make one together.
    """
    found = [folder / PACKAGE / "__init__.py"]
    found[0].parent.mkdir()
    found[0].write_text("")
    for document in DOCUMENTS:
        blocks = [block for block in blocks_of(document) if block.language == "python"]
        scripts = [block.text for block in blocks if block.file_name]
        if document.name == "README.md":
            scripts.append("\n".join(block.text for block in blocks if not block.file_name))
        for script in scripts:
            name = f"{document.stem.replace('-', '_').lower()}_{len(found)}.py"
            found.append(folder / PACKAGE / name)
            found[-1].write_text(script, encoding="utf-8")
    return found


def check_types(*paths: Path) -> tuple[int, str]:
    """Return mypy's exit code, and what it says."""
    settings = ["--config-file", "pyproject.toml", "--no-error-summary"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *settings, *map(str, paths)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_scripts_of_users_pass_the_strict_mode(tmp_path: Path) -> None:
    scripts = write_scripts(tmp_path)
    assert len(scripts) > 4
    inferred = tmp_path / "inferred.py"
    inferred.write_text(INFERRED, encoding="utf-8")
    code, output = check_types(inferred, *scripts, *sorted((ROOT / "examples").glob("*.py")))
    assert code == 0, output


@pytest.mark.slow
def test_a_wrong_name_of_a_parameter_is_found(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text(WRONG, encoding="utf-8")
    code, output = check_types(script)
    lines = WRONG.splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line and "import" not in line}
    assert code == 1
    assert {int(line.split(":")[1]) for line in output.splitlines() if ": error:" in line} == wrong
