"""What the pictures of `pack.py` say."""

from __future__ import annotations

import re
from collections.abc import Iterator

import measure
import pack
from pictures import Bars, Curves, Number, Picture, Row, Target
from plotted_results import MIB, Report, Show, beside, times

GIB = 1024 * MIB


def of_pack() -> Iterator[Picture]:
    """Yield writers beside each other, the cost of a row, and the model beside measurements."""
    if not (measure.RESULTS / "pack.json").exists():
        # It needs Ray and the writers of others, so not everyone who runs the others has run it.
        return
    report = Report("pack")
    kinds = [(kind, order) for kind in pack.KINDS for order in pack.ORDERS]

    def numbers(kind: str, order: str, key: str, show: Show) -> dict[str, Number]:
        names = {**{name: name for name in pack.OURS}, **{name: name for name in pack.PEERS}}
        return {
            name: report.number("writers", place, key, show=show)
            for name in names
            if key in report.figures["writers"].get(place := f"{kind}, {order}, {name}", ())
        }

    def rates(kind: str, order: str) -> Row:
        found = numbers(kind, order, "rate", show_mib)
        names = [f"local, {workers}" for workers in pack.WORKERS]
        best = max((found[name] for name in names), key=lambda number: number.value)
        targets: list[Target] = []
        for name in pack.PEERS if order == pack.ORDERS[0] else ():
            pattern = rf"{kind}: [\d.]+x {re.escape(name)}"
            targets += beside(report, pattern, best, (name, found[name]))
        targets.append(
            of_ray(report, f"{kind}, {order}: Ray", found["Ray, 2 workers"], found[names[1]])
        )
        return Row(f"{kind}, {order}", bars_of(found), tuple(targets))

    rows = tuple(
        Row(f"{kind}, {order}", bars_of(numbers(kind, order, "rows", show_rows)))
        for kind, order in kinds
    )
    memory = tuple(
        Row(f"{kind}, {order}", bars_of(numbers(kind, order, "memory", measure.show_bytes)))
        for kind, order in kinds
    )
    yield Picture(
        "bench-pack",
        "Packing",
        (
            Bars("MiB per second; more is better", tuple(rates(*one) for one in kinds), unit=MIB),
            Bars("rows per second, log scale; more is better", rows, log=True),
            Bars("MiB of memory of the largest process", memory, unit=MIB),
        ),
        report.caption,
    )
    yield Picture("bench-pack-rows", "The cost of a row", (_flat(report),), report.caption)
    yield Picture("bench-pack-needs", "What packing takes", _needs(report), report.caption)


def bars_of(found: dict[str, Number]) -> tuple[tuple[str, Number], ...]:
    """Return bars, those of the engine of one machine in our colour."""
    shown = {"local, 2 workers": "feedline", "local, 1 worker": "with 1 worker"}
    order = sorted(found, key=lambda name: name not in shown or name == "local, 1 worker")
    return tuple((shown.get(name, name), found[name]) for name in order)


def of_ray(report: Report, pattern: str, ray: Number, local: Number) -> Target:
    """Return the target for what a cluster takes beside one machine."""
    ((bound, written),), verdict, line = report.verdict(re.escape(pattern))
    text = f"target Ray takes {written} more at most: {local.value / ray.value - 1:+.0%}, {verdict}"
    return Target(local.value / (1 + bound), text, verdict == "met", line)


def _flat(report: Report) -> Curves:
    found = [
        ("feedline", int(count), report.number("rows", count, "cost"))
        for count in report.figures["rows"]
    ]
    values = [number.value for *_, number in found]
    ((bound, written),), verdict, line = report.verdict("a row costs")
    text = f"target flat within {written}×: {times(values[-1] / min(values))}, {verdict}"
    return Curves(
        "Shuffled on this machine, by the number of rows",
        "log scale; less is better",
        tuple(found),
        (Target(None, text, verdict == "met", line),),
        tuple((10.0**power, measure.show_time(10.0**power)) for power in (-8, -7, -6, -5)),
        (min(values), min(values) * bound),
    )


def _needs(report: Report) -> tuple[Bars, ...]:
    panels = []
    for name in pack.NEEDS:
        rows = []
        for size in report.figures["sizes"]:
            bars = tuple(
                (shown, report.number(part, size, name, show=measure.show_bytes))
                for shown, part in (("feedline", "sizes"), ("the model", "needs"))
            )
            rows.append(Row(f"{measure.show_bytes(int(size))} of texts", bars))
        pattern = f"model: bytes {name} " if name in ("read", "written", "moved") else None
        bounds, verdict, line = report.verdict(pattern or f"model: {name} ")
        said = line.partition(": model: ")[2].partition(" (")[0]
        most = rows[-1].bars[1][1].value * (1 + bounds[0][0] if pattern else bounds[0][0])
        text = f"target {bounds[0][1]}: {said}, {verdict}"
        target = Target(most, text, verdict == "met", line)
        rows[-1] = Row(rows[-1].label, rows[-1].bars, (target,))
        names = {"disk": "temporary disk", "spilled": "spilled by Ray"}
        what = f"bytes {name}" if pattern else names.get(name, name)
        panels.append(Bars(f"GiB: {what}", tuple(rows), unit=GIB))
    large = tuple(
        Row(name, (("the model", report.number("terabyte", name, show=show_gb)),))
        for name in report.figures["terabyte"]
    )
    title = f"By the model, a terabyte on {pack.NODES} nodes of {pack.CORES} cores"
    axis = "GB in all; memory and network: of each node"
    return (*panels, Bars(axis, large, unit=1e9, title=title))


def show_mib(value: float) -> str:
    return f"{value / MIB:,.0f} MiB/s"


def show_rows(value: float) -> str:
    return f"{value:,.0f} rows/s"


def show_gb(value: float) -> str:
    return f"{value / 1e9:,.0f} GB"
