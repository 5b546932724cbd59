"""The examples in all docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import feedline

# A room for a framework cannot be imported where that framework is not installed.
FRAMEWORKS = {"torch", "jax", "zarr", "pyarrow", "pandas", "anndata"}


def module_names() -> list[str]:
    """The names of all modules of the package, found without importing any of them."""
    root = Path(feedline.__file__).parent
    parts = (path.relative_to(root.parent).with_suffix("").parts for path in root.rglob("*.py"))
    return sorted(".".join(part).removesuffix(".__init__") for part in parts)


def import_or_skip(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in FRAMEWORKS:
            pytest.skip(f"{name} needs {error.name}, which is not installed")
        raise


# Once jax is imported, forking is a warning, so other tests must not see it.
ALONE = [name for name in module_names() if name.startswith("feedline.jax")]
# Those of trainers are tested where these are installed, by `make test-trainers`.
OF_TRAINERS = [name for name in module_names() if name.startswith("feedline.trainers.")]
HERE = sorted({*module_names()} - {*ALONE, *OF_TRAINERS, "feedline.__main__"})


@pytest.mark.parametrize("name", HERE)
def test_examples_in_docstrings_hold(name: str) -> None:
    result = doctest.testmod(import_or_skip(name), verbose=False)
    assert result.failed == 0


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_examples_in_docstrings_of_the_jax_room_hold() -> None:
    check = (
        "import doctest, importlib, sys; "
        "results = [doctest.testmod(importlib.import_module(name)) for name in sys.argv[1:]]; "
        "sys.exit(sum(r.failed for r in results) or not any(r.attempted for r in results))"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", check, *ALONE], check=True, env=environment, timeout=120)


def test_examples_are_found() -> None:
    assert doctest.testmod(importlib.import_module("feedline.errors")).attempted >= 2
