"""Workers without a group of torch meet at a board, also if some of an attempt before are there."""

from __future__ import annotations

import asyncio
from itertools import permutations

import pytest

from feedline.trainers.ray_board import Board


async def meet(board: Board, rank: int, member: str) -> bool:
    """Join until all have met, as a worker does; False if others have met there."""
    while True:
        members = await board.join(rank, member)
        if members is None:
            return False
        if await board.confirm(rank, members):
            return True


async def settle() -> None:
    """Let all that can go on do so."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_workers_of_one_attempt_meet_and_gather() -> None:
    async def run() -> None:
        board = Board(3)
        assert await asyncio.gather(*(meet(board, rank, f"m{rank}") for rank in range(3))) == [
            True,
            True,
            True,
        ]
        for number in range(3):
            found = await asyncio.gather(
                *(board.gather(number, rank, [number, rank]) for rank in (2, 0, 1))
            )
            assert found == [[[number, rank] for rank in range(3)]] * 3
        # Nothing is kept of rounds that all have read.
        assert not board._rounds
        assert not board._num_told

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_worker_that_has_ended_is_not_met(order: tuple[int, ...]) -> None:
    async def run() -> None:
        board = Board(3)
        # Two of an attempt before have joined, and one of them has even confirmed; then they ended.
        old = [asyncio.create_task(board.join(rank, f"old{rank}")) for rank in (0, 2)]
        await settle()
        new = []
        for rank in order:
            new.append(asyncio.create_task(meet(board, rank, f"new{rank}")))
            await settle()
        assert await asyncio.gather(*new) == [True] * 3
        assert board._all == ("new0", "new1", "new2")
        for task in old:
            await task

    asyncio.run(asyncio.wait_for(run(), 30))


def test_who_comes_when_others_have_met_is_sent_away() -> None:
    async def run() -> None:
        board = Board(2)
        await asyncio.gather(meet(board, 0, "a"), meet(board, 1, "b"))
        assert await meet(board, 1, "late") is False

    asyncio.run(asyncio.wait_for(run(), 30))


def test_ranks_that_have_told_nothing_are_named() -> None:
    async def run() -> None:
        board = Board(3)
        waiting = asyncio.create_task(board.gather(0, 1, "here"))
        await settle()
        assert await board.missing(0) == [0, 2]
        await asyncio.gather(board.gather(0, 0, "x"), board.gather(0, 2, "y"))
        assert await waiting == ["x", "here", "y"]

    asyncio.run(asyncio.wait_for(run(), 30))
