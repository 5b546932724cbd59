"""`feedline audit --config`: logs beside the plan of a run config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli_runs import check_refused, invoke, run, run_json, write_config
from feedline.plan import Segment
from feedline.runs import ConsumptionLog
from feedline.runs.run_config import RunConfig

# Books come more than once in an epoch, and a part of the web not at all.
MIXTURE: dict[str, Any] = {
    **{"seed": 7, "ranks": 3, "batch_size": 4, "tail": "pad"},
    "data": {
        "mixture": [
            {"name": "web", "samples": 300, "weight": 1},
            {"name": "books", "samples": 50, "weight": 1},
        ]
    },
}
SOURCES = {"sources": {"web": 300, "books": 50}}


def write_run(
    folder: Path,
    segment: Segment,
    stop: int,
    *,
    step: int,
    left_out: int | None = None,
    **info: Any,
) -> None:
    """Write what all ranks receive in a part of an epoch; rank 0 leaves out one batch."""
    run, start = f"from-{step}", segment.num_done
    for rank in range(segment.world_size):
        path = folder / run / f"rank{rank}.log"
        with ConsumptionLog(
            path, rank=rank, world_size=segment.world_size, run=run, info=info
        ) as log:
            if step:
                log.event("resume", step=step)
            else:
                log.event("start")
            for number in range(start, stop):
                batch = segment.batch(rank, number)
                if (rank, number) != (0, left_out):
                    log.record(
                        epoch=0,
                        step=step + number - start,
                        batch=number,
                        ids=batch.indices,
                        is_real=batch.is_real,
                    )
            if stop == segment.num_batches:
                log.event("epoch_end", epoch=0, step=step + stop - start - 1)


def write_resized(folder: Path, *, left_out: int | None = None, **info: Any) -> None:
    """Write an epoch that began on three ranks and ended on two."""
    plan = RunConfig.from_dict(MIXTURE).plan
    first = plan.segment(world_size=3, batch_size=4)
    write_run(folder, first, 11, step=0, left_out=left_out, **info)
    rest = plan.resume(first.cursor(11), world_size=2, batch_size=4)
    write_run(folder, rest, rest.num_batches, step=11, **info)


@pytest.mark.parametrize(
    "info",
    [SOURCES, *(pytest.param(i, marks=pytest.mark.slow) for i in ({"num_samples": 350}, {}))],
)
def test_samples_may_come_as_often_as_the_plan_has_them(
    tmp_path: Path, info: dict[str, Any]
) -> None:
    write_resized(tmp_path / "logs", **info)
    config = write_config(tmp_path / "run.yaml", MIXTURE)
    options = ["--config", config, "--complete"]
    done = run("audit", tmp_path / "logs", *options)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "each as often as planned" in done.stdout
    found = run_json("audit", tmp_path / "logs", *options)
    assert (found["ok"], found["begins_as_planned"]) == (True, True)
    (epoch,) = found["epochs"]
    assert (epoch["num_expected"], epoch["num_lost"], epoch["num_repeated"]) == (350, 0, 0)
    # Without the plan, books come too often.
    assert run("audit", tmp_path / "logs", "--samples", 350).returncode == 1


def test_samples_that_the_plan_has_and_no_rank_received_are_named(tmp_path: Path) -> None:
    write_resized(tmp_path / "logs", left_out=3, **SOURCES)
    config = write_config(tmp_path / "run.yaml", MIXTURE)
    found = run_json("audit", tmp_path / "logs", "--config", config, code=1)
    plan = RunConfig.from_dict(MIXTURE).plan
    lost = sorted(plan.segment(world_size=3, batch_size=4).batch(0, 3).indices.tolist())
    (epoch,) = found["epochs"]
    assert epoch["lost"] == sorted(set(lost))
    places = [(p["source"], p["source_index"]) for p in epoch["lost_places"]]
    assert places == [("web", i) if i < 300 else ("books", i - 300) for i in epoch["lost"]]
    assert found["runs"][0]["parted_step"] == 3
    done = invoke("audit", tmp_path / "logs", "--config", config)
    assert done.returncode == 1
    source, inside = places[0]
    assert f"{lost[0]} ({source} {inside})" in done.stdout
    assert "ranks diverged at step 3" in done.stdout
    assert "is this the config of this training?" not in done.stdout


def test_a_config_of_another_training_is_told(tmp_path: Path) -> None:
    write_resized(tmp_path / "logs", **SOURCES)
    config = write_config(tmp_path / "run.yaml", {**MIXTURE, "seed": 8})
    found = run_json("audit", tmp_path / "logs", "--config", config, code=1)
    assert found["begins_as_planned"] is False
    done = invoke("audit", tmp_path / "logs", "--config", config)
    assert "run.yaml: no rank began like its plan; is this the config of this" in done.stdout


def test_a_config_of_other_data_is_refused(tmp_path: Path) -> None:
    write_resized(tmp_path / "logs", **SOURCES)
    write_resized(tmp_path / "bare")
    sizes = {"mixture": [{"name": "web", "samples": 50}, {"name": "books", "samples": 10}]}
    config = write_config(tmp_path / "run.yaml", {**MIXTURE, "data": sizes})
    check_refused(
        invoke("audit", tmp_path / "logs", "--config", config),
        "run.yaml: the config's data has 50 + 10 samples but must have 300 + 50, as ",
    )
    check_refused(
        invoke("audit", tmp_path / "bare", "--config", config),
        "run.yaml: the config's plan does not fit the logs (num_batches=11 must be in [0, ",
    )


def test_logs_of_batches_of_several_sizes_must_tell_the_size(tmp_path: Path) -> None:
    buckets = [{"name": "a", "samples": 40}, {"name": "b", "samples": 40, "batch_size": 8}]
    given = {"ranks": 2, "batch_size": 4, "data": {"buckets": buckets}}
    config = write_config(tmp_path / "run.yaml", given)
    segment = RunConfig.from_dict(given).plan.segment(world_size=2, batch_size=4)
    write_run(tmp_path / "bare", segment, segment.num_batches, step=0)
    write_run(tmp_path / "told", segment, segment.num_batches, step=0, batch_size=4)
    check_refused(invoke("audit", tmp_path / "bare", "--config", config), "info has no batch_size")
    found = run_json("audit", tmp_path / "told", "--config", config)
    assert (found["ok"], found["begins_as_planned"]) == (True, True)
