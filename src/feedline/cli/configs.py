"""What commands that take a run config share: options, and errors that name the file first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from feedline.errors import FeedlineError, InvalidValueError

if TYPE_CHECKING:
    from feedline.runs.run_config import RunConfig

_MOST_RANKS = 2**31

config_argument = click.argument("config", type=click.Path(path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_ranks = click.option("--ranks", type=int, metavar="N", help="Ranks, if others than the config's.")
_batch_size = click.option("--batch-size", type=int, metavar="B", help="Batch size, if another.")
_resize = click.option(
    "--resize",
    metavar="N,N,...",
    help="Cut the epoch into equal parts, and resume on these numbers of ranks.",
)


def size_options(*, resize: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds --ranks and --batch-size, and --resize if it is wanted."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        return _ranks(_batch_size(_resize(command) if resize else command))

    return decorate


def parse_sizes(text: str | None) -> list[int] | None:
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


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors begin with a file, unless they do already."""
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
