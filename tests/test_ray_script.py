"""What runs the tests of Ray runs them again only if the log of Ray tells of its own fault."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, as a module."""
    monkeypatch.syspath_prepend(SCRIPTS)
    spec = importlib.util.spec_from_file_location("ray_script", SCRIPTS / "test_ray.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "line", "is_told"),
    [
        ("python-core-driver-01_7.log", "Check failed: Tried to complete task that was not", False),
        ("python-core-driver-01_7.log", "Tried to complete task that was not pending 5", True),
        ("python-core-worker-01_7.log", "Tried to complete task that was not pending 5", False),
    ],
)
def test_only_the_log_of_the_driver_tells_of_the_fault(
    script: ModuleType, tmp_path: Path, name: str, line: str, is_told: bool
) -> None:
    assert not script.was_aborted(tmp_path)
    logs = tmp_path / "ray" / "session_2026-11-19" / "logs"
    logs.mkdir(parents=True)
    (logs / "python-core-driver-00_6.log").write_bytes(b"\xff all is well\n")
    (logs / name).write_text(f"started\n{line}\nended\n")
    assert script.was_aborted(tmp_path) is is_told
