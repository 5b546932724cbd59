"""CSV and JSONL files as a source: cut into blocks of whole lines that threads parse with pyarrow.

The types of the first block hold for all: a later value that does not fit is refused, never
rounded.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from feedline.packing.arrow_arrays import to_array
from feedline.packing.batch import Batch, SourceFault
from feedline.packing.file_list import describe_files, open_file
from feedline.packing.names import Selection, old_names, select
from feedline.store.arrow import import_arrow

__all__ = ["CsvFiles", "JsonlFiles"]

_BLOCK_BYTES = 2**20
_MAX_LINE_BYTES = 2**26
# What CSV files write for no value. NaN is a value.
_NO_VALUE = ["", "NA", "N/A", "#N/A", "n/a", "NULL", "null", "None", "<NA>"]

_Parse = Callable[[bytes], Any]


class _TextFiles(ABC):
    """Files of lines, parsed in blocks; what a line means is told by the two kinds below."""

    kind = ""
    has_quotes = False
    num_header_lines = 0

    def __init__(self, paths: list[Path], selection: Selection | None, num_threads: int) -> None:
        self._paths = paths
        self._selection = selection
        self._num_threads = num_threads
        self._arrow = import_arrow()
        self.identity = describe_files(self.kind, paths)
        self.num_rows: int | None = None
        self.num_rows_guess: int | None = _guess_rows(paths)

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all rows from `start` on; those before are parsed again, to be counted."""
        schema: Any = None
        num_seen = 0
        with ThreadPoolExecutor(self._num_threads) as pool:
            for path in self._paths:
                for row, table in self._tables(path, schema, pool):
                    schema = table.schema if schema is None else schema
                    skip = min(max(start - num_seen, 0), table.num_rows)
                    num_seen += table.num_rows
                    if skip < table.num_rows:
                        yield self._batch(path, row + skip, table.slice(skip))

    def _batch(self, path: Path, row: int, table: Any) -> Batch:
        selection = select(self._selection, table.column_names, str(path))
        arrays = {
            new: to_array(str(path), row, old, table.column(old)) for new, old in selection.items()
        }
        return Batch(str(path), row, arrays)

    def _tables(self, path: Path, schema: Any, pool: ThreadPoolExecutor) -> Iterator[Any]:
        """Yield the tables of a file, each with the number of its first row; none is empty."""
        row = 0
        parse: _Parse | None = None
        waiting: deque[Future[Any]] = deque()
        with closing(_blocks(path, self.has_quotes)) as blocks:
            try:
                for block in blocks:
                    if parse is None or schema is None:
                        # Nothing can be parsed beside it before the types are known.
                        num_headers = self.num_header_lines if parse is None else 0
                        parse = parse or self._parser(path, block, schema)
                        waiting.append(pool.submit(parse, block))
                        table = self._result(path, row, waiting, num_headers)
                        if table.num_rows:
                            yield row, table
                            row += table.num_rows
                            schema = table.schema if schema is None else schema
                        parse = self._parser(path, b"", schema)
                        continue
                    waiting.append(pool.submit(parse, block))
                    if len(waiting) > self._num_threads:
                        table = self._result(path, row, waiting)
                        yield row, table
                        row += table.num_rows
                while waiting:
                    table = self._result(path, row, waiting)
                    yield row, table
                    row += table.num_rows
            finally:
                for future in waiting:
                    future.cancel()

    def _result(
        self, path: Path, row: int, waiting: deque[Future[Any]], num_headers: int = 0
    ) -> Any:
        try:
            return waiting.popleft().result()
        except self._arrow.ArrowException as error:
            # Messages count rows from the start of the block: lines from 1 in CSV, else from 0.
            first = row - num_headers - self.num_header_lines
            text, count = re.subn(
                r"[Rr]ow #?(\d+)", lambda match: f"row {first + int(match[1])}", str(error)
            )
            near = "" if count else f" near row {row}"
            raise SourceFault(
                f"{path}: cannot be read{near} ({text:.300}); the first rows tell the type of each "
                "column and all others must fit it, so write numbers alike in all rows, or leave "
                "the column out by columns=[…]"
            ) from None

    @abstractmethod
    def _parser(self, path: Path, first: bytes, schema: Any) -> _Parse:
        """Return what parses a block; `first` is the block at the start of a file."""


