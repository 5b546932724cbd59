"""Numbers and names in reports and commands."""

from __future__ import annotations

from collections.abc import Sequence

from feedline.words import several

_MOST_SIGNS = 100
_MOST_SIZES = 8


def num_ranks(count: int) -> str:
    """Return a number of ranks as text."""
    return several(count, "rank")


def in_turn(world_sizes: Sequence[int]) -> str:
    """Return the numbers of ranks of runs or parts; if there are very many, only some.

    Examples:
        >>> in_turn([8, 6, 2]), in_turn(range(1, 101))
        ('8 → 6 → 2', '1 → 2 → 3 → 4 → 5 → 6 → … → 100')
    """
    listed = [f"{size:,}" for size in world_sizes]
    if len(listed) > _MOST_SIZES:
        listed = [*listed[: _MOST_SIZES - 2], "…", listed[-1]]
    return " → ".join(listed)


def seconds_of(value: float) -> str:
    """Return seconds as text.

    Examples:
        >>> seconds_of(12345.6), seconds_of(1.25), seconds_of(0.0005)
        ('12,346 s', '1.25 s', '0.5 ms')
    """
    if 0 < abs(value) < 1:
        return f"{1000 * value:.3g} ms"
    return f"{value:,.0f} s" if abs(value) >= 1000 else f"{value:.3g} s"


def shortened(name: str) -> str:
    """Return a name that fits on a page; a very long one is cut in the middle.

    Examples:
        >>> shortened("a" * 70 + "b" * 40)[28:36], len(shortened("a" * 10**6))
        ('aaaaa…aa', 100)
    """
    if len(name) <= _MOST_SIGNS:
        return name
    return f"{name[: _MOST_SIGNS // 3]}…{name[_MOST_SIGNS // 3 + 1 - _MOST_SIGNS :]}"
