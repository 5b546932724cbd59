"""What text files and Python values say is what is packed, or they are refused."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.packing import csv_rows, text_files
from feedline.packing.rows import SourceFault

pa = pytest.importorskip("pyarrow")

_LOST = 2**53 + 1  # the first integer that float64 does not have


def _packed(source: Any, tmp_path: Path, **options: Any) -> Any:
    feedline.pack(source, tmp_path / "packed", **options)
    return feedline.open(tmp_path / "packed")


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_quotes_inside_of_csv_fields_do_not_cut_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 64)
    rows = 't,u\n12" vinyl,x\n' + "".join(f'k,"line {i}\nsecond, of {i}"\n' for i in range(100))
    path = _written(tmp_path / "rows.csv", rows)
    with path.open(newline="") as file:
        expected = list(csv.reader(file))[1:]
    found = _packed(path, tmp_path)[:]
    assert list(map(list, zip(found["t"], found["u"], strict=True))) == expected


@pytest.mark.parametrize("seed", range(30))
def test_blocks_of_csv_end_where_rows_end(seed: int) -> None:
    rng = random.Random(seed)
    pieces = ["a", '"', '""', ",", "\n", "\r\n", '"x"', '"y\nz"']
    for _ in range(100):
        data = "".join(rng.choices(pieces, k=rng.randrange(1, 25))) + "\n"
        end = csv_rows.end_of_rows(data.encode())
        whole = [row for row in csv.reader(data.splitlines(keepends=True)) if row]
        parts = (data[:end], data[end:])
        cut = [r for part in parts for r in csv.reader(part.splitlines(keepends=True)) if r]
        assert cut == whole


def test_a_quote_in_the_header_of_csv_takes_no_rows(tmp_path: Path) -> None:
    path = _written(tmp_path / "rows.csv", 'height 5",t\n1,x\n2,y 5"\n3,z\n')
    found = _packed(path, tmp_path)[:]
    assert found['height 5"'].tolist() == [1, 2, 3]
    assert list(found["t"]) == ["x", 'y 5"', "z"]


def test_a_quote_that_is_not_closed_in_the_header_of_csv_is_refused(tmp_path: Path) -> None:
    path = _written(tmp_path / "rows.csv", 'a,"b\n1,2\n')
    with pytest.raises(SourceFault, match="not closed"):
        _packed(path, tmp_path)


@pytest.mark.parametrize("end", ["", "\n", "\n3,z\n4,w\n"])
def test_a_quote_that_is_not_closed_in_csv_takes_no_rows(tmp_path: Path, end: str) -> None:
    path = _written(tmp_path / "rows.csv", f'a,t\n1,x\n2,"y{end}')
    with pytest.raises(SourceFault, match="the row at byte 8 has a quote that is not closed"):
        _packed(path, tmp_path)


@pytest.mark.parametrize("last", ['"y"', '"y\nz"', 'y"', '"y""z"', ""])
def test_the_last_row_of_csv_needs_no_newline(tmp_path: Path, last: str) -> None:
    path = _written(tmp_path / "rows.csv", f"a,t\n1,x\n2,{last}")
    with path.open(newline="") as file:
        expected = [row[1] for row in csv.reader(file)][1:]
    assert list(_packed(path, tmp_path)[:]["t"]) == expected


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("x.csv", ["x,y", "1.5,0", "{},1"]),
        ("x.jsonl", ['{{"x":1.5}}', '{{"x":{}}}']),
        ("x.jsonl", ['{{"x":{{"y":[0.5]}}}}', '{{"x":{{"y":[{}]}}}}']),
    ],
)
def test_integers_that_floats_would_round_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, lines: list[str], is_late: bool
) -> None:
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 64)
    row = 100 if is_late else 1
    lines = [*lines[:-2], *lines[-2:-1] * row, lines[-1]]
    for number, is_fine in [(_LOST, False), (-(2**64) + 1, False), (2**64, True), ("1e300", True)]:
        path = _written(tmp_path / name, "\n".join([*lines, ""]).format(number))
        if is_fine:
            assert len(_packed(path, tmp_path, overwrite=True)) == row + 1
            continue
        with pytest.raises(SourceFault, match=f"row {row}: column 'x.* has {number}, which"):
            _packed(path, tmp_path)
    shortest = "18446744073709552000"  # as JavaScript writes 2**64
    path = _written(tmp_path / name, "\n".join([*lines, ""]).format(shortest))
    assert len(_packed(path, tmp_path, overwrite=True)) == row + 1


def test_integers_that_floats_would_round_do_no_harm_in_other_columns(tmp_path: Path) -> None:
    path = _written(tmp_path / "a.csv", f"id,x\n{2**64 - 1},1.5\n")
    assert _packed(path, tmp_path, columns=["x"])[0] == {"x": 1.5}
    path = _written(tmp_path / "a.jsonl", f'{{"m":{{"id":{2**64 - 1},"x":1.5}}}}\n')
    assert _packed(path, tmp_path, columns=["m/x"], overwrite=True)[0] == {"m/x": 1.5}


@pytest.mark.parametrize("is_in_files", [False, True])
def test_texts_of_csv_are_texts_even_if_none_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in_files: bool
) -> None:
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 64)
    first = "".join(f"{n},{t}\n" for n, t in enumerate([*["NA", "", "null"] * 20, '""']))
    paths = [_written(tmp_path / "0.csv", f"n,t\n{first}")]
    if is_in_files:
        paths.append(_written(tmp_path / "1.csv", "t,n\nx,61\nNA,62\n"))
    else:
        _written(paths[0], f"n,t\n{first}61,x\n62,NA\n")
    found = _packed(paths, tmp_path)[:]
    assert found["n"].tolist() == list(range(63))
    assert list(found["t"]) == [*["NA", "", "null"] * 20, "", "x", "NA"]
    assert "t/is_missing" not in found


def test_numbers_of_csv_may_be_missing_in_the_first_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 64)
    path = _written(tmp_path / "a.csv", "x,y\n" + "NA,1\n" * 60 + "5,1\n")
    found = _packed(path, tmp_path)[:]
    assert found["x"].tolist() == [0] * 60 + [5]
    assert found["x/is_missing"].tolist() == [True] * 60 + [False]


def test_jsonl_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"a":"\xe9"}\n')
    with pytest.raises(SourceFault, match="not UTF-8"):
        _packed(tmp_path / "a.jsonl", tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        {"x": [_LOST, 2.5]},
        {"x": [[1, 2.5], [_LOST, 3]]},
        [{"x": [_LOST, 0.5]}],
        [{"x": [np.uint64(2**64 - 1), np.int64(-1)]}],
    ],
)
def test_integers_that_numpy_would_round_are_refused(tmp_path: Path, source: Any) -> None:
    with pytest.raises(SourceFault, match="would round"):
        _packed(source, tmp_path)


def test_nulls_of_arrow_arrays_are_missing_values(tmp_path: Path) -> None:
    columns = {
        "x": pa.array([2**64 - 1, None], pa.uint64()),
        "y": pa.chunked_array([[None], [1.5]], pa.float64()),
        "z": pa.array(["a", None]),
    }
    found = _packed(columns, tmp_path)[:]
    assert found["x"].tolist() == [2**64 - 1, 0]
    assert found["x/is_missing"].tolist() == [False, True]
    assert found["y/is_missing"].tolist() == [True, False]
    assert found["z/is_missing"].tolist() == [False, True]


def test_nulls_of_pandas_are_missing_values(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    columns = {
        "x": pandas.array([_LOST, None], dtype="Int64"),
        "y": pandas.Series([True, None], dtype="boolean"),
        "z": pandas.Series(["a", None], dtype="string"),
    }
    found = _packed(columns, tmp_path)[:]
    assert found["x"].tolist() == [_LOST, 0]
    for name in "xyz":
        assert found[f"{name}/is_missing"].tolist() == [False, True]


def test_empty_values_and_lines_in_quotes_of_a_single_column_are_kept(tmp_path: Path) -> None:
    numbers = _packed(_written(tmp_path / "numbers.csv", 'x\n1\n""\n3\n'), tmp_path)[:]
    assert numbers["x"].tolist() == [1, 0, 3]
    assert numbers["x/is_missing"].tolist() == [False, True, False]
    texts = _written(tmp_path / "texts.csv", 't\n"a\n\nb"\n""\nc\n')
    feedline.pack(texts, tmp_path / "texts")
    assert feedline.open(tmp_path / "texts")[:]["t"] == ["a\n\nb", "", "c"]
