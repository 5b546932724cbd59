"""What the commands share: JSON, tables, numbers for people, and how bad input fails."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from feedline.errors import FeedlineError, InvalidValueError

__all__ = ["bad_input_is_usage", "format_bytes", "print_json", "print_table"]

_WIDE = 160


@contextmanager
def bad_input_is_usage() -> Iterator[None]:
    """Let whatever is wrong with a file that was named count as bad usage, on one line."""
    try:
        yield
    except InvalidValueError:
        raise
    except FeedlineError as error:
        raise InvalidValueError(" ".join(str(error).split())) from None
    except OSError as error:
        raise InvalidValueError(f"{error.filename or 'a file'}: {error.strerror}") from None


def print_json(result: Any) -> None:
    """Print a result as one line of JSON."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = dataclasses.asdict(result)
    click.echo(json.dumps(result, default=str))


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows below a title; numbers stand to the right."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "tables need rich, which is not installed; install feedline[cli]", name="rich"
        ) from None
    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
    listed = [list(row) for row in rows]
    for number, name in enumerate(header):
        is_numeric = all(isinstance(row[number], int | float) for row in listed)
        table.add_column(Text(name), justify="right" if is_numeric else "left", no_wrap=True)
    for row in listed:
        # As text, because a name in brackets would be taken for a style.
        table.add_row(*(Text(_shown(value)) for value in row))
    # What is not read on a screen, such as a log, is not cut to the width of one.
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    console.print(table)


def format_bytes(num_bytes: int | None) -> str:
    """Return a number of bytes for people.

    Examples:
        >>> format_bytes(3 * 2**30)
        '3.0 GiB'
    """
    if num_bytes is None:
        return "unknown"
    size, unit = float(num_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{num_bytes:,} bytes" if unit == "bytes" else f"{size:,.1f} {unit}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
