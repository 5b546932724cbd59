"""Parquet and Arrow chunks: what pyarrow wrote comes back, and what has no array is refused."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunk_data import PLAIN_TYPES, counting, little_memory, written
from feedline.errors import (
    DamagedDataError,
    MissingDataError,
    StoreError,
    UnsafeDataError,
)
from feedline.store import FolderStore
from feedline.store.arrow_chunk import group_sizes, open_group
from forked import forked_run

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ENDINGS = (".parquet", ".arrow", ".feather")
COMPRESSIONS = {
    ".parquet": ("NONE", "snappy", "zstd"),
    ".arrow": (None, "lz4", "zstd", "stream"),
    ".feather": ("lz4",),
}


def write(path: Path, table: Any, group: int = 10**6, compression: str | None = None) -> Path:
    """Write a table in groups, in the format that the path's ending names."""
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=group, compression=compression or "NONE")
        return path
    new = pa.ipc.new_stream if compression == "stream" else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "stream" else compression)
    with new(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=group)
    return path


def one_column(values: Any, type_: Any = None) -> Any:
    return pa.table({"label": pa.array([1] * len(values)), "x": pa.array(values, type_)})


def fixed(array: np.ndarray) -> Any:
    """An Arrow array with a level of fixed-size lists for each axis after the first."""
    result = pa.array(array.reshape(-1))
    for size in array.shape[:0:-1]:
        result = pa.FixedSizeListArray.from_arrays(result, size)
    return result


@pytest.mark.parametrize(
    ("ending", "compression"), [(e, c) for e, found in COMPRESSIONS.items() for c in found]
)
def test_every_group_of_a_file_comes_back(
    tmp_path: Path, ending: str, compression: str | None
) -> None:
    arrays = {name: counting(name, 10) for name in PLAIN_TYPES}
    arrays |= {"fixed": counting("float32", 10, 3), "nested": counting("int16", 10, 2, 3)}
    table = pa.table({name: fixed(array) for name, array in arrays.items()})
    path = write(tmp_path / f"a{ending}", table, 4, compression)
    assert group_sizes(path) == (4, 4, 2)
    for group, first in enumerate((0, 4, 8)):
        chunk = open_group(path, group)
        assert list(chunk.arrays) == list(arrays)
        for name, array in arrays.items():
            assert chunk.arrays[name].dtype == array.dtype
            assert np.array_equal(chunk.arrays[name], array[first : first + 4])


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
def test_lists_of_one_length_give_an_axis_also_in_later_groups(
    tmp_path: Path, ending: str, make: Any
) -> None:
    array = counting("int32", 9, 2, 3)
    table = pa.table({"x": pa.array(array.tolist(), make(make(pa.int32())))})
    path = write(tmp_path / f"a{ending}", table, 4)
    assert np.array_equal(open_group(path, 1).arrays["x"], array[4:8])


def test_lists_only_need_one_length_inside_a_group(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", one_column([[1], [2], [3, 4], [5, 6]]), 2)
    assert open_group(path, 1).arrays["x"].tolist() == [[3, 4], [5, 6]]


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1], [2], [], []], "lists of 0 values in this chunk.* lists=\\['x'\\]"),
        ([[1], [2], [3, 4], [5, 6]], "lists of 2 values in this chunk.* lists=\\['x'\\]"),
        ([[1], [2], [], [3]], "lists of 0 to 1 values in this chunk.* lists=\\['x'\\]"),
        ([[[1, 2]], [[3, 4]], [[]], [[]]], "lists of 0 to 2 values inside of lists"),
    ],
)
def test_lists_of_another_length_in_a_later_group_say_how_to_read_them(
    tmp_path: Path, ending: str, rows: list[Any], message: str
) -> None:
    path = write(tmp_path / f"a{ending}", one_column(rows), 2)
    store = FolderStore.of_file(path)
    if not store.columns["x"].has_lists or "inside" in message:
        with pytest.raises(StoreError, match=message):
            store[:]
    else:
        assert store[:]["x"].tolist() == rows


@pytest.mark.parametrize("ending", ENDINGS)
def test_empty_lists_and_empty_groups_come_back(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"a{ending}", one_column([[], []], pa.list_(pa.int8())))
    assert open_group(path, 0).arrays["x"].shape == (2, 0)
    if ending == ".parquet":
        schema = one_column([[1.0]], pa.list_(pa.float32(), 1)).schema
        with parquet.ParquetWriter(path, schema) as writer:
            writer.write_table(schema.empty_table())
        assert sum(group_sizes(path)) == 0


