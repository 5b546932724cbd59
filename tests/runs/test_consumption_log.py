"""A log keeps every record that was written whole, and shows any other damage."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import DamagedDataError, InvalidValueError, MissingDataError, StoreError
from feedline.feed import Wait
from feedline.runs import ConsumptionLog, LoggedBatch, LoggedEvent, iter_log, read_log
from feedline.runs.log_records import decode, encode_batch, framed, header_line

IDS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20)
PARTS = st.floats(0, 1e6)
WAITS = st.builds(Wait, PARTS, reading=PARTS, copying=PARTS)
INFO = {"sources": {"web": 7, "bücher": 3}, "tail": "drop"}


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    ids = draw(IDS)
    marks = draw(st.none() | st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    return {
        "epoch": draw(st.integers(0, 2**40)),
        "step": draw(st.integers(0, 2**40)),
        "batch": draw(st.integers(0, 2**40)),
        "ids": ids,
        "is_real": None if marks is None else np.array(marks, dtype=bool),
        "wait": draw(st.floats(0, 1e6) | WAITS),
    }


def write(path: Path, records: list[dict[str, Any]]) -> list[int]:
    """Write a log anew; return where its header and each of its records end."""
    path.unlink(missing_ok=True)
    with ConsumptionLog(path, rank=1, world_size=3, run="a", info=INFO) as log:
        ends = [path.stat().st_size]
        for record in records:
            log.record(**record)
            ends.append(path.stat().st_size)
        # The time has no fixed number of digits, and the examples must.
        log.event("stop", step=7, time=0)
    return [*ends, path.stat().st_size]


def as_plain(entry: LoggedBatch | LoggedEvent) -> Any:
    if isinstance(entry, LoggedEvent):
        return entry.name, entry.fields["step"]
    marks = None if entry.is_real is None else entry.is_real.tolist()
    return (*entry[:3], entry.ids.tolist(), marks, repr(entry.wait))


def expected(record: dict[str, Any]) -> Any:
    marks = record["is_real"]
    kept = None if marks is None or marks.all() else marks.tolist()
    place = (record["epoch"], record["step"], record["batch"])
    return (*place, record["ids"], kept, repr(record["wait"]))


def is_read(path: Path) -> bool:
    try:
        read_log(path)
    except DamagedDataError:
        return False
    return True


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file that the examples of a property write again and again."""
    return tmp_path_factory.mktemp("logs") / "rank1.log"


@given(records=st.lists(batches(), max_size=5))
def test_what_is_read_is_what_was_written(path: Path, records: list[dict[str, Any]]) -> None:
    write(path, records)
    found = read_log(path)
    assert found.header == (1, 3, "a", INFO)
    assert list(map(as_plain, found.entries)) == [*map(expected, records), ("stop", 7)]
    assert all(entry.ids.dtype == np.int64 for entry in found.entries[:-1])


@given(records=st.lists(batches(), max_size=4), data=st.data())
def test_a_log_cut_at_any_byte_keeps_its_whole_records(
    path: Path, records: list[dict[str, Any]], data: st.DataObject
) -> None:
    ends = write(path, records)
    whole = list(map(as_plain, read_log(path).entries))
    size = data.draw(st.integers(0, ends[-1]))
    os.truncate(path, size)
    if size < ends[0]:
        with pytest.raises(DamagedDataError, match=r"header, in line 1|not begin like a log"):
            read_log(path)
        return
    num_whole = sum(end <= size for end in ends[1:])
    assert list(map(as_plain, read_log(path).entries)) == whole[:num_whole]
    # Whoever goes on takes off what was cut short; nothing that comes after it is hidden.
    with ConsumptionLog(path, rank=1, world_size=3, run="a", info=INFO) as log:
        log.event("start", step=0)
    assert list(map(as_plain, read_log(path).entries)) == [*whole[:num_whole], ("start", 0)]


@given(records=st.lists(batches(), max_size=4), data=st.data())
def test_an_altered_byte_is_found_wherever_it_is(
    path: Path, records: list[dict[str, Any]], data: st.DataObject
) -> None:
    ends = write(path, records)
    before = read_log(path)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    start = max((end for end in ends if end <= place), default=0)
    if start == 0 and is_read(path):
        # JSON can be written in several ways: then nothing is altered but the way.
        assert read_log(path).header == before.header
        return
    where = rf"byte {start} " if start else r"line 1|not begin like a log"
    with pytest.raises(DamagedDataError, match=where):
        read_log(path)


def test_a_length_is_not_believed_before_it_is_checked(path: Path) -> None:
    write(path, [])
    whole = path.read_bytes()
    path.write_bytes(whole + framed(b"x" * 100)[:50])
    assert len(read_log(path).entries) == 1, "longer than the file: it was cut short"
    huge = np.array([2**31], "<u4").tobytes()
    path.write_bytes(whole + huge + np.array([zlib.crc32(huge), 0], "<u4").tobytes())
    with pytest.raises(DamagedDataError, match="length"):
        read_log(path)


@pytest.mark.parametrize("content", [b"", b"\x07", b"\x01short", b"\x02[1]", b"\x02not json"])
def test_a_record_of_no_known_kind_is_refused(path: Path, content: bytes) -> None:
    ends = write(path, [])
    path.write_bytes(path.read_bytes()[: ends[0]] + framed(content))
    with pytest.raises(DamagedDataError, match="neither a batch nor an event"):
        read_log(path)


def test_a_header_without_its_fields_is_refused(path: Path) -> None:
    path.write_bytes(header_line({"rank": 3, "world_size": 2, "run": "", "info": {}}))
    with pytest.raises(DamagedDataError, match="rank=3"):
        read_log(path)
    path.write_bytes(header_line({"rank": 0}))
    with pytest.raises(DamagedDataError, match="world_size"):
        read_log(path)


