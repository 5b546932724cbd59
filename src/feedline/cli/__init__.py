"""The command `feedline`."""

from __future__ import annotations

import importlib
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

    feedline(prog_name="feedline")
