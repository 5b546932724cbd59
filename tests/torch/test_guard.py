"""Ranks that disagree are told so before the first batch: three real processes, one of them odd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forked import forked_ranks
from processes import finish, torchrun


def answers(folder: Path, odd: str, launch: Any = forked_ranks) -> list[str]:
    with launch("guard_job.py", 3, str(folder), odd) as job:
        finish(job)
    written = [folder / f"rank{rank}" for rank in range(3)]
    return [path.read_text() if path.exists() else "" for path in written]


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ("seed", "plan.order.seed is 8 on rank 1 and 7 on rank 0, 2"),
        pytest.param(
            "length",
            "plan.order.num_samples is 91 on rank 1 and 90 on rank 0, 2",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "listing",
            "dataset is 'reversed' on rank 1 and 'sorted' on rank 0, 2",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "drop_last",
            "drop_last is True on rank 1 and False on rank 0, 2",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "batch_size", "batch_size is 5 on rank 1 and 4 on rank 0, 2", marks=pytest.mark.slow
        ),
        pytest.param("state", "start is 3 on rank 1 and 0 on rank 0, 2", marks=pytest.mark.slow),
        pytest.param(
            "chunks-seed",
            "plan.plan.plan.order.seed is 8 on rank 1 and 7 on rank 0, 2",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "chunks-length",
            "num_samples is 91 on rank 1 and 90 on rank 0, 2",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "chunks-batch_size",
            "batch_size is 5 on rank 1 and 4 on rank 0, 2",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "chunks-shards",
            "plan.plan.plan.kind is 'contiguous shards' on rank 1",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "chunks-epoch", "epoch is 2 on rank 1 and 0 on rank 0, 2", marks=pytest.mark.slow
        ),
    ],
)
def test_every_rank_is_told_which_rank_is_odd_and_in_what(
    odd: str, told: str, tmp_path: Path
) -> None:
    for answer in answers(tmp_path, odd):
        assert answer.startswith("DesyncError")
        assert told in answer


@pytest.mark.parametrize("odd", ["nothing", pytest.param("chunks-nothing", marks=pytest.mark.slow)])
def test_ranks_that_agree_go_on(odd: str, tmp_path: Path) -> None:
    assert answers(tmp_path, odd) == ["received 3 batches"] * 3


@pytest.mark.slow
def test_ranks_of_torchrun_are_told_as_well(tmp_path: Path) -> None:
    for answer in answers(tmp_path, "seed", torchrun):
        assert "plan.order.seed is 8 on rank 1 and 7 on rank 0, 2" in answer


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    for rank, answer in enumerate(answers(tmp_path, "absent")):
        assert rank == 1 or "waited 5 s, but not all of the 3 ranks" in answer
