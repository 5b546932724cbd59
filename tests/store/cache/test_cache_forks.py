"""A cache works across forks, in spawned processes, and after processes that were killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cache_kills import LIMIT
from forked import forked_python
from processes import finish


@pytest.mark.parametrize(
    "check",
    [
        "a_child_does_not_keep_what_its_parent_lets_go",
        "a_child_begins_without_holds_and_meters",
        "a_child_can_be_forked_while_threads_use_the_cache",
        "a_fetch_may_fork",
        "a_killed_process_keeps_nothing",
        "processes_get_it_pickled",
    ],
)
def test_processes_share_files_and_nothing_else(check: str, tmp_path: Path) -> None:
    with forked_python("cache_forks.py", check, str(tmp_path / "cache")) as job:
        finish(job)


@pytest.mark.parametrize("kind", ["new", pytest.param("damaged", marks=pytest.mark.slow)])
def test_a_kill_before_any_change_leaves_nothing_that_the_next_one_does_not_mend(
    tmp_path: Path, kind: str
) -> None:
    with forked_python("cache_kills.py", str(tmp_path / "cache"), kind) as job:
        found = [json.loads(line) for line in finish(job).splitlines()]
    assert sum(trial["was_killed"] for trial in found) > 30
    for trial in found:
        assert trial["after_kill"] <= LIMIT
        assert trial["is_right"]
        assert not trial["left"]
        assert trial["taken"] == trial["total"] == LIMIT
