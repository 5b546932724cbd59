"""Folders that are damaged, that lie or that are hostile: a clear error, and nothing else happens.

Also what tells that the data of a folder is other data: fingerprints and digests of parts.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from chunk_data import little_memory, with_flips, written
from examples import few_examples
from feedline.errors import (
    DamagedDataError,
    InvalidValueError,
    MissingDataError,
    StoreError,
    UnsafeDataError,
)
from feedline.store import FolderStore
from folder_data import (
    KINDS,
    FolderData,
    checksum_of,
    make_columns,
    member_spans,
    same_columns,
    with_flags,
    write_chunk,
    write_folder,
    write_metadata,
)

torch = pytest.importorskip("torch")
pytest.importorskip("pyarrow")
pytest.importorskip("safetensors")


def tree_of(folder: Path) -> dict[str, Any]:
    """Everything under a folder, to see that nothing was written or removed."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def refused(
    call: Callable[[], Any], kind: type[StoreError], file: Path, *words: str, within: Path
) -> None:
    """Check the one error that the call raises: its type, that it names the file, and the rest."""
    before = tree_of(within)
    with pytest.raises(StoreError) as caught:
        call()
    error = caught.value
    assert type(error) is kind, f"{type(error).__name__}: {error}"
    assert str(error).startswith(f"{file}: "), str(error)[:300]
    assert all(word in str(error) for word in words), str(error)[:300]
    # Nothing went wrong on the way that a user would have to read as well.
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__
    assert tree_of(within) == before


def read_all(folder: Path, **options: Any) -> None:
    store = FolderStore(folder, **options)
    for number, size in enumerate(store.chunk_sizes.tolist()):
        store.read(number, np.arange(size))


# metadata.json.


