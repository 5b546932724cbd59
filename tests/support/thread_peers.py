"""Ranks as threads of one process, which talk to each other as processes do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Room:
    """Where ranks meet; one that waits in vain for another fails after a while."""

    def __init__(self, world_size: int, timeout: float = 10.0) -> None:
        self.world_size = world_size
        self.barrier = threading.Barrier(world_size, timeout=timeout)
        self.told: list[Any] = [0] * world_size


class ThreadPeers:
    """One rank of a room; it counts how often it was asked to talk."""

    def __init__(self, room: Room, rank: int) -> None:
        self._room = room
        self.rank = rank
        self.world_size = room.world_size
        self.num_calls = 0

    def maximum(self, value: int) -> int:
        assert 0 <= value < 2**63
        self.num_calls += 1
        return int(max(self.gather(value, 0)))

    def gather(self, value: Any, timeout: float) -> list[Any]:
        self._room.told[self.rank] = value
        self._room.barrier.wait()
        told = list(self._room.told)
        self._room.barrier.wait()
        return told


def on_ranks(world_size: int, work: Callable[[ThreadPeers], Any], timeout: float = 10.0) -> Any:
    """Do some work on each rank; return what came of it, with errors in their places."""
    room = Room(world_size, timeout)
    results: list[Any] = [None] * world_size

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadPeers(room, rank))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return results
