"""`make fuzz` finds nothing in a few cases, and finds what is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from processes import environment

FUZZ = Path(__file__).parent / "fuzz"
TARGETS = ("pt", "safetensors", "npy", "tables", "tokens", "folders", "zarr", "states", "logs")
TARGETS += ("configs", "text", "webdataset", "tfrecord", "huggingface", "megatron")
TARGETS += ("mds", "litdata")


def fuzz(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FUZZ / "fuzz.py"), *map(str, arguments)]
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )


def check_nothing_found(tmp_path: Path, target: str, cases: int) -> None:
    crashers = tmp_path / "crashers"
    done = fuzz("--target", target, "--cases", cases, "--crashers", crashers, "--seed", 11)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert json.loads(done.stdout.splitlines()[0]) == {target: cases}


def test_a_few_cases_find_nothing(tmp_path: Path) -> None:
    check_nothing_found(tmp_path, "states", 100)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_cases_of_each_format_find_nothing(target: str, tmp_path: Path) -> None:
    check_nothing_found(tmp_path, target, 150)


_FAULTY = """
import time, sys
sys.path.insert(0, {fuzz!r})
import targets
from pathlib import Path

def use(folder, rng):
    content = (folder / "x.bin").read_bytes()
    if len(content) != 1000:
        {fault}

targets.TARGETS["tokens"] = targets.Target(targets._make_tokens, targets._damage_only, use)
"""
FAULTS = {
    "foreign exception": ("raise KeyError('x')", "KeyError"),
    "hang": ("time.sleep(60)", "took more than 2.0 seconds"),
    "crash": ("__import__('os').kill(__import__('os').getpid(), 11)", "ended with -11"),
    "memory": ("bytearray(b'x') * (2**30 + 2**27)", "memory grew by"),
    "files": (
        "use.__dict__.setdefault('f', []).append([open(__file__) for _ in range(40)])",
        "open",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_what_goes_wrong_is_found_kept_and_found_again(fault: str, tmp_path: Path) -> None:
    statement, reason = FAULTS[fault]
    (tmp_path / "sitecustomize.py").write_text(_FAULTY.format(fuzz=str(FUZZ), fault=statement))
    for file in FUZZ.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    names = {"child.py": "from targets import TARGETS", "fuzz.py": "from targets import TARGETS"}
    for name, line in names.items():
        text = (tmp_path / name).read_text()
        text = text.replace(line, f"import faulty\n{line}" if name == "child.py" else line)
        (tmp_path / name).write_text(text.replace('HERE.parent.parent / "src"', repr_of_source()))
    (tmp_path / "sitecustomize.py").rename(tmp_path / "faulty.py")
    command = [sys.executable, str(tmp_path / "fuzz.py"), "--target", "tokens", "--cases", "3"]
    # Only what hangs may meet the limit of time: a busy machine makes anything slow.
    command += ["--case-seconds", "2" if fault == "hang" else "120"]
    command += ["--crashers", str(tmp_path / "kept"), "--seed", "3"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    kept = sorted((tmp_path / "kept").iterdir())
    told = json.loads((kept[0] / "case.json").read_text())
    assert reason in told["reason"]
    if fault == "foreign exception":
        again = subprocess.run(
            [sys.executable, str(tmp_path / "fuzz.py"), "--replay", str(kept[0])],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert again.returncode == 1
        assert "KeyError" in again.stdout


def repr_of_source() -> str:
    return f"Path({str(FUZZ.parent.parent / 'src')!r})"
