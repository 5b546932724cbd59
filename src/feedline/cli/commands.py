"""The commands of `feedline`, and how they fail."""

from __future__ import annotations

from typing import Any

import click

from feedline import __version__
from feedline.cli.pack import pack
from feedline.cli.verify import verify
from feedline.errors import FeedlineError, InvalidValueError

__all__ = ["feedline"]


# What messages call by the names of arguments has other names here.
_OPTIONS = {
    "overwrite=True": "--overwrite",
    "resume=False": "--no-resume",
    "columns=[…]": "--column",
    "progress=True": "progress",
}


class _Failure(click.ClickException):
    """One message on stderr, and an exit code."""

    def __init__(self, error: Exception, exit_code: int) -> None:
        message = str(error)
        for argument, option in _OPTIONS.items():
            message = message.replace(argument, option)
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


class _Commands(click.Group):
    """Prints our own errors as one message; bad usage exits with 2, and bad data with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidValueError as error:
            raise _Failure(error, 2) from None
        except ModuleNotFoundError as error:
            # Ours say what to install; any other is a bug, and its trace helps.
            if "install feedline[" not in str(error):
                raise
            raise _Failure(error, 2) from None
        except FeedlineError as error:
            raise _Failure(error, 1) from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="feedline")
def feedline() -> None:
    """Pack data for training, and check it.

    \b
    Examples:
      feedline pack data.parquet packed --shuffle --split 0.1
      feedline verify packed
    """


feedline.add_command(pack)
feedline.add_command(verify)
