"""Shared by commands that take a run config: options, and errors that begin with the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from feedline.errors import FeedlineError, InvalidValueError

if TYPE_CHECKING:
    from feedline.runs.run_config import RunConfig

_MOST_RANKS = 2**31


_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}ib": 2 ** (10 * (n + 1)) for n, letter in enumerate("kmgt")}
_UNITS |= {f"{letter}b": 10 ** (3 * (n + 1)) for n, letter in enumerate("kmgt")}


def size_in_bytes(text: str) -> int:
    """Return a number of bytes, such as 64MiB."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].lower() not in _UNITS:
        raise click.BadParameter(f"{text!r} must be a number of bytes, such as 64MiB or 1.5GiB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def _parse_sizes(_: click.Context, __: click.Parameter, text: str | None) -> list[int] | None:
    """Return the numbers of ranks in the value of --resize."""
    if text is None:
        return None
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if len(sizes) < 2 or not all(1 <= size <= _MOST_RANKS for size in sizes):
        raise InvalidValueError(
            f"--resize={text!r:.80} must be two or more numbers of ranks in [1, {_MOST_RANKS}], "
            "such as 512,480,64"
        )
    return sizes


PATH = click.Path(path_type=Path)


class _Data(click.ParamType):  # type: ignore[type-arg]
    """A path, or a URL as a text: a path would spoil it."""

    name = "path"

    def convert(self, value: Any, _: Any, __: Any) -> Path | str:
        from feedline.store.remote.urls import is_url

        return value if is_url(value) else Path(value)

    def shell_complete(self, context: Any, parameter: Any, incomplete: str) -> Any:
        return PATH.shell_complete(context, parameter, incomplete)


#: Data: a path or a URL.
DATA = _Data()
config_argument = click.argument("config", type=PATH)
ranks_option = click.option(
    "--ranks", type=int, metavar="N", help="Number of ranks, instead of the config's."
)
batch_size_option = click.option(
    "--batch-size", type=int, metavar="B", help="Batch size, instead of the config's."
)
resize_option = click.option(
    "--resize",
    metavar="N,N,...",
    callback=_parse_sizes,
    help="Cut the epoch into equal parts, and resume on these numbers of ranks.",
)
epoch_option = click.option(
    "--epoch", type=int, default=0, metavar="E", show_default=True, help="The epoch."
)
samples_option = click.option(
    "--samples", type=int, metavar="N", help="Number of samples, if no log contains it."
)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make errors begin with the file, unless they already do."""
    try:
        yield
    except FeedlineError as error:
        if str(error).startswith(f"{path}: "):
            raise
        raise InvalidValueError(f"{path}: {error}") from None
    except OverflowError as error:
        raise InvalidValueError(f"{path}: a number in it is too large ({error})") from None


def load_config(path: Path) -> RunConfig:
    """Return the run config in a file, or raise an error that begins with the file."""
    from feedline.runs.run_config import RunConfig

    with naming(path):
        return RunConfig.load(path)
