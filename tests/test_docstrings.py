"""The examples in all docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest

import feedline

# A room for a framework cannot be imported where that framework is not installed.
FRAMEWORKS = {"torch", "jax", "zarr", "pyarrow", "pandas", "anndata"}


def module_names() -> list[str]:
    """The names of all modules of the package, found without importing a room's insides."""
    found = ["feedline"]
    for module in pkgutil.walk_packages(feedline.__path__, "feedline.", onerror=lambda _: None):
        found.append(module.name)
    return found


def import_or_skip(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in FRAMEWORKS:
            pytest.skip(f"{name} needs {error.name}, which is not installed")
        raise


@pytest.mark.parametrize("name", module_names())
def test_examples_in_docstrings_hold(name: str) -> None:
    result = doctest.testmod(import_or_skip(name), verbose=False)
    assert result.failed == 0


def test_examples_are_found() -> None:
    assert doctest.testmod(importlib.import_module("feedline.errors")).attempted >= 2
