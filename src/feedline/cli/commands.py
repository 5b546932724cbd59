"""The commands of `feedline`, and how they fail.

The exit code is 0 on success, 1 if a check fails, and 2 if the command could not run: then one line
on stderr says what to do, and stdout is empty.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import click

from feedline import __version__
from feedline.cli.printing import echo, one_line
from feedline.errors import FeedlineError

# Each is imported when it is run, from the module of its name: help must not wait for numpy.
_COMMANDS = {
    "audit": "Check that every sample was received exactly once in every epoch.",
    "bench-data": "Measure how fast your data gets to the loop, and name the bottleneck.",
    "completion": "Print the script that lets a shell complete commands, options and files.",
    "demo": "Train a small model, stop it, kill it, resize it, and audit what it received.",
    "inspect": "Show the contents of a checkpoint, a log, or anything that feedline.open opens.",
    "pack": "Write files as a FOLDER of chunks.",
    "plan": "Show what a run will consume: batches, steps, tails, reads and bytes.",
    "quality": "Measure how well an epoch is shuffled, compared with a perfect shuffle.",
    "report": "Draw a plan or a run as one HTML file that needs no network.",
    "verify": "Check every chunk of a FOLDER against what was recorded when it was written.",
    "where": "Show which samples a step consumes, or when a sample is consumed.",
}

# What messages call by the names of arguments has other names here.
_REMEDIES = {
    "overwrite=True": "--overwrite",
    "resume=False": "--no-resume",
    "columns=[…]": "--column",
    "columns={'new name': 'name in the source'}": "--column 'new name=name in the source'",
    "obs=[…]": "--obs",
    "element=…": "--element",
    "source_row=None": "--no-source-row",
    "memory_budget": "--memory",
    "progress=True": "progress",
    "num_samples is required": "--samples is required",
    "open one of them with split=": "choose one of them with --split ",
}
_ARGUMENTS = {"--samples": "num_samples", "--threads": "num_threads", "--html": "output"}
_ARGUMENTS |= {"--tokens": "window"}
_GIVEN = "feedline.given"


class _Failure(click.ClickException):
    """One line on stderr, and the exit code 2."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class _Commands(click.Group):
    """Finds commands by name; errors are printed as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        name = cmd_name.replace("-", "_")
        module = importlib.import_module(f"feedline.cli.{name}")
        command: click.Command = getattr(module, name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _failing({}):
            return super().make_context(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_GIVEN] = _options_in(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _failing(ctx.meta[_GIVEN]):
            return super().invoke(ctx)


@contextmanager
def _failing(given: dict[str, str]) -> Iterator[None]:
    """Turn errors of the input into one line; bugs keep their traceback."""
    try:
        yield
    except click.UsageError as error:
        # Without any command the help is shown, which newer releases of click take for an error.
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        message = error.format_message().rstrip(".")
        where = "" if error.ctx is None else f"; see {error.ctx.command_path} --help"
        raise _Failure(message + where) from None
    except FeedlineError as error:
        raise _Failure(_by_options(str(error), given)) from None
    except ModuleNotFoundError as error:
        # Ours say what to install.
        if "install feedline[" not in str(error):
            raise
        raise _Failure(str(error)) from None
    except MemoryError as error:
        raise _Failure(f"out of memory; use a smaller batch or budget ({error})") from None
    except KeyboardInterrupt:
        echo("Interrupted.", err=True)
        sys.exit(130)
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise _Failure(f"{error.filename or 'a file'}: cannot be used ({reason})") from None


def _options_in(arguments: list[str]) -> dict[str, str]:
    """Return the options among the arguments, and their values."""
    given = {}
    for argument, after in pairwise([*arguments, ""]):
        option, is_joined, value = argument.partition("=")
        if re.fullmatch(r"--[a-z-]+", option):
            given[option] = value if is_joined else after
    return given


def _by_options(message: str, given: dict[str, str]) -> str:
    """Return a message with the names of options in place of function arguments."""
    for remedy, option in _REMEDIES.items():
        message = message.replace(remedy, option)
    for option, value in given.items():
        name = _ARGUMENTS.get(option, option[2:].replace("-", "_"))
        # With its value, because a config may have a key of the same name.
        named = rf"(?<![\w.-]){name}=(?=['\"]?{re.escape(value)}(?!\w))"
        message = re.sub(named, f"{option}=", message)
    return message


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="feedline")
def feedline() -> None:
    """Pack and verify training data; plan, inspect and audit runs.

    \b
    Examples:
      feedline pack data.parquet packed --shuffle --split 0.1
      feedline pack a.h5ad b.h5ad packed.zarr
      feedline verify packed
      feedline bench-data packed --device cuda
      feedline audit logs --config run.yaml
      feedline plan run.yaml --resize 512,480,64
      feedline where run.yaml --step 340 --rank 5
      feedline inspect checkpoint.json --against run.yaml
      feedline report logs
      feedline completion bash > ~/.feedline-complete.bash
    """
