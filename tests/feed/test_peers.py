"""Rank and world size: arguments win, else the process group, else rank 0 of 1, never silently."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist

from feedline.errors import DesyncError, InvalidValueError
from feedline.feed import Alone, FoundPeers, as_peers, register_finder
from feedline.feed import peers as peers_module
from feedline.torch import DataLoader, DistributedSampler, Peers


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Two(Alone):
    """Peers of another framework, found by a finder."""

    rank = 1
    world_size = 2


@pytest.fixture
def finder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "_finders", {})
    register_finder("two", lambda process_group: Two())


def place_of(peers: Any) -> tuple[int, int]:
    return peers.rank, peers.world_size


def test_alone_without_arguments() -> None:
    assert place_of(Peers()) == (0, 1)
    assert Peers().gather("x", 1.0) == ["x"]
    assert Peers().maximum(7) == 7


def test_arguments_win_and_reach_nobody(group_of_one: None) -> None:
    peers = Peers(num_replicas=4, rank=3)
    assert place_of(peers) == (3, 4)
    assert isinstance(peers.reached, Alone)
    assert peers.gather("x", 1.0) == ["x"]


def test_the_process_group_is_looked_up_when_asked() -> None:
    peers = Peers()
    sampler = DistributedSampler(range(10))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert place_of(peers) == (0, 1)
        assert not isinstance(peers.reached, Alone)
        assert len(list(sampler)) == 10
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_replicas": 0}, "num_replicas=0"),
        ({"num_replicas": -1}, "num_replicas=-1"),
        ({"num_replicas": 2.0}, "num_replicas=2.0"),
        ({"num_replicas": 2, "rank": 2}, "rank=2"),
        ({"num_replicas": 2, "rank": -1}, "rank=-1"),
        ({"rank": True}, "rank=True"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Peers(**arguments)


def test_half_of_the_arguments_is_not_enough_without_a_group() -> None:
    with pytest.raises(InvalidValueError, match="num_replicas=4 needs rank as well"):
        _ = Peers(num_replicas=4).rank
    with pytest.raises(InvalidValueError, match="rank=1 needs num_replicas as well"):
        _ = Peers(rank=1).world_size


@pytest.mark.parametrize("name", ["WORLD_SIZE", "SLURM_NTASKS", "JAX_NUM_PROCESSES"])
def test_launched_processes_without_a_group_are_refused_at_first_use(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "2")
    loader = DataLoader(list(range(10)), batch_size=2)
    for use in (lambda: iter(loader), lambda: len(loader), loader.num_batches_left):
        with pytest.raises(InvalidValueError, match=f"{name}=2 means that 2 processes were launch"):
            use()
    with pytest.raises(InvalidValueError, match="pass num_replicas and rank"):
        list(DistributedSampler(range(10)))
    given = DataLoader(list(range(10)), batch_size=2, num_replicas=2, rank=1)
    assert [batch.tolist() for batch in given] == [[1, 3], [5, 7], [9]]


def test_another_framework_is_found_by_its_finder(finder: None) -> None:
    assert place_of(FoundPeers()) == (1, 2)
    loader = DataLoader(list(range(6)), batch_size=3, desync_guard=False)
    assert [batch.tolist() for batch in loader] == [[1, 3, 5]]


def test_two_groups_that_disagree_are_an_error(finder: None) -> None:
    class Three(Alone):
        rank = 2
        world_size = 3

    register_finder("three", lambda process_group: Three())
    with pytest.raises(DesyncError, match="rank 1 of 2 and rank 2 of 3 at the same time"):
        _ = FoundPeers().rank


def test_another_process_gets_what_was_found_here(finder: None) -> None:
    sent = pickle.loads(pickle.dumps(FoundPeers()))
    assert place_of(sent) == (1, 2)
    assert repr(sent) == "FoundPeers(num_replicas=2, rank=1)"


def test_a_process_that_has_a_group_of_its_own_uses_that(request: pytest.FixtureRequest) -> None:
    sent, given = pickle.loads(pickle.dumps((FoundPeers(), FoundPeers(1, 0))))
    assert place_of(sent) == place_of(given) == (0, 1)
    assert isinstance(sent.reached, Alone)
    request.getfixturevalue("finder")
    assert place_of(sent) == (1, 2)
    assert place_of(given) == (0, 1)
    assert isinstance(sent.reached, Two)


def test_peers_and_arguments_exclude_each_other() -> None:
    assert isinstance(as_peers(Alone()), Alone)
    with pytest.raises(InvalidValueError, match="omit num_replicas"):
        as_peers(Alone(), rank=0)
    with pytest.raises(InvalidValueError, match="peers='torch' must be 'auto' or Peers"):
        as_peers("torch")
