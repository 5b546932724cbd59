"""Load requests of chunk samplers, whatever release of annbatch they were written for.

Until 0.1.6 annbatch called the rows to read `chunks`, and since 0.2.0 `requests`. In all releases a
sampler may leave out `splits`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from feedline.errors import InvalidValueError, check_integer

KEYS = frozenset(("requests", "chunks", "splits"))


class WholeRequests:
    """Completes the load requests of one pass: both names of the rows to read, and the batches.

    Args:
        sampler: The sampler of the requests, whose `batch_size` and `shuffle` make missing splits.
        number: The number of the pass: it seeds the shuffle where the sampler has no `rng`.

    Examples:
        >>> from types import SimpleNamespace
        >>> whole = WholeRequests(SimpleNamespace(batch_size=2, shuffle=False), number=0)
        >>> [split.tolist() for split in whole({"chunks": [slice(4, 7)]})["splits"]]
        [[0, 1], [2]]
    """

    def __init__(self, sampler: Any, number: int) -> None:
        self._sampler = sampler
        given: np.random.Generator | None = getattr(sampler, "rng", None)
        self._rng = np.random.default_rng([number]) if given is None else given

    def __call__(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request with all keys; its splits are copies."""
        wanted = request.get("requests", request.get("chunks"))
        if wanted is None:
            raise InvalidValueError(
                f"a load request of {type(self._sampler).__name__} has the keys {sorted(request)} "
                "but must have 'requests' or 'chunks', the rows to read"
            )
        splits = request.get("splits")
        if splits is None:
            splits = self._splits(wanted)
        # Copies: annbatch's samplers until 0.2 shuffle the arrays of earlier requests again.
        copies = [np.array(split) for split in splits]
        return {"requests": wanted, "chunks": wanted, "splits": copies}

    def _splits(self, wanted: Any) -> list[Any]:
        name = type(self._sampler).__name__
        size = check_integer(
            "batch_size",
            getattr(self._sampler, "batch_size", None),
            1,
            remedy=f"because {name} yields requests without splits",
        )
        is_array = isinstance(wanted, np.ndarray)
        num_rows = len(wanted) if is_array else sum(part.stop - part.start for part in wanted)
        places = np.arange(num_rows)
        if getattr(self._sampler, "shuffle", False):
            places = self._rng.permutation(num_rows)
        return np.split(places, np.arange(size, num_rows, size)) if num_rows else []
