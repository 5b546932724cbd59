"""What loaders say through `logging` at level INFO."""

from __future__ import annotations

import logging
import re
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import feedline
from feedline.steps import StepScheduler


@pytest.fixture
def store(tmp_path: Path) -> feedline.Store:
    feedline.pack({"x": np.arange(100)}, tmp_path / "data", chunk_samples=10)
    return feedline.open(tmp_path / "data")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "feedline"]


def test_a_pass_says_plan_ranks_batches_tail_and_where_it_starts_once(
    store: feedline.Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "feedline")
    loader = feedline.DataLoader(store, 8, shuffle=True, seed=7, num_replicas=4, rank=1)
    assert len(list(loader)) == 4
    begun, ended = said(caplog)
    for part in ("DataLoader, epoch 0", "rank 1 of 4", "4 batches of 8 samples", "tail 'even'"):
        assert part in begun
    assert "starts at its beginning" in begun
    assert "Shuffled" in begun
    assert "seed=7" in begun
    assert "epoch 0: ended after 4 batches in" in ended
    parts = r"waiting for data: [\d.e-]+ s reading, 0 s copying, [\d.e-]+ s handing over$"
    assert re.search(parts, ended)
    assert "\n" not in begun + ended


def test_a_resumed_pass_says_where_it_resumes(
    store: feedline.Store, caplog: pytest.LogCaptureFixture
) -> None:
    first = feedline.DataLoader(store, 10)
    list(islice(iter(first), 3))
    resumed = feedline.DataLoader(store, 5, num_replicas=2, rank=0)
    resumed.load_state_dict(first.state_dict())
    caplog.set_level(logging.INFO, "feedline")
    assert len(list(resumed)) == 7
    assert "resumes after 30 samples of all ranks" in said(caplog)[0]


def test_a_clock_that_counts_its_batches_hears_the_end_too(
    store: feedline.Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "feedline")
    loader = feedline.DataLoader(store, 10)
    with StepScheduler(10, dataloader=loader, num_epochs=2) as clock:
        assert sum(1 for _ in clock.epochs for _ in clock) == 20
    assert ["ended after 10 batches" in text for text in said(caplog)] == [False, True] * 2


def test_nothing_is_said_by_default(
    store: feedline.Store, caplog: pytest.LogCaptureFixture
) -> None:
    list(feedline.DataLoader(store, 10))
    assert not caplog.records
