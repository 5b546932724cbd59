"""Folders of chunks: every row that is asked for comes back, whatever kind of file holds it."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from feedline.errors import DamagedDataError, InvalidValueError
from feedline.store import FolderStore, Store
from feedline.store.chunk import OpenChunk, OpenChunks
from folder_data import (
    GROUP_SIZE,
    KINDS,
    NAMES,
    NUM_STEPS,
    Arrays,
    FolderData,
    make_columns,
    member_spans,
    same_columns,
    write_chunk,
    write_folder,
    write_metadata,
)
from forked import forked_run
from refusals import refusal

pytest.importorskip("torch")
pytest.importorskip("pyarrow")
pytest.importorskip("safetensors")

SIZES = (7, 4, 9, 1, 5)
ALL_KINDS = (*KINDS, "mixed")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FolderData]:
    """A folder of every kind; nothing changes them."""
    root = tmp_path_factory.mktemp("folders")
    return {kind: write_folder(root / kind, SIZES, kind) for kind in ALL_KINDS}


def rows_of(chunk: Arrays, rows: Any) -> Arrays:
    return {name: array[np.asarray(rows, dtype=np.int64)] for name, array in chunk.items()}


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_sizes_and_columns_are_those_of_the_files(
    folders: dict[str, FolderData], kind: str
) -> None:
    data = folders[kind]
    store: Store = FolderStore(data.folder)
    assert store.num_samples == sum(SIZES)
    assert store.chunk_sizes.tolist() == data.sizes
    assert store.chunk_sizes.dtype == np.int64
    expected = make_columns([0])
    assert set(store.columns) == set(NAMES)
    for name, column in store.columns.items():
        assert column.name == name
        assert column.dtype == expected[name].dtype
        assert column.shape == expected[name].shape[1:]


def test_row_groups_and_record_batches_are_chunks(folders: dict[str, FolderData]) -> None:
    for kind in ("parquet", "arrow"):
        sizes = FolderStore(folders[kind].folder).chunk_sizes.tolist()
        assert sizes == [3, 3, 1, 3, 1, 3, 3, 3, 1, 3, 2]
    assert FolderStore(folders["mixed"].folder).chunk_sizes.tolist() == [7, 4, 9, 1, 3, 2]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_whole_chunks_are_those_that_were_written(
    folders: dict[str, FolderData], kind: str
) -> None:
    data = folders[kind]
    store = FolderStore(data.folder)
    ids = []
    for number, chunk in enumerate(data.chunks):
        found = store.read(number, np.arange(len(chunk["sequence_ids"])))
        same_columns(found, chunk)
        ids += found["sequences/item"][:, -1].tolist()
    assert ids == list(range(sum(SIZES)))


@pytest.mark.parametrize("kind", ALL_KINDS)
@given(data=st.data())
def test_any_rows_in_any_order_are_those_that_were_written(
    folders: dict[str, FolderData], kind: str, data: st.DataObject
) -> None:
    folder = folders[kind]
    store = FolderStore(folder.folder)
    for _ in range(3):
        number = data.draw(st.integers(0, len(folder.chunks) - 1))
        rows = data.draw(st.lists(st.integers(0, folder.sizes[number] - 1), max_size=12))
        as_type = data.draw(st.sampled_from([list, tuple, np.array, "int32", "uint64", "int64"]))
        given_rows = np.array(rows, dtype=as_type) if isinstance(as_type, str) else as_type(rows)
        same_columns(store.read(number, given_rows), rows_of(folder.chunks[number], rows))


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_what_is_read_is_the_callers_own(folders: dict[str, FolderData], kind: str) -> None:
    store = FolderStore(folders[kind].folder)
    for array in store.read(0, [0, 1]).values():
        array[...] = 99
    same_columns(store.read(0, [0, 1]), rows_of(folders[kind].chunks[0], [0, 1]))


def test_sizes_that_were_asked_for_cannot_change_the_store(tmp_path: Path) -> None:
    data = write_folder(tmp_path, SIZES)
    store = FolderStore(data.folder)
    with contextlib.suppress(ValueError):
        store.chunk_sizes[0] = 1000
    assert (store.num_samples, store.chunk_sizes.tolist()) == (sum(SIZES), list(SIZES))


# `out`.


def blank_out(store: FolderStore, num_rows: int) -> Arrays:
    return {
        name: np.full((num_rows, *column.shape), 77, column.dtype)
        for name, column in store.columns.items()
    }


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_out_is_filled_in_place(folders: dict[str, FolderData], kind: str) -> None:
    store = FolderStore(folders[kind].folder)
    out = blank_out(store, 4)
    held = dict(out)
    found = store.read(0, [2, 0, 2, 1], out)
    assert found is out
    assert all(found[name] is held[name] for name in held)
    same_columns(out, rows_of(folders[kind].chunks[0], [2, 0, 2, 1]))


def test_out_may_be_a_part_of_a_larger_array(folders: dict[str, FolderData]) -> None:
    store = FolderStore(folders["pt"].folder)
    whole = blank_out(store, 6)
    store.read(0, [3, 1], {name: array[2:4] for name, array in whole.items()})
    for name, array in whole.items():
        assert np.array_equal(array[2:4], folders["pt"].chunks[0][name][[3, 1]])
        assert np.all(array[[0, 1, 4, 5]] == 77)


def spoil(out: Arrays, how: str) -> None:
    item = out["sequences/item"]
    replaced = {
        "short": item[:-1],
        "long": np.concatenate([item, item]),
        "narrow": np.ascontiguousarray(item[:, 1:]),
        "flat": item.reshape(-1),
        "dtype": item.astype(np.int32),
        "signs": item.astype(np.uint64),
        "byte-order": item.astype(">i8"),
        "fortran": np.asfortranarray(item),
        "steps": np.zeros((4, len(item), NUM_STEPS), item.dtype)[0, ::1][:, ::-1],
    }
    if how == "missing":
        del out["sequences/item"]
    elif how == "frozen":
        item.flags.writeable = False
    else:
        out["sequences/item"] = replaced[how]


@pytest.mark.parametrize(
    "how",
    [
        *("short", "long", "narrow", "flat", "dtype", "signs", "byte-order", "fortran", "steps"),
        *("missing", "frozen"),
    ],
)
def test_a_wrong_out_is_refused_before_anything_is_written(
    folders: dict[str, FolderData], how: str
) -> None:
    store = FolderStore(folders["pt"].folder)
    out = blank_out(store, 3)
    spoil(out, how)
    before = {name: array.copy() for name, array in out.items()}
    assert "sequences/item" in refusal(lambda: store.read(0, [0, 1, 2], out))
    for name, array in before.items():
        assert np.array_equal(out[name], array)


# Rows that are none.


@pytest.mark.parametrize("kind", ["pt", "parquet"])
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([SIZES[0]], id="beyond"),
        pytest.param([0, 1, 10**12], id="far-beyond"),
        pytest.param([-1], id="negative"),
        pytest.param([0, -(2**63)], id="very-negative"),
        pytest.param(np.array([2**64 - 1], np.uint64), id="unsigned"),
    ],
)
def test_rows_out_of_range_are_refused_with_the_range_and_the_file(
    folders: dict[str, FolderData], kind: str, rows: Any
) -> None:
    store = FolderStore(folders[kind].folder)
    message = refusal(lambda: store.read(0, rows))
    assert f"[0, {store.chunk_sizes[0]})" in message
    assert str(folders[kind].files[0]) in message


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([0.0], id="float"),
        pytest.param(np.array([1.5]), id="half"),
        pytest.param([True, False], id="bools"),
        pytest.param(["0"], id="text"),
        pytest.param("0", id="string"),
        pytest.param(None, id="none"),
        pytest.param(0, id="number"),
        pytest.param([[0, 1]], id="nested"),
        pytest.param([2**70], id="huge"),
        pytest.param([None], id="none-inside"),
        pytest.param(slice(0, 2), id="slice"),
        pytest.param([[0], [1, 2]], id="ragged"),
    ],
)
def test_rows_that_are_no_integers_are_refused(folders: dict[str, FolderData], rows: Any) -> None:
    store = FolderStore(folders["pt"].folder)
    assert "rows" in refusal(lambda: store.read(0, rows))


@pytest.mark.parametrize("chunk", [-1, len(SIZES), 2**70, 0.0, True, None, "0"])
def test_chunks_that_are_none_are_refused(folders: dict[str, FolderData], chunk: Any) -> None:
    store = FolderStore(folders["pt"].folder)
    assert f"in [0, {len(SIZES) - 1}]" in refusal(lambda: store.read(chunk, [0]))


# Columns.


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize(
    "names", [["sequences/item"], ["start_positions", "targets/label"], list(reversed(NAMES))]
)
def test_chosen_columns_come_alone_and_in_that_order(
    folders: dict[str, FolderData], kind: str, names: list[str]
) -> None:
    data = folders[kind]
    for store in (
        FolderStore(data.folder, columns=names),
        FolderStore(data.folder, columns=iter(names)),
        FolderStore(data.folder).select(names),
    ):
        assert list(store.columns) == names
        for number, chunk in enumerate(data.chunks):
            found = store.read(number, [0])
            assert list(found) == names
            same_columns(found, {name: chunk[name][:1] for name in names})


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_an_unknown_column_is_refused_with_those_that_there_are(
    folders: dict[str, FolderData], kind: str
) -> None:
    folder = folders[kind].folder
    for ask in (
        lambda: FolderStore(folder, columns=["sequence_ids", "nothing"]).columns,
        lambda: FolderStore(folder, columns=["sequence_ids", "nothing"]).read(0, [0]),
        lambda: FolderStore(folder).select(["nothing"]).columns,
    ):
        message = refusal(ask)
        assert "nothing" in message
        assert "start_positions" in message
        assert str(folder) in message


@pytest.mark.parametrize("columns", ["sequence_ids", 5, b"sequence_ids"])
def test_columns_that_are_no_list_are_refused(folders: dict[str, FolderData], columns: Any) -> None:
    folder = folders["pt"].folder
    assert "columns" in refusal(lambda: FolderStore(folder, columns=columns))
    assert "columns" in refusal(lambda: FolderStore(folder).select(columns))


@pytest.mark.parametrize("kind", ["pt", "parquet"])
def test_selecting_leaves_the_store_as_it_was(folders: dict[str, FolderData], kind: str) -> None:
    data = folders[kind]
    store = FolderStore(data.folder)
    same_columns(store.read(0, [0]), rows_of(data.chunks[0], [0]))
    fewer = store.select(["sequence_ids"])
    assert list(fewer.read(0, [1])) == ["sequence_ids"]
    assert set(store.columns) == set(NAMES)
    same_columns(store.read(0, [1]), rows_of(data.chunks[0], [1]))
    fewer.close()
    same_columns(store.read(1, [0]), rows_of(data.chunks[1], [0]))


def test_selecting_keeps_the_other_choices(folders: dict[str, FolderData]) -> None:
    store = FolderStore(folders["pt"].folder, last_steps=2).select(["sequences/item"])
    item = folders["pt"].chunks[0]["sequences/item"]
    assert np.array_equal(store.read(0, [1])["sequences/item"], item[1:2, -2:])


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("last_steps", [1, 3, NUM_STEPS, NUM_STEPS + 1, 10**6])
def test_only_the_last_steps_are_read_and_at_most_those_that_there_are(
    folders: dict[str, FolderData], kind: str, last_steps: int
) -> None:
    data = folders[kind]
    store = FolderStore(data.folder, last_steps=last_steps)
    assert store.columns["sequences/item"].shape == (min(last_steps, NUM_STEPS),)
    assert store.columns["sequence_ids"].shape == ()
    for number, chunk in enumerate(data.chunks):
        rows = [len(chunk["sequence_ids"]) - 1, 0]
        expected = {
            name: array[rows] if array.ndim == 1 else array[rows][:, -last_steps:]
            for name, array in chunk.items()
        }
        same_columns(store.read(number, rows), expected)


def test_last_steps_are_steps_and_not_what_a_step_holds(tmp_path: Path) -> None:
    array = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    write_chunk(tmp_path / "a", {"x": array})
    write_metadata(tmp_path, [{"path": "a", "samples": 2}])
    store = FolderStore(tmp_path, last_steps=2)
    assert store.columns["x"].shape == (2, 4)
    assert np.array_equal(store.read(0, [1, 0])["x"], array[[1, 0], 1:])


@pytest.mark.parametrize("last_steps", [0, -1, 1.0, True, "1"])
def test_wrong_last_steps_are_refused(folders: dict[str, FolderData], last_steps: Any) -> None:
    folder = folders["pt"].folder
    assert "last_steps" in refusal(lambda: FolderStore(folder, last_steps=last_steps))


def test_rows_are_described_by_file_group_and_row(folders: dict[str, FolderData]) -> None:
    data = folders["mixed"]
    store = FolderStore(data.folder)
    assert store.describe_row(1, 3) == f"{data.folder}/0001, row 3"
    assert store.describe_row(4, 2) == f"{data.folder}/0004.arrow, group 0, row 2"
    assert store.describe_row(5, 1) == f"{data.folder}/0004.arrow, group 1, row 1"
    assert store.describe_row(0, 6) == f"{data.folder}/0000.pt, row 6"


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_prefetching_changes_nothing(folders: dict[str, FolderData], kind: str) -> None:
    data = folders[kind]
    store = FolderStore(data.folder)
    for number in range(len(data.chunks)):
        store.prefetch(number)
        same_columns(store.read(number, [0]), rows_of(data.chunks[number], [0]))


# One store in several places.


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("clone", [lambda s: pickle.loads(pickle.dumps(s)), copy.copy])
def test_a_copy_reads_the_same(folders: dict[str, FolderData], kind: str, clone: Any) -> None:
    data = folders[kind]
    store = FolderStore(data.folder, columns=["sequence_ids", "sequences/item"], last_steps=2)
    for was_read in (False, True):
        other = clone(store)
        assert list(other.columns) == ["sequence_ids", "sequences/item"]
        for number, chunk in enumerate(data.chunks):
            found = other.read(number, [0])
            assert np.array_equal(found["sequences/item"], chunk["sequences/item"][:1, -2:])
        assert other.fingerprint == store.fingerprint
        if not was_read:
            store.read(0, [0])


def test_a_pickled_store_carries_no_data(folders: dict[str, FolderData]) -> None:
    data = folders["parquet"]
    store = FolderStore(data.folder)
    before = len(pickle.dumps(store))
    for number in range(len(data.chunks)):
        store.read(number, [0])
    assert len(pickle.dumps(store)) < before + 2000


FORKING = """
import os, sys, threading, time
from feedline.store import FolderStore
store = FolderStore(sys.argv[1])
num_chunks = len(store.chunk_sizes)
expected = [store.read(i, [0])["sequence_ids"].tolist() for i in range(num_chunks)]
is_over = False
def keep_reading():
    number = 0
    while not is_over:
        store.close()
        store.read(number % num_chunks, [0])
        number += 1
