"""Each draw of a sample has a generator of its own, which nothing else decides."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from feedline.errors import InvalidValueError
from feedline.feed import sample_rng


def first_of(**names: int) -> int:
    return int(sample_rng(7, **{"epoch": 0, "index": 0, **names}).integers(2**63))


def test_every_part_of_the_key_changes_the_numbers() -> None:
    names = ("epoch", "index", "source", "draw")
    values = itertools.product((0, 1, 2**40), repeat=len(names))
    found = {first_of(**dict(zip(names, value, strict=True))) for value in values}
    assert len(found) == 3**4
    assert sample_rng(8, epoch=0, index=0).integers(2**63) not in found
    assert sample_rng("7", epoch=0, index=0).integers(2**63) not in found


def test_the_numbers_are_those_of_earlier_releases() -> None:
    rng = sample_rng(7, epoch=3, index=12, source=1, draw=2)
    assert rng.bit_generator.random_raw(3).tolist() == [
        10487728385938696571,
        15071345401889838812,
        6857382009441833624,
    ]


def test_generators_of_neighbours_do_not_overlap() -> None:
    drawn = np.stack([sample_rng(0, epoch=0, index=n).integers(2**63, size=4096) for n in range(8)])
    assert len(np.unique(drawn)) == drawn.size


def test_children_are_the_same_each_time_and_differ_from_each_other() -> None:
    def children(index: int) -> list[float]:
        rng = sample_rng(0, epoch=0, index=index)
        return [child.random() for child in (*rng.spawn(2), *rng.spawn(1))]

    assert children(5) == children(5)
    assert len({*children(5), *children(6)}) == 6


@pytest.mark.parametrize("names", [{"index": -1}, {"draw": 2**63}, {"source": 0.5}])
def test_numbers_out_of_range_are_refused(names: dict[str, int]) -> None:
    with pytest.raises(InvalidValueError, match=next(iter(names))):
        sample_rng(0, **{"epoch": 0, "index": 0, **names})
