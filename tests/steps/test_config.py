"""A config builds the one clock, which finds the ranks of its process group by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

import feedline.steps as steps
import feedline.torch as ours
from feedline.errors import InvalidValueError
from forked import Forked

JOIN = """
import sys
import torch.distributed as dist
from feedline.{room} import StepSchedulerConfig
rank, place = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{{place}}", rank=rank, world_size=2)
dist.barrier()
try:
    clock = StepSchedulerConfig(global_batch_size=4, num_epochs=1).build(range(6), 2, 2)
    print(clock.grad_acc_steps, len([batches for batches in clock]))
except ValueError as error:
    print(error)
dist.destroy_process_group()
"""


def test_all_rooms_have_one_clock_and_one_config() -> None:
    assert ours.StepScheduler is steps.StepScheduler
    assert ours.StepSchedulerConfig is steps.StepSchedulerConfig


def test_configs_build_the_clock_of_their_room() -> None:
    for room in (steps, ours):
        config = room.StepSchedulerConfig(global_batch_size=4, num_epochs=1)
        clock = config.build(range(6), dp_group_size=1, local_batch_size=2)
        assert type(clock) is room.StepScheduler
        assert [len(batches) for batches in clock] == [2, 2, 2]


def test_a_launcher_that_knows_of_several_processes_is_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidValueError, match="WORLD_SIZE=2"):
        steps.StepSchedulerConfig(global_batch_size=4).build(range(6), 1, 2)


@pytest.mark.parametrize("room", [pytest.param("steps", marks=pytest.mark.slow), "torch"])
def test_ranks_that_no_launcher_started_are_no_strangers(room: str, tmp_path: Path) -> None:
    code = JOIN.format(room=room)
    jobs = [Forked(["-c", code, rank, tmp_path / "meeting"], server="torch") for rank in range(2)]
    for job in jobs:
        printed, errors = job.communicate(timeout=120)
        assert job.returncode == 0, errors
        assert printed.split() == ["1", "6"]
