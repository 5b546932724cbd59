"""Where rows of CSV end: at a newline that is not in quotes."""

from __future__ import annotations

import re

import numpy as np

from feedline.store.extras import import_arrow

_MARK = b"\xef\xbb\xbf"
# As pyarrow and Python's csv read it, a quote opens only where a field begins.
_FIELD = rb'(?:"(?:[^"]++|"")*+"[^,\r\n]*+|[^",\r\n][^,\r\n]*+|)'
_HEADER = re.compile(rb"%b(?:,%b)*+(?:\r\n?|\n|$)" % (_FIELD, _FIELD))
_EMPTY_LINE = re.compile(rb"^\r?\n", re.MULTILINE)
_ROWS = re.compile(rb"(?:%b[,\r])*+%b\n" % (_FIELD, _FIELD))


class EmptyLineError(Exception):
    """An empty line in a file of one column."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def end_of_header(data: bytes) -> int:
    """Return the length of the first row, or 0 if a quote in it is not closed.

    Examples:
        >>> end_of_header(b'5",x\\n1,2\\n'), end_of_header(b'"a\\nb",x\\n1,2\\n')
        (5, 8)
    """
    found = _HEADER.match(data, _begin(data))
    return found.end() if found else 0


def end_of_rows(data: bytes) -> int:
    """Return where the last whole row ends, in bytes that begin with a row.

    Examples:
        >>> end_of_rows(b'a,"b\\nc"\\nd,"e\\n'), end_of_rows(b'5",b\\nd,"e\\n')
        (8, 5)
    """
    if _has_stray_quotes(data):
        first = end = _begin(data)
        while found := _ROWS.match(data, end):
            end = found.end()
        return end if end > first else 0
    end = data.rfind(b"\n") + 1
    while end and data.count(b'"', 0, end) % 2:
        end = data.rfind(b"\n", 0, end - 1) + 1
    return end


def refuse_empty_lines(rows: bytes) -> None:
    """Refuse empty lines in rows of one column: each is a missing value to some, no row to others.

    With more columns, a row of missing values has commas, so that an empty line is no row.
    """
    if not _EMPTY_LINE.search(rows):
        return
    csv, arrow = import_arrow("pyarrow.csv"), import_arrow()
    table = csv.read_csv(
        arrow.BufferReader(rows),
        read_options=csv.ReadOptions(
            use_threads=False, block_size=len(rows) + 1, column_names=["x"]
        ),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            # Of empty values, only those in quotes are not null then, and not in an empty line.
            column_types={"x": arrow.binary()},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    if table["x"].null_count:
        raise EmptyLineError(table["x"].is_null().to_pylist().index(True))


def _has_stray_quotes(data: bytes) -> bool:
    """Whether some quotes neither open nor close a field; without them, counting is enough."""
    memory = np.frombuffer(data, np.uint8)
    opening = np.flatnonzero(memory == ord('"'))[::2]
    before = memory[opening[opening > 0] - 1]
    return not np.isin(before, np.frombuffer(b',\r\n"', np.uint8)).all()


def _begin(data: bytes) -> int:
    return len(_MARK) if data.startswith(_MARK) else 0
