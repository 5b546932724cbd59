"""Data in the formats of others, written by their own libraries, and what these say is in it.

Each folder in `tests/formats` has `write.py`, which writes `data` (or `data.<ending>`) and
`expected.json.gz` into a folder, with the versions in its `requirements.txt`. What it wrote last is
checked in beside it; `make test-formats` writes it anew and runs the same tests on that.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent.parent / "formats"
sys.path.insert(0, str(HERE))

from expected import load  # noqa: E402

#: The folder that data is read from: the one that is checked in, or one that was written anew.
WRITTEN = Path(os.environ.get("FEEDLINE_FORMATS", HERE))
#: The column that numbers the samples, by format; a list begins with the number.
ID_COLUMNS = {"megatron": "tokens"}
#: The formats.
NAMES = sorted(path.parent.name for path in HERE.glob("*/write.py"))


# Those whose data takes longest to read.
_LARGE = ("huggingface", "litdata", "mds", "tfrecord")


def few_of(names: list[str]) -> list[Any]:
    """The formats as parameters of a test that reads much: the slow ones are slow tests."""
    return [
        pytest.param(name, marks=[pytest.mark.slow] if name in _LARGE else []) for name in names
    ]


_copies: list[tempfile.TemporaryDirectory[str]] = []


def data_of(name: str) -> Path:
    """Return what is to be opened: a copy, because indexes are written beside the data."""
    if not _copies:
        _copies.append(tempfile.TemporaryDirectory())
    folder = Path(_copies[0].name) / name
    if not folder.exists():
        shutil.copytree(WRITTEN / name, folder, ignore=shutil.ignore_patterns(".feedline-index"))
    return min(folder.glob("data*"))


def remove_copies() -> None:
    """Remove what `data_of` has written."""
    while _copies:
        _copies.pop().cleanup()


def expected_of(name: str) -> list[dict[str, Any]]:
    """Return the samples, as the library's own reader gave them."""
    return load(WRITTEN / name / "expected.json.gz")


def numbers_in(name: str, batch: Any) -> list[int]:
    """Return the numbers of the samples in a batch, or in a sample alone."""
    values = batch[ID_COLUMNS.get(name, "id")]
    return [int(value[0] if getattr(value, "ndim", 0) else value) for value in values]
