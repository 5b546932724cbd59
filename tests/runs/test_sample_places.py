"""Steps and samples are found where the plan's batches have them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cli_runs import CONFIGS
from feedline.errors import InvalidValueError
from feedline.plan import BucketPlan, Cursor, PastSegment
from feedline.runs.run_config import RunConfig
from feedline.runs.sample_places import samples_of_step, times_of_sample


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_sample_of_an_epoch_is_found_at_its_step(kind: str) -> None:
    config = RunConfig.from_dict(CONFIGS[kind])
    plan = config.plan
    segment = plan.segment(world_size=config.ranks, batch_size=config.batch_size, epoch=1)
    seen: dict[int, set[tuple[int, int, int]]] = {}
    for rank in range(config.ranks):
        for batch in segment.batches(rank):
            for slot, index in enumerate(batch.indices.tolist()):
                seen.setdefault(index, set()).add((batch.number, rank, slot))
    for index in [0, 1, 17, 250, 500]:
        times = times_of_sample(config, index=index, epoch=1)
        assert {(t.batch, t.rank, t.slot) for t in times} == seen.get(index, set())
        for found in times:
            assert found.step == found.batch // config.grad_acc_steps
            here = samples_of_step(config, step=found.step, rank=found.rank, epoch=1)
            matching = [s for s in here.samples if (s.batch, s.slot) == (found.batch, found.slot)]
            assert [sample.index for sample in matching] == [index]
            assert matching[0].is_real == found.is_real


def test_a_step_has_the_batches_that_are_accumulated() -> None:
    config = RunConfig.from_dict(CONFIGS["mixture"])
    segment = config.plan.segment(world_size=3, batch_size=5)
    here = samples_of_step(config, step=4, rank=2)
    expected = [*segment.batch(2, 8).indices.tolist(), *segment.batch(2, 9).indices.tolist()]
    assert [sample.index for sample in here.samples] == expected
    for sample in here.samples:
        source, inside = config.source_of(sample.index)
        assert (sample.source, sample.source_index) == (source.name, inside)
    last = samples_of_step(config, step=here.num_steps - 1, rank=0)
    assert {sample.batch for sample in last.samples} == {segment.num_batches - 1}


def test_chunks_and_buckets_are_told() -> None:
    chunked = samples_of_step(RunConfig.from_dict(CONFIGS["chunks"]), step=0, rank=0)
    assert all(s.chunk == s.index // 37 and s.row == s.index % 37 for s in chunked.samples)
    config = RunConfig.from_dict(CONFIGS["buckets"])
    assert isinstance(config.plan, BucketPlan)
    bucketed = samples_of_step(config, step=0, rank=0)
    assert {s.bucket for s in bucketed.samples} == {s.source for s in bucketed.samples}


def test_steps_count_from_the_start_of_the_run_unless_an_epoch_is_named() -> None:
    config = RunConfig.from_dict(CONFIGS["chunks"])
    num_steps = samples_of_step(config, step=0, rank=0).num_steps
    run = samples_of_step(config, step=num_steps + 3, rank=1)
    assert (run.epoch, run.step) == (1, 3)
    assert run == samples_of_step(config, step=3, rank=1, epoch=1)
    with pytest.raises(InvalidValueError, match=f"epoch 1 has {num_steps} steps"):
        samples_of_step(config, step=num_steps, rank=0, epoch=1)
    assert [t.epoch for t in times_of_sample(config, index=5) if t.is_real] == [0, 1, 2]


def test_a_cursor_brings_its_resizes_along() -> None:
    config = RunConfig.from_dict(CONFIGS["samples"])
    segment = config.plan.segment(world_size=5, batch_size=8, epoch=2)
    cursor = segment.cursor(10)
    index = int(segment.batch(4, 9).indices[3])
    (found,) = times_of_sample(config, index=index, cursor=cursor)
    assert (found.epoch, found.batch, found.rank, found.ranks, found.slot) == (2, 9, 4, 5, 3)
    rest = config.plan.resume(cursor, world_size=4, batch_size=8)
    here = samples_of_step(config, step=10, rank=3, cursor=cursor)
    assert [s.index for s in here.samples] == rest.batch(3, 0).indices.tolist()
    assert here.ranks == 4


def test_a_cursor_that_counts_samples_is_read_in_batches() -> None:
    config = RunConfig.from_dict(CONFIGS["samples"])
    by_batches = config.plan.segment(world_size=5, batch_size=8).cursor(10)
    by_samples = replace(by_batches, history=(PastSegment(5, 1, 80),))
    for index in range(0, 1003, 50):
        found = [times_of_sample(config, index=index, cursor=c) for c in (by_batches, by_samples)]
        assert found[0] == found[1]


def test_what_is_out_of_bounds_is_refused() -> None:
    config = RunConfig.from_dict(CONFIGS["samples"])
    with pytest.raises(InvalidValueError, match=r"rank=4 must be in \[0, 3\]"):
        samples_of_step(config, step=0, rank=4)
    with pytest.raises(InvalidValueError, match="step=-1"):
        samples_of_step(config, step=-1, rank=0)
    with pytest.raises(InvalidValueError, match="index=1003"):
        times_of_sample(config, index=1003)
    with pytest.raises(InvalidValueError, match="epochs=101 must be at most 100"):
        times_of_sample(RunConfig.from_dict({**CONFIGS["samples"], "epochs": 101}), index=0)
    other = Cursor(fields={"seed": 1})
    with pytest.raises(ValueError, match="belongs to another plan"):
        times_of_sample(config, index=0, cursor=other)