def test_a_folder_without_metadata_is_a_missing_file(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        path = folder / "metadata.json"
        refused(
            lambda folder=folder: FolderStore(folder),
            MissingDataError,
            path,
            "does not exist",
            within=tmp_path,
        )
        with pytest.raises(FileNotFoundError):
            FolderStore(folder)


FILE = {"path": "0000.pt", "samples": 4}

WRONG_TEXTS = {
    "empty": "",
    "cut": '{"total_samples": 4, "batch_fi',
    "text": "total_samples: 4",
    "two": "{} {}",
    "binary": "\x00\x01\x02",
    "deep": "[" * 100_000,
    "long-number": '{"total_samples": ' + "9" * 10_000 + "}",
    "list": json.dumps([FILE]),
    "number": "4",
    "null": "null",
    "string": '"metadata"',
}

WRONG_DATA = {
    "no-keys": {},
    "no-files": {"total_samples": 4},
    "no-total": {"batch_files": [FILE]},
    "files-of-dict": {"total_samples": 4, "batch_files": {"0": FILE}},
    "files-none": {"total_samples": 0, "batch_files": None},
    "files-text": {"total_samples": 0, "batch_files": "0000.pt"},
    "files-of-text": {"total_samples": 4, "batch_files": ["0000.pt"]},
    "files-of-lists": {"total_samples": 4, "batch_files": [["0000.pt", 4]]},
    "files-of-none": {"total_samples": 4, "batch_files": [FILE, None]},
    "total-wrong": {"total_samples": 5, "batch_files": [FILE]},
    "total-float": {"total_samples": 4.0, "batch_files": [FILE]},
    "total-text": {"total_samples": "4", "batch_files": [FILE]},
    "total-bool": {"total_samples": True, "batch_files": [FILE | {"samples": 1}]},
    "total-none": {"total_samples": None, "batch_files": [FILE]},
    "total-long": {"total_samples": 10**4000, "batch_files": [FILE]},
    "format": {"format": "other", "total_samples": 4, "batch_files": [FILE]},
    "format-none": {"format": None, "total_samples": 4, "batch_files": [FILE]},
    "version": {"version": 2, "total_samples": 4, "batch_files": [FILE]},
    "version-text": {"version": "1", "total_samples": 4, "batch_files": [FILE]},
    "columns-number": {"columns": 3, "total_samples": 4, "batch_files": [FILE]},
    "columns-dict": {"columns": {"a": 1}, "total_samples": 4, "batch_files": [FILE]},
    "columns-few-keys": {"columns": [{"name": "a"}], "total_samples": 4, "batch_files": [FILE]},
    **{
        f"columns-{name}": {
            "columns": [{"name": "a", "dtype": "int64", "shape": []} | change],
            "total_samples": 4,
            "batch_files": [FILE],
        }
        for name, change in {
            "dtype": {"dtype": "object"},
            "dtype-list": {"dtype": ["int64"]},
            "dtype-none": {"dtype": None},
            "shape": {"shape": 3},
            "shape-negative": {"shape": [-1]},
            "shape-float": {"shape": [3.0]},
            "shape-huge": {"shape": [10**30]},
        }.items()
    },
    **{
        f"samples-{name}": {"total_samples": 4, "batch_files": [{"path": "0000.pt"} | samples]}
        for name, samples in {
            "absent": {},
            "negative": {"samples": -4},
            "float": {"samples": 4.0},
            "bool": {"samples": True},
            "text": {"samples": "4"},
            "none": {"samples": None},
            "list": {"samples": [4]},
            "2**63": {"samples": 2**63},
            "10**4000": {"samples": 10**4000},
            "nan": {"samples": float("nan")},
            "infinite": {"samples": float("inf")},
        }.items()
    },
    "samples-wrap": {
        "total_samples": 0,
        "batch_files": [{"path": str(i), "samples": 2**61} for i in range(8)],
    },
    "samples-cancel": {
        "total_samples": 4,
        "batch_files": [FILE | {"samples": -2}, FILE | {"samples": 6}],
    },
    "path-absent": {"total_samples": 4, "batch_files": [{"samples": 4}]},
    "path-none": {"total_samples": 4, "batch_files": [FILE | {"path": None}]},
    "path-number": {"total_samples": 4, "batch_files": [FILE | {"path": 3}]},
    "path-list": {"total_samples": 4, "batch_files": [FILE | {"path": ["0000.pt"]}]},
}


@pytest.mark.parametrize("fault", [*WRONG_TEXTS, *WRONG_DATA])
def test_metadata_that_is_wrong_is_refused_when_the_folder_is_opened(
    tmp_path: Path, fault: str
) -> None:
    write_folder(tmp_path, [4])
    text = WRONG_TEXTS[fault] if fault in WRONG_TEXTS else json.dumps(WRONG_DATA[fault])
    (tmp_path / "metadata.json").write_text(text)
    kind = UnsafeDataError if fault.startswith("path-") else DamagedDataError
    with little_memory():
        refused(lambda: FolderStore(tmp_path), kind, tmp_path / "metadata.json", within=tmp_path)


def test_metadata_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "metadata.json", b'{"total_samples": "\xff\xfe"}')
    refused(lambda: FolderStore(tmp_path), DamagedDataError, path, "not JSON", within=tmp_path)


def test_metadata_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata.json").mkdir()
    path = tmp_path / "metadata.json"
    refused(lambda: FolderStore(tmp_path), UnsafeDataError, path, within=tmp_path)


def test_metadata_of_more_than_a_gigabyte_is_refused_unread(tmp_path: Path) -> None:
    with open(tmp_path / "metadata.json", "wb") as file:
        file.truncate(2**30 + 1)
    with little_memory(), pytest.raises(DamagedDataError, match=r"metadata\.json: has 1073741825"):
        FolderStore(tmp_path)


