"""Packing that is killed, starved or raced: nothing half-done shows, and the same call goes on."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.errors import PackError, StoreError
from feedline.packing import FORMATS, pack
from feedline.packing.arrays import ArraySource
from feedline.store.manifest import read_manifest
from killed_packs import run_trials
from pack_data import (
    list_records,
    make_arrays,
    make_source,
    partial_of,
    read_folder,
    read_tree,
    run_job,
    start_job,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs signals and limits")


def assert_nothing_opens(folder: Path) -> None:
    for path in (folder, partial_of(folder)):
        with pytest.raises(StoreError):
            read_manifest(path)
        for split in ("train", "validation"):
            with pytest.raises(StoreError):
                read_manifest(path / split)


@pytest.mark.parametrize("kind", ["npy", pytest.param("csv", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"format": "safetensors"}, marks=pytest.mark.slow),
        pytest.param({"format": "npy", "split": 0.2}, marks=pytest.mark.slow),
        {"format": "safetensors", "shuffle": True, "split": 0.2},
    ],
    ids=["plain", "split", "shuffle-split"],
)
def test_a_run_killed_at_random_moments_goes_on_to_the_same_bytes(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    source = make_source(kind, {"item": np.arange(120_000)}, tmp_path / "source")
    options = {**options, "chunk_samples": 400, "memory_budget": 2**20}
    pack(source, tmp_path / "whole", **options)
    folder = tmp_path / "killed"
    rng = random.Random(f"{kind}{options}")
    num_kills, longest = 0, 0.25
    while True:
        job = start_job(source, folder, **options)
        delay = rng.uniform(0, longest)
        while not partial_of(folder).exists() and job.poll() is None and not folder.exists():
            time.sleep(0.002)
        if num_kills < 6:
            time.sleep(delay)
            job.send_signal(signal.SIGKILL)
        _, errors = job.communicate(timeout=60)
        if job.returncode != -signal.SIGKILL:
            assert job.returncode == 0, errors
            if num_kills:
                break
            # It was faster than the kill: the next one comes sooner.
            shutil.rmtree(folder)
            longest /= 2
            continue
        num_kills += 1
        if folder.exists():
            break  # Killed after the last rename.
        assert_nothing_opens(folder)
    assert read_tree(folder) == read_tree(tmp_path / "whole")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"chunk_samples": 40_000}, marks=pytest.mark.slow),
        pytest.param({"chunk_samples": 20_000, "split": 0.3}, marks=pytest.mark.slow),
        {"chunk_samples": 40_000, "shuffle": True},
        pytest.param(
            {"chunk_samples": 40_000, "shuffle": True, "memory_budget": 2**20},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"chunk_samples": 30_000, "shuffle": True, "split": 0.3, "format": "npy"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["plain", "split", "shuffle", "shuffle-spills", "shuffle-split"],
)
def test_a_run_killed_before_every_lasting_change_goes_on(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """Every run is killed one change later than the one before, until one gets through."""
    arrays = {"item": np.arange(90_000, dtype=np.int16)}
    source = make_source("npy", arrays, tmp_path / "source")
    pack(source, tmp_path / "whole", **options)
    folder = tmp_path / "killed"
    for crash_at in itertools.count(1):
        code, _, errors = run_job(source, folder, **options, crash_at=crash_at)
        if folder.exists():
            assert code in (0, -signal.SIGKILL), errors
            break
        assert code == -signal.SIGKILL, errors
        assert_nothing_opens(folder)
    assert read_tree(folder) == read_tree(tmp_path / "whole")
    if code == -signal.SIGKILL:
        # What is left to do is to clean up, and the same call does it.
        code, _, errors = run_job(source, folder, **options)
        assert code == 0, errors
    assert not partial_of(folder).exists()
    assert crash_at > 3


def make_trials(folder: Path, *, overwrite: bool, has_exchange: bool) -> list[dict[str, Any]]:
    """Kill packs before each change from publishing on."""
    source = make_source("npy", {"item": np.arange(900)}, folder / "source")
    options = {"chunk_samples": 300, "shuffle": True}
    pack(source, folder / "whole", **options)
    if overwrite:
        pack({"item": np.arange(5)}, folder / "before")
    (folder / "parent").mkdir()
    return run_trials(
        source=source,
        folder=folder / "parent" / "out",
        is_anndata=False,
        options={**options, "overwrite": overwrite},
        before=folder / "before" if overwrite else None,
        whole=folder / "whole",
        has_exchange=has_exchange,
    )


@pytest.mark.slow
def test_a_run_killed_anywhere_from_publishing_on_is_done_when_called_again(
    tmp_path: Path,
) -> None:
    trials = make_trials(tmp_path, overwrite=False, has_exchange=True)
    *killed, last = trials
    assert (last["killed"], last["found"], last["left"]) == (False, "whole", [])
    for trial in killed:
        assert trial["then"] == "3 of 3", "the next call says that it is done"
        assert (trial["found_then"], trial["left"]) == ("whole", [])
    places = [trial["found"] for trial in killed]
    assert places == sorted(places), "there is nothing, and then all of it"
    assert places.count("whole") >= 5


@pytest.mark.parametrize("has_exchange", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_replacement_is_killed_anywhere_and_old_or_new_is_in_its_place(
    tmp_path: Path, has_exchange: bool
) -> None:
    *killed, last = make_trials(tmp_path, overwrite=True, has_exchange=has_exchange)
    assert (last["killed"], last["found"], last["left"]) == (False, "whole", [])
    for trial in killed:
        assert trial["then"] == "3 of 3"
        assert (trial["found_then"], trial["left"]) == ("whole", [])
    places = [trial["found"] for trial in killed]
    # Without an exchange there is one moment when the old is away: the next call puts it back.
    assert places.count("nothing") == (0 if has_exchange else 1)
    assert {place for place in places if place != "nothing"} == {"before", "whole"}


def test_leftovers_of_a_complete_run_do_not_hinder_another(tmp_path: Path) -> None:
    source = make_source("npy", {"item": np.arange(900)}, tmp_path / "source")
    folder = tmp_path / "out"
    options: dict[str, Any] = {"chunk_samples": 300}
    pack(source, folder, **options)
    first = read_tree(folder)
    done = folder.with_name("out.partial.done")
    header = {"format": "feedline.pack", "version": 3, "parameters": {"seed": 5}}
    sealed = {"sealed": {"inode": folder.stat().st_ino}}
    for overwrite in (False, True):
        done.write_text(json.dumps(header) + "\n" + json.dumps(sealed) + "\n")
        if overwrite:
            pack(source, folder, chunk_samples=299, overwrite=True)
            assert read_tree(folder) != first
        else:
            with pytest.raises(PackError, match="already exists"):
                pack(source, folder, chunk_samples=299)
            assert read_tree(folder) == first
        assert sorted(os.listdir(tmp_path)) == ["out", "source"]


def test_a_file_of_someone_else_is_not_taken_for_a_journal(tmp_path: Path) -> None:
    done = tmp_path / "out.partial.done"
    done.write_text("notes\n")
    with pytest.raises(PackError, match=r"out\.partial\.done: was not written by packing"):
        pack({"x": np.arange(3)}, tmp_path / "out")
    assert done.read_text() == "notes\n"
    assert os.listdir(tmp_path) == ["out.partial.done"]


def test_finished_chunks_are_not_written_again(tmp_path: Path) -> None:
    source = "records:8000"
    folder = tmp_path / "out"
    options = {"chunk_samples": 50, "format": "npy"}
    job = start_job(source, folder, **options, pause=0.0005)
    data = partial_of(folder) / "data"
    journal = partial_of(folder) / "journal.jsonl"
    while not (journal.exists() and journal.read_text().count('"chunk"') > 20):
        assert job.poll() is None, job.communicate()
        time.sleep(0.01)
    job.kill()
    job.communicate()
    done = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    times = {entry["path"]: (data / entry["path"]).stat().st_mtime_ns for entry in done}
    code, output, errors = run_job(source, folder, **options)
    assert code == 0, errors
    assert json.loads(output)["num_resumed"] >= len(done)
    assert {path: (folder / path).stat().st_mtime_ns for path in times} == times
    assert read_folder(folder)["item"].tolist() == list(range(8000))


def test_a_lost_or_cut_chunk_is_written_again(tmp_path: Path) -> None:
    arrays = make_arrays(5000)
    pack(list_records(arrays), tmp_path / "whole", chunk_samples=100)
    interrupt(list_records(arrays), tmp_path / "out", at=4900, chunk_samples=100)
    data = partial_of(tmp_path / "out") / "data"
    first, second = sorted(data.iterdir())[:2]
    first.unlink()
    os.truncate(second, 10)
    (data / "stray").write_text("left by a dying process")
    pack(list_records(arrays), tmp_path / "out", chunk_samples=100)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "whole")


def interrupt(records: Iterator[dict[str, Any]], folder: Path, *, at: int, **options: Any) -> None:
    """Pack until a key is pressed."""

    def stopped() -> Iterator[dict[str, Any]]:
        yield from itertools.islice(records, at)
        time.sleep(0.3)  # Longer than chunks wait to be entered in the journal together.
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(stopped(), folder, **options)


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_interrupted_run_goes_on(tmp_path: Path, shuffle: bool) -> None:
    arrays = make_arrays(5000)
    options = {"chunk_samples": 100, "shuffle": shuffle, "memory_budget": 2**20, "split": 0.1}
    pack(list_records(arrays), tmp_path / "whole", **options)
    interrupt(list_records(arrays), tmp_path / "out", at=4100, **options)
    assert_nothing_opens(tmp_path / "out")
    # Neither threads nor memory are part of what is packed.
    options |= {"num_threads": 1, "memory_budget": 2**22}
    result = pack(list_records(arrays), tmp_path / "out", **options)
    assert shuffle or result.num_resumed_chunks > 20
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "whole")


def test_dealing_goes_on_from_the_journaled_row(tmp_path: Path) -> None:
    arrays = {"item": np.arange(10_000), "wide": np.ones((10_000, 64))}
    options = {"chunk_samples": 200, "shuffle": True, "memory_budget": 2**20, "split": 0.1}
    pack(arrays, tmp_path / "whole", **options)
    for at in (5500, 9500):
        interrupt(list_records(arrays), tmp_path / "out", at=at, **options)
        lines = (partial_of(tmp_path / "out") / "journal.jsonl").read_text().splitlines()
        last = json.loads(lines[-1])
        assert not last["is_all"]
        assert 0 < last["dealt"] < at
        # There is more in the spills than the journal tells, so they must be cut back.
        spills = list((partial_of(tmp_path / "out") / "spills").iterdir())
        num_rows = sum(path.stat().st_size for path in spills) // (8 + 8 + 64 * 8)
        assert num_rows > last["dealt"] == sum(spill[3] for spill in last["spills"])
    pack(list_records(arrays), tmp_path / "out", **options)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"chunk_samples": 99}, "chunk_samples=100, now 99"),
        ({"format": "npy"}, "format='safetensors', now 'npy'"),
        ({"shuffle": True}, "shuffle=False, now True"),
        ({"seed": 8}, "seed=0, now 8"),
        ({"split": 0.5}, "split={}, now"),
        ({"columns": ["item"]}, "columns="),
    ],
)
def test_other_parameters_are_refused_unless_started_over(
    tmp_path: Path, change: dict[str, Any], text: str
) -> None:
    arrays = make_arrays(3000)
    options: dict[str, Any] = {"chunk_samples": 100}
    interrupt(list_records(arrays), tmp_path / "out", at=2500, **options)
    options |= change
    with pytest.raises(PackError) as caught:
        pack(list_records(arrays), tmp_path / "out", **options)
    assert text in str(caught.value)
    assert "resume=False" in str(caught.value)
    pack(list_records(arrays), tmp_path / "out", **options, resume=False)
    pack(list_records(arrays), tmp_path / "whole", **options)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "whole")


def test_a_changed_source_is_refused(tmp_path: Path) -> None:
    source = make_source("jsonl", make_arrays(2000), tmp_path / "source")
    options = {"chunk_samples": 100, "max_file_bytes": 3000}
    code, _, _ = run_job(source, tmp_path / "out", **options)
    assert code == 1
    with open(source, "a") as file:
        file.write(source.read_text().splitlines()[0] + "\n")
    with pytest.raises(PackError, match=r"data\.jsonl has changed since"):
        pack(source, tmp_path / "out", chunk_samples=100)
    records = make_arrays(3000)
    interrupt(list_records(records), tmp_path / "records", at=2500, chunk_samples=100)
    records["item"][5] += 1
    with pytest.raises(PackError, match="source of kind 'records', now another 'records'"):
        pack(list_records(records), tmp_path / "records", chunk_samples=100)


def test_arrays_of_which_any_value_has_changed_are_refused(tmp_path: Path) -> None:
    numbers = np.arange(30_000)
    texts = [f"text {number}" for number in numbers]
    source = ArraySource({"x": numbers, "t": texts}, None)
    for place in (1, 9_999, 29_998):
        other = ArraySource({"x": np.where(numbers == place, 7, numbers), "t": texts}, None)
        assert other.identity != source.identity
        changed = [*texts[:place], texts[place].upper(), *texts[place + 1 :]]
        assert ArraySource({"x": numbers, "t": changed}, None).identity != source.identity
    assert ArraySource({"x": numbers.copy(), "t": texts}, None).identity == source.identity


@pytest.mark.parametrize(
    ("format_", "shuffle"),
    [*((format_, False) for format_ in FORMATS), ("safetensors", True)],
)
def test_a_file_that_cannot_grow_stops_packing_and_it_goes_on_later(
    tmp_path: Path, format_: str, shuffle: bool
) -> None:
    arrays = {"sequences/x": np.random.default_rng(0).random((2000, 8))}
    source = make_source("parquet", {"x": arrays["sequences/x"]}, tmp_path / "source")
    options: dict[str, Any] = {
        "format": format_,
        "shuffle": shuffle,
        "columns": {"sequences/x": "x"},
        "chunk_samples": 1000,
        "num_threads": 2,
    }
    folder = tmp_path / "out"
    code, _, errors = run_job(source, folder, **options, max_file_bytes=30_000)
    assert code == 1
    assert "PackError" in errors
    assert "File too large" in errors
    assert "pack again to resume" in errors
    assert_nothing_opens(folder)
    pack(source, folder, **options)
    pack(source, tmp_path / "whole", **options)
    assert read_tree(folder) == read_tree(tmp_path / "whole")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB, where mounting one is permitted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_full_disk_stops_packing_and_it_goes_on_when_there_is_space(
    tmp_path: Path, small_disk: Path, shuffle: bool
) -> None:
    source = {"x": np.arange(100_000)}
    options: dict[str, Any] = {"chunk_samples": 10_000, "shuffle": shuffle}
    hog = small_disk / "hog"
    hog.write_bytes(bytes(15 * 2**18))
    with pytest.raises(PackError, match="No space left on device") as caught:
        pack(source, small_disk / "out", **options)
    assert str(small_disk / "out.partial") in str(caught.value)
    assert_nothing_opens(small_disk / "out")
    hog.unlink()
    pack(source, small_disk / "out", **options)
    pack(source, tmp_path / "whole", **options)
    assert read_tree(small_disk / "out") == read_tree(tmp_path / "whole")


def test_a_second_packer_is_refused_while_the_first_is_at_work(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    job = start_job("records:2500", folder, pause=0.0005, chunk_samples=100)
    journal = partial_of(folder) / "journal.jsonl"
    while not journal.exists():
        assert job.poll() is None, job.communicate()
        time.sleep(0.005)
    for resume in (True, False):
        with pytest.raises(PackError, match="another process is packing"):
            pack({"x": np.arange(3)}, folder, resume=resume)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == 0, errors
    assert read_folder(folder)["item"].tolist() == list(range(2500))


def test_many_packers_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    source = make_source("npy", {"item": np.arange(20_000)}, tmp_path / "source")
    jobs = [start_job(source, tmp_path / "out", chunk_samples=500) for _ in range(5)]
    errors = [job.communicate(timeout=60)[1] for job in jobs]
    assert 0 in [job.returncode for job in jobs], errors
    for job, text in zip(jobs, errors, strict=True):
        assert job.returncode == 0 or "another process" in text or "overwrite=True" in text
    assert read_folder(tmp_path / "out")["item"].tolist() == list(range(20_000))
    assert not partial_of(tmp_path / "out").exists()


def test_a_partial_folder_of_someone_else_is_not_touched(tmp_path: Path) -> None:
    partial = partial_of(tmp_path / "out")
    partial.mkdir()
    (partial / "thesis.tex").touch()
    with pytest.raises(PackError, match=r"thesis\.tex"):
        pack({"x": np.arange(3)}, tmp_path / "out", resume=False)
    assert (partial / "thesis.tex").exists()


@pytest.mark.parametrize("shuffle", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("kind", ["npy", pytest.param("parquet", marks=pytest.mark.slow)])
def test_memory_stays_within_the_budget(tmp_path: Path, kind: str, shuffle: bool) -> None:
    num_rows, budget = 200_000 if kind == "parquet" else 120_000, 2**24
    arrays = {"x": np.random.default_rng(0).integers(0, 9, (num_rows, 128))}
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet

        lists = pa.FixedSizeListArray.from_arrays(pa.array(arrays["x"].reshape(-1)), 128)
        source = tmp_path / "a.parquet"
        pyarrow.parquet.write_table(pa.table({"x": lists}), source, row_group_size=20_000)
    else:
        source = make_source(kind, arrays, tmp_path / "source")
    options = {"memory_budget": budget, "shuffle": shuffle, "warm_up": True}
    code, output, errors = run_job(source, tmp_path / "out", **options)
    assert code == 0, errors
    # Beside the budget there are batches of the source, threads and what allocators hold back:
    # pyarrow's, several dozen MiB, whatever the size of the data.
    reserve = 5 * 2**24 if kind == "parquet" else 2**25
    assert json.loads(output)["grown_bytes"] < budget + reserve < arrays["x"].nbytes / 2


def test_a_run_begun_by_another_release_is_refused_and_can_be_started_over(tmp_path: Path) -> None:
    folder = partial_of(tmp_path / "out")
    folder.mkdir()
    # As a run of an earlier release leaves it: chunks and spills of that release, half-done.
    header = {"format": "feedline.pack", "version": 1, "parameters": {"format": "npy"}}
    dealt = {"dealt": 2, "is_all": True, "spills": [[2]]}
    journal = "".join(json.dumps(entry) + "\n" for entry in (header, dealt))
    (folder / "journal.jsonl").write_text(journal)
    (folder / "spills").mkdir()
    (folder / "spills" / "0-1-0.rows").write_bytes(bytes(32))
    before = read_tree(folder)
    source = {"item": np.arange(9)}
    with pytest.raises(PackError, match=r"another release.*version 1, not 3.*resume=False"):
        pack(source, tmp_path / "out", shuffle=True)
    assert {name: data for name, data in read_tree(folder).items() if name != "lock"} == before
    pack(source, tmp_path / "out", shuffle=True, resume=False)
    pack(source, tmp_path / "plain", shuffle=True)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "plain")


@pytest.mark.parametrize("kind", ["file", "link", "no-permission"])
def test_a_folder_whose_parent_cannot_be_made_is_refused(tmp_path: Path, kind: str) -> None:
    parent = tmp_path / "parent"
    if kind == "file":
        parent.write_text("")
    elif kind == "link":
        parent.symlink_to(tmp_path / "nowhere")
    else:
        # Nobody can make folders there, not even root.
        parent = Path("/proc/nowhere")
    code = f"from feedline.packing import pack\npack({{'item': [1, 2]}}, {str(parent / 'out')!r})"
    # In a process of its own: it must come to an end.
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 1
    assert f"PackError: {parent}: cannot be written" in result.stderr
    assert "choose a folder that can be created and written" in result.stderr
    assert not (tmp_path / "out.partial").exists()
