"""Shared by the commands: their outcome, JSON, tables and readable numbers."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from rich.console import Console

# What is not read on a screen, such as a log, is not cut to the width of one.
_WIDE = 4096


class Outcome(NamedTuple):
    """The outcome of a command: values for JSON, how to show it, and whether it is good."""

    described: Any
    show: Callable[[], object]
    is_good: bool = True


def command(function: Callable[..., Outcome]) -> click.Command:
    """Return a command that shows its outcome, or with --json prints it; it exits with 1 if bad."""

    @functools.wraps(function)
    def run(*arguments: Any, as_json: bool, **options: Any) -> None:
        outcome = function(*arguments, **options)
        if as_json:
            print_json(outcome.described)
        else:
            outcome.show()
        if not outcome.is_good:
            sys.exit(1)

    made = click.command()(run)
    text = "Print the result as JSON."
    made.params.append(click.Option(["--json", "as_json"], is_flag=True, help=text))
    return made


class Styled(NamedTuple):
    """A cell of a table in a style of rich."""

    value: object
    style: str


def echo(text: object = "", *, err: bool = False) -> None:
    """Print lines; a name from a file cannot move the cursor, or turn what is read around."""
    click.echo(escaped(str(text)), err=err)


def secho(text: str, *, fg: str, bold: bool = False) -> None:
    """Print lines in a colour, as `echo` does."""
    click.secho(escaped(text), fg=fg, bold=bold)


def print_json(result: Any) -> None:
    """Print a result as one line of JSON; a number that JSON does not have is null."""
    text = json.dumps(result, default=_plain)
    click.echo(json.dumps(json.loads(text, parse_constant=lambda _: None)))


def make_console(*, is_quiet: bool = False) -> Console:
    """Return the console; rich is imported only when something is printed."""
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "tables need rich, which is not installed; install feedline[cli]", name="rich"
        ) from None
    width = None if sys.stdout.isatty() else _WIDE
    return Console(quiet=is_quiet, highlight=False, width=width)


def print_table(
    title: str, header: Sequence[str], rows: Iterable[Sequence[object]], *, indent: int = 0
) -> None:
    """Print rows below a title; numbers are right-aligned."""
    console = make_console()
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    # As text, because a name in brackets would be taken for a style.
    table = Table(
        title=Text(one_line(title)) if title else None,
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    listed = [list(row) for row in rows]
    for number, name in enumerate(header):
        is_numeric = all(_is_number_or_none(row[number]) for row in listed)
        table.add_column(
            Text(one_line(name)), justify="right" if is_numeric else "left", no_wrap=True
        )
    for row in listed:
        cells = (value if isinstance(value, Styled) else Styled(value, "") for value in row)
        table.add_row(*(Text(_shown(value), style) for value, style in cells))
    console.print(Padding(table, (0, 0, 0, indent), expand=False))


def one_line(text: str) -> str:
    r"""Return a text on one line, without control characters.

    Examples:
        >>> one_line("two\nlines \x1b[31m")
        'two lines \\x1b[31m'
    """
    joined = " ".join(text.split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in joined)


def escaped(text: str) -> str:
    r"""Return lines of text, with every character that a terminal would obey written out.

    Examples:
        >>> escaped("a\x1b]0;title\x07\nb\u202e")
        'a\\x1b]0;title\\x07\nb\\u202e'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def format_time(seconds: Any) -> str:
    """Return a readable time, in UTC.

    Examples:
        >>> format_time(1_700_000_000.25)
        '2023-11-14 22:13:20'
    """
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
    except (TypeError, ValueError, OverflowError, OSError):
        return str(seconds)


def _is_number_or_none(value: object) -> bool:
    return isinstance(value, int | float | None) and not isinstance(value, bool)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else one_line(str(value))


def _plain(value: Any) -> Any:
    """Return what can be written as JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)
