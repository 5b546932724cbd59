"""Checkpoints from strangers: read in bounded memory and time, and refused by name."""

from __future__ import annotations

import bz2
import json
import lzma
import os
import zipfile
from pathlib import Path

import pytest

from feedline.errors import CursorFormatError, DamagedDataError, FeedlineError
from feedline.plan import Cursor
from feedline.runs.inspection import inspect_path
from feedline.store.pt_chunk import open_pt
from feedline.store.tensor_pickle import read_tensor_pickle
from limited import run_limited

_INSPECT = "from feedline.runs.inspection import inspect_path\nimport bz2, lzma, zipfile\n"


def write_pt(path: Path, data: bytes, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a/data.pkl", data)
    return path


@pytest.mark.parametrize(
    ("method", "name"),
    [
        pytest.param(zipfile.ZIP_BZIP2, "bz2", marks=pytest.mark.slow),
        pytest.param(zipfile.ZIP_LZMA, "lzma", marks=pytest.mark.slow),
        (zipfile.ZIP_DEFLATED, "deflate"),
    ],
)
def test_a_member_that_decompresses_to_gigabytes_is_refused(
    method: int, name: str, tmp_path: Path
) -> None:
    # It claims 100 bytes, and holds a gigabyte of zeros.
    path = write_pt(tmp_path / "x.pt", b"\0" * 100, method)
    if name == "bz2":
        bomb = bz2.compress(bytes(2**30 + 2**29))
    elif name == "lzma":
        packer = lzma.LZMACompressor(lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA1}])
        bomb = b"\x09\x04\x05\x00" + lzma._encode_filter_properties({"id": lzma.FILTER_LZMA1})
        bomb += packer.compress(bytes(2**28)) + packer.flush()
    else:
        import zlib

        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        bomb = packer.compress(bytes(2**28)) + packer.flush()
    replace_member(path, bomb)
    printed = run_limited("inspect_path(path)", path, imports=_INSPECT, megabytes=200)
    assert "refused: " in printed


def replace_member(path: Path, packed: bytes) -> None:
    """Put other packed bytes into the only member of an archive; its claimed size stays."""
    with zipfile.ZipFile(path) as archive:
        info = archive.infolist()[0]
        start = info.header_offset + 30 + len(info.filename)
    content = bytearray(path.read_bytes())
    old = info.compress_size
    tail = content[start + old :]
    shift = len(packed) - old
    tail[20:24] = len(packed).to_bytes(4, "little")
    end = tail.index(b"PK\5\6")
    place = int.from_bytes(tail[end + 16 : end + 20], "little") + shift
    tail[end + 16 : end + 20] = place.to_bytes(4, "little")
    content[18:22] = len(packed).to_bytes(4, "little")
    path.write_bytes(bytes(content[:start]) + packed + bytes(tail))


def doubling(levels: int) -> bytes:
    """A pickle of lists that each hold the one before twice."""
    # EMPTY_LIST, MEMOIZE, then each level: EMPTY_LIST MEMOIZE MARK BINGET BINGET APPENDS.
    code = b"\x80\x04]\x94"
    for level in range(levels):
        code += b"]\x94(h" + bytes([level]) + b"h" + bytes([level]) + b"e"
    return code + b"."


def test_a_memo_bomb_ends_at_once(tmp_path: Path) -> None:
    path = write_pt(tmp_path / "x.pt", doubling(60))
    assert len(doubling(60)) < 500
    printed = run_limited("inspect_path(path)", path, imports=_INSPECT, megabytes=200, seconds=60)
    assert "hold each other over and over" in printed
    for levels in (60, 200):
        with pytest.raises(DamagedDataError, match="over and over"):
            read_tensor_pickle(doubling(levels), path)


def test_a_list_that_holds_itself_is_refused(tmp_path: Path) -> None:
    path = write_pt(tmp_path / "x.pt", b"\x80\x04]\x94h\x00a.")
    with pytest.raises(DamagedDataError, match="holds itself"):
        inspect_path(path)


def test_values_may_be_shared(tmp_path: Path) -> None:
    found = read_tensor_pickle(doubling(2), tmp_path)
    assert found == [[[], []], [[], []]]


@pytest.mark.parametrize("reader", [open_pt, inspect_path])
def test_two_members_of_one_name_are_refused(reader: object, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}.")
        archive.writestr("a/Data.pkl", b"\x80\x02}.")
    path.write_bytes(path.read_bytes().replace(b"Data", b"data"))
    with pytest.raises(FeedlineError, match="two members of one name"):
        reader(path)  # type: ignore[operator]


@pytest.mark.parametrize("name", ["pipe", "folder", "zero"])
def test_a_cursor_is_read_from_plain_files_only(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    path = Path("/dev/zero") if name == "zero" else tmp_path / name
    with pytest.raises(CursorFormatError, match="must be a file"):
        Cursor.load(path)


def test_damaged_compression_is_one_of_our_errors(tmp_path: Path) -> None:
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        path = write_pt(tmp_path / "x.pt", os.urandom(300), method)
        content = bytearray(path.read_bytes())
        content[60:200] = bytes(range(140))
        path.write_bytes(content)
        with pytest.raises(CursorFormatError, match=r"x\.pt"):
            inspect_path(path)


def test_a_full_disk_is_told_with_the_name_of_the_file() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    cursor = Cursor(fields={"seed": 1})
    temporary = Path.open
    try:
        # A disk that is full, and nothing else.
        Path.open = lambda self, *a, **k: temporary(Path("/dev/full"), "w")  # type: ignore
        with pytest.raises(OSError, match="No space left") as caught:
            cursor.save("here.json")
    finally:
        Path.open = temporary  # type: ignore[method-assign]
    assert caught.value.filename == "here.json"


def test_deep_json_is_refused(tmp_path: Path) -> None:
    for text in (
        "[" * 100_000,
        json.dumps({"a": 1e308}) * 2,
        "\ud800".encode("utf-8", "surrogatepass"),
    ):
        path = tmp_path / "x.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(FeedlineError, match=r"x\.json"):
            inspect_path(path)
