"""The file that a report is written to: whole or not at all, and never over something else."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from feedline.errors import InvalidValueError, StoreError
from feedline.report.charts import Report

__all__ = ["check_target", "write_report"]

_MARK = b'<meta name="generator" content="feedline'


def write_report(report: Report, path: str | os.PathLike[str]) -> Path:
    """Write the report as one HTML file, and return where it is.

    An older report is replaced; any other file is not.
    """
    from feedline.report.page import render

    target = Path(path)
    check_target(target)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(render(report), encoding="utf-8")
        os.replace(unfinished, target)
    except OSError as error:
        raise _unwritable(target, error) from None
    finally:
        with suppress(OSError):
            unfinished.unlink()
    return target


def check_target(target: Path) -> None:
    """Raise if a report cannot be written to a file, or would replace something else."""
    try:
        if target.is_dir():
            raise InvalidValueError(
                f"output={target} must be a file and is a folder; name an .html file"
            )
        # A pipe or a device would let us wait for ever.
        if target.exists() and not (target.is_file() and _MARK in _start_of(target)):
            raise InvalidValueError(
                f"output={target} must be new, or a report; choose another file, or remove this one"
            )
    except OSError as error:
        raise _unwritable(target, error) from None


def _start_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(1024)


def _unwritable(target: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{target}: cannot be written ({error.strerror or error}); choose another place"
    )
