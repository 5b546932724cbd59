"""Parquet files as a source, decoded by pyarrow a few rows at a time, and tables as rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from feedline.errors import PackError
from feedline.packing.arrow_columns import paths_in, to_columns
from feedline.packing.parts import Part, parts_between, rows_between
from feedline.packing.rows import Batch, Flat, SourceFault, describe_files
from feedline.packing.selection import Selection, select
from feedline.store.extras import import_arrow
from feedline.store.parquet_times import fields_with_int96, refuse_wrapped
from feedline.words import several

# Decoding takes several times the memory of its result.
_BLOCK_BYTES = 2**20
_MAX_BATCH_ROWS = 2**16
_MAX_VALUE_BYTES = 8
# The rows that are decoded to see how large they are.
_NUM_SAMPLED = 16


class ParquetFiles:
    """Parquet files with the same columns."""

    can_restart = True

    def __init__(self, paths: list[Path], selection: Selection | None, num_threads: int) -> None:
        self._paths = paths
        import_arrow()
        self.identity = describe_files("parquet", paths)
        self._num_rows: list[int] = []
        self._edges = [0]
        chosen = selection
        for path in paths:
            with self._open(path) as file:
                names = names_of(path, file.schema_arrow)
                if selection is None and chosen is not None:
                    refuse_other_columns(path, names, list(chosen))
                chosen = select(chosen, names, str(path))
                self._num_rows.append(_num_rows_in(path, file.metadata))
                groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
                sizes = [int(group.num_rows) for group in groups]
                self._edges += [self._edges[-1] + end for end in accumulate(sizes)]
        assert chosen is not None
        self._selection = chosen
        self.num_rows = self.num_rows_guess = sum(self._num_rows)

    @property
    def _arrow(self) -> Any:
        return import_arrow()

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all rows from `start`; earlier files and row groups are not read."""
        for path, num_rows in zip(self._paths, self._num_rows, strict=True):
            if start < num_rows:
                yield from self._batches_of(path, start)
            start = max(start - num_rows, 0)

    def parts(self, num_bytes: int, row_bytes: int) -> list[Part]:
        """Return runs of row groups."""
        return parts_between(self._edges, max(1, num_bytes // max(1, row_bytes)))

    def read(self, part: Part, row: int) -> Iterator[Batch]:
        """Yield the rows of a part."""
        return rows_between(self, part.start, part.stop)

    def _batches_of(self, path: Path, start: int) -> Iterator[Batch]:
        with self._open(path) as file:
            groups = [
                file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)
            ]
            ends = np.cumsum([group.num_rows for group in groups])
            first = int(np.searchsorted(ends, start, side="right"))
            row = int(ends[first]) - groups[first].num_rows
            for number in range(first, len(groups)):
                batch_size = _batch_rows(file, number, groups[number])
                names = fields_of(file.schema_arrow, self._selection)
                if old := [name for name in fields_with_int96(file) if name in names]:
                    self._check_times(path, number, batch_size, old)
                for table in file.iter_batches(batch_size, [number], names):
                    skip = min(max(start - row, 0), table.num_rows)
                    if skip < table.num_rows:
                        yield batch_of_table(path, row + skip, table.slice(skip), self._selection)
                    row += table.num_rows

    def _check_times(self, path: Path, group: int, batch_size: int, names: list[str]) -> None:
        """Raise if a row group has times of parquet's old type that come out wrong."""
        with self._open(path) as file, self._open(path, coerce_int96_timestamp_unit="s") as other:
            both = (found.iter_batches(batch_size, [group], names) for found in (file, other))
            for table, seconds in zip(*both, strict=True):
                refuse_wrapped(path, self._arrow, table, seconds)

    @contextmanager
    def _open(self, path: Path, **options: Any) -> Iterator[Any]:
        parquet = import_arrow("pyarrow.parquet")
        try:
            # A buffer makes it read a row group bit by bit instead of whole.
            options = {"buffer_size": _BLOCK_BYTES, "pre_buffer": False, **options}
            with parquet.ParquetFile(path, **options) as file:
                yield file
        except OSError as error:
            raise PackError(f"{path}: cannot be read ({error!s:.300})") from None
        except UnicodeDecodeError:
            raise not_text(path) from None
        except self._arrow.ArrowException as error:
            raise SourceFault(
                f"{path}: cannot be read ({error!s:.300}); check that it is a complete parquet file"
            ) from None


def batch_of_table(path: Path, row: int, table: Any, selection: Selection) -> Batch:
    """Return the selected columns of a table."""
    flat = Flat({}, {})
    for name in fields_of(table.schema, selection):
        flat.add(to_columns(str(path), row, name, table.column(name)), str(path))
    return Batch(str(path), row, flat.chosen(selection, str(path)))


def fields_of(schema: Any, selection: Selection) -> list[str]:
    """Return the fields of a table that selected columns are in."""
    wanted = set(selection.values())
    return list(dict.fromkeys(field for path, field in paths_in(schema) if path in wanted))


def _batch_rows(file: Any, number: int, group: Any) -> int:
    """Return how many rows of a row group are decoded at once."""
    # Asked about the columns of a damaged group, pyarrow ends the process; reading is an error.
    first = next(file.iter_batches(batch_size=_NUM_SAMPLED, row_groups=[number]), None)
    sampled = 0 if first is None else first.nbytes // max(1, first.num_rows)
    columns = [group.column(place) for place in range(group.num_columns)]
    num_rows = max(1, int(group.num_rows))
    num_values = sum(int(column.num_values) for column in columns)
    stored = sum(int(column.total_uncompressed_size) for column in columns)
    # In the file it may have few, where values repeat.
    row_bytes = max(sampled, _MAX_VALUE_BYTES * (num_values // num_rows), stored // num_rows)
    return max(1, min(_MAX_BATCH_ROWS, _BLOCK_BYTES // max(1, row_bytes)))


def _num_rows_in(path: Path, metadata: Any) -> int:
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    num_rows = sum(int(group.num_rows) for group in groups)
    if num_rows != metadata.num_rows:
        raise SourceFault(
            f"{path}: has {several(num_rows, 'row')} in its row groups, but its footer says "
            f"{metadata.num_rows}; write the file again"
        )
    return num_rows


def names_of(path: Path, schema: Any) -> list[str]:
    """Return the paths of the columns of a table."""
    try:
        return [path for path, _ in paths_in(schema)]
    except UnicodeDecodeError:
        raise not_text(path) from None


def not_text(path: Path) -> SourceFault:
    return SourceFault(
        f"{path}: a text, or the name of a column, is not UTF-8; write the file again as UTF-8"
    )


def refuse_other_columns(path: Path, names: list[str], expected: list[str]) -> None:
    """Raise unless a file has the same columns as those before it."""
    if set(names) != set(expected):
        odd = ", ".join(repr(name) for name in sorted(set(names) ^ set(expected))[:10])
        raise SourceFault(
            f"{path}: its columns differ from those of the files before it: {odd:.300}; use the "
            "same columns in all files, or choose common ones with columns=[…]"
        )
