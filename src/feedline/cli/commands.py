"""The commands of `feedline`, and how they fail."""

from __future__ import annotations

import importlib
from typing import Any

import click

from feedline import __version__
from feedline.errors import FeedlineError, InvalidValueError

__all__ = ["feedline"]

# Each is imported when it is run, from the module of its name: help must not wait for numpy.
_COMMANDS = {
    "audit": "Check that every sample was received exactly once in every epoch.",
    "demo": "Train a small model, stop it, kill it, resize it, and audit it.",
    "inspect": "Show what a checkpoint, a packed folder or a zarr matrix holds.",
    "pack": "Write files as a FOLDER of chunks.",
    "plan": "Show what a run will consume: batches, steps, tails, reads and bytes.",
    "quality": "Measure how well an epoch is shuffled, beside a perfect shuffle.",
    "verify": "Check every chunk of a FOLDER against what was recorded when it was written.",
    "where": "Show which samples a step consumes, or when a sample is consumed.",
}

# What messages call by the names of arguments has other names here.
_OPTIONS = {
    "overwrite=True": "--overwrite",
    "resume=False": "--no-resume",
    "columns=[…]": "--column",
    "obs=[…]": "--obs",
    "element=…": "--element",
    "source_row=None": "--no-source-row",
    "memory_budget": "--memory",
    "progress=True": "progress",
    "num_samples=None": "--samples",
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

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(f"feedline.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

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
    """Pack data for training and check it; plan runs, and ask about them.

    \b
    Examples:
      feedline pack data.parquet packed --shuffle --split 0.1
      feedline pack a.h5ad b.h5ad packed.zarr
      feedline verify packed
      feedline audit logs
      feedline plan run.yaml --resize 512,480,64
      feedline where run.yaml --step 340 --rank 5
      feedline inspect checkpoint.json --against run.yaml
    """
