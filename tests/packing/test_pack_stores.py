"""`pack` from whatever `feedline.open` opens; and lists on their way to a training loop."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feedline
from cli_runs import run
from feedline.errors import DamagedDataError, InvalidValueError, PackError
from feedline.packing import pack
from feedline.store import Column, Lists
from feedline.store.manifest import ChunkFile, write_manifest
from feedline.store.safetensors_chunk import write_safetensors
from feedline.torch import DataLoader
from foreign import NAMES, data_of, few_of
from pack_data import partial_of, read_tree, run_job
from pack_kinds import expected_of, make_samples, make_source, plain_sample, read_samples

SAMPLES = make_samples(300)
EXPECTED = list(expected_of(SAMPLES))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed folder with columns of every kind."""
    folder = tmp_path_factory.mktemp("packed") / "data"
    pack(SAMPLES, folder, chunk_samples=64)
    return folder


@pytest.mark.parametrize(("format_", "is_path"), [("npy", True), ("parquet", False)])
def test_a_store_is_packed_anew_in_another_format_and_other_chunks(
    tmp_path: Path, packed: Path, format_: str, is_path: bool
) -> None:
    source = packed if is_path else feedline.open(packed)
    result = pack(source, tmp_path / "out", format=format_, chunk_bytes=4000)
    assert result.num_chunks > 5
    assert read_samples(tmp_path / "out") == EXPECTED
    assert feedline.open(tmp_path / "out").columns == feedline.open(packed).columns
    assert feedline.verify(tmp_path / "out").ok


def test_a_store_is_shuffled_and_split_as_its_source_was(tmp_path: Path, packed: Path) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "chunk_samples": 50}
    pack(SAMPLES, tmp_path / "records", **options)
    pack(packed, tmp_path / "store", **options)
    assert read_tree(tmp_path / "store") == read_tree(tmp_path / "records")
    pack(packed, tmp_path / "split", split=0.1, **options)
    parts = [read_samples(tmp_path / "split", split=name) for name in ("train", "validation")]
    assert [len(part) for part in parts] == [270, 30]
    items = sorted(sample["item"] for part in parts for sample in part)
    assert items == list(range(300))


def test_the_mask_comes_with_a_column_of_a_store(tmp_path: Path, packed: Path) -> None:
    pack(packed, tmp_path / "out", columns={"y": "label", "size": "meta/size", "item": "item"})
    found = read_samples(tmp_path / "out")
    wanted = [
        {
            **{"y": sample["label"], "y/is_missing": sample["label/is_missing"]},
            **{"size/width": sample["meta/size/width"], "size/height": sample["meta/size/height"]},
            "item": sample["item"],
        }
        for sample in EXPECTED
    ]
    assert found == wanted
    with pytest.raises(InvalidValueError, match=r"data: has 0 columns named 'none'"):
        pack(packed, tmp_path / "other", columns=["none"])


def test_files_and_views_are_stores_too(tmp_path: Path) -> None:
    bits = np.array([0x3FC0, 0x4000, 0x4040], "<u2")
    arrays = {"x": bits, "y": np.arange(3)}
    write_safetensors(tmp_path / "a.safetensors", arrays, {"x": "bfloat16"})
    pack(tmp_path / "a.safetensors", tmp_path / "out", chunk_samples=2)
    assert feedline.open(tmp_path / "out").columns["x"].type_name == "bfloat16"
    assert feedline.open(tmp_path / "out")[:]["x"].tolist() == [1.5, 2.0, 3.0]
    with pytest.raises(InvalidValueError, match="is bfloat16, which format='npy' cannot hold"):
        pack(tmp_path / "a.safetensors", tmp_path / "other", format="npy")
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    windows = feedline.open(tmp_path / "tokens.bin", window=10)
    pack(windows, tmp_path / "windows")
    (name,) = feedline.open(tmp_path / "windows").columns
    assert feedline.open(tmp_path / "windows")[3][name].tolist() == list(range(30, 40))


@pytest.mark.parametrize("name", few_of(NAMES))
def test_data_of_every_other_format_is_packed(tmp_path: Path, name: str) -> None:
    store = feedline.open(data_of(name))
    # It holds every type.
    pack(data_of(name), tmp_path / "out", chunk_bytes=5_000, format="npy")
    copy = feedline.open(tmp_path / "out")
    assert copy.columns == store.columns
    assert len(copy.chunk_sizes) > 1
    found, wanted = copy[:], store[:]
    for column in store.columns:
        both = found[column], wanted[column]
        np.testing.assert_equal(*(x.tolist() if isinstance(x, Lists) else x for x in both))
    assert feedline.verify(tmp_path / "out").ok


