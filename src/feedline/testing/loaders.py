"""What every loader promises, checked on one of your own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import islice
from random import Random
from typing import Any

from feedline.feed import Loader
from feedline.testing.faults import fail

MakeLoader = Callable[..., Loader[Any]]
_NUM_RUNS = 8
_MOST_RESIZES = 4


def check_loader(make: MakeLoader, *, num_samples: int | None = None, seed: int = 0) -> None:
    """Check what every loader promises, and raise an AssertionError that says what is broken.

    All ranks get equally many batches; an epoch has each sample once, less what its tail policy
    drops; a state saved after any batch resumes at the next one, in another process, on any number
    of ranks and with any batch size; the state counts what the loop received; batches that are
    skipped are left out on any number of ranks, and no others.

    Args:
        make: Makes a loader of one epoch, from `batch_size`, `num_replicas` and `rank`.
        num_samples: The number of samples in an epoch, if each comes once. Not given, an epoch is
            only compared with one of a single rank.
        seed: The seed of the sizes that are tried.

    Raises:
        AssertionError: If a promise is broken.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> import feedline
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = feedline.pack({"x": np.arange(40)}, f"{folder}/data")
        ...     store = feedline.open(f"{folder}/data")
        ...     check_loader(lambda **sizes: feedline.DataLoader(store, shuffle=True, **sizes))
    """
    rng = Random(seed)
    whole = _Ranks(make, 1, 1)
    due = whole.consume(None)
    whole.close()
    if num_samples is not None and due != Counter(range(num_samples)):
        fail(f"an epoch of one rank must have each of {num_samples} samples once")
    _check_resume(make, rng)
    for _ in range(_NUM_RUNS):
        _check_resizes(make, due, rng)
        _check_skips(make, due, rng)


def _check_resume(make: MakeLoader, rng: Random) -> None:
    """Check that a state saved after any batch resumes at the next one."""
    ranks = _Ranks(make, 2, 3)
    batches, states = ranks.batches_and_states()
    ranks.close()
    for number in sorted(rng.sample(range(len(batches)), min(5, len(batches)))):
        resumed = _Ranks(make, 2, 3)
        resumed.load(states[number])
        if resumed.state() != states[number]:
            fail("a state that was loaded must be saved unchanged")
        found, _ = resumed.batches_and_states()
        if found != batches[number:]:
            fail(f"a state saved after {number} batches must resume at batch {number}")
        resumed.close()


def _check_resizes(make: MakeLoader, due: Counter[int], rng: Random) -> None:
    """Check that an epoch on changing numbers of ranks loses and repeats nothing."""
    real: Counter[int] = Counter()
    state: dict[str, Any] | None = None
    sizes = []
    for resize in range(_MOST_RESIZES):
        world_size, batch_size = rng.randint(1, 4), rng.randint(1, 7)
        sizes.append((world_size, batch_size))
        ranks = _Ranks(make, world_size, batch_size)
        ranks.load(state)
        left = ranks.num_left()
        is_last = resize == _MOST_RESIZES - 1
        real += ranks.consume(left if is_last else rng.randint(0, max(0, left - 1)))
        state = ranks.state()
        ranks.close()
    if real - due:
        fail(f"ranks and batch sizes {sizes}: samples came twice: {sorted(real - due)[:10]}")
    lost = sum((due - real).values())
    world_size, batch_size = sizes[-1]
    if lost >= world_size * batch_size:
        fail(f"ranks and batch sizes {sizes}: {lost} samples were lost")


def _check_skips(make: MakeLoader, due: Counter[int], rng: Random) -> None:
    """Check that a run that skips batches, and is resized, leaves out those and no others."""
    sizes = rng.randint(1, 4), rng.randint(1, 4)
    whole = _Ranks(make, *sizes)
    batches, states = whole.batches_and_states()
    whole.close()
    if len(batches) < 2 or not whole.can_skip:
        return
    start = rng.randrange(len(batches) - 1)
    after = rng.randrange(min(3, len(batches) - start - 1))
    count = rng.randint(1, len(batches) - start - after - 1)
    first = _Ranks(make, *sizes)
    first.load(states[start])
    first.skip(count, after)
    if first.num_left() != len(batches) - start - count:
        fail("num_batches_left() must not count the batches that are skipped")
    state = first.state()
    first.close()
    real = Counter(id for batch in batches[:start] for ids in batch for id in ids)
    skipped = batches[start + after : start + after + count]
    real.update(id for batch in skipped for ids in batch for id in ids)
    resumed = _Ranks(make, rng.randint(1, 4), 1)
    resumed.load(state)
    real += resumed.consume(None)
    resumed.close()
    told = f"{count} batches, skipped after {start + after} on {sizes[0]} ranks"
    if real - due:
        fail(f"{told}: samples came twice, or in spite of the skip: {sorted(real - due)[:10]}")
    if sum((due - real).values()) >= 4:
        fail(f"{told}: other samples were lost too: {sorted(due - real)[:10]}")


class _Ranks:
    """The loaders of all ranks."""

    def __init__(self, make: MakeLoader, world_size: int, batch_size: int) -> None:
        self._loaders = [
            make(batch_size=batch_size, num_replicas=world_size, rank=rank)
            for rank in range(world_size)
        ]

    def load(self, state: dict[str, Any] | None) -> None:
        for loader in self._loaders:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))

    def skip(self, num_batches: int, after: int) -> None:
        for loader in self._loaders:
            loader.skip_batches(num_batches, after)

    @property
    def can_skip(self) -> bool:
        return all(hasattr(loader, "skip_batches") for loader in self._loaders)

    def state(self) -> dict[str, Any]:
        states = [loader.state_dict() for loader in self._loaders]
        if any(state != states[0] for state in states):
            fail("the state must be the same on every rank")
        return states[0]

    def num_left(self) -> int:
        counts = {loader.num_batches_left() for loader in self._loaders}
        if len(counts) > 1:
            fail(f"num_batches_left() differs between ranks: {sorted(counts)}")
        return counts.pop()

    def consume(self, num_batches: int | None) -> Counter[int]:
        """Take batches on every rank, and return the real samples in them."""
        real: Counter[int] = Counter()
        taken = set()
        for loader in self._loaders:
            count = 0
            for _ in islice(loader, num_batches):
                count += 1
                real.update(_real_of(loader))
            taken.add(count)
        if len(taken) > 1:
            fail(f"ranks got {sorted(taken)} batches, and must get equally many")
        return real

    def batches_and_states(self) -> tuple[list[list[list[int]]], list[dict[str, Any]]]:
        """Return the samples of each step on each rank, and the state before each step."""
        num_left = self.num_left()
        batches: list[list[list[int]]] = []
        states = [self.state()]
        passes = [iter(loader) for loader in self._loaders]
        for _ in range(num_left):
            for running in passes:
                next(running)
            batches.append([_real_of(loader) for loader in self._loaders])
            states.append(self.state())
        return batches, states

    def close(self) -> None:
        for loader in self._loaders:
            loader.close()


def _real_of(loader: Loader[Any]) -> list[int]:
    """Return the real samples of the latest batch."""
    record = loader.delivered
    if record is None or record.ids is None:
        fail("`delivered` must tell the ids of the latest batch")
    ids = [int(number) for number in record.ids]
    if record.is_real is None:
        return ids
    return [number for number, mark in zip(ids, record.is_real, strict=True) if mark]
