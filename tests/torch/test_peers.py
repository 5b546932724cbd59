"""Rank and world size: arguments win, else the process group, else rank 0 of 1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from feedline.errors import InvalidValueError
from feedline.torch import DistributedSampler, Peers


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_alone_without_arguments() -> None:
    assert (Peers().rank, Peers().world_size, Peers().group) == (0, 1, None)


def test_arguments_win(group_of_one: None) -> None:
    peers = Peers(num_replicas=4, rank=3)
    assert (peers.rank, peers.world_size, peers.group) == (3, 4, None)


def test_the_process_group_is_looked_up_when_asked(group_of_one: None) -> None:
    peers = Peers()
    assert (peers.rank, peers.world_size) == (0, 1)
    assert peers.group is not None
    assert len(list(DistributedSampler(range(10)))) == 10


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
