"""Stories are run by real processes, of which nothing is left, and end as they should."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from known_trainers import Trainer
from processes import is_running, wait_for_children
from trainer_results import fault_of
from trainer_runner import tell
from trainer_service import serving
from trainer_stories import Story, plain_story, story_of

HARNESS = Path(__file__).parent / "harness"


class TorchLoop(Trainer):
    """The job of the harness itself."""

    @property
    def job(self) -> Path:
        """A loop of torch's own."""
        return HARNESS / "torch_job.py"


def torch_loop(**about: Any) -> Trainer:
    return TorchLoop(HARNESS, {"preload": ["torch._dynamo"], **about})


@pytest.mark.slow
@pytest.mark.parametrize(
    "story",
    [
        plain_story(),
        story_of((240, "middle", 1, 2, 0, 2)),
        story_of((240, "twice", 3, 2, 2, 0)),
        story_of((240, "last-step", 2, 3, 0, 0)),
        story_of((10_000, "middle", 2, 1, 0, 0)),
    ],
    ids=lambda story: story.name,
)
def test_a_loop_of_torch_is_exact(story: Story) -> None:
    outcome = tell(story, torch_loop())
    assert str(outcome) == "exact"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("loses", "failed: run"),
        ("crashes", "RuntimeError: it crashes"),
        ("refuses", "refused: Refused: it cannot be done"),
        ("hangs", "rank 1 ended with -9"),
        ("leaves", "processes are left"),
    ],
)
def test_a_fault_of_a_job_is_told_and_nothing_is_left(fault: str, outcome: str) -> None:
    trainer = torch_loop(variables={"FEEDLINE_FAULT": fault})
    before = wait_for_children(0)
    told = str(tell(plain_story(), trainer, seconds=20 if fault == "hangs" else 120))
    assert outcome in told or (fault == "loses" and "samples are missing" in told)
    assert not told.startswith("exact")
    left = wait_for_children(5)
    new = left.keys() - before.keys()
    assert not {pid: left[pid] for pid in new if "fork_server" not in left[pid]}


def test_a_refusal_is_as_promised_or_wrong() -> None:
    trainer = torch_loop(refuses=[{"when": ["resized"], "says": "cannot resize"}])
    resized, plain = story_of((240, "middle", 1, 2, 0, 0)), plain_story()
    assert fault_of(trainer, resized, "refused: Error: cannot resize 1 to 2") is None
    assert fault_of(trainer, plain, "exact") is None
    assert "should be refused" in (fault_of(trainer, resized, "exact") or "")
    assert "is not in" in (fault_of(trainer, resized, "refused: out of memory") or "")
    assert fault_of(trainer, plain, "refused: cannot resize") == "refused: cannot resize"
    assert fault_of(trainer, plain, "failed: it hangs") == "failed: it hangs"


SERVICE = """
import json, os, subprocess, sys
child = subprocess.Popen(["sleep", "600"])
print("It begins.")
print(json.dumps({"CHILD": str(child.pid), "SEEN": os.environ["OWN"]}), flush=True)
sys.stdin.read()
child.kill() if os.environ["OWN"] == "ends" else sys.exit(4)
"""


def test_a_service_tells_jobs_where_it_is_and_ends_with_the_stories(tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(SERVICE)
    trainer = Trainer(tmp_path, {"service": "service.py", "variables": {"OWN": "ends"}})
    with serving(trainer) as served:
        assert served.variables["SEEN"] == served.variables["OWN"] == "ends"
        child = int(served.variables["CHILD"])
        assert is_running(child)
    assert not is_running(child)
    with serving(Trainer(tmp_path)) as alone:
        assert alone.variables == {}


@pytest.mark.parametrize(("script", "code"), [(SERVICE, 4), ("raise SystemExit(5)", 5)])
def test_a_service_that_fails_is_an_error_and_nothing_is_left(
    script: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "service.py").write_text(script)
    trainer = Trainer(tmp_path, {"service": "service.py", "variables": {"OWN": "fails"}})
    children = []
    with pytest.raises(RuntimeError, match=f"has ended with {code}"), serving(trainer) as served:
        children.append(int(served.variables["CHILD"]))
    end = time.monotonic() + 30
    while any(map(is_running, children)):
        assert time.monotonic() < end, f"processes {children} are left"
        time.sleep(0.02)
