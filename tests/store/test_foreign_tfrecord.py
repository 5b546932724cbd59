"""TFRecord files: checked, in every form that protobuf allows; damaged ones are refused."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import feedline
from feedline.errors import DamagedDataError, FeedlineError, MissingDataError, StoreError
from feedline.store.foreign.crc32c import crc32c
from tf_records import (
    example,
    field,
    file_of,
    floats,
    integers,
    plain_crc32c,
    strings,
    unpacked_floats,
    unpacked_integers,
)

_EDGES = (0, 1, 3, 4, 63, 64, 65, 1023, 1024, 1025, 2048)


def opened(folder: Path, content: bytes, name: str = "x.tfrecord") -> feedline.Store:
    (folder / name).write_bytes(content)
    return feedline.open(folder / name)


def store_of(folder: Path, records: Iterable[bytes]) -> feedline.Store:
    return opened(folder, file_of(records))


def values_of(store: feedline.Store, name: str) -> list[Any]:
    return [sample[name].tolist() for sample in store]


@given(lengths=st.lists(st.sampled_from(_EDGES) | st.integers(0, 3000), max_size=6))
def test_checksums_of_many_strings_are_those_of_each(lengths: list[int]) -> None:
    memory = np.random.default_rng(0).integers(0, 256, 4000, dtype=np.uint8)
    starts = [(7 * length) % (4000 - length) for length in lengths]
    found = crc32c(memory, starts, lengths).tolist()
    slices = zip(starts, lengths, strict=True)
    assert found == [plain_crc32c(memory[s : s + n].tobytes()) for s, n in slices]


def test_the_checksum_of_a_long_string_is_folded_from_its_pieces() -> None:
    memory = np.random.default_rng(0).integers(0, 256, 200_000, dtype=np.uint8)
    assert crc32c(memory, [3], [199_990])[0] == plain_crc32c(memory[3:199_993].tobytes())


def test_records_that_are_not_examples_are_bytes(tmp_path: Path) -> None:
    records = [b"hello", b"", bytes(range(256)) * 20]
    store = store_of(tmp_path, records)
    assert set(store.columns) == {"record"}
    assert store[:]["record"] == records
    # A SequenceExample has a second field.
    sequence = field(1, b"") + field(2, b"")
    assert store_of(tmp_path, [sequence])[:]["record"] == [sequence]
    assert store_of(tmp_path, [b"", b""])[:]["record"] == [b"", b""]


def test_features_are_single_values_lists_or_bytes(tmp_path: Path) -> None:
    store = store_of(
        tmp_path,
        [
            example(("i", integers(7)), ("f", floats(0.5)), ("s", strings(b"a")), ("l", floats())),
            example(("i", integers(-1)), ("f", floats(2)), ("s", strings(b"")), ("l", floats(1))),
        ],
    )
    assert {name: str(column) for name, column in store.columns.items()} == {
        "i": "int64",
        "f": "float32",
        "s": "bytes",
        "l": "list of float32",
    }
    assert store[:]["i"].tolist() == [7, -1]
    assert store[:]["f"].tolist() == [0.5, 2.0]
    assert store[:]["s"] == [b"a", b""]
    assert values_of(store, "l") == [[], [1.0]]


@given(
    rows=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), min_size=1, max_size=6)
)
def test_integers_of_any_size_are_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("integers")
    records = [example(("x", integers(*row)), ("always", integers(1))) for row in rows]
    store = store_of(folder, records)
    if all(len(row) == 1 for row in rows):
        assert store[:]["x"].tolist() == [row[0] for row in rows]
    else:
        assert values_of(store, "x") == rows


def test_values_with_a_tag_each_and_lists_in_parts_equal_packed_ones(tmp_path: Path) -> None:
    in_parts = field(3, field(1, b"\x01\x02") + b"\x08\x03" + field(1, b"\x04"))
    store = store_of(
        tmp_path,
        [
            example(("x", unpacked_integers(300, -1, 0)), ("y", unpacked_floats(1.5, -2))),
            example(("x", in_parts), ("y", floats(3))),
            example(("x", integers(5)), ("y", unpacked_floats(4))),
        ],
    )
    assert values_of(store, "x") == [[300, -1, 0], [1, 2, 3, 4], [5]]
    assert values_of(store, "y") == [[1.5, -2.0], [3.0], [4.0]]


def test_features_that_some_records_lack_are_marked(tmp_path: Path) -> None:
    store = store_of(
        tmp_path,
        [
            example(("i", integers(7)), ("s", strings(b"a")), ("l", integers(1, 2))),
            example(("s", strings()), ("l", integers())),
            example(("unset", b"")),
            b"",
        ],
    )
    assert store[:]["i"].tolist() == [7, 0, 0, 0]
    assert store[:]["i/is_missing"].tolist() == [False, True, True, True]
    assert store[:]["s"] == [b"a", b"", b"", b""]
    assert store[:]["s/is_missing"].tolist() == [False, True, True, True]
    assert values_of(store, "l") == [[1, 2], [], [], []]
    assert store[:]["l/is_missing"].tolist() == [False, False, True, True]
    assert "unset" not in store.columns


def test_several_strings_are_joined_and_their_lengths_told(tmp_path: Path) -> None:
    store = store_of(
        tmp_path,
        [
            example(("w", strings(b"ab", b"", b"c"))),
            example(("w", strings())),
            example(("other", integers(1))),
        ],
    )
    assert store[:]["w"] == [b"abc", b"", b""]
    assert values_of(store, "w/lengths") == [[2, 0, 1], [], []]
    assert store[:]["w/is_missing"].tolist() == [False, False, True]


def test_the_last_entry_of_a_name_counts(tmp_path: Path) -> None:
    store = store_of(tmp_path, [example(("x", integers(1)), ("x", integers(2)))])
    assert store[0] == {"x": 2}


def test_all_files_decide_together_what_a_feature_is(tmp_path: Path) -> None:
    for number, record in enumerate(
        (
            example(("x", integers(1)), ("y", floats(1))),
            example(("x", integers(2, 3))),
        )
    ):
        (tmp_path / f"{number}.tfrecord").write_bytes(file_of([record]))
    store = feedline.open(tmp_path)
    assert values_of(store, "x") == [[1], [2, 3]]
    assert store[:]["y"].tolist() == [1.0, 0.0]
    assert store[:]["y/is_missing"].tolist() == [False, True]


def test_what_has_no_columns_in_common_is_refused(tmp_path: Path) -> None:
    one, other = example(("x", integers(1))), example(("x", floats(1)))
    for records, message in {
        (one, other): "has values of float in record 1 and of int64 before",
        (one, b"hello"): "record 1 is not a tf.train.Example, but those before it are",
        (example(("x", integers(1)), ("x/is_missing", integers(1))), b""): "both be the column",
        (example(("", integers(1))),): "has no name",
    }.items():
        with pytest.raises(StoreError, match=message):
            store_of(tmp_path, records)
    for number, record in enumerate((one, other, b"hello")):
        (tmp_path / f"{number}.tfrecord").write_bytes(file_of([record]))
    (tmp_path / "x.tfrecord").unlink()
    with pytest.raises(StoreError, match=r"those of 2.tfrecord are not"):
        feedline.open(tmp_path)
    (tmp_path / "2.tfrecord").unlink()
    with pytest.raises(StoreError, match="values of int64 in some files and of float in others"):
        feedline.open(tmp_path)


def test_compressed_files_are_decoded_whole(tmp_path: Path) -> None:
    records = [bytes([n]) * n for n in range(60)]
    content = file_of(records)
    half = len(file_of(records[:30]))
    for name, compressed in {
        "x.tfrecord.gz": gzip.compress(content),
        "y.tfrecord.gz": gzip.compress(content[:half]) + gzip.compress(content[half:]) + bytes(9),
        "z.tfrecord": zlib.compress(content),
    }.items():
        store = opened(tmp_path, compressed, name)
        assert store[:]["record"] == records
        chunk = store.shards.open(0, ["record"])  # type: ignore[attr-defined]
        assert chunk.num_bytes_held >= len(content)
        assert store.shards.compression == "deflate"  # type: ignore[attr-defined]
    plain = opened(tmp_path, content).shards  # type: ignore[attr-defined]
    assert plain.open(0, ["record"]).num_bytes_held < len(content)
    assert plain.compression is None


def test_damaged_compressed_files_are_refused(tmp_path: Path) -> None:
    compressed = gzip.compress(file_of([bytes(range(256)) * 8]))
    flipped = bytearray(compressed)
    flipped[-6] ^= 1
    for content, message in {
        compressed[:-1]: "ends too early",
        compressed[:40]: "ends too early",
        bytes(flipped): "incorrect data check",
        compressed + b"\1\2\3": "incorrect header check",
    }.items():
        with pytest.raises(DamagedDataError, match=message):
            opened(tmp_path, content)


def test_a_small_file_cannot_ask_for_any_amount_of_memory(tmp_path: Path) -> None:
    bomb = zlib.compressobj(9, wbits=31)
    content = b"".join(bomb.compress(bytes(2**20)) for _ in range(65)) + bomb.flush()
    with pytest.raises(DamagedDataError, match=r"decodes to more than 64.0 MiB"):
        opened(tmp_path, content)


def test_a_record_whose_length_looks_like_gzip_is_plain(tmp_path: Path) -> None:
    # 1f 8b 08: the first bytes of gzip, and of the length of this record.
    record = bytes(0x088B1F)
    assert opened(tmp_path, file_of([record]))[0]["record"] == record


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    content = file_of([b"hello", b"world"])
    changes = {"length": (2, 8, 21 + 9), "data": (13, 20, 21 + 14)}
    for what, places in changes.items():
        for place in places:
            flipped = bytearray(content)
            flipped[place] ^= 0x10
            with pytest.raises(DamagedDataError, match=f"{what} of record|needs bytes"):
                opened(tmp_path, bytes(flipped))
    wild = b"\xff" * 8 + content[8:]
    for damaged in (content[:-1], content[:5], content[:15], wild, content + b"\0" * 20):
        with pytest.raises(DamagedDataError, match="write it again"):
            opened(tmp_path, damaged)


def test_an_integer_of_too_many_bytes_is_refused(tmp_path: Path) -> None:
    record = example(("x", field(3, field(1, b"\x80" * 11 + b"\1" + b"\2"))))
    with pytest.raises(DamagedDataError, match="has more than 10 bytes"):
        _ = store_of(tmp_path, [record])[0]


def test_any_bytes_are_an_example_or_a_record(tmp_path: Path) -> None:
    sound = example(("i", integers(7, 300)), ("f", floats(0.5)), ("s", strings(b"a", b"b")))
    for place in range(len(sound)):
        for bit in (1, 0x80):
            changed = bytearray(sound)
            changed[place] ^= bit
            try:
                sample = store_of(tmp_path, [bytes(changed)])[0]
            except FeedlineError:
                continue
            assert sample.get("record", bytes(changed)) == bytes(changed)


def test_files_are_known_by_names_or_by_their_first_bytes(tmp_path: Path) -> None:
    content = file_of([b"hello"])
    for name in ("a.tfrecords", "a.tfrec", "a.TFRECORD-00000-of-00001", "train-00000-of-00001"):
        assert opened(tmp_path, content, name)[0] == {"record": b"hello"}
    (tmp_path / "folder").mkdir()
    for number in range(3):
        (tmp_path / "folder" / f"train-{number}-of-3").write_bytes(content)
    for name in ("dataset_info.json", "train.tfrecord.idx", "train.tfrecord.md5"):
        (tmp_path / "folder" / name).write_text("{}")
    assert len(feedline.open(tmp_path / "folder")) == 3
    (tmp_path / "folder" / "train-1-of-3").unlink()
    with pytest.raises(MissingDataError, match=r"has 2 shards of 3 of 'train'; missing are 1;"):
        feedline.open(tmp_path / "folder")


def test_empty_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "1.tfrecord").write_bytes(b"")
    with pytest.raises(DamagedDataError, match="has 0 samples"):
        feedline.open(tmp_path)
    (tmp_path / "2.tfrecord").write_bytes(file_of([b"hello"]))
    assert feedline.open(tmp_path).chunk_sizes.tolist() == [1]
