"""Make virtual environments with pinned packages, once for each state of the pins.

Needs the standard library only.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def python_of(
    environment: Path,
    pins: Path,
    *,
    options: Sequence[str] = (),
    executable: str = sys.executable,
    also: str = "",
) -> str:
    """Return the interpreter of an environment, made if it is not there or its pins have changed.

    Args:
        environment: The folder of the environment.
        pins: The requirements that are installed into it.
        options: Options of `pip install`.
        executable: The Python that it is made with.
        also: What makes it be made again when it changes, besides the pins.
    """
    stamp, python = environment / ".installed", str(environment / "bin" / "python")
    wanted = also + pins.read_text(encoding="utf-8")
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in (
            [executable, "-m", "venv", "--clear", str(environment)],
            [*install, *options, "--requirement", str(pins)],
        ):
            subprocess.run(command, check=True, cwd=ROOT)
        # Last, so that an installation that broke off is not taken for a whole one.
        stamp.write_text(wanted, encoding="utf-8")
    return python
