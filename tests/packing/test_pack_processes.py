"""Packing with processes that read: the same bytes as with threads, whatever befalls them."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedline.errors import FeedlineError, PackError
from feedline.packing import pack
from feedline.packing.engines import local_reading as reading
from pack_data import make_arrays, make_source, read_tree
from pack_kinds import make_samples
from pack_kinds import make_source as make_source_of_kinds
from processes import SUPPORT, environment
from python_store import PythonStore

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="threads read there")
SMALL = {"chunk_samples": 700, "memory_budget": 2**20}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read every source that has parts in processes, even where they do not help."""
    monkeypatch.setattr(reading, "MIN_BYTES", 0)
    monkeypatch.setattr(reading, "FAST_BYTES", float("inf"))


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Let SIGINT be a KeyboardInterrupt, also where a shell has started the tests behind it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """Return a maker of stores, each with a folder of its own."""

    def make(fate: str = "", num_rows: int = 20_000) -> PythonStore:
        folder = tmp_path / f"pids {fate}"
        folder.mkdir()
        return PythonStore(num_rows, folder, fate)

    return make


def packed(source: Any, folder: Path, **options: Any) -> Any:
    """Return all files that packing writes, or what it says."""
    try:
        pack(source, folder, **options)
    except FeedlineError as error:
        return f"{type(error).__name__}: {error}".replace(str(folder), "folder")
    return read_tree(folder)