def test_another_run_does_not_go_on_with_a_log(path: Path) -> None:
    write(path, [])
    for change in ({"rank": 0}, {"world_size": 4}, {"run": "b"}, {"info": {}}):
        options: dict[str, Any] = {"rank": 1, "world_size": 3, "run": "a", "info": INFO, **change}
        with pytest.raises(InvalidValueError, match=f"{next(iter(change))}=.*rank1.log"):
            ConsumptionLog(path, **options)


def test_records_of_older_logs_are_read_and_have_a_wait_without_parts() -> None:
    # Written out, and not encoded: what files on disk have does not change.
    head = struct.pack("<BBxxIqqqd", 1, 1, 3, 5, 6, 7, 1.5)
    older = head + struct.pack("<qqq", 10, 11, 12) + bytes([0b10100000])
    found = decode(older, Path("a.log"), len(older))
    assert isinstance(found, LoggedBatch)
    assert (*found[:3], found.ids.tolist()) == (5, 6, 7, [10, 11, 12])
    assert found.is_real is not None
    assert found.is_real.tolist() == [True, False, True]
    assert (type(found.wait), found.wait) == (float, 1.5)
    marks = np.array([True, False, True])
    assert encode_batch(5, 6, 7, [10, 11, 12], marks, 1.5) == older
    newer = encode_batch(5, 6, 7, [10, 11, 12], marks, Wait(1.5, reading=1.0, copying=0.25))
    assert newer[4 : len(older)] == older[4:]
    assert newer[len(older) :] == struct.pack("<dd", 1.0, 0.25)


def test_entries_can_be_read_from_any_of_them_on(tmp_path: Path) -> None:
    with ConsumptionLog(tmp_path / "a", rank=0, world_size=1) as log:
        for step in range(5):
            log.record(epoch=0, step=step, batch=step, ids=[step])
    places = [end for end, _ in iter_log(tmp_path / "a")]
    found = [entry for _, entry in iter_log(tmp_path / "a", places[1], places[3])]
    assert [entry.step for entry in found if isinstance(entry, LoggedBatch)] == [2, 3]


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"ids": [[1]]}, "shape"),
        ({"ids": [0.5]}, "float64"),
        ({"ids": np.array([2**63], dtype=np.uint64)}, "uint64"),
        ({"ids": ["a"]}, "flat list of integers"),
        ({"ids": [1, 2], "is_real": [True]}, "each of 2 samples"),
        ({"ids": [1, 2], "is_real": [1, 0]}, "bool"),
        ({"step": 2**63}, "64 bits"),
        ({"step": 0.5}, "step=0.5"),
        ({"wait": "long"}, "wait='long'"),
        ({"wait": Wait(1.0, reading="long")}, "reading='long'"),
    ],
)
def test_bad_records_are_refused_and_leave_the_log_as_it_was(
    tmp_path: Path, record: dict[str, Any], text: str
) -> None:
    with ConsumptionLog(tmp_path / "a", rank=0, world_size=1) as log:
        log.record(epoch=0, step=0, batch=0, ids=[1])
        with pytest.raises(InvalidValueError, match=text):
            log.record(**{"epoch": 0, "step": 0, "batch": 0, "ids": [1], **record})
        with pytest.raises(InvalidValueError, match="plain values"):
            log.event("stop", value=object())
    assert len(read_log(tmp_path / "a").entries) == 1


def test_a_loss_that_is_no_number_does_not_end_the_training(tmp_path: Path) -> None:
    with ConsumptionLog(tmp_path / "a", rank=0, world_size=1) as log:
        log.event("checkpoint", loss=float("nan"), more=[float("inf"), 1.5])
    (event,) = read_log(tmp_path / "a").entries
    assert isinstance(event, LoggedEvent)
    assert event.fields["loss"] == "nan"
    assert event.fields["more"] == ["inf", 1.5]


def test_errors_name_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="does not exist"):
        read_log(tmp_path / "none")
    with pytest.raises(StoreError, match="must be a file"):
        read_log(tmp_path)
    with pytest.raises(InvalidValueError, match=r"rank=2 must be in \[0, 1\]"):
        ConsumptionLog(tmp_path / "a", rank=2, world_size=2)
    with pytest.raises(InvalidValueError, match="info="):
        ConsumptionLog(tmp_path / "a", rank=0, world_size=2, info={"a": object()})
    (tmp_path / "file").write_text("no log")
    with pytest.raises(StoreError, match="cannot be written"):
        ConsumptionLog(tmp_path / "file" / "a", rank=0, world_size=2)
    with pytest.raises(DamagedDataError, match="not begin like a log"):
        ConsumptionLog(tmp_path / "file", rank=0, world_size=2)
    log = ConsumptionLog(tmp_path / "a", rank=0, world_size=1)
    log.flush()
    log.close()
    with pytest.raises(InvalidValueError, match="closed"):
        log.event("stop")


@pytest.mark.skipif(sys.platform == "win32", reason="needs kill -9")
def test_a_process_that_is_killed_loses_no_record(tmp_path: Path) -> None:
    code = (
        "import sys, time; from feedline.runs import ConsumptionLog\n"
        "log = ConsumptionLog(sys.argv[1], rank=0, world_size=1)\n"
        "for step in range(1000): log.record(epoch=0, step=step, batch=step, ids=range(32))\n"
        "print('written', flush=True); time.sleep(60)"
    )
    path = tmp_path / "a"
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "written\n"
        job.send_signal(signal.SIGKILL)
    assert len(read_log(path).entries) == 1000
