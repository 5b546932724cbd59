"""Megatron's indexed datasets: in chunks, with documents; damaged ones are refused."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import feedline
from feedline.errors import DamagedDataError, InvalidValueError
from foreign import data_of

MAGIC = b"MMIDIDX\x00\x00"


def write(
    folder: Path, lengths: list[int], documents: list[int], code: int = 8, modes: bytes = b""
) -> Path:
    """Write both files by hand, in the documented layout."""
    sizes = np.array(lengths, "<i4")
    starts = np.concatenate([[0], np.cumsum(sizes[:-1].astype(np.int64) * 2)]).astype("<i8")
    header = MAGIC + struct.pack("<QBQQ", 1, code, len(sizes), len(documents))
    tables = sizes.tobytes() + starts.tobytes() + np.array(documents, "<i8").tobytes()
    (folder / "x.idx").write_bytes(header + tables + modes)
    np.arange(sum(lengths), dtype="<u2").tofile(folder / "x.bin")
    return folder / "x.bin"


def test_either_file_and_their_prefix_open_the_same_data(tmp_path: Path) -> None:
    path = write(tmp_path, [2, 0, 3], [0, 1, 3])
    stores = [feedline.open(p) for p in (path, path.with_suffix(".idx"))]
    assert [s.fingerprint for s in stores] == [stores[0].fingerprint] * 2
    for store in stores:
        assert [t.tolist() for t in store[:]["tokens"]] == [[0, 1], [], [2, 3, 4]]
        assert store[:]["document"].tolist() == [0, 1, 1]


def test_many_sequences_are_in_several_chunks(tmp_path: Path) -> None:
    path = write(tmp_path, [1] * 150_000, [0, 150_000])
    store = feedline.open(path)
    assert store.chunk_sizes.tolist() == [65536, 65536, 18928]
    rows = [0, 65535, 65536, 149_999]
    assert [t.tolist() for t in store[rows]["tokens"]] == [[row % 65536] for row in rows]


def test_modes_are_a_column(tmp_path: Path) -> None:
    store = feedline.open(write(tmp_path, [1, 1], [0, 2], modes=b"\x01\x00"))
    assert store[:]["mode"].tolist() == [1, 0]


def test_windows_over_the_tokens_take_their_type_from_the_index(tmp_path: Path) -> None:
    path = write(tmp_path, [2, 4], [0, 2])
    assert feedline.open(path, window=3)[1]["tokens"].tolist() == [3, 4, 5]
    with pytest.raises(InvalidValueError, match="must be 'uint16', as the index beside"):
        feedline.open(path, window=3, dtype="int32")


@pytest.mark.parametrize(
    ("at", "content", "said"),
    [
        (0, b"X", "must begin with"),
        (9, b"\x02", "version 2"),
        (17, b"\x09", "type 9"),
        (18, b"\xff" * 8, "is truncated or damaged"),
        (26, b"\xff" * 8, "is truncated or damaged"),
        (34, b"\xff" * 4, "fewer than 0 tokens"),
        (34 + 8, struct.pack("<q", 2**60), "end at byte 1152921504606846980"),
        (34 + 8, struct.pack("<q", -2), "outside of its chunk"),
        (34 + 24, b"\x05", "documents must begin"),
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, at: int, content: bytes, said: str) -> None:
    path = write(tmp_path, [2, 3], [0, 2])
    index = path.with_suffix(".idx")
    damaged = bytearray(index.read_bytes())
    damaged[at : at + len(content)] = content
    index.write_bytes(damaged)
    with pytest.raises(DamagedDataError, match=said):
        _ = feedline.open(path)[:]


def test_files_that_are_cut_short_are_refused(tmp_path: Path) -> None:
    whole = data_of("megatron")
    for name, num_bytes in (("x.idx", 20), ("x.idx", 500), ("x.bin", 1000)):
        for ending in (".idx", ".bin"):
            content = whole.with_suffix(ending).read_bytes()
            (tmp_path / f"x{ending}").write_bytes(
                content[: num_bytes if name[1:] == ending else None]
            )
        with pytest.raises(DamagedDataError):
            _ = feedline.open(tmp_path / "x.bin")[:]


@pytest.mark.parametrize("num_more", [-1, 1, 1000])
def test_an_index_that_ends_elsewhere_than_its_tokens_is_refused(
    tmp_path: Path, num_more: int
) -> None:
    path = write(tmp_path, [2, 0, 3], [0, 1, 3])
    np.arange(5 + num_more, dtype="<u2").tofile(path)
    with pytest.raises(DamagedDataError, match="end at byte 10; one of them is older"):
        feedline.open(path)


def test_files_beside_a_folder_of_their_name_are_other_data(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    write(tmp_path, [2, 3], [0, 2])
    feedline.pack({"id": np.arange(7)}, tmp_path / "packed", format="parquet")
    (tmp_path / "x").mkdir()
    for found in (tmp_path / "packed").glob("*.parquet"):
        found.rename(tmp_path / "x" / found.name)
    assert feedline.open(tmp_path / "x")[:]["id"].tolist() == list(range(7))
