"""How the workers of Ray Train reach each other where they have no group of torch or JAX.

Rank 0 starts an actor, the board, and the others find it by the name of the run. Workers of an
attempt that has failed may still look for it, or may have left a board behind. So the workers meet
before they use one: each joins, and confirms the members that it was told. A worker that has ended
confirms nothing, so those that meet are of one attempt.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from contextlib import suppress
from threading import Lock
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from feedline.errors import DesyncError
from feedline.words import several

#: Boards have names of their own, apart from the actors of users.
NAMESPACE = "feedline"
# Between two looks for a board that is not there yet.
_PAUSE = 0.05

Members = tuple[str, ...]


class Board:
    """An actor that the workers of one attempt meet at, and that holds what they tell each other.

    Args:
        num_ranks: The number of workers.
    """

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._members: dict[int, str] = {}
        self._confirmed: set[int] = set()
        self._is_closed = False
        self._rounds: dict[int, dict[int, Any]] = {}
        self._num_told: dict[int, int] = {}
        self._changed = asyncio.Condition()

    @property
    def _all(self) -> Members:
        return tuple(self._members[rank] for rank in sorted(self._members))

    async def join(self, rank: int, member: str) -> Members | None:
        """Return all members once there is one for each rank; None if others have met here."""
        async with self._changed:
            if self._is_closed:
                return None
            if self._members.get(rank) != member:
                self._members[rank] = member
                self._confirmed.clear()
                self._changed.notify_all()
            await self._changed.wait_for(lambda: len(self._members) == self._num_ranks)
            return self._all

    async def confirm(self, rank: int, members: Members) -> bool:
        """Return whether all members have confirmed the same members; then these have met."""
        async with self._changed:
            if members != self._all:
                return False
            self._confirmed.add(rank)
            self._is_closed = len(self._confirmed) == self._num_ranks
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._is_closed or self._all != members)
            return self._all == members

    async def gather(self, number: int, rank: int, value: Any) -> list[Any]:
        """Return what all ranks tell in one round, by rank."""
        async with self._changed:
            told = self._rounds.setdefault(number, {})
            told[rank] = value
            self._changed.notify_all()
            await self._changed.wait_for(lambda: len(told) == self._num_ranks)
            self._num_told[number] = self._num_told.get(number, 0) + 1
            if self._num_told[number] == self._num_ranks:
                del self._rounds[number], self._num_told[number]
            return [told[one] for one in range(self._num_ranks)]

    async def missing(self, number: int) -> list[int]:
        """Return the ranks that have not told anything in a round."""
        told = self._rounds.get(number, {})
        return [rank for rank in range(self._num_ranks) if rank not in told]


class Meeting:
    """One worker at the board of its attempt.

    Args:
        run: What tells this run from others on the cluster.
        rank: The rank of this worker.
        num_ranks: The number of workers.
    """

    def __init__(self, run: str, rank: int, num_ranks: int) -> None:
        digest = hashlib.blake2b(run.encode(), digest_size=16).hexdigest()
        self.name = f"workers of {digest}"
        self._rank = rank
        self._num_ranks = num_ranks
        self._member = uuid.uuid4().hex
        self._board: Any = None
        self._num_rounds = 0
        self._lock = Lock()

    def gather(self, value: Any, timeout: float | None) -> list[Any]:
        """Return the values of all workers, by rank; wait without end if `timeout` is None."""
        with self._lock:
            end = None if timeout is None else time.monotonic() + timeout
            if self._board is None:
                self._board = self._meet(end, timeout)
            number, self._num_rounds = self._num_rounds, self._num_rounds + 1
            asked = self._board.gather.remote(number, self._rank, value)
            try:
                found: list[Any] = ray.get(asked, timeout=_left(end))
            except GetTimeoutError:
                missing = ray.get(self._board.missing.remote(number))
                raise self._late(timeout, missing) from None
            except RayActorError as error:
                raise DesyncError(
                    f"rank {self._rank} cannot reach the other {several(self._num_ranks, 'rank')}: "
                    f"rank 0 has ended; look for an error there ({error!s:.200})"
                ) from None
            return found

    def _meet(self, end: float | None, timeout: float | None) -> Any:
        """Return the board at which all workers of this attempt have met."""
        board: Any = None
        while end is None or time.monotonic() < end:
            # That of rank 0 ends with it, so one that it has made is kept.
            if board is None or self._rank:
                board = self._new_board() if self._rank == 0 else self._found_board()
            if board is None:
                time.sleep(_PAUSE)
                continue
            try:
                members = ray.get(board.join.remote(self._rank, self._member), timeout=_left(end))
                if members is None:
                    time.sleep(_PAUSE)
                elif ray.get(board.confirm.remote(self._rank, members), timeout=_left(end)):
                    return board
            except RayActorError:
                # It was of an attempt that has failed.
                time.sleep(_PAUSE)
            except GetTimeoutError:
                break
        raise self._late(timeout, [])

    def _new_board(self) -> Any:
        """Start a board, in the place of one that is left of an attempt that has failed."""
        if (before := self._found_board()) is not None:
            ray.kill(before)
        here = ray.get_runtime_context().get_node_id()
        # The name is free when the board before has ended, which takes a moment.
        with suppress(ValueError):
            return (
                ray.remote(Board)
                .options(
                    name=self.name,
                    namespace=NAMESPACE,
                    num_cpus=0,
                    # As many calls as workers wait at once.
                    max_concurrency=max(1000, 4 * self._num_ranks),
                    scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
                )
                .remote(self._num_ranks)
            )
        return None

    def _found_board(self) -> Any:
        try:
            return ray.get_actor(self.name, namespace=NAMESPACE)
        except ValueError:
            return None

    def _late(self, timeout: float | None, missing: list[int]) -> DesyncError:
        named = f"; no word of rank {', '.join(map(str, missing[:8]))}" if missing else ""
        return DesyncError(
            f"rank {self._rank} waited {timeout} s, but not all of the {self._num_ranks} ranks "
            f"began the epoch{named}; look for an error on another rank"
        )


def _left(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())
