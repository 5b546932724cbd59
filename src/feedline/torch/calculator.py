"""Resolution buckets: the sizes of images, and the batch size for each.

A resolution is always (width, height). Everything here is exact integer arithmetic, so every rank
and every machine finds the same buckets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from itertools import product
from math import isqrt
from types import MappingProxyType
from typing import Any, Literal

from feedline.errors import InvalidValueError, check_choice, check_integer
from feedline.lazy import lazy
from feedline.plan.frozen import store
from feedline.words import one_line

Resolution = tuple[int, int]
"""Width and height in pixels."""

AspectName = Literal["tall", "square", "wide"]
"""The three names that an aspect ratio can have."""

PRESETS: Mapping[str, int] = MappingProxyType(
    {f"{side}p": side * side for side in (256, 512, 768, 1024, 1280, 1536)}
)
"""The pixel budget of each preset: the square of the side that it is named after."""

STANDARD_RATIOS = ((1, 1), (5, 4), (4, 3), (3, 2), (16, 9), (2, 1), (21, 9))
"""The aspect ratios that get a bucket; each also gets its tall counterpart."""

# Symmetric, so that an image and its transpose are tall and wide, or both square. 5:4, the standard
# ratio nearest to 1:1, lies outside.
_SQUARE_BAND = (Fraction(17, 20), Fraction(20, 17))
# For floats the nearest floats: 0.85 means 17:20, though its binary value is a little less.
_SQUARE_BAND_OF_FLOATS = (17 / 20, 20 / 17)


@one_line
@dataclass(frozen=True)
class BucketCalculator:
    """Quantised resolutions for the standard aspect ratios within a pixel budget.

    Pass either a preset or `max_pixels`.

    Args:
        preset: A budget by name, `"256p"` to `"1536p"`: the square of that side.
        max_pixels: The budget as a number. No bucket has more pixels.
        quantization: Both sides of every bucket are multiples of it.

    Examples:
        >>> calculator = BucketCalculator("512p")
        >>> calculator.buckets[-1]
        (512, 512)
        >>> calculator.get_bucket_for_image(1920, 1080)
        (640, 384)
        >>> calculator.get_dynamic_batch_size((1024, 1024), base_batch_size=32)
        8
    """

    preset: str | None = None
    _: KW_ONLY
    max_pixels: int | None = None
    quantization: int = 64

    def __post_init__(self) -> None:
        if (self.preset is None) == (self.max_pixels is None):
            raise InvalidValueError(
                f"preset={self.preset!r} and max_pixels={self.max_pixels!r}: pass exactly one of "
                "them"
            )
        quantum = check_integer("quantization", self.quantization, 1)
        store(self, quantization=quantum)
        if self.max_pixels is not None:
            remedy = "increase max_pixels or decrease the quantization"
            store(self, max_pixels=check_integer("max_pixels", self.max_pixels, 1, remedy=remedy))
        else:
            check_choice("preset", self.preset, tuple(PRESETS))
        if self.pixel_budget < quantum**2:
            source = f"preset={self.preset!r}" if self.preset else f"max_pixels={self.max_pixels}"
            raise InvalidValueError(
                f"{source} allows {self.pixel_budget} pixels but must allow at least {quantum**2}, "
                f"a square of quantization={quantum}; increase the budget or decrease the "
                "quantization"
            )

    @property
    def pixel_budget(self) -> int:
        """The largest number of pixels in a bucket."""
        if self.max_pixels is not None:
            return self.max_pixels
        assert self.preset is not None
        return PRESETS[self.preset]

    @lazy
    def buckets(self) -> tuple[Resolution, ...]:
        """Every bucket once, by pixels and then by aspect ratio, narrow before wide.

        Ratios that the quantum cannot tell apart share a bucket, so there may be fewer buckets than
        ratios. There is always a square one.
        """
        wide = {self._fit(Fraction(*ratio)) for ratio in STANDARD_RATIOS}
        both = wide | {(height, width) for width, height in wide}
        return tuple(sorted(both, key=lambda size: (size[0] * size[1], Fraction(*size))))

    def _fit(self, ratio: Fraction) -> Resolution:
        """Return the bucket for a ratio: of the sizes around the ideal one, the closest in aspect.

        The ideal sides have exactly this ratio and fill the budget. Each is rounded down and up to
        the quantum; sizes above the budget are excluded; on a tie more pixels win.
        """
        quantum = self.quantization
        num_cells = self.pixel_budget // quantum**2
        # A side of less than one quantum becomes one, and then the other must still fit the budget.
        columns = min(_floor_sqrt(self.pixel_budget * ratio / quantum**2), num_cells)
        rows = _floor_sqrt(self.pixel_budget / ratio / quantum**2)
        around = product((columns, columns + 1), (rows, rows + 1))
        fitting = [size for size in around if size[0] * size[1] <= num_cells]
        width, height = min(fitting, key=lambda size: _preference(size, ratio))
        return width * quantum, height * quantum

    def get_bucket_for_image(self, width: int, height: int) -> Resolution:
        """Return the bucket whose aspect ratio is closest to the image's.

        Closeness is measured in logarithms, where twice as wide and half as wide are equally far.
        On a tie the bucket with more pixels wins, and then the wider one.

        Examples:
            >>> BucketCalculator("256p").get_bucket_for_image(3000, 4000)
            (192, 256)
        """
        image = Fraction(check_integer("width", width, 1), check_integer("height", height, 1))
        return min(self.buckets, key=lambda bucket: _preference(bucket, image))

    def get_dynamic_batch_size(
        self,
        resolution: Resolution,
        base_batch_size: int = 32,
        base_resolution: Resolution = (512, 512),
    ) -> int:
        """Return the batch size for `resolution` that costs as much as a batch at the base
        resolution.

        That is `base_batch_size` times the ratio of their pixels, rounded down, and at least one.

        Examples:
            >>> BucketCalculator("512p").get_dynamic_batch_size((256, 256), 3)
            12
        """
        width, height = check_resolution("resolution", resolution)
        base_width, base_height = check_resolution("base_resolution", base_resolution)
        base_size = check_integer("base_batch_size", base_batch_size, 1)
        return max(1, base_size * base_width * base_height // (width * height))

    def aspect_name(self, resolution: Resolution) -> AspectName:
        """Return whether a resolution is `"tall"`, `"square"` or `"wide"`; see `name_of_ratio`.

        Examples:
            >>> BucketCalculator("512p").aspect_name((640, 384))
            'wide'
        """
        return name_of_ratio(Fraction(*check_resolution("resolution", resolution)))


def name_of_ratio(ratio: Fraction | float) -> AspectName:
    """Return the name of a ratio of width to height: `"square"` from 17:20 to 20:17, both included.

    The band is there because quantised sides seldom give exactly 1:1.

    Examples:
        >>> name_of_ratio(0.5), name_of_ratio(1.1), name_of_ratio(1.25)
        ('tall', 'square', 'wide')
    """
    exact = isinstance(ratio, Fraction)
    tallest, widest = _SQUARE_BAND if exact else _SQUARE_BAND_OF_FLOATS
    if ratio < tallest:
        return "tall"
    return "wide" if ratio > widest else "square"


def check_resolution(name: str, value: Any) -> Resolution:
    """Return `value` as (width, height), or raise.

    Examples:
        >>> check_resolution("resolution", [640, 384])
        (640, 384)
    """
    try:
        width, height = value
    except (TypeError, ValueError):
        raise InvalidValueError(
            f"{name}={value!r} must be two integers, (width, height), each at least 1"
        ) from None
    return check_integer(f"{name}[0]", width, 1), check_integer(f"{name}[1]", height, 1)


def _floor_sqrt(value: Fraction) -> int:
    """Return the square root rounded down, at least 1."""
    return max(1, isqrt(value.numerator // value.denominator))


def _preference(size: Resolution, ratio: Fraction) -> tuple[Fraction, int, Fraction]:
    """Return a key that is least for the size to choose for `ratio`.

    First comes the greater of a/b and b/a. It is the exponential of |log a - log b|, so it orders
    sizes as the logarithms would, without their rounding.
    """
    aspect = Fraction(*size)
    return max(aspect / ratio, ratio / aspect), -size[0] * size[1], -aspect
