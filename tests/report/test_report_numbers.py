"""The numbers of a report of logs, beside those that are counted from its batches one by one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from examples import few_examples
from feedline.feed import Wait
from feedline.feed.waits import PARTS
from feedline.report import Report, report_logs
from feedline.runs import ConsumptionLog

# Indices from 50 on are in no source.
SOURCES = {"web": 20, "books": 30}


class Batch(NamedTuple):
    """A batch that some rank of some run received, and whether it counts."""

    run: int
    rank: int
    epoch: int
    step: int
    ids: list[int]
    is_real: list[bool]
    wait: float
    counts: bool

    @property
    def real(self) -> list[int]:
        return [index for index, is_real in zip(self.ids, self.is_real, strict=True) if is_real]


@st.composite
def trainings(draw: st.DrawFn) -> list[Batch]:
    """The batches of a training on changing numbers of ranks, which is resumed from checkpoints.

    A step has one or two batches, and an epoch any number, so that it may end inside of a step.
    """
    num_together = draw(st.integers(1, 2))
    num_in_epoch = draw(st.integers(1, 7))
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    firsts = [0]
    for length in lengths[:-1]:
        firsts.append(draw(st.integers(0, firsts[-1] + length)))
    found = []
    for run, (first, length) in enumerate(zip(firsts, lengths, strict=True)):
        limit = min(firsts[run + 1 :], default=10**9)
        for rank in range(draw(st.integers(1, 3))):
            for number in range(num_together * first, num_together * (first + length)):
                ids = draw(st.lists(st.integers(-2, 55), max_size=3))
                marks = draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
                step, epoch = number // num_together, number // num_in_epoch
                wait = draw(st.sampled_from([0.0, 0.5, 2.0]))
                if draw(st.booleans()):
                    wait = Wait(
                        wait, reading=wait / 2, copying=draw(st.sampled_from([0, wait / 4]))
                    )
                found.append(Batch(run, rank, epoch, step, ids, marks, wait, step < limit))
    return found


def report_of(training: list[Batch], folder: Path) -> Report:
    sizes = {run: 1 + max(b.rank for b in training if b.run == run) for run, *_ in training}
    for run, rank in sorted({(batch.run, batch.rank) for batch in training}):
        own = [batch for batch in training if (batch.run, batch.rank) == (run, rank)]
        with ConsumptionLog(
            folder / f"run{run}" / f"rank{rank}.log",
            rank=rank,
            world_size=sizes[run],
            run=f"run {run}",
            info={"sources": SOURCES},
        ) as log:
            log.event("resume", step=own[0].step, time=run)
            for number, batch in enumerate(own):
                log.record(
                    epoch=batch.epoch,
                    step=batch.step,
                    batch=number,
                    ids=batch.ids,
                    is_real=np.array(batch.is_real, dtype=bool),
                    wait=batch.wait,
                )
    return report_logs([folder])


def charts_of(report: Report) -> dict[str, dict[str, Any]]:
    return {c["title"]: c for panel in report.to_dict()["panels"] for c in panel["charts"]}


def check_coverage(training: list[Batch], report: Report) -> None:
    chart = charts_of(report)["Share of the epoch"]
    counted = [batch for batch in training if batch.counts]
    expected: list[tuple[int, float, float]] = []
    for epoch in sorted({batch.epoch for batch in counted}):
        own = [batch for batch in counted if batch.epoch == epoch]
        steps = sorted({batch.step for batch in own})
        for bound in [*steps, steps[-1] + 1]:
            before = [index for batch in own if batch.step < bound for index in batch.real]
            different = {index for index in before if 0 <= index < 50}
            # An epoch that begins inside of a step is shown from the end of that step on.
            if not expected or bound >= expected[-1][0]:
                expected.append((bound, len(before) / 50, len(different) / 50))
    rows = zip(chart["x"], *(one["values"] for one in chart["series"]), strict=True)
    assert list(rows) == [pytest.approx(row, rel=1e-5) for row in expected]


def check_cells(training: list[Batch], report: Report) -> None:
    chart = charts_of(report)["Ranks and steps"]
    columns = sorted({(batch.run, batch.step, batch.counts) for batch in training})
    assert chart["columns"] == [step for _, step, _ in columns]
    faded = [not counts for *_, counts in columns]
    assert chart["is_faded"] == (faded if any(faded) else [])
    measures: dict[str, Callable[[list[Batch]], object]] = {
        "index of the first sample": lambda own: next((i for b in own for i in b.real), None),
        "share of web": lambda own: share_of_web([i for b in own for i in b.real]),
        "samples": lambda own: sum(len(batch.real) for batch in own),
        "padded": lambda own: sum(len(batch.ids) - len(batch.real) for batch in own),
        "wait for data": lambda own: sum(batch.wait for batch in own),
    }
    for layer in chart["layers"]:
        if layer["name"] not in measures:
            continue
        for rank, row in zip(chart["rows"], layer["values"], strict=True):
            for (run, step, _), value in zip(columns, row, strict=True):
                own = [b for b in training if (b.run, b.rank, b.step) == (run, rank, step)]
                wanted = measures[layer["name"]](own) if own else None
                assert value == (None if wanted is None else pytest.approx(wanted, rel=1e-5))


def share_of_web(ids: list[int]) -> float | None:
    known = [index for index in ids if 0 <= index < 50]
    return sum(index < 20 for index in known) / len(known) if known else None


def check_mixture(training: list[Batch], report: Report) -> None:
    wanted = share_of_web([i for batch in training if batch.counts for i in batch.real])
    chart = charts_of(report)["Altogether"]
    shares = dict(zip(chart["names"], chart["series"][0]["values"], strict=True))
    assert shares["web"] == pytest.approx(wanted or 0, rel=1e-5)


def check_waits(training: list[Batch], report: Report) -> None:
    chart = charts_of(report)["Wait for a batch"]
    by_step: dict[int, list[float]] = {}
    for batch in training:
        if batch.counts:
            by_step.setdefault(batch.step, []).append(batch.wait)
    rows = zip(chart["x"], *(one["values"] for one in chart["series"]), strict=True)
    expected = [(step, max(own), sum(own) / len(own)) for step, own in sorted(by_step.items())]
    assert list(rows) == [pytest.approx(row, rel=1e-5) for row in expected]


def check_parts(training: list[Batch], report: Report) -> None:
    counted = [batch for batch in training if batch.counts]
    known = [batch for batch in counted if isinstance(batch.wait, Wait)]
    chart = charts_of(report).get("What a batch is waited for")
    if not known:
        assert chart is None
        return
    assert chart is not None
    names = [*PARTS, "unknown"][: 3 + (len(known) < len(counted))]
    assert [one["name"].split()[0].strip(",") for one in chart["series"]] == [
        name.split("_")[0] for name in names
    ]
    for at, step in enumerate(chart["x"]):
        own = [batch.wait for batch in counted if batch.step == step]
        sums = [part_of(name, own) / len(own) for name in names]
        found = [one["values"][at] for one in chart["series"]]
        assert found == pytest.approx(sums, rel=1e-5)
        assert sum(found) == pytest.approx(sum(own) / len(own), rel=1e-4), "parts make the whole"
    assert {one["style"] for one in chart["series"]} == {"area"}
    total = sum(batch.wait for batch in counted) or 1.0
    shares = [part_of(name, [batch.wait for batch in counted]) / total for name in names]
    text = next(panel.text for panel in report.panels if panel.name == "waits")
    listed = [
        f"{share:.0%} {name.replace('_', ' ')}" for share, name in zip(shares, names, strict=True)
    ]
    assert text.endswith(f": {', '.join(listed)}.")


def part_of(name: str, waits: list[float]) -> float:
    if name == "unknown":
        return float(sum(wait for wait in waits if not isinstance(wait, Wait)))
    return float(sum(getattr(wait, name) for wait in waits if isinstance(wait, Wait)))


def check_facts(training: list[Batch], report: Report) -> None:
    facts = {fact.label: fact.value for fact in report.facts}
    assert facts["samples that count"] == sum(len(b.real) for b in training if b.counts)
    assert facts["discarded"] == sum(len(b.real) for b in training if not b.counts)
    assert facts["epochs"] == len({batch.epoch for batch in training if batch.counts})


@few_examples(1 / 2)
@given(training=trainings())
def test_everything_is_as_counted_from_the_batches(training: list[Batch]) -> None:
    assume(any(batch.counts for batch in training))
    with tempfile.TemporaryDirectory() as folder:
        report = report_of(training, Path(folder))
    check_coverage(training, report)
    check_cells(training, report)
    check_mixture(training, report)
    check_waits(training, report)
    check_parts(training, report)
    check_facts(training, report)
