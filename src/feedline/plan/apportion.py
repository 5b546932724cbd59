"""Weights to exact counts: temperature, largest remainder, and the length of an epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from feedline.errors import InvalidValueError, as_float, check_positive
from feedline.words import several

# Decimal's ln and exp are correctly rounded, so a temperature gives the same counts everywhere,
# which the C library's pow does not promise.
_DECIMAL = Context(prec=40, traps=[InvalidOperation])


def check_weights(weights: Any, num_sources: int | None = None) -> tuple[float, ...]:
    """Return `weights` as floats, one per source, not all zero, or raise."""
    try:
        if isinstance(weights, str | bytes | Mapping | Set):
            raise TypeError
        values = tuple(as_float(weight) for weight in weights)
    except (TypeError, ValueError):
        raise InvalidValueError(f"weights={weights!r:.80} must be a list of numbers") from None
    if num_sources not in (None, len(values)):
        raise InvalidValueError(
            f"weights has {several(len(values), 'entry', 'entries')} but must have one for each of "
            f"the {num_sources} sources"
        )
    for source, weight in enumerate(values):
        if not math.isfinite(weight) or weight < 0:
            raise InvalidValueError(
                f"weights[{source}]={weight} must be finite and at least 0; use 0 to exclude a "
                "source"
            )
    if not values:
        raise InvalidValueError("weights=[] must contain one weight for each source")
    if not any(values):
        raise InvalidValueError(
            f"weights={list(values)} are all zero but at least one must be positive"
        )
    return values


def check_temperature(temperature: Any) -> float:
    """Return `temperature` as a finite float above zero, or raise."""
    return check_positive(
        "temperature",
        temperature,
        remedy="1 keeps the weights, a larger value makes them more equal",
    )


def shares_of(weights: Sequence[float], temperature: float = 1.0) -> tuple[Fraction, ...]:
    """Return the exact share of each source: `weight ** (1 / temperature)`, normalised.

    A weight of zero stays zero at any temperature.

    Examples:
        >>> [str(share) for share in shares_of([3, 1])]
        ['3/4', '1/4']
    """
    powers = list(map(Fraction, weights)) if temperature == 1.0 else _powers(weights, temperature)
    total = sum(powers)
    return tuple(power / total for power in powers)


def _powers(weights: Sequence[float], temperature: float) -> list[Fraction]:
    """Return each `weight ** (1 / temperature)` as a multiple of the largest."""
    logarithms = [_DECIMAL.ln(Decimal(weight)) if weight else None for weight in weights]
    largest = max(logarithm for logarithm in logarithms if logarithm is not None)
    heat = Decimal(temperature)
    powers = []
    for logarithm in logarithms:
        if logarithm is None:
            powers.append(Fraction(0))
            continue
        exponent = _DECIMAL.divide(_DECIMAL.subtract(logarithm, largest), heat)
        # No epoch is so long that a share of exp(-2000) would be drawn once.
        powers.append(Fraction(_DECIMAL.exp(max(exponent, Decimal(-2000)))))
    return powers


def apportion(num_positions: int, shares: Sequence[Fraction]) -> list[int]:
    """Return whole counts that add up to `num_positions`, by largest remainder.

    Equal remainders go to the earlier source.

    Examples:
        >>> apportion(10, shares_of([1, 1, 1]))
        [4, 3, 3]
    """
    quotas = [num_positions * share for share in shares]
    counts = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(shares)), key=lambda i: (counts[i] - quotas[i], i))
    for source in by_remainder[: num_positions - sum(counts)]:
        counts[source] += 1
    return counts


def longest_without_repeat(capacities: Sequence[int], shares: Sequence[Fraction]) -> int:
    """Return the largest length whose quotas all fit: then the first source is used up.

    Examples:
        >>> longest_without_repeat([100, 1000], shares_of([1, 3]))
        400
    """
    return min(
        math.floor(capacity / share)
        for capacity, share in zip(capacities, shares, strict=True)
        if share > 0
    )
