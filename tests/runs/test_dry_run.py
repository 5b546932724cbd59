"""A dry run accounts for every sample of an epoch, however often it is resized."""

from __future__ import annotations

import importlib
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_runs import CONFIGS
from feedline.errors import InvalidValueError
from feedline.plan import Cursor, Replay
from feedline.runs.dry_run import dry_run
from feedline.runs.run_config import RunConfig


@given(
    kind=st.sampled_from(sorted(CONFIGS)),
    tail=st.sampled_from(["drop", "pad", "even"]),
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    epoch=st.integers(0, 2),
)
def test_nothing_is_repeated_or_missing(kind: str, tail: str, sizes: list[int], epoch: int) -> None:
    config = RunConfig.from_dict({**CONFIGS[kind], "tail": tail})
    run = dry_run(config, sizes, epoch)
    found = run.coverage
    assert found.is_counted
    assert (found.num_repeated, found.num_missing) == (0, 0)
    assert found.num_consumed + found.num_dropped == found.num_positions
    assert [part.ranks for part in run.parts] == sizes
    assert all(part.num_batches % config.grad_acc_steps == 0 for part in run.parts[:-1])


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("tail", ["drop", "pad", "even"])
def test_counts_without_looking_are_those_of_looking(
    kind: str, tail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig.from_dict({**CONFIGS[kind], "tail": tail})
    counted = dry_run(config, [4, 3, 5])
    module = importlib.import_module("feedline.runs.dry_run")
    monkeypatch.setattr(module, "can_enumerate", lambda *_: False)
    computed = dry_run(config, [4, 3, 5])
    assert not computed.coverage.is_counted
    names = ("num_positions", "num_consumed", "num_repeated", "num_missing", "num_dropped")
    for name in (*names, "num_padded"):
        assert getattr(computed.coverage, name) == getattr(counted.coverage, name), name
    for one, other in zip(computed.parts, counted.parts, strict=True):
        assert (one.num_batches, one.num_consumed) == (other.num_batches, other.num_consumed)
        assert other.imbalance <= one.imbalance
    assert computed.naive == counted.naive


def test_parts_are_those_of_a_replay() -> None:
    config = RunConfig.from_dict(CONFIGS["chunks"])
    run = dry_run(config, [3, 5, 2])
    history = [(part.ranks, config.batch_size, part.num_batches) for part in run.parts[:-1]]
    replay = Replay(plan=config.plan, world_size=2, batch_size=4, history=history)
    assert replay.num_batches == sum(part.num_batches for part in run.parts)
    first = [replay.batch(rank=r, number=n) for r in range(3) for n in range(history[0][2])]
    consumed = np.concatenate([batch.indices for batch in first])
    assert len(consumed) == run.parts[0].num_consumed
    sizes = [part.num_consumed for part in run.parts]
    assert max(sizes) - min(sizes) < 0.2 * max(sizes)


def test_lost_and_repeated_samples_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig.from_dict(CONFIGS["samples"])
    from_json = Cursor.from_json

    def shifted(text: str, by: int) -> Cursor:
        cursor = from_json(text)
        (past,) = cursor.history
        return replace(cursor, history=(past._replace(num_batches=past.num_batches + by),))

    monkeypatch.setattr(Cursor, "from_json", lambda text: shifted(text, 1))
    assert dry_run(config, [4, 3]).coverage.num_missing == 4 * 8
    monkeypatch.setattr(Cursor, "from_json", lambda text: shifted(text, -1))
    assert dry_run(config, [4, 3]).coverage.num_repeated == 4 * 8


def test_naive_sharding_is_shown_beside_it() -> None:
    config = RunConfig.from_dict({"batch_size": 4, "tail": "even", "data": {"samples": 3200}})
    naive = dry_run(config, [8, 4]).naive
    assert naive is not None
    # Half of 100 batches on 8 ranks; 4 ranks skip as many batches, that is, half as many samples.
    assert (naive.num_repeated, naive.num_lost, naive.hangs) == (50 * 4 * 4, 0, False)


def test_a_trillion_samples_take_no_time() -> None:
    data = {"chunks": {"num_chunks": 10**6, "chunk_size": 10**6, "preload": 4}}
    config = RunConfig.from_dict({"batch_size": 32, "tail": "even", "data": data})
    started = time.perf_counter()
    run = dry_run(config, [16384, 16000, 7])
    assert time.perf_counter() - started < 1
    assert run.coverage.num_consumed == 10**12


@pytest.mark.parametrize("sizes", [[], [4], [4, 0], [4, -1]])
def test_wrong_sizes_are_refused(sizes: list[int]) -> None:
    with pytest.raises(InvalidValueError):
        dry_run(RunConfig.from_dict(CONFIGS["samples"]), sizes)
