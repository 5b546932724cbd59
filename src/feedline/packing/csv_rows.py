"""Where rows of CSV end: at a newline that is not in quotes."""

from __future__ import annotations

import re

import numpy as np

_MARK = b"\xef\xbb\xbf"
# As pyarrow and Python's csv read it, a quote opens only where a field begins.
_FIELD = rb'(?:"(?:[^"]++|"")*+"[^,\r\n]*+|[^",\r\n][^,\r\n]*+|)'
_HEADER = re.compile(rb"%b(?:,%b)*+(?:\r\n?|\n|$)" % (_FIELD, _FIELD))
_ROWS = re.compile(rb"(?:%b[,\r])*+%b\n" % (_FIELD, _FIELD))


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


def _has_stray_quotes(data: bytes) -> bool:
    """Whether some quotes neither open nor close a field; without them, counting is enough."""
    memory = np.frombuffer(data, np.uint8)
    opening = np.flatnonzero(memory == ord('"'))[::2]
    before = memory[opening[opening > 0] - 1]
    return not np.isin(before, np.frombuffer(b',\r\n"', np.uint8)).all()


def _begin(data: bytes) -> int:
    return len(_MARK) if data.startswith(_MARK) else 0
