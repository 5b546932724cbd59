"""Write data anew with the libraries whose formats Feedline reads, and run the tests on that.

Each folder in `tests/formats` has a script and pinned requirements, and gets an environment of its
own, `.venv-format-<name>`: what these libraries need does not go together. A `live.py` beside it
checks, in that environment, what Feedline reads from objects of the library.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from environments import ROOT, python_of

FORMATS = ROOT / "tests" / "formats"


def main() -> int:
    """Write the data of all formats, run the tests, and return the exit status."""
    names = sys.argv[1:] or sorted(path.parent.name for path in FORMATS.glob("*/write.py"))
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            target = Path(folder) / name
            target.mkdir()
            print(f"{name}: writes its data anew", flush=True)
            script = str(FORMATS / name / "write.py")
            subprocess.run([python_with(name), script, str(target)], check=True, cwd=folder)
            live = FORMATS / name / "live.py"
            if live.exists():
                print(f"{name}: reads what its library has in memory", flush=True)
                source = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
                subprocess.run([python_with(name), str(live)], check=True, cwd=folder, env=source)
        tests = [str(ROOT / ".venv" / "bin" / "pytest"), "-q", "tests/store/test_foreign.py"]
        choice = ["-k", " or ".join(names)] if sys.argv[1:] else []
        variables = {**os.environ, "FEEDLINE_FORMATS": folder}
        return subprocess.run([*tests, *choice], cwd=ROOT, env=variables).returncode


def python_with(name: str) -> str:
    """Return the interpreter of an environment with the library, made if need be."""
    pins = FORMATS / name / "requirements.txt"
    # Some libraries ask for much that writing a file does not need; the first line says so.
    asks = "--no-deps" in pins.read_text(encoding="utf-8").partition("\n")[0]
    options = ["--no-deps"] if asks else []
    return python_of(ROOT / f".venv-format-{name}", pins, options=options)


if __name__ == "__main__":
    sys.exit(main())
