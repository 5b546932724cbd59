"""pyarrow, imported when it is first needed: it is an extra, and takes long to load."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["import_arrow"]


def import_arrow(module: str = "pyarrow") -> Any:
    """Return a module of pyarrow, or say how to get it."""
    try:
        import pyarrow  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise ModuleNotFoundError(
            "parquet, Arrow, CSV and JSONL files need pyarrow, which is not installed; install "
            "feedline[arrow]",
            name="pyarrow",
        ) from None
    return importlib.import_module(module)
