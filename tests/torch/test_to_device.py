"""A loader around another: what the loop gets and counts, though batches are moved ahead of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feedline
from contract_loaders import DEVICE
from feedline.errors import InvalidValueError
from feedline.torch import DataLoader, to_device
from reader_threads import readers_since_now, wait_until


@pytest.mark.parametrize("way", ["device", "to_device"])
def test_batches_ahead_of_the_loop_are_copies_of_memory_that_is_used_again(way: str) -> None:
    memory = torch.zeros(2, dtype=torch.int64)

    def collated(samples: list[int]) -> torch.Tensor:
        return memory.copy_(torch.tensor(samples))

    if way == "device":
        loader: Any = DataLoader(list(range(8)), 2, collate_fn=collated, device=DEVICE)
    else:
        loader = to_device(DataLoader(list(range(8)), 2, collate_fn=collated), DEVICE)
    kept = list(loader)
    assert [batch.tolist() for batch in kept] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_closing_a_loader_around_another_keeps_the_state_of_the_loop() -> None:
    loader = to_device(DataLoader(list(range(8)), batch_size=2), DEVICE)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1]
    loader.close()
    resumed = DataLoader(list(range(8)), batch_size=2)
    resumed.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in resumed] == [[2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize(
    "move",
    [
        iter,
        lambda loader: loader.set_epoch(3),
        lambda loader: loader.load_state_dict(loader.state_dict()),
        lambda loader: loader.skip_batches(1),
    ],
    ids=["iter", "set_epoch", "load_state_dict", "skip_batches"],
)
def test_an_older_iterator_yields_no_batch_that_was_moved_for_it(move: Any) -> None:
    loader = to_device(DataLoader(list(range(8)), batch_size=2), DEVICE)
    older = iter(loader)
    next(older)
    newer = move(loader)
    with pytest.raises(InvalidValueError, match="an earlier pass"):
        next(older)
    del newer


def test_a_loader_that_was_moved_itself_has_no_batch_waiting() -> None:
    inner = DataLoader(list(range(8)), batch_size=2)
    loader = to_device(inner, DEVICE)
    next(iter(loader))
    inner.set_epoch(2)
    assert loader.state_dict() == inner.state_dict()
    assert loader.next_epoch == 2


def test_threads_end_when_the_loop_drops_the_iterator_of_a_loader_around_another(
    tmp_path: Path,
) -> None:
    feedline.pack({"x": np.arange(100)}, tmp_path / "data")
    running = readers_since_now()
    loader = to_device(DataLoader(feedline.open(tmp_path / "data"), 2, num_threads=2), DEVICE)
    for _ in loader:
        break
    wait_until(lambda: not running())
    assert loader.delivered is not None
    assert loader.delivered.number == 0


def test_arrays_that_torch_cannot_read_in_place_are_moved() -> None:
    arrays = [np.arange(3)[::-1], np.arange(3, dtype=">i4"), np.broadcast_to(np.arange(3), (2, 3))]
    (moved,) = list(to_device([arrays], DEVICE))
    assert [tensor.tolist() for tensor in moved] == [[2, 1, 0], [0, 1, 2], [[0, 1, 2]] * 2]
