"""Parts of a source, read in any order, hold the rows of the whole; chunks end where they did."""

from __future__ import annotations

import importlib.util
import pickle
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.packing import pack, text_files
from feedline.packing.engines.ordering import chunks_between, edges_by_bytes, grouped, runs_of_cells
from feedline.packing.fitting import Fitting, Widened
from feedline.packing.parts import PartedSource, parts_between
from feedline.packing.rows import concatenate_rows
from feedline.packing.settings import Cut
from feedline.packing.sources import open_source
from pack_data import make_arrays, make_source

KINDS = ["npy", "npy_folder", "parquet", "csv", "jsonl", "store"]


def opened(kind: str, folder: Path, num_rows: int = 40_000) -> PartedSource:
    if kind == "store":
        pack(make_arrays(num_rows), folder / "source", chunk_samples=700)
        source: Any = folder / "source"
    else:
        source = make_source(kind, make_arrays(num_rows), folder / "source")
    reader = open_source(source, None, 1)
    assert isinstance(reader, PartedSource)
    return reader


@pytest.mark.parametrize("kind", KINDS)
def test_parts_hold_all_rows_once_in_any_process(tmp_path: Path, kind: str) -> None:
    source = opened(kind, tmp_path)
    fitting = Fitting(source, Widened())
    parts = source.parts(2**16, 64)
    assert len(parts) > (1 if kind != "csv" else 0)
    there = pickle.loads(pickle.dumps(source))
    # The last first, as if no one had read what is before.
    found = [list(fitting.fitted(there.read(part, 0))) for part in parts[::-1]][::-1]
    rows = concatenate_rows([rows for some in found for rows in some])
    assert np.asarray(rows["item"]).tolist() == list(range(40_000))


@given(st.integers(1, 40), st.integers(1, 60), st.integers(0, 200), st.booleans())
def test_text_files_have_the_same_blocks_wherever_reading_begins(
    block: int, step: int, num_lines: int, has_quotes: bool
) -> None:
    text = "".join(
        f'{n},"{"x" * (n * 7 % 19)}\n{n}"\n' if has_quotes else f"{n}\n" for n in range(num_lines)
    )
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "_BLOCK_BYTES", block)
        path = Path(folder, "a.csv")
        path.write_text(text)
        whole = list(text_files.blocks(path, has_quotes))
        edges = text_files.block_edges(path, has_quotes, max(step, block))
        parts = [list(text_files.blocks(path, has_quotes, a, b)) for a, b in pairwise(edges)]
        assert [block for part in parts for block in part] == whole
        assert "".join(map(bytes.decode, whole)) == text


@given(st.lists(st.integers(0, 9), min_size=1), st.integers(1, 12))
def test_parts_between_edges_cover_all_rows(sizes: list[int], most: int) -> None:
    edges = [0, *np.cumsum(sizes).tolist()]
    parts = parts_between(edges, most)
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(edges[-1]))
    assert all(p.stop - p.start <= most or p.stop - p.start <= max(sizes) for p in parts)


@given(st.lists(st.integers(0, 30), min_size=1), st.integers(1, 40), st.integers(1, 20))
def test_chunks_end_where_the_engine_of_one_machine_ends_them(
    sizes: list[int], most: int, step: int
) -> None:
    cut = Cut(num_samples=None, num_bytes=most, max_bytes=10**9, why="")
    pieces = [np.array(sizes[n : n + step]) for n in range(0, len(sizes), step)]
    wanted, held = [0], 0
    for row, size in enumerate(sizes):
        if row > wanted[-1] and held + size > most:
            wanted.append(row)
            held = 0
        held += size
    assert edges_by_bytes(cut, pieces) == [*wanted, len(sizes)]


@given(st.lists(st.integers(0, 20), min_size=1), st.integers(1, 15), st.integers(1, 50), st.data())
def test_groups_of_chunks_have_all_the_runs_that_they_are_in(
    sizes: list[int], chunk: int, most: int, data: st.DataObject
) -> None:
    table = np.stack([np.zeros(len(sizes), np.int64), sizes, sizes], axis=1)
    runs = runs_of_cells(table, range(len(sizes)))
    num_rows = sum(sizes)
    if not num_rows:
        return
    chunks = chunks_between([*range(0, num_rows, chunk), num_rows])
    missing = data.draw(st.sets(st.sampled_from(range(len(chunks)))))
    wanted = [one for one in chunks if one.number in missing]
    groups = list(grouped(wanted, runs, most))
    assert [one for group, _ in groups for one in group] == wanted
    for group, needed in groups:
        assert needed[0].start <= group[0].start < needed[0].stop
        assert needed[-1].start < group[-1].stop <= needed[-1].stop
        assert all(a.stop == b.start for a, b in pairwise(group))


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_its_engine_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"install feedline\[ray\]"):
        pack({"x": [1]}, tmp_path / "out", engine="ray")
    assert not list(tmp_path.iterdir())
