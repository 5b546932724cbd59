"""All ranks of a run of one kind of loader, and what an epoch owes them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from contract_loaders import KINDS, Kind
from feedline.feed import Loader

__all__ = ["Ranks", "batches_of", "due", "each_kind", "ids_of", "is_over"]

# `test_jax_loaders.py` runs these tests once more, in a process that may import JAX.
kinds = KINDS
if os.environ.get("FEEDLINE_CONTRACT") == "jax":
    from contract_jax import JAX_KINDS as kinds

each_kind = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=name, marks=[pytest.mark.slow] if kind.is_slow else [])
        for name, kind in kinds.items()
    ],
)


class Ranks:
    """All ranks of a run of one kind of loader."""

    def __init__(
        self, kind: Kind, folder: Path, world_size: int, batch_size: int, **variant: Any
    ) -> None:
        self.kind = kind
        self.loaders = [
            kind.make(folder, world_size, rank, batch_size, **variant) for rank in range(world_size)
        ]

    def load(self, state: dict[str, Any] | None) -> None:
        for loader in self.loaders:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))

    def state(self) -> dict[str, Any]:
        """The state, which is the same on every rank."""
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states)
        return states[0]

    def count_left(self) -> int:
        """How many batches the next pass has, on every rank alike."""
        counts = {loader.num_batches_left() for loader in self.loaders}
        assert len(counts) == 1
        return counts.pop()

    def consume(self, num_batches: int | None = None, num_lost: int = 0) -> Counter[int]:
        """Take batches on every rank, equally many; return the real samples in them.

        A checkpoint is saved after these, and the batches after it are lost with the processes.
        """
        real: Counter[int] = Counter()
        taken, self.saved = set(), []
        for loader in self.loaders:
            running = batches_of(self.kind, loader)
            count = 0
            for ids, is_real in islice(running, num_batches):
                real.update(i for i, mark in zip(ids, is_real, strict=True) if mark)
                count += 1
            self.saved.append(loader.state_dict())
            list(islice(running, num_lost))
            taken.add(count)
        assert len(taken) == 1, "ranks get equally many batches"
        assert all(state == self.saved[0] for state in self.saved)
        self.num_taken = taken.pop()
        return real


def batches_of(
    kind: Kind, loader: Loader[Any], num_batches: int | None = None
) -> Iterator[tuple[list[int], list[bool]]]:
    """The samples of the batches of a pass, and which are real, compared with the records."""
    for number, batch in enumerate(islice(loader, num_batches)):
        record = loader.delivered
        assert record is not None
        assert record.number == number
        assert record.ids is not None
        ids = list(kind.ids_of(batch))
        assert record.ids.tolist() == ids
        is_real = [True] * len(ids) if record.is_real is None else record.is_real.tolist()
        assert record.num_real == sum(is_real)
        yield ids, is_real


def ids_of(kind: Kind, loader: Loader[Any], num_batches: int | None = None) -> list[list[int]]:
    return [ids for ids, _ in batches_of(kind, loader, num_batches)]


_due: dict[tuple[int, Path, int], Counter[int]] = {}


def due(kind: Kind, folder: Path, epoch: int = 0) -> Counter[int]:
    """What an epoch has for one rank with batches of one, which loses and pads nothing."""
    key = id(kind), folder, epoch
    if key not in _due:
        ranks = Ranks(kind, folder, 1, 1)
        ranks.loaders[0].set_epoch(epoch)
        _due[key] = ranks.consume()
    return _due[key].copy()


def is_over(ranks: Ranks, epoch: int) -> bool:
    """Whether the epoch has ended, so that the next pass is that of another one."""
    probe = ranks.loaders[0]
    state = probe.state_dict()
    next(iter(probe), None)
    has_moved = probe.epoch != epoch
    probe.load_state_dict(state)
    return has_moved
