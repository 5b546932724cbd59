"""The counts of a plan are those of its batches, looked at one by one."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_runs import CONFIGS
from feedline.errors import EmptyEpochError, TailError
from feedline.plan import BucketPlan, Mixture, Phase, WindowPlan
from feedline.runs.plan_report import draws_of_sources, estimate_reads, report_plan
from feedline.runs.run_config import RunConfig


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("tail", ["drop", "pad", "even"])
def test_counts_are_those_of_all_batches(kind: str, tail: str) -> None:
    config = RunConfig.from_dict({**CONFIGS[kind], "tail": tail})
    report = report_plan(config, epoch=1)
    ranks, size = config.ranks, config.batch_size
    segment = config.plan.segment(world_size=ranks, batch_size=size, epoch=1)
    batches = [list(segment.batches(rank)) for rank in range(ranks)]
    assert {len(own) for own in batches} == {report.num_batches}
    real = sum(int(batch.is_real.sum()) for own in batches for batch in own)
    entries = sum(len(batch.indices) for own in batches for batch in own)
    assert report.num_padded == entries - real
    assert report.num_dropped == report.num_positions - real
    assert report.num_steps == -(-report.num_batches // config.grad_acc_steps)
    firsts = range(0, report.num_batches, config.grad_acc_steps)
    assert report.num_batches_in_last_step == report.num_batches - firsts[-1]
    assert (report.ranks, report.batch_size, report.tail, report.kind) == (ranks, size, tail, kind)


def test_buckets_are_counted_one_by_one() -> None:
    config = RunConfig.from_dict(CONFIGS["buckets"])
    report = report_plan(config)
    segment = config.plan.segment(world_size=config.ranks, batch_size=config.batch_size)
    assert isinstance(config.plan, BucketPlan)
    counts = Counter(batch.bucket for batch in segment.batches(0))
    assert [line.num_batches for line in report.buckets] == [counts[0], counts[1]]
    assert [(line.name, line.batch_size) for line in report.buckets] == [("wide", 8), ("tall", 3)]
    assert report.naive is None


def test_sources_are_counted_one_by_one() -> None:
    config = RunConfig.from_dict(CONFIGS["mixture"])
    mixture = config.mixture
    assert mixture is not None
    for epoch in (0, 1):
        report = report_plan(config, epoch)
        indices = mixture.indices(epoch, np.arange(report.num_positions))
        draws = np.bincount(mixture.sources_of(indices)[0]).tolist()
        assert [line.num_draws for line in report.sources] == draws


@st.composite
def mixtures(draw: Any) -> Mixture:
    sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=4))
    weights = st.lists(st.sampled_from([0, 0.5, 1, 3]), min_size=len(sizes), max_size=len(sizes))
    some = weights.filter(any)
    starts = st.tuples(st.integers(0, 2), st.integers(1, max(1, sum(sizes) - 1)))
    places = draw(st.lists(starts, max_size=3, unique=True)) if sum(sizes) > 1 else []
    return Mixture(
        sizes=sizes,
        weights=draw(some),
        temperature=draw(st.sampled_from([1.0, 2.5])),
        strategy=draw(st.sampled_from(["repeat", "stop"])),
        phases=[Phase(weights=draw(some), epoch=e, position=p) for e, p in sorted(places)],
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 9)),
    )


@given(mixture=mixtures(), epoch=st.integers(0, 3))
def test_draws_are_counted_without_drawing(mixture: Mixture, epoch: int) -> None:
    indices = mixture.indices(epoch, np.arange(mixture.num_positions(epoch)))
    drawn = np.bincount(mixture.sources_of(indices)[0], minlength=len(mixture.sizes))
    assert draws_of_sources(mixture, epoch) == drawn.tolist()


def test_reads_are_those_of_every_rank() -> None:
    config = RunConfig.from_dict(CONFIGS["chunks"])
    plan = config.plan
    assert isinstance(plan, WindowPlan)
    segment = plan.segment(world_size=config.ranks, batch_size=config.batch_size)
    counts = [len(plan.reads(segment, rank, 0, segment.num_batches)) for rank in range(3)]
    reads = report_plan(config).reads
    assert reads is not None
    assert (reads.fewest, reads.most, reads.total) == (min(counts), max(counts), sum(counts))
    assert not reads.is_estimate


@pytest.mark.parametrize(
    ("num_chunks", "preload", "ranks"), [(64, 1, 4), (1000, 8, 16), (50, 3, 7), (2000, 1, 2)]
)
def test_estimated_reads_are_near_those_that_are_counted(
    num_chunks: int, preload: int, ranks: int
) -> None:
    chunks = {"num_chunks": num_chunks, "chunk_size": 40, "preload": preload}
    given = {"ranks": ranks, "batch_size": 4, "tail": "even", "data": {"chunks": chunks}}
    config = RunConfig.from_dict(given)
    counted = report_plan(config).reads
    segment = config.plan.segment(world_size=ranks, batch_size=4)
    estimate = estimate_reads(segment)
    assert counted is not None
    assert estimate.is_estimate
    assert abs(estimate.most - counted.most) <= 2 * preload
    assert abs(estimate.fewest - counted.fewest) <= 2 * preload


def test_bytes_follow_from_those_of_a_sample() -> None:
    chunks = {"num_chunks": 10, "chunk_size": 100, "preload": 2}
    data = {"chunks": chunks, "bytes_per_sample": 1000}
    given = {"ranks": 2, "batch_size": 4, "grad_acc_steps": 3, "data": data}
    cost = report_plan(RunConfig.from_dict(given)).cost
    assert (cost.batch_bytes, cost.step_bytes) == (4000, 4000 * 2 * 3)
    assert (cost.window_bytes, cost.epoch_bytes) == (200_000, 1_000_000)
    assert cost.plan_bytes == 0


DATA_OF_1E12 = [
    {"samples": 10**12},
    {"mixture": [{"name": f"s{w}", "samples": 5 * 10**11, "weight": w} for w in (1, 3)]}
    | {"phases": [{"position": 10**11, "weights": [1, 1]}]},
    {"buckets": [{"name": n, "samples": 5 * 10**11} for n in "ab"], "mode": "interleaved"},
    {"chunks": {"num_chunks": 10**6, "chunk_size": 10**6, "preload": 8}},
]


@pytest.mark.parametrize("data", DATA_OF_1E12, ids=lambda data: next(iter(data)))
def test_a_trillion_samples_on_16384_ranks_take_no_time(data: dict[str, Any]) -> None:
    config = RunConfig.from_dict({"ranks": 16384, "batch_size": 32, "tail": "even", "data": data})
    started = time.perf_counter()
    report = report_plan(config)
    assert time.perf_counter() - started < 1
    assert (report.num_dropped, report.num_positions) == (0, 10**12)


def test_an_epoch_without_a_batch_and_an_exact_tail_are_refused() -> None:
    with pytest.raises(EmptyEpochError):
        report_plan(RunConfig.from_dict({"batch_size": 6, "data": {"samples": 5}}))
    with pytest.raises(TailError):
        report_plan(RunConfig.from_dict({"batch_size": 2, "tail": "exact", "data": {"samples": 5}}))


def test_steps_are_found_also_where_epochs_differ_in_length() -> None:
    listed = [{"name": "a", "samples": 90}, {"name": "b", "samples": 30}]
    phases = [{"epoch": 1, "weights": [1, 0]}, {"epoch": 3, "position": 20, "weights": [1, 3]}]
    given = {"batch_size": 3, "grad_acc_steps": 2, "epochs": 7}
    config = RunConfig.from_dict(
        {**given, "data": {"mixture": listed, "phases": phases, "stop": True}}
    )
    every = [(e, s) for e in range(7) for s in range(config.num_steps_in(e))]
    assert len({config.num_steps_in(epoch) for epoch in range(7)}) > 1
    assert config.num_steps == len(every)
    assert [config.find_step(step) for step in range(len(every))] == every
    with pytest.raises(ValueError, match=f"step={len(every)} must be in"):
        config.find_step(len(every))
