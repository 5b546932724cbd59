"""What the pictures of `formats.py` say."""

from __future__ import annotations

import re
from collections.abc import Iterator

from format_data import BY_FAR, TARGETS, WORKERS
from pictures import Bars, Number, Picture, Row
from plotted_results import MIB, Report, beside

GIB = 1024 * MIB


def of_formats() -> Iterator[Picture]:
    """Yield the data of others in our reader beside their own, and our lists beside rows."""
    report = Report("formats")
    starts = [f"{name}, {count} workers" for name in TARGETS for count in WORKERS]

    def bars(start: str, key: str) -> list[tuple[str, Number]]:
        show = {"show": show_rows} if key == "rate" else {}
        names = (("feedline", "ours"), ("its own library", "theirs"))
        return [(name, report.number(f"{start}, {who}", key, **show)) for name, who in names]

    def rate(start: str) -> Row:
        ours, theirs = bars(start, "rate")
        targets = beside(report, re.escape(f"{start}: "), ours[1], theirs)
        return Row(start, (ours, theirs), targets)

    def best(name: str) -> Row:
        pairs = zip(*(bars(f"{name}, {n} workers", "rate") for n in WORKERS), strict=True)
        ours, theirs = (max(pair, key=lambda bar: bar[1].value) for pair in pairs)
        targets = beside(report, re.escape(f"{name}: "), ours[1], theirs)
        return Row(f"{name}, the best of each", (ours, theirs), targets)

    rates = [*map(rate, starts), *(best(name) for name in TARGETS if TARGETS[name] < BY_FAR)]
    rates.append(
        Row(
            "huggingface, one thread of numpy",
            tuple(
                (f"rows {name}", report.number("limits", name, show=show_millions))
                for name in report.figures["limits"]
            ),
        )
    )
    panels = [Bars("rows per second, log scale; more is better", tuple(rates), log=True)]
    for key, axis in (("first", "to the first batch"), ("resume", "to resume at 90% of an epoch")):
        rows = tuple(Row(start, tuple(bars(start, key))) for start in starts)
        panels.append(Bars(f"seconds {axis}, log scale; less is better", rows, log=True))
    title = "Data that others wrote: the same files"
    yield Picture("bench-formats", title, tuple(panels), report.caption)
    pair = [
        (name, report.number(kind, "rate", show=show_gib))
        for name, kind in (("feedline", "lists"), ("fixed rows", "fixed"))
    ]
    row = Row(
        "lists of 500 int32 on average",
        tuple(pair),
        beside(report, "lists: ", pair[0][1], ("fixed rows", pair[1][1])),
    )
    panel = Bars("GiB per second; more is better", (row,), unit=GIB)
    yield Picture("bench-ragged", "Lists of any length", (panel,), report.caption)


def show_rows(value: float) -> str:
    return f"{value:,.0f} rows/s"


def show_millions(value: float) -> str:
    return f"{value / 1e6:.2f}M rows/s"


def show_gib(value: float) -> str:
    return f"{value / GIB:.2f} GiB/s"
