"""The tests of this folder, and the contract of all loaders, with JAX in a process of their own."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from processes import environment

if importlib.util.find_spec("jax") is None:
    pytest.skip("jax is not installed", allow_module_level=True)

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize(
    ("marks", "at_least"),
    [
        pytest.param("not slow", 80, id="most"),
        pytest.param("slow", 40, id="slow", marks=pytest.mark.slow),
    ],
)
def test_loaders_of_jax_do_what_they_promise_and_keep_the_contract(
    marks: str, at_least: int, tmp_path: Path
) -> None:
    options = ["-q", "-m", marks, "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/jax", "tests/contract/test_loaders.py"],
        cwd=ROOT,
        env={
            **{name: v for name, v in environment().items() if not name.startswith("PYTEST_")},
            **{"FEEDLINE_CONTRACT": "jax", "FEEDLINE_JAX_ALONE": "1", "JAX_PLATFORMS": "cpu"},
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
            "TMPDIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    counted = re.search(r"(\d+) passed", done.stdout)
    assert counted is not None
    assert int(counted[1]) >= at_least
