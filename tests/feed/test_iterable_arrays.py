"""Iterable datasets without torch: batches of arrays, read in the loop's own thread."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import InvalidValueError
from feedline.feed import IterableArrays


class Records:
    """Samples of numbers, arrays and texts; a number of its epoch is in each."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples
        self.at = self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.at < self.num_samples:
            number = self.at
            self.at += 1
            yield {"id": number, "x": np.full(2, self.epoch), "name": f"s{number}"}

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def ids(loader: Any, count: int | None = None) -> list[list[int]]:
    return [batch["id"].tolist() for batch in islice(loader, count)]


def test_batches_are_arrays_and_resume_at_any_batch() -> None:
    loader = feedline.DataLoader(Records(11), batch_size=3)
    assert isinstance(loader, IterableArrays)
    batch = next(iter(loader))
    assert (batch["x"].shape, batch["name"]) == ((3, 2), ["s0", "s1", "s2"])
    whole, states = [], [loader.state_dict()]
    with loader:
        loader.set_epoch(1)
        for batch in loader:
            assert (batch["x"] == 1).all()
            whole.append(batch["id"].tolist())
            states.append(json.loads(json.dumps(loader.state_dict())))
    for number in range(1, len(states)):
        resumed = feedline.DataLoader(Records(11), batch_size=3)
        resumed.load_state_dict(states[number])
        assert ids(resumed) == whole[number:]
        assert (resumed.epoch, ids(resumed, 1)) == (1, [[0, 1, 2]])


def test_a_transform_gets_each_batch_and_incomplete_ones_are_dropped_on_demand() -> None:
    options = {"transform": lambda batch: batch["id"].sum(), "drop_last": True}
    assert list(feedline.DataLoader(Records(8), 3, **options)) == [3, 12]


def test_what_cannot_be_exact_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="shuffle=True cannot be used with an iterable"):
        feedline.DataLoader(Records(5), shuffle=True)
    with pytest.raises(InvalidValueError, match="is an iterator without a state"):
        feedline.DataLoader(iter([{"x": 1}]))
    with pytest.raises(InvalidValueError, match="must be a store"):
        feedline.DataLoader([1, 2, 3])
