"""The processes of a run, and how they communicate.

Arguments win, else the process group of a framework, else this process is alone. The group is
looked up when it is first needed, and no framework is imported to find it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from feedline.errors import DesyncError, InvalidValueError, check_integer
from feedline.feed.adapters import adapters_in_use
from feedline.feed.delegation import asked_of

#: What launchers tell each process about the number of processes.
_LAUNCHED = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "JAX_NUM_PROCESSES")

Finder = Callable[[Any], "Peers | None"]


class Peers(Protocol):
    """The processes that share the data of a run; all must make the same calls together."""

    @property
    def rank(self) -> int:
        """The rank of this process."""

    @property
    def world_size(self) -> int:
        """The number of processes."""

    def maximum(self, value: int) -> int:
        """Return the largest value, of 63 bits, of all processes."""

    def gather(self, value: Any, timeout: float) -> list[Any]:
        """Return the JSON values of all processes, by rank.

        A process that waits for longer than `timeout` seconds raises `DesyncError`.
        """


class Alone:
    """A run of one process."""

    rank = 0
    world_size = 1

    def __repr__(self) -> str:
        return "Alone()"

    def maximum(self, value: int) -> int:
        """Return the value as it is."""
        return value

    def gather(self, value: Any, timeout: float) -> list[Any]:
        """Return the value alone."""
        return [value]


class FoundPeers:
    """Rank and world size as given, or else those of the process group of a framework.

    If either is given, the other processes cannot be reached: `maximum` and `gather` then use this
    process only.

    Args:
        num_replicas: The number of data-parallel ranks; by default that of the process group.
        rank: The rank of this process; by default that in the process group.
        process_group: The group of ranks that get different data, if that is not the whole world:
            with tensor parallelism, each rank passes its data-parallel group.

    Examples:
        >>> FoundPeers(num_replicas=4, rank=1).world_size
        4
    """

    def __init__(
        self,
        num_replicas: int | None = None,
        rank: int | None = None,
        process_group: Any | None = None,
    ) -> None:
        if num_replicas is not None:
            num_replicas = check_integer("num_replicas", num_replicas, 1, 2**31)
        if rank is not None:
            high = None if num_replicas is None else num_replicas - 1
            rank = check_integer("rank", rank, 0, high, remedy="ranks count from 0")
        self._num_replicas = num_replicas
        self._rank = rank
        self._process_group = process_group
        # What the process found that this is a copy from.
        self._parent: FoundPeers | None = None

    @property
    def is_known(self) -> bool:
        """Whether rank and world size were given, so that neither is looked up."""
        return self._num_replicas is not None and self._rank is not None

    @property
    def world_size(self) -> int:
        """The number of ranks that share the data."""
        if self._num_replicas is not None:
            return self._num_replicas
        return self._found("rank", self._rank).world_size

    @property
    def rank(self) -> int:
        """The rank of this process among them."""
        rank = self._rank
        if rank is None:
            rank = self._found("num_replicas", self._num_replicas).rank
        return check_integer(
            "rank", rank, 0, self.world_size - 1, remedy="this process is not among the ranks"
        )

    maximum = asked_of("reached", "maximum", "Return the largest value of all reachable processes.")
    gather = asked_of("reached", "gather", "Return the values of all reachable processes, by rank.")

    @property
    def reached(self) -> Peers:
        """The processes that this one can communicate with."""
        given = self._num_replicas is not None or self._rank is not None
        if given or (self._parent is not None and _group_of(None) is None):
            return Alone()
        return find_peers(self._process_group)

    def _found(self, name: str, given: int | None) -> Peers:
        """Return the group that supplies what was not given."""
        if given is None and self._parent is not None:
            return _group_of(None) or self._parent
        if given is None:
            return find_peers(self._process_group)
        found = _group_of(self._process_group)
        if found is None and given != (0 if name == "rank" else 1):
            other = "num_replicas" if name == "rank" else "rank"
            raise InvalidValueError(
                f"{name}={given} needs {other} as well, because no process group is initialized; "
                "pass both, or call torch.distributed.init_process_group first"
            )
        return found or Alone()

    def __repr__(self) -> str:
        if self._parent is not None:
            return repr(self._parent)
        given = {"num_replicas": self._num_replicas, "rank": self._rank}
        listed = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
        return f"FoundPeers({listed})"

    def __deepcopy__(self, memo: dict[int, Any]) -> FoundPeers:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes use what their parent found; a process group cannot travel.
        is_given = (self._num_replicas, self._rank, self._process_group) != (None, None, None)
        make = FoundPeers if is_given else _copied
        return make, (self.world_size, self.rank)


def _copied(world_size: int, rank: int) -> FoundPeers:
    """Return peers that a process has found, for another one.

    It may be a worker, or one that a trainer spawns: that one has a group of its own later.
    """
    copy = FoundPeers()
    copy._parent = FoundPeers(world_size, rank)
    return copy


def as_peers(
    peers: Any = "auto",
    *,
    num_replicas: int | None = None,
    rank: int | None = None,
    process_group: Any | None = None,
) -> Peers:
    """Return the peers that arguments describe.

    Args:
        peers: `"auto"`, which finds the process group of a framework, or peers.
        num_replicas: The number of ranks, if given.
        rank: The rank of this process, if given.
        process_group: The process group, if not the default one.
    """
    is_found = peers is None or (isinstance(peers, str) and peers == "auto")
    if not is_found and not hasattr(type(peers), "gather"):
        raise InvalidValueError(f"peers={peers!r:.80} must be 'auto' or Peers, such as Alone()")
    if is_found:
        return FoundPeers(num_replicas, rank, process_group)
    if (num_replicas, rank, process_group) != (None, None, None):
        raise InvalidValueError(
            f"peers={peers!r:.80} already knows rank and world size; omit num_replicas, rank and "
            "process_group"
        )
    found: Peers = peers
    return found


_finders: dict[str, Finder] = {}


def register_finder(name: str, finder: Finder) -> None:
    """Let `peers="auto"` find the processes of another framework.

    Args:
        name: A name for it; another finder of this name is replaced.
        finder: Called with the given process group or None; returns peers, or None if its framework
            has no group. It must not import a framework.
    """
    _finders[name] = finder


def find_peers(process_group: Any | None = None) -> Peers:
    """Return the processes of the run, or raise if several were launched but no group is found."""
    found = _group_of(process_group)
    if found is not None:
        return found
    for name in _LAUNCHED:
        size = os.environ.get(name, "")
        if size.isdigit() and int(size) > 1:
            raise InvalidValueError(
                f"{name}={size} means that {size} processes were launched, but no process group is "
                "initialized, so each process would get all samples; call "
                "torch.distributed.init_process_group or jax.distributed.initialize first, or "
                "pass num_replicas and rank, or peers=Alone() if the processes do not train "
                "together"
            )
    return Alone()


def _group_of(process_group: Any | None) -> Peers | None:
    """Return the peers of the only initialized group, if any."""
    finders = [adapter.find for adapter in adapters_in_use()]
    found = [peers for find in [*finders, *_finders.values()] if (peers := find(process_group))]
    several = [peers for peers in found if peers.world_size > 1]
    places = {(peers.rank, peers.world_size) for peers in several}
    if len(places) > 1:
        listed = " and ".join(f"rank {rank} of {size}" for rank, size in sorted(places))
        raise DesyncError(
            f"this process is {listed} at the same time, in the groups of two frameworks; pass "
            "num_replicas and rank, or peers"
        )
    return next(iter([*several, *found]), None)
