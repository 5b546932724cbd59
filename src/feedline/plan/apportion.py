"""Weights to exact counts: temperature, largest remainder, and how far sources last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from feedline.errors import InvalidValueError

__all__ = ["apportion", "check_temperature", "check_weights", "longest_without_repeat", "shares_of"]

# Decimal's ln and exp are correctly rounded, so a temperature gives the same counts everywhere,
# which the C library's pow does not promise.
_DECIMAL = Context(prec=40)


def check_weights(weights: Any, num_sources: int) -> tuple[float, ...]:
    """Return `weights` as floats, one per source, not all zero, or raise."""
    try:
        values = tuple(float(weight) for weight in weights)
    except (TypeError, ValueError):
        raise InvalidValueError(f"weights={weights!r} must be a list of numbers") from None
    if len(values) != num_sources:
        raise InvalidValueError(
            f"weights has {len(values)} entries but must have one for each of the {num_sources} "
            "sources"
        )
    for source, weight in enumerate(values):
        if not math.isfinite(weight) or weight < 0:
            raise InvalidValueError(
                f"weights[{source}]={weight} must be finite and at least 0; use 0 to leave a "
                "source out"
            )
    if not values:
        raise InvalidValueError("weights=[] must hold at least one weight, one for each source")
    if not any(values):
        raise InvalidValueError(
            f"weights={list(values)} are all zero but at least one must be positive"
        )
    return values


def check_temperature(temperature: Any) -> float:
    """Return `temperature` as a finite float above zero, or raise."""
    try:
        value = float(temperature)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        raise InvalidValueError(
            f"temperature={temperature!r} must be finite and above 0; 1 leaves the weights as they "
            "are, more makes them more alike"
        )
    return value


def shares_of(weights: Sequence[float], temperature: float = 1.0) -> tuple[Fraction, ...]:
    """Return the exact share of each source: `weight ** (1 / temperature)`, normalised.

    A weight of zero stays zero at any temperature.

    Examples:
        >>> [str(share) for share in shares_of([3, 1])]
        ['3/4', '1/4']
    """
    if temperature == 1.0:
        powers = [Fraction(weight) for weight in weights]
    else:
        powers = [_power(weight, temperature) for weight in weights]
    total = sum(powers)
    return tuple(power / total for power in powers)


def _power(weight: float, temperature: float) -> Fraction:
    if weight == 0:
        return Fraction(0)
    exponent = _DECIMAL.divide(_DECIMAL.ln(Decimal(weight)), Decimal(temperature))
    # Beyond +-2000 the smallest shares would underflow anyway; the bound keeps exp() finite.
    clamped = max(min(exponent, Decimal(2000)), Decimal(-2000))
    return Fraction(_DECIMAL.exp(clamped))


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