def test_uncompressed_arrow_stays_mapped_except_bools(tmp_path: Path) -> None:
    numbers = counting("float32", 1000, 8)
    table = pa.table({"x": fixed(numbers), "is_odd": counting("bool", 1000)})
    path = write(tmp_path / "a.arrow", table)
    assert open_group(path, 0, ["x"]).num_bytes_held == 0
    assert open_group(path, 0).num_bytes_held == 1000
    assert not open_group(path, 0).arrays["x"].flags.writeable


@pytest.mark.parametrize(("ending", "compression"), [(".parquet", None), (".arrow", "zstd")])
def test_decoded_bytes_are_counted(tmp_path: Path, ending: str, compression: str | None) -> None:
    path = write(tmp_path / f"a{ending}", one_column([1.0] * 50), 20, compression)
    assert open_group(path, 2).num_bytes_held == 10 * 16


@pytest.mark.parametrize("ending", ENDINGS)
def test_only_the_selected_columns_are_read(tmp_path: Path, ending: str) -> None:
    table = pa.table({"text": ["a", "b"], "x": [1, 2], "x.y": [3, 4], "ragged": [[1], []]})
    path = write(tmp_path / f"a{ending}", table)
    assert list(open_group(path, 0, ["x"]).arrays) == ["x"]
    chunk = open_group(path, 0, ["x.y", "x", "x"])
    assert {name: array.tolist() for name, array in chunk.arrays.items()} == {
        "x.y": [3, 4],
        "x": [1, 2],
    }
    assert group_sizes(path) == (2,)


REFUSED = [
    ([["a"]], None, "has type list<.*join the texts"),
    ([[{"a": 1}]], None, "has type list<.*write a column for each"),
    ([[("a", 1)]], pa.map_(pa.string(), pa.int8()), "has type map<.*write a column for each"),
    ([1], pa.decimal128(5, 2), "has type decimal128.*convert it to float64"),
    ([[1]], pa.list_(pa.decimal128(5, 2)), "has type list<.*convert it to float64"),
    ([None], pa.null(), "has type null"),
    ([[1, None]], pa.list_(pa.int64(), 2), "has nulls inside of 1 list"),
    ([[1, None], [1, 2]], None, "has nulls inside of 1 list"),
    ([[1, None], [1]], None, "has nulls inside of 1 list"),
    ([[[1], [2, 3]]], None, "has lists of 1 to 2 values inside of lists.* pad them"),
    ([[[1]], [[2, 3], []]], None, "has lists of 0 to 2 values inside of lists.* pad them"),
    ([[[1], [2, 3]]], pa.list_(pa.list_(pa.int8()), 2), "has lists of 1 to 2 values inside"),
]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("values", "type_", "message"), REFUSED)
def test_columns_that_no_store_holds_are_named_with_a_remedy(
    tmp_path: Path, ending: str, values: Any, type_: Any, message: str
) -> None:
    path = write(tmp_path / f"a{ending}", one_column(values, type_))
    pattern = rf"a\{ending}: column 'x' {message}.*columns=\[\.\.\.\]"
    with pytest.raises(StoreError, match=pattern) as caught:
        open_group(path, 0)
    assert not isinstance(caught.value, DamagedDataError), "the file is sound"
    assert open_group(path, 0, ["label"]).num_samples == len(values)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_name_that_is_there_twice_is_refused(tmp_path: Path, ending: str) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["x", "x", "y"])
    path = write(tmp_path / f"a{ending}", table)
    with pytest.raises(StoreError, match="column 'x' appears 2 times"):
        open_group(path, 0)
    assert open_group(path, 0, ["y"]).arrays["y"].tolist() == [3]


@pytest.mark.parametrize("ending", ENDINGS)
def test_unknown_columns_and_groups_are_refused(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"a{ending}", one_column([1, 2, 3]), 2)
    with pytest.raises(DamagedDataError, match=r"has columns \['label', 'x'\] and .*\['y'\]"):
        open_group(path, 0, ["x", "y"])
    with pytest.raises(DamagedDataError, match="must have at least one"):
        open_group(path, 0, [])
    for group in (-1, 2):
        with pytest.raises(DamagedDataError, match=rf"group={group} must be in \[0, 2\)"):
            open_group(path, group)


@pytest.mark.parametrize("ending", ENDINGS)
def test_missing_files_and_pipes_are_refused(tmp_path: Path, ending: str) -> None:
    os.mkfifo(tmp_path / f"pipe{ending}")
    for ask in (group_sizes, lambda path: open_group(path, 0)):
        with pytest.raises(MissingDataError, match="gone"):
            ask(tmp_path / f"gone{ending}")
        with pytest.raises(UnsafeDataError, match="regular file"):
            ask(tmp_path / f"pipe{ending}")


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"install feedline\[arrow\]") as caught:
        group_sizes(Path("a.parquet"))
    assert caught.value.name == "pyarrow"