def test_a_store_is_not_packed_onto_itself_and_a_folder_of_splits_needs_one(
    tmp_path: Path, packed: Path
) -> None:
    for source in (packed, feedline.open(packed)):
        with pytest.raises(InvalidValueError, match="must not be in folder"):
            pack(source, packed, overwrite=True)
    pack(packed, tmp_path / "split", split=0.1)
    with pytest.raises(InvalidValueError, match="split='train'"):
        pack(tmp_path / "split", tmp_path / "out")
    pack(tmp_path / "split" / "train", tmp_path / "out")
    assert len(feedline.open(tmp_path / "out")) == 270


def test_pack_and_verify_take_stores_on_the_command_line(tmp_path: Path, packed: Path) -> None:
    done = run("pack", packed, tmp_path / "out", "--format", "npy", "--column", "text", "--shuffle")
    assert (done.returncode, done.stderr) == (0, "")
    assert "text: text" in done.stdout
    texts = sorted(sample["text"] for sample in read_samples(tmp_path / "out"))
    assert texts == sorted(sample["text"] for sample in EXPECTED)
    assert run("verify", tmp_path / "out").returncode == 0


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("num_workers", [0, 3])
def test_every_kind_reaches_a_training_loop_that_resumes_on_other_ranks(
    packed: Path, num_workers: int
) -> None:
    store = feedline.open(packed)
    options: dict[str, Any] = {"shuffle": True, "seed": 1, "num_workers": num_workers}

    def loader(batch_size: int, rank: int, num_ranks: int) -> Any:
        group = {"rank": rank, "num_replicas": num_ranks}
        return DataLoader(store, batch_size=batch_size, lists="list", **options, **group)

    first = loader(20, 0, 1)
    seen = list(itertools.islice(first, 4))
    state = first.state_dict()
    for rank in range(2):
        rest = loader(16, rank, 2)
        rest.load_state_dict(state)
        seen += list(rest)
    found: dict[int, dict[str, Any]] = {}
    for batch in seen:
        for number, item in enumerate(batch["item"].tolist()):
            assert item not in found
            values = {name: column[number] for name, column in batch.items()}
            found[item] = {
                name: value.tolist() if isinstance(value, torch.Tensor) else value
                for name, value in values.items()
            }
    assert sorted(found) == list(range(300))
    for item, sample in found.items():
        wanted = {**EXPECTED[item], "day": EXPECTED[item]["day"].astype(np.int64)}
        assert sample == wanted


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_pack_of_lists_killed_before_every_lasting_change_goes_on(
    tmp_path: Path, shuffle: bool
) -> None:
    source = make_source("parquet", SAMPLES, tmp_path / "source")
    # Chunks are cut by bytes, so that the next one begins where the one before ends.
    options: dict[str, Any] = {"chunk_bytes": 20_000, "shuffle": shuffle, "num_threads": 2}
    pack(source, tmp_path / "whole", **options)
    folder = tmp_path / "killed"
    for crash_at in itertools.count(1, 2):
        code, _, errors = run_job(source, folder, **options, crash_at=crash_at)
        if folder.exists():
            break
        assert code == -signal.SIGKILL, errors
    assert read_tree(folder) == read_tree(tmp_path / "whole")
    if code:
        code, _, errors = run_job(source, folder, **options)
        assert code == 0, errors
    assert not partial_of(folder).exists()
    assert crash_at > 5


