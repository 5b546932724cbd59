"""Iterable datasets on several ranks: unequal ones, failing ones, and killed ones that resume."""

from __future__ import annotations

import json
import random
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from feedline.errors import (
    DesyncError,
    EmptyEpochError,
    InvalidValueError,
    PlanMismatchError,
)
from feedline.feed import FoundPeers
from forked import forked_ranks
from iterable_data import Counting
from iterable_runs import batches, make, plain, saved
from processes import finish, kill_job, torchrun, wait_for
from thread_peers import ThreadPeers, on_ranks

# Ranks that are threads.


class Part(Counting):
    """The numbers of one rank, of which some have more."""

    def __init__(self, rank: int, num_samples: int, **options: Any) -> None:
        super().__init__(num_samples, **options)
        self.rank = rank


def run_ranks(sizes: list[int], **options: Any) -> list[Any]:
    def work(peers: ThreadPeers) -> Any:
        data = Part(peers.rank, sizes[peers.rank])
        loader = make(data, peers=peers, desync_timeout=5, **options)
        seen: list[Any] = []
        try:
            seen.extend(loader)
        except Exception as error:
            return len(seen), type(error), str(error)
        return len(seen), loader.epoch, json.loads(loader.state_dict()["cursor"])["has_ended"]

    return list(on_ranks(len(sizes), work))


def test_ranks_with_equally_many_batches_end_together_and_silently() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run_ranks([12, 12, 10]) == [(4, 0, True)] * 3


def test_the_shortest_rank_ends_the_epoch_on_all_with_a_warning() -> None:
    told = r"rank 1 of 3 has no more samples after 2 batches, others have: epoch 0 ends on all"
    with pytest.warns(RuntimeWarning, match=told):
        assert run_ranks([30, 6, 12]) == [(2, 0, True)] * 3


def test_unequal_ranks_are_an_error_on_all_on_demand() -> None:
    for count, kind, told in run_ranks([30, 6, 12], tail="exact"):
        assert (count, kind) == (2, DesyncError)
        assert "rank 1 of 3 has no more samples after 2 batches, others have" in told


def test_a_rank_without_a_batch_is_an_error_on_all() -> None:
    for count, kind, told in run_ranks([30, 0, 12]):
        assert (count, kind) == (0, EmptyEpochError)
        assert "no batch for rank 1 of 3" in told


def test_a_rank_that_fails_tells_the_others() -> None:
    def work(peers: ThreadPeers) -> Any:
        data = Counting(30, fails_at=7 if peers.rank == 1 else -1)
        return list(make(data, peers=peers, desync_timeout=5))

    results = on_ranks(3, work)
    assert str(results[1]) == "sample 7 is broken"
    for other in (results[0], results[2]):
        assert isinstance(other, DesyncError)
        assert "another rank failed to read its next batch" in str(other)


def test_ranks_that_begin_elsewhere_are_told_before_the_first_batch() -> None:
    def work(peers: ThreadPeers) -> Any:
        loader = make(Counting(30), peers=peers, desync_timeout=5)
        if peers.rank == 1:
            loader.set_epoch(3)
        return next(iter(loader))

    for error in on_ranks(3, work):
        assert isinstance(error, DesyncError)
        assert "epoch is 3 on rank 1 and 0 on rank 0, 2" in str(error)


def test_ranks_that_cannot_talk_are_refused() -> None:
    peers = FoundPeers(num_replicas=3, rank=1)
    with pytest.raises(InvalidValueError, match="cannot talk to each other"):
        next(iter(make(Counting(30), peers=peers)))
    loader = make(Counting(30), peers=peers, desync_guard=False)
    assert len(batches(loader)) == 10
    with pytest.raises(InvalidValueError, match="cannot talk to each other"):
        loader.gather_state_dict()


def test_a_gathered_state_is_the_same_on_all_ranks_and_loads_on_each() -> None:
    states: dict[int, Any] = {}

    def begin(peers: ThreadPeers) -> Any:
        loader = make(Part(peers.rank, 30), peers=peers, batch_size=peers.rank * 0 + 2)
        running = iter(loader)
        for _ in range(3):
            next(running)
        states[peers.rank] = saved(loader)
        return loader.gather_state_dict()

    first, *others = on_ranks(3, begin)
    assert others == [first, first]

    def resume(peers: ThreadPeers) -> Any:
        loader = make(Part(peers.rank, 30), peers=peers)
        loader.load_state_dict(first)
        assert saved(loader) == states[peers.rank]
        with pytest.raises(PlanMismatchError, match="each rank of an iterable dataset has a state"):
            loader.load_state_dict(states[(peers.rank + 1) % 3])
        return plain(next(iter(loader)))

    assert on_ranks(3, resume) == [[6, 7, 8]] * 3
    with pytest.raises(PlanMismatchError, match="on 3 ranks, but now there are 1"):
        make(Part(0, 30)).load_state_dict(first)