LIMITED = """
import resource, sys
from feedline.errors import StoreError
from feedline.store import FolderStore
resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
try:
    FolderStore(sys.argv[1])
except StoreError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("what", ["pipe", "device"])
def test_metadata_that_is_no_regular_file_is_refused_without_waiting(
    tmp_path: Path, what: str
) -> None:
    pytest.importorskip("resource")
    if what == "pipe":
        os.mkfifo(tmp_path / "metadata.json")
    else:
        (tmp_path / "metadata.json").symlink_to("/dev/zero")
    job = subprocess.Popen(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = job.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        job.kill()
        job.communicate()
        pytest.fail("it waits for ever")
    assert output.startswith(f"refused: {tmp_path}/metadata.json: "), errors[-500:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bytes": -1}, "bytes=-1"),
        ({"bytes": 1.5}, "bytes=1.5"),
        ({"bytes": True}, "bytes=True"),
        ({"checksum": 5}, "checksum=5"),
        ({"checksum": ["blake2b:00"]}, "checksum="),
        ({"groups": 4}, "groups=4"),
        ({"groups": [1, 2]}, "groups have 3 samples but must have 4"),
        ({"groups": [-4, 8]}, "groups=-4"),
        ({"groups": [2.0, 2]}, "groups=2.0"),
        ({"groups": "4"}, "groups='4'"),
    ],
)
def test_an_entry_that_is_wrong_is_refused_when_it_is_used(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    data = write_folder(tmp_path, [4, 4], "parquet")
    data.rewrite_entry(1, **change)
    refused(
        lambda: read_all(tmp_path, verify=True),
        DamagedDataError,
        tmp_path / "metadata.json",
        "batch_files[1]",
        message,
        within=tmp_path,
    )


# Chunks.


@pytest.mark.parametrize("kind", KINDS)
def test_a_chunk_that_is_missing_is_named(tmp_path: Path, kind: str) -> None:
    data = write_folder(tmp_path, [4, 4], kind)
    path = data.files[1]
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    for call in (
        lambda: read_all(tmp_path),
        lambda: read_all(tmp_path, verify=True),
        lambda: FolderStore(tmp_path).fingerprint,
        lambda: FolderStore(tmp_path).check_chunk(1),
        lambda: FolderStore(tmp_path).prefetch(len(FolderStore(tmp_path).chunk_sizes) - 1),
    ):
        refused(call, MissingDataError, path, "does not exist", within=tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_chunk_that_is_cut_short_is_named(tmp_path: Path, kind: str) -> None:
    data = write_folder(tmp_path, [4, 4], kind)
    path = data.files[1] / "sequences/item.npy" if kind == "npy" else data.files[1]
    content = path.read_bytes()
    for length in (0, 1, len(content) // 2, len(content) - 1):
        written(path, content[:length])
        refused(lambda: read_all(tmp_path), DamagedDataError, path, within=tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [3, 5, 0])
def test_a_count_that_disagrees_with_the_chunk_is_refused(
    tmp_path: Path, kind: str, size: int
) -> None:
    data = write_folder(tmp_path, [4, 4], kind)
    data.rewrite_entry(1, samples=size)
    data.rewrite(total_samples=4 + size)
    message = f"has 4 samples, but metadata.json says {size}"
    refused(lambda: read_all(tmp_path), DamagedDataError, data.files[1], message, within=tmp_path)
    refused(
        lambda: FolderStore(tmp_path).check_chunk(1),
        DamagedDataError,
        data.files[1],
        message,
        within=tmp_path,
    )


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_recorded_groups_that_disagree_with_the_file_are_refused(tmp_path: Path, kind: str) -> None:
    for groups in ([2, 2], [3, 1, 0], [4]):
        data = write_folder(tmp_path, [4, 4], kind)
        data.rewrite_entry(1, groups=groups)
        refused(lambda: read_all(tmp_path), DamagedDataError, data.files[1], within=tmp_path)


def changed(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    arrays = make_columns(range(4, 8))
    change(arrays)
    return arrays


DISAGREEMENTS = {
    "dtype": lambda a: a.update({"sequence_ids": a["sequence_ids"].astype(np.int32)}),
    "sign": lambda a: a.update({"sequence_ids": a["sequence_ids"].astype(np.uint64)}),
    "kind": lambda a: a.update({"sequence_ids": a["sequence_ids"].astype(np.float64)}),
    "shape": lambda a: a.update({"sequence_ids": a["sequence_ids"][:, None]}),
    "missing": lambda a: a.pop("sequence_ids"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", DISAGREEMENTS)
@pytest.mark.parametrize("is_recorded", [False, True])
def test_chunks_whose_columns_disagree_are_refused_with_what_differs(
    tmp_path: Path, kind: str, how: str, is_recorded: bool
) -> None:
    data = write_folder(tmp_path, [4, 4], kind)
    path = data.files[1]
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    write_chunk(path, changed(DISAGREEMENTS[how]))
    if is_recorded:
        columns = FolderStore(tmp_path).columns.values()
        data.rewrite(columns=[column.describe() for column in columns])
    message = "is missing" if how == "missing" else "and should be int64"
    for call in (lambda: read_all(tmp_path), lambda: FolderStore(tmp_path).check_chunk(1)):
        refused(call, DamagedDataError, path, "column 'sequence_ids' ", message, within=tmp_path)
    # The good chunk and the good columns are still read.
    store = FolderStore(tmp_path)
    assert store.read(0, [1])["sequence_ids"].tolist() == [7]
    last = len(store.chunk_sizes) - 1
    assert store.select(["start_positions"]).read(last, [0])["start_positions"][0] >= 2**40 + 4


@pytest.mark.parametrize("kind", KINDS)
def test_other_steps_in_one_chunk_are_refused(tmp_path: Path, kind: str) -> None:
    data = write_folder(tmp_path, [4, 4], kind)
    path = data.files[1]
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    write_chunk(path, make_columns(range(4, 8), num_steps=6))
    for options in ({}, {"last_steps": 2}):
        refused(
            lambda options=options: read_all(tmp_path, **options),
            DamagedDataError,
            path,
            "column 'sequences/item' is int64[6] and should be int64[5]",
            within=tmp_path,
        )


def test_recorded_columns_that_no_chunk_has_are_refused(tmp_path: Path) -> None:
    data = write_folder(tmp_path, [4])
    data.rewrite(columns=[{"name": "other", "dtype": "int64", "shape": [2**22, 2**22]}])
    refused(lambda: read_all(tmp_path), DamagedDataError, data.files[0], "'other'", within=tmp_path)


@pytest.mark.parametrize("name", ["a.txt", "a.bin", "a", "a.PT", "a.pkl", "a.pt.gz", ".pt"])
def test_a_file_of_an_unknown_kind_is_refused_with_those_that_are_known(
    tmp_path: Path, name: str
) -> None:
    data = write_folder(tmp_path, [4])
    path = data.files[0].rename(tmp_path / name)
    data.rewrite_entry(0, path=name)
    refused(lambda: read_all(tmp_path), DamagedDataError, path, ".safetensors", within=tmp_path)


def test_a_folder_without_columns_as_a_chunk_is_refused(tmp_path: Path) -> None:
    data = write_folder(tmp_path, [4])
    (tmp_path / "empty").mkdir()
    data.rewrite_entry(0, path="empty")
    refused(lambda: read_all(tmp_path), DamagedDataError, tmp_path / "empty", within=tmp_path)


@pytest.mark.parametrize("ending", [".pt", ".safetensors", ".parquet", ".arrow"])
def test_a_folder_that_is_named_like_a_file_is_refused(tmp_path: Path, ending: str) -> None:
    data = write_folder(tmp_path, [4])
    path = tmp_path / f"a{ending}"
    path.mkdir()
    data.rewrite_entry(0, path=path.name)
    refused(lambda: read_all(tmp_path), UnsafeDataError, path, "regular file", within=tmp_path)


# Flipped bits.


def values_span(path: Path) -> tuple[int, int]:
    return next(span for name, span in member_spans(path).items() if name.endswith("/data/0"))


def test_check_file_and_verifying_find_a_flipped_bit_anywhere_in_the_values(
    tmp_path: Path,
) -> None:
    data = write_folder(tmp_path, [4, 4])
    path = data.files[1]
    content = path.read_bytes()
    for at in range(*values_span(path), 7):
        written(path, with_flips(content, [(at, content[at] ^ 1)]))
        refused(
            lambda: FolderStore(tmp_path, verify=True).check_chunk(1),
            DamagedDataError,
            path,
            "damaged",
            within=tmp_path,
        )
    FolderStore(tmp_path, verify=True).check_chunk(0)


@few_examples(3)
@given(
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=2)
)
@pytest.mark.parametrize("with_checksums", [False, True])
def test_verified_data_is_the_data_that_was_written_or_an_error(
    tmp_path_factory: pytest.TempPathFactory,
    with_checksums: bool,
    flips: list[tuple[int, int]],
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"flipped-{with_checksums}"
    if not folder.exists():
        write_folder(folder, [4], with_checksums=with_checksums)
        shutil.copy(folder / "0000.pt", folder / "good")
    content = (folder / "good").read_bytes()
    # The end of the file has most of what matters.
    flips = [(at if at % 2 else -1 - at % 1500, value) for at, value in flips]
    written(folder / "0000.pt", with_flips(content, flips))
    with contextlib.suppress(StoreError):
        found = FolderStore(folder, verify=True).read(0, np.arange(4))
        same_columns(found, make_columns(range(4)))


@pytest.mark.parametrize("flags", [1, 0x40, 0x20, 0x2000])
def test_verifying_a_file_whose_flags_were_flipped_is_no_crash(tmp_path: Path, flags: int) -> None:
    """Bit 0 says encrypted, 6 strongly so, 5 that it is a patch, 13 that headers are hidden."""
    data = write_folder(tmp_path, [4])
    path = data.files[0]
    name = next(name for name in member_spans(path) if name.endswith("/data/0"))
    written(path, with_flags(path.read_bytes(), name, flags))
    with contextlib.suppress(StoreError):
        found = FolderStore(tmp_path, verify=True).read(0, np.arange(4))
        same_columns(found, data.chunks[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_number_of_bytes_that_is_wrong_is_refused(tmp_path: Path, kind: str) -> None:
    data = write_folder(tmp_path, [4], kind, with_checksums=True)
    data.rewrite_entry(0, bytes=17)
    refused(
        lambda: read_all(tmp_path, verify=True),
        DamagedDataError,
        data.files[0],
        "was written with 17",
        within=tmp_path,
    )


def test_a_checksum_of_an_unknown_kind_is_never_taken_for_right(tmp_path: Path) -> None:
    data = write_folder(tmp_path, [4])
    data.rewrite_entry(0, checksum="crc32:00000000")
    refused(
        lambda: read_all(tmp_path, verify=True), DamagedDataError, data.files[0], within=tmp_path
    )


def test_a_file_that_another_one_replaced_is_found_by_its_checksum(tmp_path: Path) -> None:
    data = write_folder(tmp_path, [4, 4], with_checksums=True)
    shutil.copy(data.files[0], data.files[1])
    read_all(tmp_path)
    refused(
        lambda: read_all(tmp_path, verify=True),
        DamagedDataError,
        data.files[1],
        "its contents have changed",
        within=tmp_path,
    )


# Paths.


@pytest.mark.parametrize(
    "path",
    [
        *(
            "..",
            "../outside.pt",
            "a/../../outside.pt",
            "a/..",
            "./../outside.pt",
            "../data/0000.pt",
        ),
        *("/etc/passwd", "//etc/passwd", "", "a\\b.pt", "..\\outside.pt", "C:\\a.pt"),
        *("0000.pt\0", "\0", "0000.pt\0.txt"),
    ],
)
def test_paths_that_lead_out_of_the_folder_are_refused_when_it_is_opened(
    tmp_path: Path, path: str
) -> None:
    data = write_folder(tmp_path / "data", [4])
    (tmp_path / "data" / "a").mkdir()
    shutil.copy(data.files[0], tmp_path / "outside.pt")
    data.rewrite_entry(0, path=path)
    refused(
        lambda: FolderStore(data.folder),
        UnsafeDataError,
        data.folder / "metadata.json",
        "must be a relative path inside the folder",
        within=tmp_path,
    )


@pytest.mark.parametrize(
    "path", ["./0000.pt", "a/b/0000.pt", "a//0000.pt", "..0000.pt", "a..pt/x.pt"]
)
def test_paths_that_stay_in_the_folder_are_read(tmp_path: Path, path: str) -> None:
    data = write_folder(tmp_path, [4])
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.move(data.files[0], tmp_path / path)
    data.rewrite_entry(0, path=path)
    assert FolderStore(tmp_path).read(0, [3])["sequences/item"][0, -1] == 3


ASK = {
    "read": lambda folder: read_all(folder),
    "verify": lambda folder: read_all(folder, verify=True),
    "fingerprint": lambda folder: FolderStore(folder).fingerprint,
    "check": lambda folder: FolderStore(folder).check_chunk(0),
    "prefetch": lambda folder: FolderStore(folder).prefetch(0),
}


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize("what", ["file", "folder", "folder-of-columns", "two-steps"])
def test_links_out_of_the_folder_are_refused(tmp_path: Path, ask: str, what: str) -> None:
    outside = write_folder(tmp_path / "outside", [4], "npy" if what.endswith("columns") else "pt")
    data = write_folder(tmp_path / "data", [4])
    link = data.folder / "link.pt"
    path = "link.pt"
    if what == "folder":
        link, path = data.folder / "sub", "sub/0000.pt"
        link.symlink_to(outside.folder)
    elif what == "folder-of-columns":
        link = data.folder / "link"
        path = "link"
        link.symlink_to(outside.files[0])
    elif what == "two-steps":
        (data.folder / "step").symlink_to("../outside/0000.pt")
        link.symlink_to("step")
    else:
        link.symlink_to(outside.files[0])
    data.rewrite_entry(0, path=path)
    refused(
        lambda: ASK[ask](data.folder),
        UnsafeDataError,
        data.folder / path,
        "outside its folder",
        within=tmp_path,
    )


@pytest.mark.parametrize("ask", ASK)
def test_links_out_of_a_chunk_of_columns_are_refused(tmp_path: Path, ask: str) -> None:
    """What is outside is not even read for a digest, nor asked of the kernel."""
    data = write_folder(tmp_path / "data", [4], "npy")
    column = data.files[0] / "sequence_ids.npy"
    shutil.move(column, tmp_path / "outside.npy")
    column.symlink_to(tmp_path / "outside.npy")
    refused(
        lambda: ASK[ask](data.folder),
        UnsafeDataError,
        column,
        "outside its folder",
        within=tmp_path,
    )


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_links_inside_the_folder_are_followed(tmp_path: Path, kind: str) -> None:
    data = write_folder(tmp_path, [4, 3])
    if kind == "file":
        (tmp_path / "link.pt").symlink_to("0001.pt")
        data.rewrite_entry(1, path="link.pt")
    else:
        (tmp_path / "sub").mkdir()
        shutil.move(data.files[1], tmp_path / "sub" / "x.pt")
        (tmp_path / "other").symlink_to("sub")
        data.rewrite_entry(1, path="other/x.pt")
    assert FolderStore(tmp_path).read(1, [0])["sequences/item"][0, -1] == 4


def test_a_folder_that_is_itself_a_link_is_read(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [4])
    (tmp_path / "link").symlink_to("data")
    assert FolderStore(tmp_path / "link").read(0, [2])["sequences/item"][0, -1] == 2


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize("name", ["a.pt", "a.npy", "a.safetensors", "a.parquet", "a.arrow"])
def test_a_pipe_as_a_chunk_is_refused_without_waiting(tmp_path: Path, ask: str, name: str) -> None:
    data = write_folder(tmp_path, [4])
    os.mkfifo(tmp_path / name)
    data.rewrite_entry(0, path=name)
    refused(
        lambda: ASK[ask](tmp_path),
        UnsafeDataError,
        tmp_path / name,
        "regular file",
        within=tmp_path,
    )


@pytest.mark.parametrize("ask", ["read", "fingerprint"])
@pytest.mark.parametrize(
    "path",
    [
        pytest.param("0001.pt/x.pt", id="below-a-file"),
        pytest.param("a" * 300 + ".pt", id="long-name"),
        pytest.param("a/" * 2100 + "a.pt", id="long-path"),
        pytest.param("loop.pt", id="loop"),
        pytest.param("a\ud800.pt", id="no-text"),
    ],
)
def test_paths_that_no_file_can_have_are_store_errors(tmp_path: Path, ask: str, path: str) -> None:
    data = write_folder(tmp_path, [4, 4])
    (tmp_path / "loop.pt").symlink_to("loop.pt")
    data.rewrite_entry(0, path=path)
    with pytest.raises(StoreError):
        ASK[ask](tmp_path)


# Very many files.


def write_many_entries(folder: Path, num_files: int) -> None:
    """Write `metadata.json` alone."""
    entries = ",".join(f'{{"path":"{n:07d}.pt","samples":1000}}' for n in range(num_files))
    text = f'{{"total_samples":{1000 * num_files},"batch_files":[{entries}]}}'
    (folder / "metadata.json").write_text(text)


def test_a_million_files_are_opened_without_touching_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_many_entries(tmp_path, 10**6)
    touched: list[str] = []

    def counting(real: Any) -> Any:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            if not isinstance(path, int):
                touched.append(os.fsdecode(path))
            return real(path, *arguments, **options)

        return call

    for module, name in (
        *((os, name) for name in ("stat", "lstat", "open", "scandir", "listdir", "readlink")),
        *((builtins, "open"), (io, "open")),
    ):
        monkeypatch.setattr(module, name, counting(getattr(module, name)))
    store = FolderStore(tmp_path)
    assert store.num_samples == 10**9
    assert store.chunk_sizes.tolist()[::100_000] == [1000] * 10
    assert store.describe_row(999_999, 5).endswith("0999999.pt, row 5")
    monkeypatch.undo()
    assert [path for path in touched if ".pt" in path] == []
    assert str(tmp_path / "metadata.json") in touched


def test_memory_for_many_files_is_bounded(tmp_path: Path) -> None:
    """Less than 1.5 GB for a million; a tenth of them shows it, because tracing is slow."""
    write_many_entries(tmp_path, 10**5)
    with little_memory(150_000_000):
        store = FolderStore(tmp_path)
        assert store.num_samples == 10**8
        assert store.chunk_sizes[-1] == 1000


# Fingerprints.


@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_a_fingerprint_stays_when_the_folder_is_copied_or_touched(
    tmp_path: Path, kind: str
) -> None:
    data = write_folder(tmp_path / "one" / "place", [4, 3, 2, 5, 1], kind)
    store = FolderStore(data.folder)
    fingerprint, parts = store.fingerprint, store.part_digests
    shutil.copytree(data.folder, tmp_path / "other")
    for path in (tmp_path / "other").rglob("*"):
        os.utime(path, (10**9, 10**9))
    other = FolderStore(tmp_path / "other")
    assert (other.fingerprint, other.part_digests) == (fingerprint, parts)
    assert FolderStore(data.folder, columns=["sequence_ids"]).fingerprint == fingerprint
    assert len(parts) == 5
    assert len(set(parts)) == 5


def change_value(data: FolderData) -> None:
    arrays = make_columns(range(4, 8))
    arrays["targets/label"][2, 3] += 1
    write_chunk(data.files[1], arrays)


def replace_file(data: FolderData) -> None:
    write_chunk(data.files[1], make_columns(range(50, 54)))


def change_count(data: FolderData) -> None:
    write_chunk(data.files[1], make_columns(range(4, 9)))
    data.rewrite_entry(1, samples=5)
    data.rewrite(total_samples=13)


def change_name(data: FolderData) -> None:
    new = data.files[1].with_name("renamed" + data.files[1].suffix)
    data.files[1].rename(new)
    data.rewrite_entry(1, path=new.name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [change_value, replace_file, change_count, change_name])
def test_a_fingerprint_changes_with_the_data_and_the_part_is_named(
    tmp_path: Path, kind: str, change: Callable[[FolderData], None]
) -> None:
    data = write_folder(tmp_path, [4, 4, 4], kind)
    before = FolderStore(tmp_path)
    fingerprint, parts = before.fingerprint, before.part_digests
    change(data)
    after = FolderStore(tmp_path)
    assert after.fingerprint != fingerprint
    assert [a != b for a, b in zip(parts, after.part_digests, strict=True)] == [False, True, False]
    assert after.describe_part(1) == str(tmp_path / after.manifest.file(1).path)


@pytest.mark.parametrize("by", ["files", "entries"])
def test_a_fingerprint_changes_when_two_files_are_swapped(tmp_path: Path, by: str) -> None:
    data = write_folder(tmp_path, [4, 4, 4])
    before = FolderStore(tmp_path).fingerprint
    if by == "files":
        data.files[0].rename(tmp_path / "held")
        data.files[1].rename(data.files[0])
        (tmp_path / "held").rename(data.files[1])
    else:
        first, second, third = data.metadata()["batch_files"]
        data.rewrite(batch_files=[second, first, third])
    after = FolderStore(tmp_path)
    assert after.fingerprint != before
    assert after.read(0, [0])["sequences/item"][0, -1] == 4


def test_a_fingerprint_changes_when_a_file_is_added_or_removed(tmp_path: Path) -> None:
    data = write_folder(tmp_path, [4, 4, 4])
    seen = {FolderStore(tmp_path).fingerprint}
    entries = data.metadata()["batch_files"]
    for chosen in (entries[:2], entries[1:], entries[::-1]):
        write_metadata(tmp_path, chosen)
        seen.add(FolderStore(tmp_path).fingerprint)
    assert len(seen) == 4


def test_a_fingerprint_changes_when_a_column_gets_another_name(tmp_path: Path) -> None:
    data = write_folder(tmp_path, [4], "npy")
    before = FolderStore(tmp_path).fingerprint
    (data.files[0] / "sequence_ids.npy").rename(data.files[0] / "sequence_idz.npy")
    assert "sequence_idz" in FolderStore(tmp_path).columns
    assert FolderStore(tmp_path).fingerprint != before


@pytest.mark.parametrize("num_columns", [1, 100])
def test_a_fingerprint_changes_with_one_value_of_a_large_pt_file(
    tmp_path: Path, num_columns: int
) -> None:
    """Only parts of a large file are read; its own checksums, at its end, tell of the rest."""
    tensors = {f"c{n:03d}": torch.arange(200_000 // num_columns) for n in range(num_columns)}
    num_samples = 200_000 // num_columns
    write_metadata(tmp_path, [{"path": "a.pt", "samples": num_samples}])
    seen = set()
    torch.save(tensors, tmp_path / "a.pt")
    seen.add(FolderStore(tmp_path).fingerprint)
    for name in ("c000", sorted(tensors)[num_columns // 2], sorted(tensors)[-1]):
        for row in (num_samples // 3, num_samples // 7):
            tensors[name][row] += 1
            torch.save(tensors, tmp_path / "a.pt")
            seen.add(FolderStore(tmp_path).fingerprint)
    assert len(seen) == 7


@pytest.mark.parametrize("num_files", [256, 257, 700])
def test_the_number_of_parts_is_bounded_and_each_names_its_files(
    tmp_path: Path, num_files: int
) -> None:
    write_chunk(tmp_path / "a.pt", make_columns([1]))
    content = (tmp_path / "a.pt").read_bytes()
    names = [f"{number:04d}.pt" for number in range(num_files)]
    for name in names:
        written(tmp_path / name, content)
    write_metadata(tmp_path, [{"path": name, "samples": 1} for name in names])
    before = FolderStore(tmp_path)
    parts = before.part_digests
    assert len(parts) == 256
    named = [before.describe_part(number) for number in range(256)]
    for changed_file in (0, 1, 255, num_files // 2, num_files - 1):
        write_chunk(tmp_path / names[changed_file], make_columns([2]))
        now = FolderStore(tmp_path).part_digests
        written(tmp_path / names[changed_file], content)
        different = [number for number in range(256) if now[number] != parts[number]]
        assert len(different) == 1
        text = named[different[0]]
        if num_files == 256:
            assert text == str(tmp_path / names[changed_file])
        else:
            ends = [Path(word).name for word in text.split() if word.endswith(".pt")]
            assert min(ends) <= names[changed_file] <= max(ends)
            assert all(str(tmp_path) in word for word in text.split() if word.endswith(".pt"))
    assert FolderStore(tmp_path).fingerprint == before.fingerprint


def test_checksums_in_the_metadata_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    data = write_folder(tmp_path, [4])
    before = FolderStore(tmp_path).fingerprint
    data.rewrite_entry(0, checksum=checksum_of(data.files[0]))
    assert FolderStore(tmp_path).fingerprint != before


def test_a_chunk_number_that_is_none_is_no_good_chunk(tmp_path: Path) -> None:
    write_folder(tmp_path, [4])
    store = FolderStore(tmp_path)
    for number in (1, -1, 10**6):
        with pytest.raises(InvalidValueError):
            store.check_chunk(number)
