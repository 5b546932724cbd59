"""Parquet, CSV and JSONL files as a source, decoded by pyarrow a block at a time."""

from __future__ import annotations

import io
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from feedline.errors import PackError
from feedline.packing.arrow_columns import paths_in, to_columns
from feedline.packing.rows import Batch, Flat, SourceFault, describe_files
from feedline.packing.selection import Selection, old_names, select
from feedline.store.extras import import_arrow
from feedline.words import several

# Decoding takes several times the memory of its result.
_BLOCK_BYTES = 2**20
_MAX_BATCH_ROWS = 2**16
_MAX_VALUE_BYTES = 8
_MAX_LINE_BYTES = 2**26
# The rows that are decoded to see how large they are.
_NUM_SAMPLED = 16
# What CSV files write for no value. NaN is a value.
_NO_VALUE = ["", "NA", "N/A", "#N/A", "n/a", "NULL", "null", "None", "<NA>"]


class ParquetFiles:
    """Parquet files with the same columns."""

    can_restart = True

    def __init__(self, paths: list[Path], selection: Selection | None, num_threads: int) -> None:
        self._paths = paths
        self._arrow = import_arrow()
        self.identity = describe_files("parquet", paths)
        self._num_rows: list[int] = []
        chosen = selection
        for path in paths:
            with self._open(path) as file:
                names = names_of(path, file.schema_arrow)
                if selection is None and chosen is not None:
                    refuse_other_columns(path, names, list(chosen))
                chosen = select(chosen, names, str(path))
                self._num_rows.append(_num_rows_in(path, file.metadata))
        assert chosen is not None
        self._selection = chosen
        self.num_rows = self.num_rows_guess = sum(self._num_rows)

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all rows from `start`; earlier files and row groups are not read."""
        for path, num_rows in zip(self._paths, self._num_rows, strict=True):
            if start < num_rows:
                yield from self._batches_of(path, start)
            start = max(start - num_rows, 0)

    def _batches_of(self, path: Path, start: int) -> Iterator[Batch]:
        with self._open(path) as file:
            groups = [
                file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)
            ]
            ends = np.cumsum([group.num_rows for group in groups])
            first = int(np.searchsorted(ends, start, side="right"))
            row = int(ends[first]) - groups[first].num_rows
            for number in range(first, len(groups)):
                for table in file.iter_batches(
                    batch_size=_batch_rows(file, number, groups[number]),
                    row_groups=[number],
                    columns=_fields_of(file.schema_arrow, self._selection),
                ):
                    skip = min(max(start - row, 0), table.num_rows)
                    if skip < table.num_rows:
                        yield batch_of_table(path, row + skip, table.slice(skip), self._selection)
                    row += table.num_rows

    @contextmanager
    def _open(self, path: Path) -> Iterator[Any]:
        parquet = import_arrow("pyarrow.parquet")
        try:
            # A buffer makes it read a row group bit by bit instead of whole.
            with parquet.ParquetFile(path, buffer_size=_BLOCK_BYTES, pre_buffer=False) as file:
                yield file
        except OSError as error:
            raise PackError(f"{path}: cannot be read ({error!s:.300})") from None
        except UnicodeDecodeError:
            raise _not_text(path) from None
        except self._arrow.ArrowException as error:
            raise SourceFault(
                f"{path}: cannot be read ({error!s:.300}); check that it is a complete parquet file"
            ) from None


class _TextFiles(ABC):
    """Files of lines, cut into blocks of whole lines that threads parse with pyarrow.

    The types of the first block hold for all: a later value that does not fit is refused, never
    rounded. pyarrow's own streams would do the same, but parse in one thread, name no rows, and
    refuse lines that are longer than a block.
    """

    can_restart = True
    kind = ""
    has_quotes = False
    #: What messages call the first row of a block.
    first_row = 0

    def __init__(self, paths: list[Path], selection: Selection | None, num_threads: int) -> None:
        self._paths = paths
        self._selection = selection
        self._num_threads = num_threads
        self._arrow = import_arrow()
        self.identity = describe_files(self.kind, paths)
        self.num_rows = None
        self.num_rows_guess = _guess_rows(paths)

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all rows from `start`; earlier rows are parsed again, to count them."""
        schema: Any = None
        num_seen = 0
        with ThreadPoolExecutor(self._num_threads) as pool:
            for path in self._paths:
                row = 0
                for table in self._tables(path, schema, pool):
                    schema = table.schema if schema is None else schema
                    skip = min(max(start - num_seen, 0), table.num_rows)
                    if skip < table.num_rows:
                        names = names_of(path, table.schema)
                        selection = select(self._selection, names, str(path))
                        yield batch_of_table(path, row + skip, table.slice(skip), selection)
                    num_seen += table.num_rows
                    row += table.num_rows

    def _tables(self, path: Path, schema: Any, pool: Executor) -> Iterator[Any]:
        """Yield the tables of a file that have rows."""
        row = 0
        waiting: deque[Future[Any]] = deque()
        try:
            for number, block in enumerate(chain(_blocks(path, self.has_quotes), [b""])):
                lines = self._without_header(path, block, schema) if block and not number else block
                if lines.strip():
                    waiting.append(pool.submit(self._parse, lines, schema))
                # Until the types are known, only the first rows can be parsed.
                max_waiting = 0 if schema is None or not block else self._num_threads
                while len(waiting) > max_waiting:
                    table = self._result(path, row, waiting.popleft())
                    if table.num_rows:
                        yield table
                        row += table.num_rows
                        schema = table.schema if schema is None else schema
        finally:
            for parsing in waiting:
                parsing.cancel()

    def _result(self, path: Path, row: int, parsing: Future[Any]) -> Any:
        try:
            return parsing.result()
        except UnicodeDecodeError:
            raise _not_text(path) from None
        except self._arrow.ArrowException as error:
            first = row - self.first_row
            text, count = re.subn(
                r"[Rr]ow #?(\d+)", lambda match: f"row {first + int(match[1])}", str(error)
            )
            near = "" if count else f" near row {row}"
            if fields := re.search(r"row (\d+): Expected (\d+) columns, got (\d+)", text):
                raise SourceFault(
                    f"{path}: row {fields[1]} has {several(int(fields[3]), 'field')} and must have "
                    f"{fields[2]}, as the header does; correct the row, and put values that "
                    "contain a comma in double quotes"
                ) from None
            raise SourceFault(
                f"{path}: cannot be read{near} ({text:.300}); the first rows decide the type of "
                "each column, and all other rows must fit it; write numbers of a column in one "
                "way, or exclude the column with columns=[…]"
            ) from None

    def _without_header(self, path: Path, first: bytes, schema: Any) -> bytes:
        """Return the rows of the first block of a file; `schema` has the types, if known."""
        return first

    @abstractmethod
    def _parse(self, block: bytes, schema: Any) -> Any:
        """Return a block as a table."""


