"""Find Python interpreters of given versions.

They come from the environment variable FEEDLINE_PYTHONS (paths or commands, separated as in PATH)
when it is set, else from PATH and from pyenv. Needs the standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

PROBE = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2]); print(sys.executable)"


def find_interpreters(versions: Iterable[str]) -> dict[str, str]:
    """The first working interpreter of each version that is there, by version."""
    wanted = list(versions)
    found: dict[str, str] = {}
    for candidate in candidates(wanted):
        probed = probe(candidate)
        if probed is not None and probed[0] in wanted:
            found.setdefault(*probed)
    return dict(sorted(found.items()))


def candidates(versions: list[str]) -> Iterator[str]:
    """Commands and paths that may be an interpreter, in order of preference."""
    given = os.environ.get("FEEDLINE_PYTHONS")
    if given:
        yield from filter(None, given.split(os.pathsep))
        return
    for version in versions:
        yield f"python{version}"
        yield from pyenv_interpreters(version)
    yield sys.executable


def pyenv_interpreters(version: str) -> list[str]:
    """The interpreters of that version that pyenv has installed, newest patch release first."""
    try:
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    patches = {}
    for path in (Path(root.strip()) / "versions").glob(f"{version}.*"):
        # Only plain releases: no pre-releases, no free-threaded builds, no named environments.
        if match := re.fullmatch(re.escape(version) + r"\.(\d+)", path.name):
            patches[int(match[1])] = str(path / "bin" / "python")
    return [patches[patch] for patch in sorted(patches, reverse=True)]


def probe(candidate: str) -> tuple[str, str] | None:
    """The version and the path of an interpreter; None if it does not run or cannot make a venv.

    A command on PATH proves nothing: pyenv puts one there for every version it has ever installed,
    and it fails unless that version is selected.
    """
    command = shutil.which(candidate)
    if command is None:
        return None
    result = subprocess.run([command, "-c", PROBE], capture_output=True, text=True)
    if result.returncode != 0:
        return None
    version, executable = result.stdout.splitlines()
    return version, executable
