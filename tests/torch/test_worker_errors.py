"""A worker that is killed gives one clear error, whatever torch makes of it."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from feedline.torch import DataLoader
from forked import forked_run
from processes import SUPPORT, environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills processes")
KILLED = r"worker \d \(process \d+\) was killed by signal 9 \(SIGKILL\).*load it to resume"


def lose_worker(case: str) -> dict[str, Any]:
    """What a loader makes of a worker that is lost in this way, in a process of its own."""
    script = SUPPORT / "killed_worker_job.py"
    done = forked_run(script, case, server="torch", env=environment(SUPPORT))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["error"] == "WorkerError", found
    return found


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_killed_worker_is_named_and_the_state_stays_at_the_last_batch(num_workers: int) -> None:
    found = lose_worker(f"-9,{num_workers}")
    assert re.search(KILLED, found["message"])
    count = len(found["seen"])
    assert found["seen"] == list(range(count))
    resumed = DataLoader(list(range(40)), batch_size=4)
    resumed.load_state_dict(found["state"])
    assert [int(i) for batch in resumed for i in batch] == list(range(count, 40))


def test_a_worker_that_ends_by_itself_is_named() -> None:
    found = lose_worker("3,1")
    assert re.search(r"worker 0 .*ended with exit code 3", found["message"])


def test_a_killed_worker_of_a_chunk_loader_is_named() -> None:
    assert re.search(KILLED, lose_worker("chunks")["message"])


def test_a_batch_whose_memory_is_gone_with_its_worker_gives_the_same_error() -> None:
    found = lose_worker("memory")
    assert re.search(KILLED, found["message"])
    # Here torch lets another error through.
    assert found["cause"] == "FileNotFoundError"


class Failing:
    """Samples of which one cannot be read."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index == 20:
            raise FileNotFoundError("the file of sample 20")
        return index


def test_an_error_of_the_dataset_stays_as_it_is() -> None:
    loader = DataLoader(Failing(), batch_size=4, num_workers=1)
    with pytest.raises(FileNotFoundError, match="the file of sample 20"):
        list(loader)
