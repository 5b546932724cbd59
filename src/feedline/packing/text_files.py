"""CSV and JSONL files as a source: cut into blocks of whole lines, which pyarrow parses."""

from __future__ import annotations

import io
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

from feedline.errors import PackError
from feedline.packing.arrow_columns import paths_in
from feedline.packing.csv_rows import (
    EmptyLineError,
    end_of_header,
    end_of_rows,
    refuse_empty_lines,
)
from feedline.packing.parts import Part
from feedline.packing.rounding import (
    RoundedError,
    large_floats,
    refuse_rounded_json,
    refuse_rounded_texts,
)
from feedline.packing.rows import Batch, SourceFault, describe_files
from feedline.packing.selection import Selection, old_names, select
from feedline.packing.table_files import (
    batch_of_table,
    fields_of,
    names_of,
    not_text,
    refuse_other_columns,
)
from feedline.store.extras import import_arrow
from feedline.words import several

_BLOCK_BYTES = 2**20
_MAX_LINE_BYTES = 2**26
# What CSV files write for no value. NaN is a value.
_NO_VALUE = ["", "NA", "N/A", "#N/A", "n/a", "NULL", "null", "None", "<NA>"]


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
        self.num_threads = num_threads
        self._schema: Any = None
        import_arrow()
        self.identity = describe_files(self.kind, paths)
        self.num_rows = None
        self.num_rows_guess = _guess_rows(paths)

    @property
    def _arrow(self) -> Any:
        return import_arrow()

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all rows from `start`; earlier rows are parsed again, to count them."""
        self._schema = None
        num_seen = 0
        with ThreadPoolExecutor(self.num_threads) as pool:
            for path in self._paths:
                row = 0
                for table in self._tables(path, pool, row):
                    skip = min(max(start - num_seen, 0), table.num_rows)
                    if skip < table.num_rows:
                        yield self._batch(path, row + skip, table.slice(skip))
                    num_seen += table.num_rows
                    row += table.num_rows

    def parts(self, num_bytes: int, row_bytes: int) -> list[Part]:
        """Return runs of whole blocks, after the first rows were read, which decide the types."""
        assert self._schema is not None
        found = []
        for number, path in enumerate(self._paths):
            edges = block_edges(path, self.has_quotes, max(_BLOCK_BYTES, num_bytes))
            found += [Part(start, stop, number) for start, stop in pairwise(edges)]
        return found

    def read(self, part: Part, row: int) -> Iterator[Batch]:
        """Yield the rows of a part."""
        assert part.file is not None
        path = self._paths[part.file]
        if part.start:
            # Its names are in the first line.
            self._without_header(path, next(blocks(path, self.has_quotes)), self._schema)
        with ThreadPoolExecutor(self.num_threads) as pool:
            for table in self._tables(path, pool, row, part.start, part.stop):
                yield self._batch(path, row, table)
                row += table.num_rows

    def _batch(self, path: Path, row: int, table: Any) -> Batch:
        names = names_of(path, table.schema)
        return batch_of_table(path, row, table, select(self._selection, names, str(path)))

    def _tables(
        self, path: Path, pool: Executor, row: int, begin: int = 0, end: int | None = None
    ) -> Iterator[Any]:
        """Yield the tables of a file, or of some of its bytes, that have rows."""
        waiting: deque[Future[Any]] = deque()
        pieces = blocks(path, self.has_quotes, begin, end)
        try:
            for number, block in enumerate(chain(pieces, [b""])):
                is_first = block and not number and not begin
                lines = self._without_header(path, block, self._schema) if is_first else block
                if lines and not lines.isspace():
                    waiting.append(pool.submit(self._parse, lines, self._schema))
                # Until the types are known, only the first rows can be parsed.
                max_waiting = 0 if self._schema is None or not block else self.num_threads
                while len(waiting) > max_waiting:
                    table = self._result(path, row, waiting.popleft())
                    if table.num_rows:
                        if self._schema is None:
                            self._schema = self._settled(path, table.schema)
                            if self._schema != table.schema:
                                table = self._parse(lines, self._schema)
                        yield table
                        row += table.num_rows
        finally:
            for parsing in waiting:
                parsing.cancel()

    def _result(self, path: Path, row: int, parsing: Future[Any]) -> Any:
        try:
            return parsing.result()
        except UnicodeDecodeError:
            raise not_text(path) from None
        except EmptyLineError as error:
            raise SourceFault(
                f"{path}: row {row + error.row} is an empty line, which may be a missing value or "
                'no row in a file of one column; write "" for a missing value, or remove the line'
            ) from None
        except RoundedError as error:
            raise SourceFault(
                f"{path}: row {row + error.row}: column {error.name!r:.80} has {error.text:.40}, "
                "which the type of the column, float64, would round; write it with a decimal point "
                "if it may be rounded, write the data as parquet, or exclude the column with "
                "columns=[…]"
            ) from None
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

    def _settled(self, path: Path, schema: Any) -> Any:
        """Return the types of all rows, by those of the first ones."""
        return schema

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
        end = end_of_header(first)
        try:
            if not end:
                raise self._arrow.ArrowInvalid("a quote in it is not closed")
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

    def _settled(self, path: Path, schema: Any) -> Any:
        # If a column without a value turns out to be of texts, then these were texts, such as "NA".
        unknown = {f.name for f in schema if self._arrow.types.is_null(f.type)}
        names, wanted = self._names, self._wanted
        later: dict[str, Any] = {}
        for other in self._paths[self._paths.index(path) :]:
            for number, block in enumerate(blocks(other, self.has_quotes) if unknown else ()):
                lines = block if number else self._without_header(other, block, schema)
                if lines and not lines.isspace():
                    try:
                        found = self._read(lines, sorted(unknown), None).schema
                    except self._arrow.ArrowException:
                        # Packing gets there, and says where it is.
                        break
                    later |= {f.name: f for f in _typed(self._arrow, found)}
                    unknown -= later.keys()
                if not unknown:
                    break
        self._names, self._wanted = names, wanted
        return self._arrow.schema([later.get(field.name, field) for field in schema])

    def _parse(self, block: bytes, schema: Any) -> Any:
        if len(self._names) == 1:
            refuse_empty_lines(block)
        table = self._read(block, self._wanted, _typed(self._arrow, schema))
        if doubtful := large_floats(table):
            # As texts they tell what was written.
            texts = self._arrow.schema([(name, self._arrow.string()) for name in doubtful])
            refuse_rounded_texts(table, self._read(block, doubtful, texts))
        return table

    def _read(self, block: bytes, names: list[str], types: Any) -> Any:
        csv = import_arrow("pyarrow.csv")
        return csv.read_csv(
            self._arrow.BufferReader(block),
            read_options=csv.ReadOptions(
                use_threads=False, block_size=len(block) + 1, column_names=self._names
            ),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                include_columns=names,
                column_types=types,
                # In a column of texts these are texts.
                null_values=_NO_VALUE,
            ),
        )


class JsonlFiles(_TextFiles):
    """Files with a JSON object on each line."""

    kind = "jsonl"

    def _parse(self, block: bytes, schema: Any) -> Any:
        json = import_arrow("pyarrow.json")
        if not block.isascii():
            # pyarrow takes any bytes as a text.
            block.decode()
        options, known = None, schema
        if schema is not None:
            names = schema.names
            if self._selection is not None:
                paths = [path for path, _ in paths_in(schema)]
                names = fields_of(schema, select(self._selection, paths, self.kind))
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
        doubtful = large_floats(table)
        if self._selection is not None:
            wanted = old_names(self._selection)
            doubtful = [p for p in doubtful if any(f"{p}/".startswith(f"{w}/") for w in wanted)]
        if doubtful:
            refuse_rounded_json(table.schema, doubtful, block)
        for field in known or ():
            if field.name not in table.schema.names:
                table = table.append_column(field, self._arrow.nulls(len(table), field.type))
        odd = set(table.schema.names) - set(table.schema.names if schema is None else schema.names)
        if odd and self._selection is None:
            raise self._arrow.ArrowInvalid(f"unexpected field {min(odd)!r}")
        return table


def _typed(arrow: Any, schema: Any) -> Any:
    """Return the fields whose type is known; a column may have no value in the first rows."""
    if schema is None:
        return None
    return arrow.schema([field for field in schema if not arrow.types.is_null(field.type)])


def blocks(path: Path, has_quotes: bool, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yield a file in blocks that end where lines end, or only those between two edges of blocks.

    The blocks are the same wherever reading begins, because reads end at the same bytes.
    """
    rest, place = b"", begin
    with _open(path) as file:
        file.seek(begin)
        while data := file.read(_BLOCK_BYTES - file.tell() % _BLOCK_BYTES):
            data = rest + data if rest else data
            # Blocks begin outside quotes.
            size = end_of_rows(data) if has_quotes else data.rfind(b"\n") + 1
            if size:
                yield data[:size]
            rest, place = data[size:], place + size
            if place == end:
                return
            if len(rest) > _MAX_LINE_BYTES:
                raise SourceFault(
                    f"{path}: has a line of over {_MAX_LINE_BYTES} bytes, the maximum; end lines "
                    "with a newline, and close all quotes"
                )
    if rest:
        if has_quotes and end_of_rows(rest + b"\n") <= len(rest):
            raise SourceFault(
                f"{path}: the row at byte {place} has a quote that is not closed, so all lines "
                "after it would be one value; close the quote, or copy the file again if truncated"
            )
        yield rest


