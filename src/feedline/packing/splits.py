"""The split of each row: exact shares of a stream of unknown length."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError, as_float
from feedline.packing.keys import draw
from feedline.plan.seeds import Seed
from feedline.store.manifest import MANIFEST_NAME

_BLOCK_ROWS = 1000
_BLOCK_BYTES = 2**24
_TOLERANCE = Fraction(1, 10**6)
_MAX_SPLITS = 64


@dataclass(frozen=True, kw_only=True)
class Splits:
    """How rows are dealt to splits.

    Of every block of rows each split gets the difference of its floors, so that the first n rows
    hold `floor(n * upper) - floor(n * lower)` rows of a split, for every n where a block ends and
    for the total. Which rows of a block those are is random.

    Args:
        names: The names of the splits; one empty name without splits.
        edges: The upper ends of their shares of `[0, 1]`; the last is 1.
        seed: The seed of the choice of rows.
        block_rows: The number of rows in a block.
    """

    names: tuple[str, ...]
    edges: tuple[Fraction, ...]
    seed: Seed
    block_rows: int

    def counts(self, num_rows: int) -> list[int]:
        """Return how many of the first rows each split has, where a block or the data ends."""
        floors = [num_rows * edge.numerator // edge.denominator for edge in self.edges]
        return [high - low for low, high in zip([0, *floors], floors, strict=False)]

    def labels(self, block: int, num_rows: int) -> NDArray[np.uint8]:
        """Return the split of each row of a block of that many rows."""
        first = block * self.block_rows
        before, after = self.counts(first), self.counts(first + num_rows)
        quotas = [high - low for low, high in zip(before, after, strict=True)]
        order = np.argsort(draw(self.seed, "split", block, num_rows), kind="stable")
        found = np.empty(num_rows, np.uint8)
        found[order] = np.repeat(np.arange(len(quotas), dtype=np.uint8), quotas)
        return found

    def last_block_before(self, needed: list[int]) -> int:
        """Return the last block at whose start no split has more rows than `needed` of it."""

        def is_past(block: int) -> bool:
            counts = self.counts(block * self.block_rows)
            return any(count > need for count, need in zip(counts, needed, strict=True))

        return bisect_left(range(sum(needed) // self.block_rows + 1), True, key=is_past) - 1


def parse_split(split: Any) -> dict[str, Fraction]:
    """Return the share of each split by name; empty without splits.

    Examples:
        >>> parse_split(0.1)
        {'train': Fraction(9, 10), 'validation': Fraction(1, 10)}
    """
    if split is None:
        return {}
    if not isinstance(split, Mapping):
        share = _share("split", split)
        return {"train": 1 - share, "validation": share}
    shares = {_name(name): _share(f"split[{name!r}]", share) for name, share in split.items()}
    total = sum(shares.values(), Fraction(0))
    if abs(total - 1) > _TOLERANCE:
        raise InvalidValueError(
            f"split={dict(split)!r:.200} has shares that add up to {float(total):g} and must add "
            "up to 1; change one of them"
        )
    if len(shares) > _MAX_SPLITS:
        raise InvalidValueError(
            f"split has {len(shares)} names and must have at most {_MAX_SPLITS}"
        )
    return shares


def make_splits(shares: Mapping[str, Fraction], seed: Seed, row_bytes: int) -> Splits:
    """Return how rows of that size are dealt; blocks of large rows are short, to fit in memory."""
    edges: list[Fraction] = []
    for share in shares.values():
        edges.append((edges[-1] if edges else Fraction(0)) + share)
    return Splits(
        names=tuple(shares) or ("",),
        # Shares such as three thirds add up to 1 only nearly.
        edges=(*edges[:-1], Fraction(1)),
        seed=seed,
        block_rows=max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, row_bytes))),
    )


def _share(what: str, value: Any) -> Fraction:
    try:
        number = as_float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 < number < 1:
        raise InvalidValueError(
            f"{what}={value!r:.80} must be a share above 0 and below 1; pass a number, or a "
            "mapping such as {'train': 0.9, 'validation': 0.1}"
        )
    # The decimal that was written, not the binary float next to it.
    return Fraction(value) if isinstance(value, Fraction) else Fraction(repr(number))


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name or name.startswith(".") or set(name) & set("/\\\0:"):
        raise InvalidValueError(
            f"split has the name {name!r:.80}, which must be the name of a folder: not empty, "
            "without slashes or colons, and not beginning with a dot"
        )
    if name == MANIFEST_NAME:
        raise InvalidValueError(
            f"split has the name {name!r}, which a folder of chunks gives to its list of files; "
            "choose another name"
        )
    return name
