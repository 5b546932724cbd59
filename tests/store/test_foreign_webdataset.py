"""WebDataset shards: grouped as webdataset does; links and damaged files are refused."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import feedline
from feedline.errors import DamagedDataError, StoreError, UnsafeDataError

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def tar_of(
    members: Sequence[tuple[str, bytes]] | Mapping[str, bytes], form: int = tarfile.PAX_FORMAT
) -> bytes:
    """Return a tar file of some members."""
    buffer = io.BytesIO()
    pairs = members.items() if isinstance(members, Mapping) else members
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, content in pairs:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def opened(folder: Path, content: bytes, name: str = "x.tar") -> feedline.Store:
    (folder / name).write_bytes(content)
    return feedline.open(folder / name)


def retyped(content: bytes, kind: bytes, at: int = 0) -> bytes:
    """Return a tar file whose header at a byte has another type, with the right checksum."""
    changed = bytearray(content)
    changed[at + 156 : at + 157] = kind
    changed[at + 148 : at + 156] = b" " * 8
    changed[at + 148 : at + 156] = b"%06o\0 " % sum(changed[at : at + 512])
    return bytes(changed)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_names_of_any_length_are_read_in_every_form_of_tar(tmp_path: Path, form: int) -> None:
    keys = ["a", "f/" * 60 + "b", "ü" * 40 + "/c", "d" * 90]
    if form != tarfile.USTAR_FORMAT:
        keys += ["e" * 300, "g/" * 200 + "h"]
    store = opened(tmp_path, tar_of({f"{key}.txt": key[-1].encode() for key in keys}, form))
    assert store[:]["__key__"] == keys
    assert store[:]["txt"] == [key[-1].encode() for key in keys]


def test_members_are_grouped_as_webdataset_does(tmp_path: Path) -> None:
    members = [
        ("__meta__", b"skipped"),
        ("__meta__/a.txt", b"skipped"),
        ("README", b"has no ending"),
        ("v1.0/README", b"has a dot in its folder only"),
        (".hidden.txt", b"begins with a dot"),
        ("v1.0/a.JPG", b"1"),
        ("v1.0/a.seg.png", b"2"),
        ("v1.1/a.jpg", b"3"),
        ("v1.0/a.jpg", b"4"),
    ]
    store = opened(tmp_path, tar_of(members))
    assert store[:]["__key__"] == ["v1.0/a", "v1.1/a", "v1.0/a"]
    assert store[:]["jpg"] == [b"1", b"3", b"4"]
    assert store[:]["seg.png"] == [b"2", b"", b""]
    assert store[:]["seg.png/is_missing"].tolist() == [False, True, True]
    assert set(store.columns) == {"__key__", "jpg", "seg.png", "seg.png/is_missing"}


def test_folders_inside_are_skipped_and_links_and_devices_are_refused(tmp_path: Path) -> None:
    sound = tar_of([("d/", b""), ("d/a.txt", b"1")])
    assert len(opened(tmp_path, retyped(sound, b"5"))) == 1
    for kind, word in {
        b"1": "hard link",
        b"2": "symbolic link",
        b"3": "device",
        b"6": "pipe",
        b"S": "sparse file",
    }.items():
        with pytest.raises(UnsafeDataError, match=f"is a {word} and must be a plain file"):
            opened(tmp_path, retyped(sound, kind))
    with pytest.raises(StoreError, match="member of type b'V', which is unknown"):
        opened(tmp_path, retyped(sound, b"V"))


def test_sparse_files_in_pax_headers_are_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("a.bin")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
        archive.addfile(info)
    with pytest.raises(UnsafeDataError, match="sparse file"):
        opened(tmp_path, buffer.getvalue())


def test_global_headers_may_not_rename_members(tmp_path: Path) -> None:
    for headers, is_refused in (({"comment": "fine"}, False), ({"path": "b.txt"}, True)):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", pax_headers=headers) as archive:
            archive.addfile(tarfile.TarInfo("a.txt"))
        if is_refused:
            with pytest.raises(StoreError, match="sets path for all members"):
                opened(tmp_path, buffer.getvalue())
        else:
            assert opened(tmp_path, buffer.getvalue())[0]["__key__"] == "a"


def test_names_that_lead_elsewhere_are_only_keys(tmp_path: Path) -> None:
    store = opened(tmp_path, tar_of({"../../etc/passwd.txt": b"1", "/abs.txt": b"2"}))
    assert store[:]["__key__"] == ["../../etc/passwd", "/abs"]


def test_sizes_in_base_256_and_in_pax_headers_are_read(tmp_path: Path) -> None:
    sound = bytearray(tar_of({"a.txt": b"hello"}))
    sound[124:136] = b"\x80" + (5).to_bytes(11, "big")
    assert opened(tmp_path, retyped(bytes(sound), b"0"))[0]["txt"] == b"hello"
    sound[124:136] = b"\x80" + (2**70).to_bytes(11, "big")
    with pytest.raises(DamagedDataError, match="needs bytes"):
        opened(tmp_path, retyped(bytes(sound), b"0"))
    sound[124:136] = b"\xff" * 12
    with pytest.raises(DamagedDataError, match="which is not a number"):
        opened(tmp_path, retyped(bytes(sound), b"0"))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("a.txt")
        info.pax_headers = {"size": "5"}
        archive.addfile(info)
    # An extended header, its record and the header itself, whose own size is 0.
    data, end = buffer.getvalue(), 3 * 512
    store = opened(tmp_path, data[:end] + b"hello".ljust(512, b"\0") + data[end:])
    assert store[0]["txt"] == b"hello"


def test_damaged_tar_files_are_refused(tmp_path: Path) -> None:
    sound = tar_of({"a.txt": b"hello" * 200, "b.txt": b"x"})
    flipped = bytearray(sound)
    flipped[3] ^= 1
    for content, message in {
        b"": "without the empty block",
        bytes(flipped): "wrong checksum",
        sound[:700]: "needs bytes",
        sound[: 4 * 512 + 100]: "without the empty block",
        sound[: 5 * 512]: "without the empty block",
        sound + b"\1": "data after its end",
        sound + sound: "data after its end",
        b"not a tar file at all" * 100: "wrong checksum",
        bytes(1024): "has 0 samples",
        tar_of({"README": b""}): "has 0 samples",
    }.items():
        with pytest.raises(DamagedDataError, match=message):
            opened(tmp_path, content)


def test_members_that_cannot_be_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"'a.TXT' twice in one sample"):
        opened(tmp_path, tar_of([("a.txt", b""), ("a.TXT", b"")]))
    for name in ("a.", "a.__key__"):
        with pytest.raises(StoreError, match="has an ending that cannot name a column"):
            opened(tmp_path, tar_of({name: b""}))
    with pytest.raises(StoreError, match=r"must have at most 256; .* write keys without dots"):
        opened(tmp_path, tar_of({f"img_0.{n}.jpg": b"" for n in range(300)}))


def test_gzip_is_decoded_whole_and_other_compressions_are_refused(tmp_path: Path) -> None:
    sound = tar_of({f"{n}.txt": b"x" * n for n in range(50)})
    for name in ("x.tar.gz", "x.tgz", "x.tar"):
        store = opened(tmp_path, gzip.compress(sound), name)
        assert list(map(len, store[:]["txt"])) == list(range(50))
    held = store.shards.open(0, ["txt"]).num_bytes_held  # type: ignore[attr-defined]
    assert held >= len(sound)
    for start, command in ((b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zXZ\0", "xz"), (b"BZh9", "bzip")):
        with pytest.raises(StoreError, match=f"decompress it with `{command}"):
            opened(tmp_path, start + bytes(2000), "x.tar.zst")


def test_shards_are_sorted_by_their_numbers(tmp_path: Path) -> None:
    for number in (10, 9, 2):
        (tmp_path / f"s-{number}.tar").write_bytes(tar_of({f"{number}.txt": b""}))
    (tmp_path / "s-11.tar").write_bytes(tar_of({}))
    (tmp_path / "notes.md").write_text("are left alone")
    store = feedline.open(tmp_path)
    assert store[:]["__key__"] == ["2", "9", "10"]
    assert store.chunk_sizes.tolist() == [1, 1, 1]


def test_an_ending_that_one_shard_lacks_is_missing_there(tmp_path: Path) -> None:
    (tmp_path / "1.tar").write_bytes(tar_of({"a.txt": b"1"}))
    (tmp_path / "2.tar").write_bytes(tar_of({"b.json": b"2"}))
    store = feedline.open(tmp_path)
    assert store[:]["txt"] == [b"1", b""]
    assert store[:]["txt/is_missing"].tolist() == [False, True]
    assert store[:]["json/is_missing"].tolist() == [True, False]
    some = feedline.open(tmp_path, columns=["json"])
    assert some[1] == {"json": b"2", "json/is_missing": False}


def test_splits_in_one_folder_are_refused(tmp_path: Path) -> None:
    for name in ("imagenet-train-000.tar", "imagenet-val-000.tar"):
        (tmp_path / name).write_bytes(tar_of({"a.txt": b"1"}))
    with pytest.raises(StoreError, match=r"2 splits .* move each split into a folder of its own"):
        feedline.open(tmp_path)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.tar").write_bytes(tar_of({"a.txt": b"1"}))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.tar").symlink_to(tmp_path / "secret.tar")
    with pytest.raises(UnsafeDataError, match="outside its folder"):
        feedline.open(tmp_path / "data")


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_shards_in_folders_inside_are_not_left_out(tmp_path: Path, ending: str) -> None:
    for folder in (tmp_path, tmp_path / "more"):
        folder.mkdir(exist_ok=True)
        (folder / f"x.{ending}").write_bytes(tar_of({"a.txt": b"1"}))
    with pytest.raises(StoreError, match=rf"more of them in 'more', such as 'x\.{ending}'"):
        feedline.open(tmp_path)


def test_files_of_two_formats_in_one_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar_of({"a.txt": b"1"}))
    (tmp_path / "x.tfrecord").write_bytes(b"")
    with pytest.raises(StoreError, match="has files of webdataset and of tfrecord"):
        feedline.open(tmp_path)


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_a_shard_beside_its_compressed_copy_is_refused(tmp_path: Path, ending: str) -> None:
    for name in (f"x.{ending}", f"x.{ending}.gz", f"y.{ending}.gz"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(StoreError, match=rf"'x\.{ending}' and 'x\.{ending}\.gz'.* come twice"):
        feedline.open(tmp_path)


@pytest.mark.parametrize("numbers", [(0, 5), (2, 5), (1, 2, 5)])
def test_shards_beyond_their_total_do_not_stand_for_missing_ones(
    tmp_path: Path, numbers: Sequence[int]
) -> None:
    for number in numbers:
        (tmp_path / f"x-{number}-of-2.tar").write_bytes(tar_of({"a.txt": b"1"}))
    with pytest.raises(StoreError, match=r"shards? of 2 of 'x\.tar'; missing"):
        feedline.open(tmp_path)
