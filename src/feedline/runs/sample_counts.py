"""How often each sample came, in memory that what was logged decides and not what a header says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.runs.audit_result import SourceAudit
from feedline.runs.run_config_data import SourceInfo

Counts = NDArray[np.int32]
Ids = NDArray[np.int64]

#: The number of samples that are counted one by one in any case.
_FEW = 2**16


class Balance(Protocol):
    """How often each sample came, compared with how often it should have come."""

    def of_source(self, source: SourceInfo) -> SourceAudit:
        """Return what became of the samples of a source."""

    def num_right(self, ids: Ids) -> int:
        """Return how many of some distinct samples came as often as they should."""

    def missing(self, most: int) -> tuple[int, ...]:
        """Return the first samples that came too seldom."""

    def repeated(self, most: int) -> tuple[int, ...]:
        """Return the first samples that came too often."""


def balance_of(
    batches: Iterable[Ids], num_samples: int, num_logged: int, expected: Counts | None
) -> Balance:
    """Return how often each sample came.

    Args:
        batches: The samples, all of which are in `[0, num_samples)`.
        num_samples: The number of samples of the data.
        num_logged: How many `batches` have together.
        expected: How often each should come; None means once.
    """
    if expected is None and num_samples > _FEW + 4 * num_logged:
        return _Sparse(batches, num_samples)
    return _Dense(batches, num_samples, expected)


class _Dense:
    """A count for each sample: below zero where it came too seldom."""

    def __init__(self, batches: Iterable[Ids], num_samples: int, expected: Counts | None) -> None:
        # In place, because there may be very many samples.
        self._balance = np.zeros(num_samples, dtype=np.int32)
        for ids in batches:
            np.add.at(self._balance, ids, 1)
        once: Counts = np.broadcast_to(np.int32(1), num_samples)
        self._expected = once if expected is None else expected
        self._balance -= self._expected

    def of_source(self, source: SourceInfo) -> SourceAudit:
        name, num_samples, first = source
        own = slice(first, first + num_samples)
        balance, expected = self._balance[own], self._expected[own]
        return SourceAudit(
            name=name,
            first=first,
            num_expected=int(expected.sum(dtype=np.int64)),
            num_once=int(np.count_nonzero((balance == 0) & (expected > 0))),
            num_missing=-int(balance[balance < 0].sum(dtype=np.int64)),
            num_repeated=int(np.count_nonzero(balance > 0)),
        )

    def num_right(self, ids: Ids) -> int:
        return int(np.count_nonzero(self._balance[ids] == 0))

    def missing(self, most: int) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self._balance < 0)[:most].tolist())

    def repeated(self, most: int) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self._balance > 0)[:most].tolist())


class _Sparse:
    """The samples that came, sorted, and how often; each should come once."""

    def __init__(self, batches: Iterable[Ids], num_samples: int) -> None:
        came: Sequence[Ids] = [np.empty(0, np.int64), *batches]
        self._ids, self._counts = np.unique(np.concatenate(came), return_counts=True)
        self._num_samples = num_samples

    def of_source(self, source: SourceInfo) -> SourceAudit:
        name, num_samples, first = source
        start, end = np.searchsorted(self._ids, [first, first + num_samples]).tolist()
        counts = self._counts[start:end]
        return SourceAudit(
            name=name,
            first=first,
            num_expected=num_samples,
            num_once=int(np.count_nonzero(counts == 1)),
            num_missing=num_samples - len(counts),
            num_repeated=int(np.count_nonzero(counts > 1)),
        )

    def num_right(self, ids: Ids) -> int:
        return int(np.count_nonzero(np.isin(ids, self._ids[self._counts == 1])))

    def missing(self, most: int) -> tuple[int, ...]:
        # Before the sample at place p, `ids[p] - p` did not come.
        num_before = self._ids - np.arange(len(self._ids))
        most = min(most, self._num_samples - len(self._ids))
        places = np.searchsorted(num_before, np.arange(most), side="right")
        return tuple((np.arange(most) + places).tolist())

    def repeated(self, most: int) -> tuple[int, ...]:
        return tuple(self._ids[self._counts > 1][:most].tolist())