class CsvFiles(_TextFiles):
    """CSV files whose first line names the columns."""

    kind = "csv"
    has_quotes = True
    first_row = 1
    _names: list[str]
    _wanted: list[str]

    def _without_header(self, path: Path, first: bytes, schema: Any) -> bytes:
        csv = import_arrow("pyarrow.csv")
        line = re.match(rb'(?:"[^"]*+"|[^"\r\n])*+(?:\r\n?|\n|$)', first)
        end = line.end() if line else len(first)
        try:
            header = csv.read_csv(self._arrow.BufferReader(first[:end]))
            self._names = names_of(path, header.schema)
        except self._arrow.ArrowException as error:
            raise SourceFault(
                f"{path}: its first line must name the columns ({error}); add a header"
            ) from None
        if schema is not None and self._selection is None:
            refuse_other_columns(path, self._names, schema.names)
        self._wanted = old_names(select(self._selection, self._names, str(path)))
        return first[end:]

    def _parse(self, block: bytes, schema: Any) -> Any:
        csv = import_arrow("pyarrow.csv")
        return csv.read_csv(
            self._arrow.BufferReader(block),
            read_options=csv.ReadOptions(
                use_threads=False, block_size=len(block) + 1, column_names=self._names
            ),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                include_columns=self._wanted,
                column_types=_typed(self._arrow, schema),
                # In a column of texts these are texts.
                null_values=_NO_VALUE,
            ),
        )