def test_chunks_of_lists_that_are_finished_are_not_written_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    records = [{"x": bytes(rng.integers(0, 3000))} for _ in range(4000)]

    def stopped() -> Any:
        yield from records[:3500]
        raise KeyboardInterrupt

    for split in (None, 0.3):
        options: dict[str, Any] = {"chunk_bytes": 70_000, "num_threads": 2, "split": split}
        pack(iter(records), tmp_path / f"whole{split}", **options)
        folder = tmp_path / f"out{split}"
        with pytest.raises(KeyboardInterrupt):
            pack(stopped(), folder, **options)
        # One in the middle was lost, so that there are finished ones on both sides of it.
        data = sorted((partial_of(folder) / "data").rglob("chunk-*"))
        data[len(data) // 3].unlink()
        result = pack(iter(records), folder, **options)
        assert 10 < result.num_resumed_chunks < result.num_chunks
        assert read_tree(folder) == read_tree(tmp_path / f"whole{split}")


def _with(change: Callable[[Any], Any], part: str) -> Callable[[dict[str, Any]], None]:
    def damage(arrays: dict[str, Any]) -> None:
        arrays[f"x/{part}"] = change(arrays[f"x/{part}"])

    return damage


def _set(place: int, value: int) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array = array.copy()
        array[place] = value
        return array

    return change


DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "beyond": (_with(_set(-1, 99), "offsets"), "offsets must be a list of int64 between 0 and 6"),
    "negative": (_with(_set(1, -1), "offsets"), "offsets must be a list of int64 between 0 and 6"),
    "huge": (_with(_set(1, 2**62), "offsets"), "offsets must be a list of int64 between 0 and 6"),
    "descending": (_with(_set(1, 5), "offsets"), "lies outside of its chunk"),
    "type": (_with(lambda a: a.astype(np.int32), "offsets"), "offsets must be a list of int64"),
    "axes": (_with(lambda a: a[:, None], "offsets"), "offsets must be a list of int64"),
    "none": (_with(lambda a: a[:0], "offsets"), "offsets must be a list of int64"),
    "fewer": (_with(lambda a: a[:-1], "offsets"), "has 3 samples, but metadata.json says 4"),
    "short": (_with(lambda a: a[:3], "values"), "between 0 and 3, the number of values"),
    "other": (_with(lambda a: a.astype(np.int64), "values"), "is list of int64 and should be"),
    "gone": (lambda arrays: arrays.pop("x/offsets"), "has no values and offsets of column 'x'"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_lists_that_are_damaged_are_one_clear_error(tmp_path: Path, case: str) -> None:
    damage, text = DAMAGES[case]
    lists = Lists.of([[1, 2, 3], [4], [], [5, 6]], dtype=np.int32)
    arrays: dict[str, Any] = {"x/values": lists.values, "x/offsets": lists.offsets}
    damage(arrays)
    folder = tmp_path / "data"
    folder.mkdir()
    write_safetensors(folder / "a.safetensors", arrays, {})
    column = Column("x", "int32", kind="list", mean_bytes=6)
    write_manifest(folder, [ChunkFile(path="a.safetensors", num_samples=4)], [column])
    with pytest.raises(DamagedDataError, match=text):
        feedline.open(folder)[0]
    (fault,) = feedline.verify(folder).faults
    assert "a.safetensors" in fault.text
    with pytest.raises((DamagedDataError, PackError), match=text):
        pack(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_store_whose_files_change_is_refused(tmp_path: Path, packed: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(packed, folder)
    store = feedline.open(folder)
    _ = store.fingerprint
    pack(SAMPLES[::-1], tmp_path / "other", chunk_samples=64)
    for path in (tmp_path / "other").glob("chunk-*"):
        path.replace(folder / path.name)
    with pytest.raises(DamagedDataError, match="was replaced while it was in use"):
        pack(store, tmp_path / "out")


def test_samples_of_a_packed_folder_equal_those_of_a_loader_without_torch(packed: Path) -> None:
    found = []
    for batch in feedline.DataLoader(feedline.open(packed), batch_size=64):
        for number in range(len(batch["item"])):
            found.append(plain_sample({name: column[number] for name, column in batch.items()}))
    assert found == EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [False, True])
def test_memory_stays_within_the_budget_for_lists(tmp_path: Path, shuffle: bool) -> None:
    rng = np.random.default_rng(0)
    edges = np.concatenate([[0], np.cumsum(rng.integers(0, 1000, 100_000))])
    tokens = Lists(rng.integers(0, 9, edges[-1]).astype(np.int32), edges)
    pack({"x": tokens}, tmp_path / "data")
    budget = 2**24
    options = {"memory_budget": budget, "shuffle": shuffle, "warm_up": True}
    code, output, errors = run_job(tmp_path / "data", tmp_path / "out", **options)
    assert code == 0, errors
    # Beside the budget there are batches of the source, threads and what allocators hold back.
    assert json.loads(output)["grown_bytes"] < budget + 2**25 < tokens.nbytes / 2