def is_over(pid: int) -> bool:
    """Wait for the end of a process, a minute at most."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 60)[0])
    finally:
        os.close(descriptor)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("store", {"shuffle": True, "split": 0.2}),
        ("jsonl", {}),
        *(
            pytest.param(kind, options, marks=pytest.mark.slow)
            for kind in ("csv", "jsonl", "parquet", "store")
            for options in (
                {"shuffle": True},
                {"shuffle": True, "split": 0.2},
                {"split": {"a": 0.7, "b": 0.3}, "format": "npy"},
            )
        ),
    ],
)
def test_bytes_are_the_same_for_any_number_of_processes(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    options = {**SMALL, **options}
    source: Any
    if kind == "store":
        (tmp_path / "pids").mkdir()
        source = PythonStore(40_000, tmp_path / "pids")
    else:
        source = make_source(kind, make_arrays(40_000), tmp_path / "source")
    wanted = packed(source, tmp_path / "one", num_threads=1, **options)
    assert not isinstance(wanted, str), wanted
    for count in (2, 3):
        assert packed(source, tmp_path / f"{count}", num_threads=count, **options) == wanted
    assert kind != "store" or len(source.pids) == 5


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ["jsonl", pytest.param("parquet", marks=pytest.mark.slow)])
def test_columns_of_every_kind_come_from_processes(tmp_path: Path, kind: str) -> None:
    source = make_source_of_kinds(kind, make_samples(3000), tmp_path / "source")
    options = {"chunk_samples": 170, "shuffle": True, "memory_budget": 2**20}
    one, two = (
        packed(source, tmp_path / f"{n}", num_threads=n, **options)  # type: ignore[arg-type]
        for n in (1, 2)
    )
    assert not isinstance(one, str), one
    assert two == one


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", '{"x": 1}\n' * 400_000 + '{"x": "text"}\n' + '{"x": 1}\n' * 9, "row"),
        ("a.csv", "x,y\n" + "1,2\n" * 600_000 + "1,2,3\n" + "1,2\n" * 9, "row 600000"),
        ("b.jsonl", '{"x": [1, 2]}\n' * 200_000 + '{"x": [1]}\n{"x": null}\n' * 9, None),
    ],
    ids=["type", "fields", "wider"],
)
def test_faults_are_told_as_with_threads(
    tmp_path: Path, name: str, text: str, said: str | None
) -> None:
    path = tmp_path / name
    path.write_text(text)
    options = {"shuffle": True, "memory_budget": 2**20}
    one, two = (
        packed(path, tmp_path / f"{n}", num_threads=n, **options)  # type: ignore[arg-type]
        for n in (1, 2)
    )
    assert two == one
    assert isinstance(one, str) == (said is not None)
    assert said is None or said in one


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("fate", ["once", "fails"])
@pytest.mark.parametrize("shuffle", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_a_lost_process_was_reading_is_read_again(
    tmp_path: Path, store: Any, fate: str, shuffle: bool, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**SMALL, "shuffle": shuffle}
    wanted = packed(store(), tmp_path / "one", num_threads=1, **options)
    lost = store(fate)
    with caplog.at_level(logging.WARNING, logger="feedline"):
        assert packed(lost, tmp_path / "two", num_threads=2, **options) == wanted
    assert ("ended by signal 9" in caplog.text) == (fate == "once")
    assert all(is_over(pid) for pid in lost.pids)


@pytest.mark.usefixtures("always")
def test_processes_that_die_again_and_again_are_an_error_and_the_pack_resumes(
    tmp_path: Path, store: Any
) -> None:
    lost = store("always")
    with pytest.raises(PackError, match=r"ended by signal 9, 4 times.*num_threads=1.*resume"):
        pack(lost, tmp_path / "out", num_threads=2, **SMALL)
    assert not (tmp_path / "out").exists()
    assert all(is_over(pid) for pid in lost.pids)
    wanted = packed(store(), tmp_path / "one", num_threads=1, **SMALL)
    assert packed(lost, tmp_path / "out", num_threads=1, **SMALL) == wanted


@pytest.mark.usefixtures("always", "interrupts")
def test_an_interrupt_leaves_no_process_and_the_pack_resumes(tmp_path: Path, store: Any) -> None:
    stopped = store("interrupt")
    with pytest.raises(KeyboardInterrupt):
        pack(stopped, tmp_path / "out", num_threads=2, **SMALL)
    assert stopped.pids
    assert all(is_over(pid) for pid in stopped.pids)
    wanted = packed(store(), tmp_path / "one", num_threads=1, **SMALL)
    assert packed(stopped, tmp_path / "out", num_threads=1, **SMALL) == wanted


def test_a_killed_pack_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    code = (
        "import os, signal\n"
        "from feedline.packing import pack\n"
        "from feedline.packing.engines import local_reading as reading\n"
        "from python_store import PythonStore\n"
        "from pathlib import Path\n"
        "reading.MIN_BYTES, reading.FAST_BYTES = 0, float('inf')\n"
        "take = reading.Readers._take\n"
        "def taken(self, arrived):\n"
        "    print([one.popen.pid for one in self._processes], flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "reading.Readers._take = taken\n"
        f"pack(PythonStore(20_000, Path({str(tmp_path / 'pids')!r})), {str(tmp_path / 'out')!r},"
        " num_threads=2, memory_budget=2**20, chunk_samples=700)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(SUPPORT), capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = json.loads(done.stdout)
    assert len(pids) == 2
    assert all(is_over(pid) for pid in pids)


def test_a_source_that_other_processes_cannot_open_is_read_here(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reading, "MIN_BYTES", 0)
    monkeypatch.setattr(reading, "FAST_BYTES", float("inf"))
    wanted = packed(store(), tmp_path / "one", num_threads=1, **SMALL)

    class Local(PythonStore):
        """A class that cannot be found from outside."""

    with caplog.at_level(logging.INFO, logger="feedline"):
        local = Local(20_000, tmp_path)
        assert packed(local, tmp_path / "two", num_threads=2, **SMALL) == wanted
    assert "the source is read by threads: it cannot be sent to processes" in caplog.text


def test_small_sources_start_no_process(tmp_path: Path, store: Any) -> None:
    small = store()
    pack(small, tmp_path / "out", num_threads=2, **SMALL)
    assert not small.pids


def test_sources_that_threads_read_fast_start_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MIN_BYTES", 0)

    def refused(*_: Any) -> Any:
        raise AssertionError("a process is started")

    monkeypatch.setattr(reading.Readers, "_start", refused)
    source = make_source("npy", make_arrays(400_000), tmp_path / "source")
    pack(source, tmp_path / "out", num_threads=2)
    assert (tmp_path / "out").exists()