def test_importing_the_reader_does_not_import_pyarrow() -> None:
    code = "import sys, feedline.store.arrow_chunk; sys.exit('pyarrow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("ending", "compression"), [(e, c) for e, found in COMPRESSIONS.items() for c in found]
)
def test_a_file_that_is_cut_is_refused(
    tmp_path: Path, ending: str, compression: str | None
) -> None:
    path = write(tmp_path / f"a{ending}", one_column([[1.0, 2.0]] * 20), 10, compression)
    content = path.read_bytes()
    for length in (0, 1, 4, 8, 12, len(content) // 2, *range(len(content) - 12, len(content))):
        written(path, content[:length])
        with pytest.raises(DamagedDataError, match=rf"a\{ending}: cannot be read"):
            group_sizes(path)
        with pytest.raises(DamagedDataError, match=rf"a\{ending}: cannot be read"):
            open_group(path, 0)


@pytest.mark.parametrize("ending", ENDINGS)
def test_other_files_are_refused(tmp_path: Path, ending: str) -> None:
    for content in (b"not a table at all", bytes(1000), b"PAR1" + b"\xff" * 8 + b"PAR1"):
        path = written(tmp_path / f"a{ending}", content)
        with pytest.raises(DamagedDataError):
            open_group(path, 0)


def as_varint(number: int) -> bytes:
    """A number as Thrift's compact protocol writes it."""
    number, found = number * 2, b""
    while number >= 128:
        found += bytes([number % 128 + 128])
        number //= 128
    return found + bytes([number])


@pytest.mark.parametrize("claimed", [12344, 12346, 2**40, 2**50, 2**61])
def test_a_row_group_that_claims_other_sizes_is_refused_at_no_cost(
    tmp_path: Path, claimed: int
) -> None:
    path = write(tmp_path / "a.parquet", pa.table({"x": np.arange(12345)}))
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    footer = content[-8 - length : -8].replace(as_varint(12345), as_varint(claimed))
    assert footer != content[-8 - length : -8], "nothing was changed"
    ending = footer + len(footer).to_bytes(4, "little") + b"PAR1"
    written(path, content[: -8 - length] + ending)
    before = pa.total_allocated_bytes()
    with little_memory(), contextlib.suppress(StoreError):
        # Fewer rows than there are is a file like any other.
        assert open_group(path, 0).num_samples == claimed == 12344
    assert pa.total_allocated_bytes() - before < 2**22


@pytest.mark.parametrize("claimed", [-5, 0, 2**31, 2**50, 2**62])
def test_a_buffer_that_claims_other_sizes_is_refused(tmp_path: Path, claimed: int) -> None:
    path = write(tmp_path / "a.arrow", pa.table({"x": np.zeros(5000)}), compression="zstd")
    content = path.read_bytes()
    true = (40000).to_bytes(8, "little")
    assert true in content
    written(path, content.replace(true, claimed.to_bytes(8, "little", signed=True)))
    with little_memory(), pytest.raises(DamagedDataError, match=r"a\.arrow: "):
        open_group(path, 0)


@pytest.mark.parametrize("claimed", [-5, 5001, 2**50, 2**62])
def test_a_batch_that_claims_more_rows_is_refused(tmp_path: Path, claimed: int) -> None:
    path = write(tmp_path / "a.arrow", pa.table({"x": np.zeros(5000)}))
    true = (5000).to_bytes(8, "little")
    content = path.read_bytes()
    assert true in content
    written(path, content.replace(true, claimed.to_bytes(8, "little", signed=True)))
    with little_memory(), pytest.raises(DamagedDataError, match=r"a\.arrow: "):
        open_group(path, 0)


MARK = b"\xff\xff\xff\xff"


def heads_of(content: bytes) -> list[int]:
    """Where the messages of an Arrow file or stream begin, the schema first, its end last."""
    return [place for place in range(0, len(content), 8) if content[place : place + 4] == MARK]


def type_of_message(content: bytes, head: int) -> int:
    """Where the byte with the type of a message is."""
    table = head + 8 + int.from_bytes(content[head + 8 : head + 12], "little")
    fields = table - int.from_bytes(content[table : table + 4], "little", signed=True)
    return table + int.from_bytes(content[fields + 6 : fields + 8], "little")


def forty_rows(path: Path, compression: str | None) -> bytearray:
    """Write eight batches of five rows, and return the file."""
    table = pa.table({"x": pa.array(range(40)), "text": ["a"] * 40})
    return bytearray(write(path, table, 5, compression).read_bytes())


@pytest.mark.parametrize("kind", [0, 1, 2, 77])
@pytest.mark.parametrize("compression", [None, "stream"])
def test_a_message_of_another_type_does_not_end_the_data(
    tmp_path: Path, compression: str | None, kind: int
) -> None:
    path = tmp_path / "a.arrow"
    content = forty_rows(path, compression)
    place = type_of_message(content, heads_of(content)[4])
    assert content[place] == 3, "the type of a record batch"
    content[place] = kind
    written(path, bytes(content))
    with pytest.raises(StoreError, match=r"a\.arrow: "):
        group_sizes(path)


@pytest.mark.parametrize("compression", [None, "stream"])
def test_an_end_before_the_last_batch_is_refused(tmp_path: Path, compression: str | None) -> None:
    path = tmp_path / "a.arrow"
    content = forty_rows(path, compression)
    head = heads_of(content)[4]
    content[head + 4 : head + 8] = bytes(4)
    written(path, bytes(content))
    with pytest.raises(DamagedDataError, match=r"a\.arrow: "):
        group_sizes(path)


def test_a_footer_that_lists_too_few_batches_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    content = forty_rows(path, None)
    # The list of batches: their number, and where the first of them is.
    first = heads_of(content)[1]
    count = content.rindex((8).to_bytes(4, "little") + first.to_bytes(8, "little"))
    for claimed in (1, 7):
        content[count] = claimed
        written(path, bytes(content))
        with pytest.raises(DamagedDataError, match="does not list all record batches"):
            group_sizes(path)


@pytest.mark.parametrize("claimed", [4, 6, 5 + 2**40])
@pytest.mark.parametrize("compression", [None, "stream"])
def test_a_batch_that_claims_other_rows_is_refused_before_it_is_read(
    tmp_path: Path, compression: str | None, claimed: int
) -> None:
    path = tmp_path / "a.arrow"
    content = forty_rows(path, compression)
    head = heads_of(content)[4]
    # The rows of the batch come last in its table, so nearest to its fields.
    rows = content.index((5).to_bytes(8, "little"), head)
    content[rows : rows + 8] = claimed.to_bytes(8, "little")
    written(path, bytes(content))
    with pytest.raises(DamagedDataError, match=r"a\.arrow: .* and its first column 5"):
        group_sizes(path)


def test_lists_whose_offsets_reach_out_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", one_column([[7, 8]] * 4))
    content = path.read_bytes()
    true = np.arange(0, 10, 2, dtype="<i4").tobytes()
    assert content.count(true) == 1
    for offsets in ([0, 2, 4, 6, 10], [0, 4, 8, 12, 16], [-2, 0, 2, 4, 6], [0, 2, 99, 6, 8]):
        written(path, content.replace(true, np.array(offsets, "<i4").tobytes()))
        with pytest.raises(DamagedDataError, match=r"a\.arrow: "):
            open_group(path, 0)


FLIP_AND_OPEN = """
import random, sys
from pathlib import Path
import numpy as np
from feedline.errors import StoreError
from feedline.store import FolderStore
from feedline.store.arrow_chunk import group_sizes, open_group
from feedline.store.arrow_columns import columns_of_files
from feedline.store.lists import ListSource

path, chance, num_files = Path(sys.argv[1]), random.Random(1), int(sys.argv[2])
content = path.read_bytes()
num_refused = 0
for _ in range(num_files):
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 8])):
        value = chance.choice([0, 127, 255, chance.randrange(256)])
        changed[chance.randrange(len(changed))] = value
    path.write_bytes(changed)
    try:
        for group in range(min(3, len(group_sizes(path)))):
            for array in open_group(path, group).arrays.values():
                if isinstance(array, ListSource):
                    array.gather(np.arange(len(array)))
                else:
                    array.tobytes()
        columns_of_files([path])
    except StoreError as error:
        num_refused += str(path) in str(error)
print(num_refused)
"""


# In a process of their own, because a damaged file must not end it either; pyarrow has such places.
@pytest.mark.parametrize("num_files", [100, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("ending", "compression"),
    [(".parquet", "zstd"), (".arrow", None), (".arrow", "lz4"), (".arrow", "stream")],
)
def test_flipped_bytes_give_arrays_or_a_store_error(
    tmp_path: Path, ending: str, compression: str | None, num_files: int
) -> None:
    columns = {
        **{"x": fixed(counting("int32", 9, 2)), "y": [[1.0]] * 9, "z": [True] * 9},
        **{"text": ["a", "bc", None] * 3, "ragged": [[1], [2, 3], []] * 3},
        **{"words": pa.array(["x", "y", "x"] * 3).dictionary_encode(), "s": [{"a": 1}] * 9},
        "views": pa.array(["a", "long" * 9, "c"] * 3, pa.string_view()),
    }
    if compression == "stream":
        columns.pop("words")
    path = write(tmp_path / f"a{ending}", pa.table(columns), 4, compression)
    result = forked_run(
        "-c",
        FLIP_AND_OPEN,
        path,
        num_files,
        timeout=120,
        preload=["pyarrow.parquet", "pyarrow.ipc"],
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > num_files / 5
