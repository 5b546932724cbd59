"""Buckets fit their budget and their quantum, and an image gets the nearest of them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from feedline.errors import InvalidValueError
from feedline.torch.calculator import PRESETS, STANDARD_RATIOS, BucketCalculator, name_of_ratio

sides = st.integers(1, 10_000)
sizes = st.tuples(sides, sides)


@st.composite
def calculators(draw: st.DrawFn) -> BucketCalculator:
    quantum = draw(st.integers(1, 128))
    budget = draw(st.integers(quantum**2, 3000**2 + quantum**2))
    return BucketCalculator(max_pixels=budget, quantization=quantum)


def pixels(size: tuple[int, int]) -> int:
    return size[0] * size[1]


@given(calculators())
def test_no_bucket_exceeds_the_budget_or_leaves_the_grid(calculator: BucketCalculator) -> None:
    assert calculator.buckets
    for bucket in calculator.buckets:
        assert pixels(bucket) <= calculator.pixel_budget
        for side in bucket:
            assert side >= calculator.quantization
            assert side % calculator.quantization == 0


@given(calculators())
def test_buckets_are_distinct_and_sorted_by_pixels_then_aspect(
    calculator: BucketCalculator,
) -> None:
    keys = [(pixels(bucket), Fraction(*bucket)) for bucket in calculator.buckets]
    assert keys == sorted(set(keys))


@given(calculators())
def test_every_bucket_has_its_transpose_and_one_is_square(calculator: BucketCalculator) -> None:
    buckets = set(calculator.buckets)
    assert {(height, width) for width, height in buckets} == buckets
    assert any(width == height for width, height in buckets)


@given(calculators())
def test_equal_calculators_have_equal_buckets(calculator: BucketCalculator) -> None:
    twin = BucketCalculator(max_pixels=calculator.max_pixels, quantization=calculator.quantization)
    assert twin == calculator
    assert twin.buckets == calculator.buckets


@given(st.integers(1, 5000))
def test_a_budget_that_a_square_fills_has_that_square(cells: int) -> None:
    calculator = BucketCalculator(max_pixels=(cells * 8) ** 2, quantization=8)
    assert (cells * 8, cells * 8) in calculator.buckets


@pytest.mark.parametrize("ratio", STANDARD_RATIOS)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_fine_grid_meets_every_standard_ratio_and_nearly_fills_the_budget(
    ratio: tuple[int, int], transposed: bool
) -> None:
    calculator = BucketCalculator(max_pixels=4096**2, quantization=1)
    width, height = reversed(ratio) if transposed else ratio
    bucket = calculator.get_bucket_for_image(width, height)
    assert bucket[0] / bucket[1] == pytest.approx(width / height, rel=1e-3)
    assert pixels(bucket) >= 0.999 * calculator.pixel_budget


@pytest.mark.matrix
def test_the_buckets_of_512p_never_change() -> None:
    wide = [(576, 384), (704, 320), (640, 384), (768, 320), (576, 448)]
    expected = {(512, 512), *wide, *((height, width) for width, height in wide)}
    assert set(BucketCalculator("512p").buckets) == expected


def test_presets_reach_from_256p_to_1536p_and_allow_the_square_they_are_named_after() -> None:
    assert {"256p", "512p", "768p", "1024p", "1536p"} <= set(PRESETS)
    for name in PRESETS:
        side = int(name.removesuffix("p"))
        calculator = BucketCalculator(name)
        assert calculator.pixel_budget == side**2
        assert (side, side) in calculator.buckets


@given(calculators(), sizes)
def test_an_image_gets_a_bucket_that_none_beats_in_aspect(
    calculator: BucketCalculator, image: tuple[int, int]
) -> None:
    def distance(bucket: tuple[int, int]) -> float:
        return abs(math.log(bucket[0] * image[1]) - math.log(bucket[1] * image[0]))

    chosen = calculator.get_bucket_for_image(*image)
    assert chosen in calculator.buckets
    assert distance(chosen) <= min(map(distance, calculator.buckets)) + 1e-9


@given(calculators(), sizes, st.integers(2, 50))
def test_the_bucket_of_an_image_depends_on_its_aspect_alone(
    calculator: BucketCalculator, image: tuple[int, int], factor: int
) -> None:
    larger = calculator.get_bucket_for_image(image[0] * factor, image[1] * factor)
    assert larger == calculator.get_bucket_for_image(*image)


@given(calculators())
def test_an_image_of_a_buckets_shape_gets_that_shape(calculator: BucketCalculator) -> None:
    for bucket in calculator.buckets:
        chosen = calculator.get_bucket_for_image(*bucket)
        assert Fraction(*chosen) == Fraction(*bucket)
        assert pixels(chosen) >= pixels(bucket)


@pytest.mark.parametrize(("image", "expected"), [((5, 3), (55, 30)), ((3, 5), (33, 50))])
def test_of_two_buckets_equally_far_and_equally_large_the_wider_is_chosen(
    image: tuple[int, int], expected: tuple[int, int]
) -> None:
    calculator = BucketCalculator(max_pixels=1702, quantization=1)
    # 50:33 and 55:30 are both 1650 pixels, and 11:10 away from 5:3, one on each side.
    assert {(50, 33), (55, 30), (33, 50), (30, 55)} <= set(calculator.buckets)
    assert calculator.get_bucket_for_image(*image) == expected


@given(sizes, st.integers(1, 4096), sizes)
def test_a_dynamic_batch_costs_at_most_the_base_batch_and_could_not_be_larger(
    resolution: tuple[int, int], base: int, base_resolution: tuple[int, int]
) -> None:
    calculator = BucketCalculator("512p")
    size = calculator.get_dynamic_batch_size(resolution, base, base_resolution)
    budget = base * pixels(base_resolution)
    assert size >= 1
    assert size == 1 or size * pixels(resolution) <= budget
    assert (size + 1) * pixels(resolution) > budget


def test_a_batch_of_the_base_resolution_has_the_base_size() -> None:
    calculator = BucketCalculator("512p")
    assert calculator.get_dynamic_batch_size((512, 512)) == 32
    assert calculator.get_dynamic_batch_size((100_000, 100_000)) == 1


def test_batch_sizes_are_exact_where_floats_are_not() -> None:
    base = 2**53 + 1
    assert BucketCalculator("512p").get_dynamic_batch_size((3, 1), 3 * base, (1, 1)) == base


@given(sizes)
def test_a_transposed_resolution_has_the_opposite_name(resolution: tuple[int, int]) -> None:
    calculator = BucketCalculator("512p")
    opposite = {"tall": "wide", "square": "square", "wide": "tall"}
    name = calculator.aspect_name(resolution)
    assert calculator.aspect_name((resolution[1], resolution[0])) == opposite[name]


@pytest.mark.parametrize("ratio", STANDARD_RATIOS)
def test_every_standard_ratio_but_one_to_one_is_wide(ratio: tuple[int, int]) -> None:
    expected = "square" if ratio == (1, 1) else "wide"
    assert BucketCalculator("512p").aspect_name(ratio) == expected


@given(sizes)
def test_a_ratio_has_the_same_name_as_a_float_and_as_a_resolution(
    resolution: tuple[int, int],
) -> None:
    named = BucketCalculator("512p").aspect_name(resolution)
    assert name_of_ratio(resolution[0] / resolution[1]) == named


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "pass exactly one"),
        ({"preset": "512p", "max_pixels": 512**2}, "pass exactly one"),
        ({"preset": "500p"}, "'500p' must be one of '256p'"),
        ({"preset": 512}, "512 must be one of"),
        ({"preset": ""}, "must be one of"),
        ({"max_pixels": 0}, "max_pixels=0 must be at least 1"),
        ({"max_pixels": -4}, "max_pixels=-4 must be at least 1"),
        ({"max_pixels": 512.0**2}, "must be an integer"),
        ({"max_pixels": True}, "must be an integer"),
        (
            {"max_pixels": 64**2 - 1},
            "max_pixels=4095 allows 4095 pixels.*at least 4096.*increase",
        ),
        ({"preset": "256p", "quantization": 257}, "preset='256p' allows 65536.*66049"),
        ({"preset": "512p", "quantization": 0}, "quantization=0 must be at least 1"),
        ({"preset": "512p", "quantization": 64.0}, "quantization=64.0 must be an integer"),
    ],
)
def test_a_calculator_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        BucketCalculator(**options)


@pytest.mark.parametrize("bad", [0, -1, 1.5, "512", None, True, float("nan")])
def test_sides_that_are_not_positive_integers_are_refused(bad: Any) -> None:
    calculator = BucketCalculator("512p")
    for call in (
        lambda: calculator.get_bucket_for_image(bad, 512),
        lambda: calculator.get_bucket_for_image(512, bad),
        lambda: calculator.get_dynamic_batch_size((bad, 512)),
        lambda: calculator.get_dynamic_batch_size((512, 512), bad),
        lambda: calculator.get_dynamic_batch_size((512, 512), 32, (512, bad)),
        lambda: calculator.aspect_name((512, bad)),
    ):
        with pytest.raises(InvalidValueError, match="must be"):
            call()


@pytest.mark.parametrize("bad", [512, (512,), (512, 512, 3), None, ()])
def test_a_resolution_that_is_not_a_pair_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"must be two integers, \(width, height\)"):
        BucketCalculator("512p").aspect_name(bad)