class CsvFiles(_TextFiles):
    """CSV files whose first line names the columns."""

    kind = "csv"
    has_quotes = True
    num_header_lines = 1
    _names: list[str]

    def _parser(self, path: Path, first: bytes, schema: Any) -> _Parse:
        csv = import_arrow("pyarrow.csv")
        if first:
            self._names = self._header(csv, path, first, schema)
        options = csv.ConvertOptions(
            include_columns=old_names(select(self._selection, self._names, str(path))),
            column_types=schema,
            null_values=_NO_VALUE,
            strings_can_be_null=True,
        )

        def parse(block: bytes) -> Any:
            reading = csv.ReadOptions(
                use_threads=False,
                block_size=len(block) + 1,
                column_names=None if first else self._names,
            )
            return csv.read_csv(
                self._arrow.BufferReader(block),
                read_options=reading,
                parse_options=csv.ParseOptions(newlines_in_values=True),
                convert_options=options,
            )

        return parse

    def _header(self, csv: Any, path: Path, first: bytes, schema: Any) -> list[str]:
        line = first[: _line_end(first)]
        try:
            names = csv.read_csv(self._arrow.BufferReader(line)).column_names
        except self._arrow.ArrowException as error:
            raise SourceFault(f"{path}: has no line with the names of columns ({error})") from None
        if schema is not None and self._selection is None:
            refuse_other_columns(path, names, schema.names)
        return list(names)


class JsonlFiles(_TextFiles):
    """Files with a JSON object on each line."""

    kind = "jsonl"

    def _parser(self, path: Path, first: bytes, schema: Any) -> _Parse:
        json = import_arrow("pyarrow.json")
        options = None
        if schema is not None:
            wanted = old_names(self._selection) if self._selection else schema.names
            options = json.ParseOptions(
                explicit_schema=self._arrow.schema([schema.field(name) for name in wanted]),
                unexpected_field_behavior="error" if self._selection is None else "ignore",
            )

        def parse(block: bytes) -> Any:
            if not block.strip():
                return self._arrow.table({})
            reading = json.ReadOptions(use_threads=False, block_size=len(block) + 1)
            return json.read_json(
                self._arrow.BufferReader(block), read_options=reading, parse_options=options
            )

        return parse


def refuse_other_columns(path: Path, names: list[str], expected: list[str]) -> None:
    """Raise unless a file has the same columns as those before it."""
    if set(names) != set(expected):
        odd = ", ".join(repr(name) for name in sorted(set(names) ^ set(expected))[:10])
        raise SourceFault(
            f"{path}: its columns are not those of the files before it, by {odd:.300}; all files "
            "must have the same, or choose common ones by columns=[…]"
        )


def _blocks(path: Path, has_quotes: bool) -> Generator[bytes]:
    """Yield a file in blocks that end where lines end."""
    rest = b""
    with open_file(path) as file:
        while data := file.read(_BLOCK_BYTES):
            data = rest + data if rest else data
            end = data.rfind(b"\n") + 1
            # A line does not end inside of quotes; blocks begin outside of them.
            while has_quotes and end and data.count(b'"', 0, end) % 2:
                end = data.rfind(b"\n", 0, end - 1) + 1
            if end:
                yield data[:end]
            rest = data[end:]
            if len(rest) > _MAX_LINE_BYTES:
                raise SourceFault(
                    f"{path}: has a line of over {_MAX_LINE_BYTES} bytes, which is the most; end "
                    "lines with a newline, and close all quotes"
                )
    if rest:
        yield rest


def _line_end(data: bytes) -> int:
    end = data.find(b"\n") + 1
    while end and data.count(b'"', 0, end) % 2:
        end = data.find(b"\n", end) + 1
    return end or len(data)


def _guess_rows(paths: list[Path]) -> int:
    """Return about how many rows files have, by the lines at the start of the largest."""
    sizes = [path.stat().st_size for path in paths]
    with open_file(paths[sizes.index(max(sizes))]) as file:
        sample = file.read(_BLOCK_BYTES)
    return sum(sizes) * (sample.count(b"\n") + 1) // max(1, len(sample))
