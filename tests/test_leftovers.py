"""Temporary files that tests leave are found, except those that nobody could remove."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from forked import forked_run
from leftovers import find_leftovers


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
@pytest.mark.parametrize("call", ["open", "unlink"])
def test_what_tempfile_leaves_when_it_is_killed_may_stay(tmp_path: Path, call: str) -> None:
    code = (
        "import os, sys, tempfile\n"
        "call = getattr(os, sys.argv[1])\n"
        "def kill(*args):\n"
        "    if sys.argv[1] == 'open':\n"
        "        call(*args)\n"
        "    os.kill(os.getpid(), 9)\n"
        "setattr(os, sys.argv[1], kill)\n"
        "tempfile.tempdir = None\n"
        "tempfile.gettempdir()\n"
    )
    job = forked_run("-c", code, call, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert job.returncode == -9, job.stderr
    (left,) = tmp_path.iterdir()
    assert left.read_bytes() == (b"" if call == "open" else b"blat")
    assert find_leftovers(tmp_path) == {}


def test_what_a_signal_leaves_of_a_file_that_has_just_been_made_may_stay(tmp_path: Path) -> None:
    def lose(*args: object, **options: object) -> None:
        raise RuntimeError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "_TemporaryFileWrapper", lose)
        patch.setattr(os, "unlink", lose)
        with pytest.raises(RuntimeError):
            tempfile.NamedTemporaryFile(dir=tmp_path)  # noqa: SIM115
    (left,) = tmp_path.iterdir()
    assert left.stat().st_size == 0
    assert find_leftovers(tmp_path) == {}


def test_everything_else_is_found(tmp_path: Path) -> None:
    for name, content in {
        "2va1_8h5": b"blats",
        "2va1_8h6": b"bla",
        "2va1_8h": b"blat",
        "2va1_8h55": b"",
        "2VA1_8h5": b"",
        "tmp1_8h5": b"data",
        "tmp1_8h5ab": b"",
        "tmp1_8h5abc": b"d",
    }.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "abcdefgh").mkdir()
    (tmp_path / "pymp-1").mkdir()
    kept = Path(tempfile.mkdtemp(dir=tmp_path))
    (kept / "a").touch()
    found = find_leftovers(tmp_path)
    assert found.pop(kept.name) == ["a"]
    assert sorted(found) == sorted(
        [
            *["2va1_8h5", "2va1_8h6", "2va1_8h", "2va1_8h55", "2VA1_8h5"],
            *["tmp1_8h5", "tmp1_8h5ab", "tmp1_8h5abc", "abcdefgh"],
        ]
    )