class JsonlFiles(_TextFiles):
    """Files with a JSON object on each line."""

    kind = "jsonl"

    def _parse(self, block: bytes, schema: Any) -> Any:
        json = import_arrow("pyarrow.json")
        options, known = None, schema
        if schema is not None:
            names = schema.names
            if self._selection is not None:
                paths = [path for path, _ in paths_in(schema)]
                names = _fields_of(schema, select(self._selection, paths, self.kind))
            known = self._arrow.schema([schema.field(name) for name in names])
            typed = _typed(self._arrow, known)
            others = "error" if self._selection is None else "ignore"
            options = json.ParseOptions(
                explicit_schema=typed,
                unexpected_field_behavior=others if len(typed) == len(known) else "infer",
            )
        table = json.read_json(
            self._arrow.BufferReader(block),
            read_options=json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=options,
        )
        for field in known or ():
            if field.name not in table.schema.names:
                table = table.append_column(field, self._arrow.nulls(len(table), field.type))
        odd = set(table.schema.names) - set(table.schema.names if schema is None else schema.names)
        if odd and self._selection is None:
            raise self._arrow.ArrowInvalid(f"unexpected field {min(odd)!r}")
        return table


def batch_of_table(path: Path, row: int, table: Any, selection: Selection) -> Batch:
    """Return the selected columns of a table."""
    flat = Flat({}, {})
    for name in _fields_of(table.schema, selection):
        flat.add(to_columns(str(path), row, name, table.column(name)))
    return Batch(str(path), row, flat.chosen(selection, str(path)))


def _typed(arrow: Any, schema: Any) -> Any:
    """Return the fields whose type is known; a column may have no value in the first rows."""
    if schema is None:
        return None
    return arrow.schema([field for field in schema if not arrow.types.is_null(field.type)])


def _fields_of(schema: Any, selection: Selection) -> list[str]:
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
        raise _not_text(path) from None


def _not_text(path: Path) -> SourceFault:
    return SourceFault(
        f"{path}: the name of a column is not UTF-8; rename it, or write the file again"
    )


def refuse_other_columns(path: Path, names: list[str], expected: list[str]) -> None:
    """Raise unless a file has the same columns as those before it."""
    if set(names) != set(expected):
        odd = ", ".join(repr(name) for name in sorted(set(names) ^ set(expected))[:10])
        raise SourceFault(
            f"{path}: its columns differ from those of the files before it: {odd:.300}; use the "
            "same columns in all files, or choose common ones with columns=[…]"
        )


def _blocks(path: Path, has_quotes: bool) -> Iterator[bytes]:
    """Yield a file in blocks that end where lines end."""
    rest = b""
    with _open(path) as file:
        while data := file.read(_BLOCK_BYTES):
            data = rest + data if rest else data
            end = data.rfind(b"\n") + 1
            # A line does not end inside quotes; blocks begin outside quotes.
            while has_quotes and end and data.count(b'"', 0, end) % 2:
                end = data.rfind(b"\n", 0, end - 1) + 1
            if end:
                yield data[:end]
            rest = data[end:]
            if len(rest) > _MAX_LINE_BYTES:
                raise SourceFault(
                    f"{path}: has a line of over {_MAX_LINE_BYTES} bytes, the maximum; end lines "
                    "with a newline, and close all quotes"
                )
    if rest:
        yield rest


def _open(path: Path) -> io.FileIO:
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise PackError(f"{path}: cannot be read ({error.strerror})") from None


def _guess_rows(paths: list[Path]) -> int:
    """Return an estimate of the number of rows in files, from the lines at the start of the
    largest."""
    sizes = [path.stat().st_size for path in paths]
    with _open(paths[sizes.index(max(sizes))]) as file:
        sample = file.read(_BLOCK_BYTES)
    return sum(sizes) * (sample.count(b"\n") + 1) // max(1, len(sample))
