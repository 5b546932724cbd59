"""Install each extra into an environment of its own, as a user would, and run its tests there.

`feedline` alone must install numpy and nothing else. Versions are those in `requirements/dev.txt`.
An environment stands under `.venv-extras/`, and is removed when its tests pass.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".venv-extras"
PINS = ROOT / "requirements" / "dev.txt"
TOOLS = ("pytest", "hypothesis", "pytest-xdist")
# What the tests of an extra need besides: moto's server, and what that imports.
MORE_TOOLS = {"remote": ("moto", "flask", "flask-cors", "py-partiql-parser")}
# What comes with an environment.
ALWAYS = {"feedline", "pip", "setuptools"}
# The others in the file need torch.
JAX = "test_two_jax_processes_have_disjoint_rows_that_cover_all"
TESTS = {
    "": (
        *("tests/plan/test_golden.py", "tests/plan/test_windows.py", "tests/store/test_lists.py"),
        *("tests/store/test_foreign_megatron.py", "tests/store/test_foreign_webdataset.py"),
    ),
    "arrow": ("tests/store/test_arrow_chunk.py", "tests/store/test_arrow_columns.py"),
    "zarr": ("tests/store/test_zarr_files.py",),
    "cli": ("tests/cli/test_plan_cli.py", "tests/cli/test_where_cli.py"),
    "mds": ("tests/store/test_foreign_mds.py",),
    "litdata": ("tests/store/test_foreign_litdata.py",),
    "torch": ("tests/torch/test_samplers.py", "tests/torch/test_bucket_sampler.py"),
    "jax,zarr": ("tests/chunks/test_jax_processes.py::" + JAX,),
    "images": ("tests/feed/test_decoders.py",),
    "remote": ("tests/store/remote/test_objects.py", "tests/store/remote/test_remote_stores.py"),
}


def main() -> int:
    """Test every extra, and return the exit status."""
    names = sys.argv[1:] or list(TESTS)
    failed = [name or "no extra" for name in names if not is_sound(name)]
    print(f"failed: {', '.join(failed)}" if failed else "every extra installs and passes its tests")
    return bool(failed)


def is_sound(name: str) -> bool:
    """Whether an extra installs and passes its tests."""
    environment = WORK / (name or "alone")
    python = str(environment / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
    what = f"{ROOT}[{name}]" if name else str(ROOT)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", str(PINS), what], check=True, cwd=ROOT)
    if not name and (more := installed_in(python) - ALWAYS - {"numpy"}):
        print(f"feedline alone has installed {', '.join(sorted(more))} besides numpy")
        return False
    tools = (*TOOLS, *MORE_TOOLS.get(name, ()))
    subprocess.run([*pip, "--constraint", str(PINS), *tools], check=True, cwd=ROOT)
    print(f"{name or 'no extra'}:", flush=True)
    # The installed package is what is tested, not the one in this folder.
    command = [python, "-P", "-m", "pytest", "-q", "-n", "2", "-m", "not slow", *TESTS[name]]
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    is_passed = subprocess.run(command, cwd=ROOT, env=variables).returncode == 0
    if is_passed:
        shutil.rmtree(environment)
    return is_passed


def installed_in(python: str) -> set[str]:
    """Return the names of the packages in an environment."""
    command = [python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {package["name"].lower() for package in json.loads(done.stdout)}


if __name__ == "__main__":
    sys.exit(main())