def block_edges(path: Path, has_quotes: bool, num_bytes: int) -> list[int]:
    """Return where blocks of a file begin that are about so far apart, and the end of the file."""
    size = path.stat().st_size
    step = num_bytes - num_bytes % _BLOCK_BYTES
    edges = [0]
    if has_quotes:
        # Only reading all of it tells which newlines are in quotes.
        for end in accumulate(map(len, blocks(path, has_quotes))):
            if end - edges[-1] >= step:
                edges.append(end)
    else:
        with _open(path) as file:
            for place in range(step, size, step):
                if (edge := _line_before(file, place)) > edges[-1]:
                    edges.append(edge)
    return [*edges, size] if edges[-1] < size else edges


def _line_before(file: io.FileIO, place: int) -> int:
    """Return where the last line ends before a place; 0 if lines are too long."""
    first = place
    while first and place - first <= _MAX_LINE_BYTES:
        stop, first = first, max(0, first - 2**16)
        file.seek(first)
        if found := file.read(stop - first).rfind(b"\n") + 1:
            return first + found
    return 0


def _guess_rows(paths: list[Path]) -> int:
    """Return an estimate of the number of rows in files, from the lines at the start of the
    largest."""
    sizes = [path.stat().st_size for path in paths]
    with _open(paths[sizes.index(max(sizes))]) as file:
        sample = file.read(_BLOCK_BYTES)
    return sum(sizes) * (sample.count(b"\n") + 1) // max(1, len(sample))


def _open(path: Path) -> io.FileIO:
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise PackError(f"{path}: cannot be read ({error.strerror})") from None
