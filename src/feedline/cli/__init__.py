"""The command `feedline`."""

from __future__ import annotations

import importlib
import io
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line, and exit."""
    try:
        importlib.import_module("click")
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        print(
            "feedline: the command line needs click, which is not installed; install feedline[cli]",
            file=sys.stderr,
        )
        sys.exit(2)
    from feedline.cli.commands import feedline

    # A file name may hold what the terminal cannot show.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    feedline(prog_name="feedline")
