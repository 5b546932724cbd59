"""A Ray cluster finds the faults that one machine finds, and builds the indexes that it builds."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import FeedlineError, InvalidValueError
from feedline.packing import build_index
from feedline.store.paths import files_of
from pack_data import make_arrays, read_tree
from processes import python

pytestmark = pytest.mark.usefixtures("cluster")


def said(call: Any, *arguments: Any, **options: Any) -> Any:
    """Return what a function returns, or the kind and the text of its error."""
    try:
        return call(*arguments, **options)
    except FeedlineError as error:
        return type(error), str(error)


@pytest.mark.parametrize("options", [{}, {"split": 0.3, "format": "npy"}], ids=["whole", "splits"])
def test_verify_finds_the_same_faults_in_the_same_order(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    folder = tmp_path / "data"
    feedline.pack(make_arrays(3000), folder, chunk_samples=50, **options)
    assert feedline.verify(folder, engine="ray") == feedline.verify(folder)
    for number, path in enumerate(sorted(folder.rglob("chunk-*[0-9]*"), reverse=True)[::9]):
        file = files_of(path)[0]
        file.unlink() if number % 2 else file.write_bytes(b"altered" * number)
    (folder / "stray.bin").touch()
    here = feedline.verify(folder)
    assert len(here.faults) > 6
    assert feedline.verify(folder, engine="ray") == here
    assert feedline.verify(folder, engine="ray", num_threads=1) == here


def test_verify_raises_the_same_errors(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    feedline.pack({"x": np.arange(90)}, folder, chunk_samples=10)
    path = folder / "metadata.json"
    metadata = json.loads(path.read_text())
    metadata["batch_files"][4]["samples"] = "many"
    path.write_text(json.dumps(metadata))
    for broken in (folder, tmp_path / "nowhere"):
        here = said(feedline.verify, broken)
        assert isinstance(here, tuple)
        assert said(feedline.verify, broken, engine="ray") == here
    with pytest.raises(InvalidValueError, match="engine='spark' must be"):
        feedline.verify(folder, engine="spark")


def test_relative_folders_are_those_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    feedline.pack({"x": np.arange(90)}, "data", chunk_samples=10)
    assert feedline.verify("data", engine="ray") == feedline.verify("data")


def write_shards(folder: Path, num_shards: int = 7) -> Path:
    folder.mkdir(parents=True)
    for shard in range(num_shards):
        with tarfile.open(folder / f"{shard:03}.tar", "w") as file:
            for sample in range(20 + shard):
                for ending, text in (("txt", f"{shard} {sample}"), ("cls", f"{sample % 9}")):
                    member = tarfile.TarInfo(f"{shard}-{sample}.{ending}")
                    member.size = len(text)
                    file.addfile(member, io.BytesIO(text.encode()))
    return folder


def test_indexes_are_the_same_and_are_built_once(tmp_path: Path) -> None:
    here = write_shards(tmp_path / "here")
    build_index(here / "002.tar")
    # With the times of the files, which count.
    there = Path(shutil.copytree(here, tmp_path / "there"))
    found = build_index(here), build_index(there, engine="ray")
    assert found[0] == found[1]
    assert found[0].num_built == 6
    assert read_tree(there) == read_tree(here)
    assert build_index(there, engine="ray").num_built == 0
    assert feedline.open(there)[-1] == feedline.open(here)[-1]


def test_a_damaged_shard_is_the_first_error_and_what_was_built_before_is_kept(
    tmp_path: Path,
) -> None:
    folder = write_shards(tmp_path / "data")
    for number in (3, 5):
        path = folder / f"{number:03}.tar"
        data = bytearray(path.read_bytes())
        data[1024:1100] = bytes(76)[:-1] + b"x"
        path.write_bytes(data)
    there = said(build_index, folder, engine="ray")
    num_kept = len(list((folder / ".feedline-index").iterdir()))
    shutil.rmtree(folder / ".feedline-index")
    assert said(build_index, folder) == there
    assert "003.tar" in there[1]
    assert num_kept == len(list((folder / ".feedline-index").iterdir())) == 3


def test_ray_prints_nothing_beside_the_error_of_a_faulty_source(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"x": 1}\n' * 900_000 + '{"x": "text"}\n' + '{"x": 1}\n' * 900_000)
    for shuffle in (False, True):
        told = {"source": str(source), "folder": str(tmp_path / "out"), "engine": "ray"}
        with python("pack_data.py", json.dumps({**told, "shuffle": shuffle})) as job:
            said, _ = job.communicate(timeout=120)
        assert job.returncode
        assert "SourceFault" in said
        assert "Unhandled error" not in said