# Ranks that are processes.


def arguments(folder: Path, **job: Any) -> str:
    defaults = {"folder": str(folder), "run": "first", "load": None, "num_workers": 2}
    return json.dumps({**defaults, **job})


def told(folder: Path, run: str, rank: int) -> list[list[Any]]:
    lines = (folder / f"{run}.rank{rank}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def received(folder: Path, run: str, rank: int) -> dict[int, list[int]]:
    return {line[1]: line[2] for line in told(folder, run, rank) if line[0] == "batch"}


def test_ranks_of_unequal_length_end_together_and_nobody_hangs(tmp_path: Path) -> None:
    with forked_ranks("iterable_job.py", 2, arguments(tmp_path, sizes=[60, 33])) as job:
        finish(job)
    counts = {len(received(tmp_path, "first", rank)) for rank in range(2)}
    # 33 samples in two workers are six batches of each.
    assert counts == {12}
    for rank in range(2):
        (_, warning), (end,) = told(tmp_path, "first", rank)[-2:]
        assert "rank 1 of 2 has no more samples after 12 batches, others have" in warning
        assert end == "end"


@pytest.mark.slow
def test_unequal_ranks_are_an_error_on_all_where_they_must_be_exact(tmp_path: Path) -> None:
    job = arguments(tmp_path, sizes=[60, 33, 60], tail="exact", num_workers=0)
    with forked_ranks("iterable_job.py", 3, job) as run:
        finish(run)
    for rank in range(3):
        (name, kind, message), _ = told(tmp_path, "first", rank)[-2:]
        assert (name, kind) == ("error", "DesyncError")
        assert "rank 1 of 3 has no more samples after 11 batches" in message


@pytest.mark.slow
def test_a_rank_that_fails_stops_the_others(tmp_path: Path) -> None:
    job = arguments(tmp_path, sizes=[60, 60], fails_at={"1": 20})
    with forked_ranks("iterable_job.py", 2, job) as run:
        finish(run)
    failed, other = told(tmp_path, "first", 1)[-2], told(tmp_path, "first", 0)[-2]
    assert failed[2] == "RuntimeError: sample 20 is broken"
    assert (other[1], other[2].split(";")[0]) == (
        "DesyncError",
        "another rank failed to read its next batch",
    )


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_killed_ranks_resume_behind_what_was_saved(num_workers: int, tmp_path: Path) -> None:
    sizes, num_ranks = [90, 93, 90], 3
    job = arguments(tmp_path, run="whole", sizes=sizes, num_workers=num_workers)
    with torchrun("iterable_job.py", num_ranks, job) as run:
        finish(run)
    expected = [received(tmp_path, "whole", rank) for rank in range(num_ranks)]
    load = None
    seen: list[dict[int, list[int]]] = [{} for _ in range(num_ranks)]
    for number in range(3):
        name = f"run{number}"
        is_last = number == 2
        job = arguments(
            *(tmp_path,), run=name, sizes=sizes, num_workers=num_workers, load=load, pause=0.05
        )
        with torchrun("iterable_job.py", num_ranks, job) as run:
            if is_last:
                finish(run)
            else:
                saves = [tmp_path / f"{name}.rank{rank}.json" for rank in range(num_ranks)]
                wait_for(lambda saves=saves: all(path.exists() for path in saves), run)
                time.sleep(0.3 * random.random())
                kill_job(run)
        saves = [json.loads((tmp_path / f"{name}.rank{r}.json").read_text()) for r in range(3)]
        step = min(saved["step"] for saved in saves)
        for rank in range(num_ranks):
            found = received(tmp_path, name, rank)
            assert not found.keys() & seen[rank].keys(), "nothing comes twice"
            seen[rank] |= {at: batch for at, batch in found.items() if at <= step}
        load = name
    assert seen == expected
