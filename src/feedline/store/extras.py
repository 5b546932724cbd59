"""Optional libraries, imported when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any


def import_extra(module: str, *, extra: str, what: str) -> Any:
    """Return a module of an optional library, or raise an error that says how to install it."""
    library = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        raise ModuleNotFoundError(
            f"{what} need {library}, which is not installed; install feedline[{extra}]",
            name=library,
        ) from None


def import_arrow(module: str = "pyarrow") -> Any:
    """Return a module of pyarrow, or raise an error that says how to install it."""
    return import_extra(module, extra="arrow", what="parquet, Arrow, CSV and JSONL files")


def import_ray() -> Any:
    """Return Ray, or raise an error that says how to install it."""
    return import_extra("ray", extra="ray", what="tasks on a cluster, engine='ray',")
