"""The formats that `pack` writes, read back by the libraries that own them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from feedline.errors import FeedlineError
from feedline.packing import FORMATS, pack
from feedline.store import FolderStore
from pack_data import list_chunks, make_arrays, read_chunk, read_folder

TYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
]


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("format_", FORMATS)
def test_every_type_and_shape_comes_back(tmp_path: Path, format_: str, type_name: str) -> None:
    rng = np.random.default_rng(0)
    source = {
        f"sequences/{len(shape)}": rng.integers(
            0, 2 if type_name == "bool" else 100, (7, *shape)
        ).astype(type_name)
        for shape in [(), (3,), (2, 3), (1, 2, 3)]
    }
    pack(source, tmp_path / "out", format=format_, chunk_samples=3)
    found = read_folder(tmp_path / "out")
    for name, array in source.items():
        np.testing.assert_array_equal(found[name].astype(type_name), array)
    store = FolderStore(tmp_path / "out")
    for number, start in enumerate((0, 3, 6)):
        store.check_chunk(number)
        rows = store.read(number, range(min(3, 7 - start)))
        for name, array in source.items():
            assert rows[name].dtype == array.dtype
            np.testing.assert_array_equal(rows[name], array[start : start + 3])


@settings(max_examples=20)
@given(
    values=hnp.arrays(
        st.sampled_from([np.dtype(name) for name in ("float32", "float16", "float64")]),
        st.tuples(st.integers(1, 6), st.integers(1, 4)),
        elements={"allow_subnormal": False},
    )
)
def test_floats_keep_every_bit(
    tmp_path_factory: pytest.TempPathFactory, values: np.ndarray
) -> None:
    folder = tmp_path_factory.mktemp("pack")
    for format_ in ("safetensors", "npy", "pt"):
        pack({"sequences/x": values}, folder / format_, format=format_, chunk_samples=4)
        found = read_folder(folder / format_)["sequences/x"]
        assert found.tobytes() == values.tobytes()


def test_pt_chunks_are_the_documented_tuple(tmp_path: Path) -> None:
    arrays = make_arrays(10)
    columns = {"sequences/item": "item", "sequences/steps": "steps", "targets/score": "score"}
    pack(arrays, tmp_path / "out", format="pt", columns=columns, chunk_samples=4)
    content = torch.load(tmp_path / "out" / "chunk-000001.pt", weights_only=True)
    assert isinstance(content, tuple)
    sequences, targets, sequence_ids, subsequence_ids, start_positions = content
    assert list(sequences) == ["item", "steps"]
    assert list(targets) == ["score"]
    assert torch.equal(sequences["steps"], torch.from_numpy(arrays["steps"][4:8]))
    assert torch.equal(targets["score"], torch.from_numpy(arrays["score"][4:8]))
    assert torch.equal(sequence_ids, torch.arange(4, 8))
    assert torch.equal(subsequence_ids, torch.zeros(4, dtype=torch.int64))
    assert torch.equal(start_positions, torch.zeros(4, dtype=torch.int64))
    mapped = torch.load(tmp_path / "out" / "chunk-000001.pt", weights_only=True, mmap=True)
    assert torch.equal(mapped[0]["steps"], sequences["steps"])


def test_pt_chunks_take_ids_from_the_source(tmp_path: Path) -> None:
    ids = {
        "sequence_ids": np.arange(5) * 3,
        "subsequence_ids": np.arange(5) + 1,
        "start_positions": np.arange(5) + 7,
    }
    pack({"targets/a/b": np.arange(5), **ids}, tmp_path / "out", format="pt")
    sequences, targets, *found = torch.load(tmp_path / "out" / "chunk-000000.pt", weights_only=True)
    assert (sequences, list(targets)) == ({}, ["a/b"])
    for tensor, array in zip(found, ids.values(), strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_pt_chunks_are_laid_out_as_torch_lays_them_out(tmp_path: Path) -> None:
    pack({"sequences/x": np.arange(100.0)}, tmp_path / "out", format="pt")
    path = tmp_path / "out" / "chunk-000000.pt"
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert names == [
            "archive/data.pkl",
            "archive/byteorder",
            *(f"archive/data/{number}" for number in range(4)),
            "archive/version",
        ]
        assert archive.read("archive/version") == b"3\n"
        assert archive.read("archive/byteorder") == b"little"
        data = path.read_bytes()
        for info in archive.infolist():
            assert info.compress_type == zipfile.ZIP_STORED
            lengths = np.frombuffer(data[info.header_offset + 26 :][:4], "<u2")
            assert (info.header_offset + 30 + int(lengths.sum())) % 64 == 0


@pytest.mark.slow
def test_pt_chunks_may_be_larger_than_four_gib(tmp_path: Path) -> None:
    num_rows = 2**32 // 1024 // 4 + 1000
    # Two columns of over 2 GiB put the records behind them beyond what 32 bits can tell.
    source = {f"sequences/{name}": np.zeros((num_rows, 2048), np.uint8) for name in "ab"}
    source["sequences/c"] = np.arange(num_rows)
    options = {"chunk_samples": num_rows, "memory_budget": 2**35}
    pack(source, tmp_path / "out", format="pt", **options)
    path = tmp_path / "out" / "chunk-000000.pt"
    assert path.stat().st_size > 2**32
    content = torch.load(path, weights_only=True, mmap=True)
    np.testing.assert_array_equal(content[0]["c"].numpy(), source["sequences/c"])
    FolderStore(tmp_path / "out").check_chunk(0)
    del content
    path.unlink()  # pytest would keep it for a while.


def test_parquet_chunks_have_one_row_group_of_fixed_lists(tmp_path: Path) -> None:
    pack(
        {"x": np.zeros((10, 2, 3), np.float32)}, tmp_path / "out", format="parquet", chunk_samples=4
    )
    files = [pyarrow.parquet.ParquetFile(path) for path in list_chunks(tmp_path / "out")]
    assert [file.metadata.num_row_groups for file in files] == [1, 1, 1]
    assert [file.metadata.num_rows for file in files] == [4, 4, 2]
    assert str(files[0].schema_arrow.field("x").type).startswith("fixed_size_list")
    metadata = json.loads((tmp_path / "out" / "metadata.json").read_text())
    assert [entry["groups"] for entry in metadata["batch_files"]] == [[4], [4], [2]]


def test_npy_chunks_are_folders_with_a_file_for_each_column(tmp_path: Path) -> None:
    pack({"a": np.arange(3), "b/c": np.ones((3, 2))}, tmp_path / "out", format="npy")
    chunk = tmp_path / "out" / "chunk-000000"
    assert sorted(p.relative_to(chunk).as_posix() for p in chunk.rglob("*.npy")) == [
        "a.npy",
        "b/c.npy",
    ]
    np.testing.assert_array_equal(np.load(chunk / "b" / "c.npy"), np.ones((3, 2)))
    assert set(read_chunk(chunk)) == {"a", "b/c"}


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.jsonl", b'{"\xe3": 1}\n{"\xe3": 2}\n'), ("x.csv", b"\xe3,b\n1,2\n")],
)
def test_a_column_name_that_is_not_utf8_is_refused(
    name: str, content: bytes, tmp_path: Path
) -> None:
    # Found by fuzzing: pyarrow raises UnicodeDecodeError when it is asked for the name.
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FeedlineError, match=rf"{name}.*(UTF-?8|utf-8)"):
        pack(tmp_path / name, tmp_path / "out", progress=False)


def test_a_parquet_file_whose_footer_has_other_rows_than_its_groups_is_refused(
    tmp_path: Path,
) -> None:
    # Found by fuzzing: IndexError.
    path = Path(__file__).parent.parent / "fuzz" / "kept" / "rows-without-groups.parquet"
    with pytest.raises(FeedlineError, match="but its footer says"):
        pack(path, tmp_path / "out", progress=False)


def test_a_parquet_file_with_a_column_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    # Found by fuzzing, as above.
    path = Path(__file__).parent.parent / "fuzz" / "kept" / "name-not-utf8.parquet"
    with pytest.raises(FeedlineError, match="not UTF-8"):
        pack(path, tmp_path / "out", progress=False)


def test_a_parquet_file_that_ends_the_process_of_pyarrow_is_refused(tmp_path: Path) -> None:
    # Found by fuzzing: asked about a column of it, pyarrow aborts the process.
    source = Path(__file__).parent / "crashers" / "level_histogram.parquet"
    with pytest.raises(FeedlineError, match=r"level_histogram\.parquet: cannot be read"):
        pack(source, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()