threads = [threading.Thread(target=keep_reading) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        found = [store.read(i, [0])["sequence_ids"].tolist() for i in range(num_chunks)]
        os._exit(0 if found == expected else 3)
    for _ in range(500):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        time.sleep(0.02)
    else:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        status = "hangs"
    if status:
        print("child:", status)
        is_over = True
        sys.exit(1)
is_over = True
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kind", ["pt", "arrow"])
def test_a_forked_process_reads_on_though_other_threads_were_reading(
    folders: dict[str, FolderData], kind: str
) -> None:
    """A lock that another thread holds at the fork is never let go in the child."""
    done = forked_run("-c", FORKING, folders[kind].folder, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


PREPARING = """
import os, sys, threading, time
from collections import UserDict
from pathlib import Path
import numpy as np
from feedline.store import FolderStore
from feedline.store.chunk import OpenChunk
begun = threading.Event()
class Slow(UserDict):
    def items(self):
        begun.set()
        time.sleep(60)
        return super().items()
chunk = OpenChunk(Path("a"), Slow(x=np.arange(3)))
threading.Thread(target=lambda: chunk.rows, daemon=True).start()
begun.wait()
pid = os.fork()
if pid == 0:
    os._exit(int(FolderStore(sys.argv[1]).read(0, [1])["sequence_ids"][0]))
for _ in range(250):
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        print(os.waitstatus_to_exitcode(status))
        break
    time.sleep(0.02)
else:
    os.kill(pid, 9)
    print("hangs")
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_reads_though_a_thread_was_preparing_a_chunk(
    folders: dict[str, FolderData],
) -> None:
    """Until Python 3.12, `cached_property` has one lock for all objects of a class."""
    done = forked_run("-c", PREPARING, folders["pt"].folder)
    assert done.stdout == "7\n", done.stdout + done.stderr


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("cache_bytes", [0, 2**28])
def test_eight_threads_read_what_one_reads(
    folders: dict[str, FolderData], kind: str, cache_bytes: int
) -> None:
    data = folders[kind]
    store = FolderStore(data.folder, cache_bytes=cache_bytes)
    together = threading.Barrier(8)

    def read_some(seed: int) -> list[tuple[int, list[int], Arrays]]:
        generator = np.random.default_rng(seed)
        together.wait()
        found = []
        for _ in range(40):
            number = int(generator.integers(len(data.chunks)))
            rows = generator.integers(data.sizes[number], size=6).tolist()
            found.append((number, rows, store.read(number, rows)))
        return found

    with ThreadPoolExecutor(8) as pool:
        for number, rows, found in (
            entry for part in pool.map(read_some, range(8)) for entry in part
        ):
            same_columns(found, rows_of(data.chunks[number], rows))


def test_closing_while_a_thread_opens_a_chunk_leaves_the_cache_as_large_as_it_was() -> None:
    opened: list[int] = []
    is_opening, may_go_on = threading.Event(), threading.Event()

    def open_slowly_at_first(number: int) -> OpenChunk:
        opened.append(number)
        if len(opened) == 1:
            is_opening.set()
            may_go_on.wait(30)
        return OpenChunk(Path(str(number)), {"x": np.arange(3)})

    chunks = OpenChunks(open_slowly_at_first, max_files=2, max_bytes=0)
    slow = threading.Thread(target=chunks.get, args=(0,))
    slow.start()
    assert is_opening.wait(30)
    chunks.clear()
    chunks.get(0)
    may_go_on.set()
    slow.join(30)
    for number in (1, 0, 1, 0):
        chunks.get(number)
    assert opened == [0, 0, 1], "two chunks fit, so no other is opened again"


def test_a_chunk_that_could_not_be_opened_is_tried_again() -> None:
    tried: list[int] = []

    def open_at_last(number: int) -> OpenChunk:
        tried.append(number)
        if len(tried) < 3:
            raise DamagedDataError("not yet")
        return OpenChunk(Path("a"), {"x": np.arange(3)})

    chunks = OpenChunks(open_at_last, max_files=2, max_bytes=0)
    for _ in range(2):
        with pytest.raises(DamagedDataError):
            chunks.get(5)
    assert chunks.get(5) is chunks.get(5)
    assert tried == [5, 5, 5]


def test_threads_that_want_the_same_chunk_open_it_once() -> None:
    opened: list[int] = []

    def open_slowly(number: int) -> OpenChunk:
        opened.append(number)
        together.wait(30)
        return OpenChunk(Path("a"), {"x": np.arange(3)})

    # One place is for the test itself, which lets the opener go on when all others have begun.
    together = threading.Barrier(2)
    chunks = OpenChunks(open_slowly, max_files=2, max_bytes=0)
    with ThreadPoolExecutor(6) as pool:
        found = [pool.submit(chunks.get, 3) for _ in range(6)]
        together.wait(30)
        assert len({id(each.result(30)) for each in found}) == 1
    assert opened == [3]


def test_decoded_chunks_are_let_go_by_their_bytes_but_for_the_latest() -> None:
    opened: list[int] = []

    def open_decoded(number: int) -> OpenChunk:
        opened.append(number)
        return OpenChunk(Path("a"), {"x": np.arange(3)}, num_bytes_held=40)

    chunks = OpenChunks(open_decoded, max_files=100, max_bytes=100)
    for number in (0, 1, 0, 2, 0, 1):
        chunks.get(number)
    assert opened == [0, 1, 2, 1]
    tight = OpenChunks(open_decoded, max_files=100, max_bytes=0)
    opened.clear()
    for number in (0, 0, 1, 1, 0):
        tight.get(number)
    assert opened == [0, 1, 0]


MANY = """
import resource, sys
from feedline.store import FolderStore
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
store = FolderStore(sys.argv[1])
for step in range(2):
    for number in range(300):
        assert store.read(number, [1])["sequence_ids"][0] == 7 * (2 * number + 1)
store.fingerprint
print("read all")
"""


@pytest.fixture(scope="module")
def many_chunks(tmp_path_factory: pytest.TempPathFactory) -> FolderData:
    return write_folder(tmp_path_factory.mktemp("many"), [2] * 300)


@pytest.mark.parametrize("limit", [200, 64])
def test_more_chunks_than_files_may_be_open_are_read(many_chunks: FolderData, limit: int) -> None:
    pytest.importorskip("resource")
    done = forked_run("-c", MANY, many_chunks.folder, limit, timeout=120)
    assert (done.returncode, done.stdout) == (0, "read all\n"), done.stderr[-2000:]


def test_reading_all_of_a_folder_leaves_few_files_open(many_chunks: FolderData) -> None:
    before = len(os.listdir("/dev/fd"))
    store = FolderStore(many_chunks.folder)
    for number in range(300):
        store.read(number, [0])
    assert len(os.listdir("/dev/fd")) - before <= 130
    store.close()
    assert len(os.listdir("/dev/fd")) <= before


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_closed_store_opens_its_files_again(folders: dict[str, FolderData], kind: str) -> None:
    data = folders[kind]
    store = FolderStore(data.folder)
    for _ in range(3):
        same_columns(store.read(0, [0]), rows_of(data.chunks[0], [0]))
        store.close()
        store.close()


# Chunks without samples.


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_empty_chunks_are_read_as_nothing(tmp_path: Path, kind: str) -> None:
    sizes = [0, 4, 0, 3, 0, 0, 2, 0]
    data = write_folder(tmp_path / kind, sizes, "pt")
    if kind not in ("parquet", "arrow", "mixed"):
        data = write_folder(tmp_path / "same" / kind, sizes, kind)
    store = FolderStore(data.folder)
    assert store.num_samples == 9
    assert store.chunk_sizes.tolist() == sizes
    found = [store.read(i, np.arange(size)) for i, size in enumerate(sizes)]
    ids = np.concatenate([part["sequences/item"][:, -1] for part in found])
    assert ids.tolist() == list(range(9))
    assert found[0]["sequences/item"].shape == (0, NUM_STEPS)
    assert "[0, 0)" in refusal(lambda: store.read(0, [0]))


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
@pytest.mark.parametrize("is_fixed", [True, False])
def test_empty_groups_are_read_as_nothing(tmp_path: Path, ending: str, is_fixed: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    values = pa.list_(pa.int64(), 3) if is_fixed else pa.list_(pa.int64())
    schema = pa.schema({"x": values})
    full = pa.table({"x": pa.array([[1, 2, 3], [4, 5, 6]], values)})
    path = tmp_path / f"a{ending}"
    if ending == ".parquet":
        writer: Any = pyarrow.parquet.ParquetWriter(path, schema)
        for table in (full, full.slice(0, 0), full):
            writer.write_table(table)
    else:
        writer = pa.ipc.new_file(path, schema)
        for table in (full, full.slice(0, 0), full):
            for batch in table.to_batches() or [pa.RecordBatch.from_pylist([], schema)]:
                writer.write_batch(batch)
    writer.close()
    write_metadata(tmp_path, [{"path": path.name, "samples": 4}])
    store = FolderStore(tmp_path)
    sizes = store.chunk_sizes.tolist()
    assert [size for size in sizes if size] == [2, 2]
    store.check_chunk(0)
    for number, size in enumerate(sizes):
        assert store.read(number, range(size))["x"].tolist() == [[1, 2, 3], [4, 5, 6]][:size]


def test_a_folder_of_empty_chunks_only_says_that_it_has_no_samples(tmp_path: Path) -> None:
    store = FolderStore(write_folder(tmp_path, [0, 0]).folder)
    assert store.num_samples == 0
    with pytest.raises(DamagedDataError, match=r"has 0 samples and must have at least 1"):
        _ = store.columns


def test_a_folder_without_chunks_can_be_asked_but_not_read(tmp_path: Path) -> None:
    store = FolderStore(write_folder(tmp_path, []).folder)
    assert (store.num_samples, store.chunk_sizes.tolist()) == (0, [])
    with pytest.raises(InvalidValueError):
        store.read(0, [])


# Checking while reading.


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("with_checksums", [False, True])
def test_verifying_accepts_what_was_written(
    tmp_path: Path, kind: str, with_checksums: bool
) -> None:
    data = write_folder(tmp_path, SIZES, kind, with_checksums=with_checksums)
    store = FolderStore(data.folder, verify=True)
    for number, chunk in enumerate(data.chunks):
        same_columns(store.read(number, [0]), rows_of(chunk, [0]))


@pytest.mark.parametrize("kind", KINDS)
def test_verifying_refuses_flipped_bits_by_the_recorded_checksum(tmp_path: Path, kind: str) -> None:
    data = write_folder(tmp_path, [6, 6], kind, with_checksums=True)
    file = data.files[1] / "sequences/item.npy" if kind == "npy" else data.files[1]
    # A value of the second file; parquet encodes it, so there it is any byte of the first page.
    value = file.read_bytes().find((6).to_bytes(8, "little"))
    flip(file, 10 if kind == "parquet" else value)
    store = FolderStore(data.folder, verify=True)
    num_good = 1 if kind not in ("parquet", "arrow") else 6 // GROUP_SIZE
    same_columns(store.read(0, [0]), rows_of(data.chunks[0], [0]))
    for _ in range(2):
        with pytest.raises(DamagedDataError, match=r"0001.*: its contents have changed"):
            store.read(num_good, [0])
    # Reading the good one goes on.
    same_columns(store.read(0, [1]), rows_of(data.chunks[0], [1]))


def test_verifying_refuses_flipped_values_by_the_checksums_inside_a_pt_file(tmp_path: Path) -> None:
    data = write_folder(tmp_path, [6, 6])
    start, end = next(s for n, s in member_spans(data.files[1]).items() if n.endswith("data/0"))
    flip(data.files[1], (start + end) // 2)
    assert FolderStore(data.folder).read(1, [0])
    store = FolderStore(data.folder, verify=True)
    store.read(0, [0])
    with pytest.raises(DamagedDataError, match=r"0001\.pt: "):
        store.read(1, [0])


def test_verifying_reads_each_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import feedline.store.folder as module

    data = write_folder(tmp_path, [6, 7], "parquet", with_checksums=True)
    checked: list[str] = []
    real = module.check_file
    monkeypatch.setattr(
        module, "check_file", lambda path, file: checked.append(path.name) or real(path, file)
    )
    store = FolderStore(data.folder, verify=True)
    for _ in range(2):
        for number in range(len(data.chunks)):
            store.read(number, [0])
        store.close()
    assert checked == ["0000.parquet", "0001.parquet"]
