"""`verify` finds every fault of a packed folder, and none where there is none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.errors import DamagedDataError, MissingDataError, UnsafeDataError
from feedline.packing import FORMATS, pack
from feedline.store import VerifyResult, verify
from feedline.store.paths import files_of
from pack_data import list_chunks, make_arrays


def packed(folder: Path, format_: str = "safetensors", **options: Any) -> Path:
    columns = {f"sequences/{name}": name for name in ("item", "steps")}
    options = {"chunk_samples": 10, **options}
    pack(make_arrays(55), folder, format=format_, columns=columns, **options)
    return folder


def faults(result: VerifyResult) -> dict[str, str]:
    assert not result.ok
    found = {
        fault.path.relative_to(result.folder).as_posix(): fault.text for fault in result.faults
    }
    for path, text in found.items():
        assert text.startswith(str(result.folder / path.split("/")[0]))
    return found


def edit_metadata(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "metadata.json"
    metadata = json.loads(path.read_text())
    change(metadata)
    path.write_text(json.dumps(metadata))


def forget_checksums(metadata: dict[str, Any]) -> None:
    for entry in metadata["batch_files"]:
        entry.pop("checksum")
        entry.pop("bytes")


def flip(path: Path, position: int = -100) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("options", [{}, {"split": 0.2}, {"shuffle": True}])
def test_a_folder_as_packed_is_well(tmp_path: Path, format_: str, options: dict[str, Any]) -> None:
    folder = packed(tmp_path / "out", format_, **options)
    result = verify(folder)
    assert result.ok
    assert (result.faults, result.num_unchecked) == ((), 0)
    assert (result.num_samples, result.num_chunks) == (55, 7 if "split" in options else 6)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("num_threads", [1, 4])
def test_all_faults_are_found_at_once(tmp_path: Path, format_: str, num_threads: int) -> None:
    folder = packed(tmp_path / "out", format_)
    chunks = list_chunks(folder)
    shutil.rmtree(chunks[0]) if chunks[0].is_dir() else chunks[0].unlink()
    cut, altered = files_of(chunks[2])[0], files_of(chunks[4])[0]
    cut.write_bytes(cut.read_bytes()[:-7])
    flip(altered)
    (folder / "stray.bin").touch()
    (folder / ".hidden").touch()
    found = faults(verify(folder, num_threads=num_threads))
    assert list(found) == [*(chunks[n].name for n in (0, 2, 4)), "stray.bin"]
    assert "does not exist" in found[chunks[0].name]
    assert "bytes and was written with" in found[chunks[2].name]
    assert "have changed" in found[chunks[4].name]
    assert "not in metadata.json" in found["stray.bin"]


def test_every_single_byte_counts(tmp_path: Path) -> None:
    folder = packed(tmp_path / "out", chunk_samples=100)
    path = list_chunks(folder)[0]
    for position in range(0, path.stat().st_size, 97):
        flip(path, position)
        assert not verify(folder, num_threads=1).ok
        flip(path, position)
    assert verify(folder).ok


@pytest.mark.parametrize("format_", FORMATS)
def test_counts_that_do_not_agree_are_faults(tmp_path: Path, format_: str) -> None:
    folder = packed(tmp_path / "out", format_)

    def miscount(metadata: dict[str, Any]) -> None:
        for number, change in ((1, 1), (3, -1)):
            entry = metadata["batch_files"][number]
            entry["samples"] += change
            if "groups" in entry:
                entry["groups"] = [entry["samples"]]

    edit_metadata(folder, miscount)
    names = [path.name for path in list_chunks(folder)]
    assert list(faults(verify(folder))) == [names[1], names[3]]


def test_columns_that_do_not_agree_are_faults(tmp_path: Path) -> None:
    folder = packed(tmp_path / "out")
    other = tmp_path / "other"
    pack({"sequences/item": np.arange(10.0)}, other)
    shutil.copy(list_chunks(other)[0], list_chunks(folder)[2])
    edit_metadata(folder, forget_checksums)
    assert list(faults(verify(folder))) == ["chunk-000002.safetensors"]


@pytest.mark.parametrize("format_", FORMATS)
def test_chunks_without_checksums_are_counted(tmp_path: Path, format_: str) -> None:
    folder = packed(tmp_path / "out", format_)
    edit_metadata(folder, forget_checksums)
    result = verify(folder)
    assert result.ok
    # A .pt file has checksums of its own.
    assert result.num_unchecked == (0 if format_ == "pt" else 6)


def test_pt_chunks_are_checked_by_their_own_checksums(tmp_path: Path) -> None:
    folder = packed(tmp_path / "out", "pt")
    edit_metadata(folder, forget_checksums)
    path = list_chunks(folder)[3]
    data = path.read_bytes()
    # The values of a column, which nothing else would notice.
    at = data.index(make_arrays(55)["item"][30:40].tobytes())
    flip(path, at + 5)
    assert list(faults(verify(folder))) == [path.name]


def test_a_recorded_size_serves_without_a_checksum(tmp_path: Path) -> None:
    folder = packed(tmp_path / "out", "npy")

    def forget(metadata: dict[str, Any]) -> None:
        for entry in metadata["batch_files"]:
            entry.pop("checksum")

    edit_metadata(folder, forget)
    (folder / "chunk-000001" / "note.txt").write_text("added")
    assert list(faults(verify(folder))) == ["chunk-000001"]


def test_all_splits_are_checked(tmp_path: Path) -> None:
    folder = packed(tmp_path / "out", split=0.2)
    flip(folder / "train" / "chunk-000001.safetensors")
    (folder / "validation" / "chunk-000000.safetensors").unlink()
    (folder / "stray").touch()
    assert list(faults(verify(folder))) == [
        "train/chunk-000001.safetensors",
        "validation/chunk-000000.safetensors",
        "stray",
    ]


def test_metadata_that_is_missing_or_malformed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError):
        verify(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingDataError):
        verify(tmp_path / "empty")
    folder = packed(tmp_path / "out", split=0.2)
    (folder / "validation" / "metadata.json").unlink()
    with pytest.raises(MissingDataError, match="validation"):
        verify(folder)
    (folder / "train" / "metadata.json").write_text("{")
    with pytest.raises(DamagedDataError):
        verify(folder / "train")
    other = packed(tmp_path / "other")
    edit_metadata(other, lambda metadata: metadata["batch_files"][1].update(path="../x"))
    with pytest.raises(UnsafeDataError):
        verify(other)


def test_links_out_of_the_folder_are_faults(tmp_path: Path) -> None:
    folder = packed(tmp_path / "out")
    path = list_chunks(folder)[0]
    path.rename(tmp_path / "elsewhere.safetensors")
    path.symlink_to(tmp_path / "elsewhere.safetensors")
    assert "outside its folder" in faults(verify(folder))[path.name]


def test_progress_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verify(packed(tmp_path / "out"), progress=True)
    output, errors = capsys.readouterr()
    assert output == ""
    assert "verifying" in errors
