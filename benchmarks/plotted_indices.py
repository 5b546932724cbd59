"""What the pictures of `indices.py` say."""

from __future__ import annotations

import re
from collections.abc import Iterator

import indices
from pictures import Bars, Number, Picture, Row, Target
from plotted_results import Report, below, show_ns, times


def of_indices() -> Iterator[Picture]:
    """Yield the indices of every order beside the plain shuffle, and lists of them."""
    report = Report("indices")
    for place, name in zip(
        map(indices.ranks, indices.WORLD_SIZES), ("1", "8", "1024"), strict=True
    ):
        rows = []
        plain = report.number(place, indices.PLAIN, "long", show=show_ns)
        for order in report.figures[place]:
            long, short = (report.number(place, order, k, show=show_ns) for k in ("long", "short"))
            line = re.escape(f"{place}, {order}: ")
            targets = [at_most(report, f"{line}short blocks", short, long, "a long block")]
            if order != indices.PLAIN:
                targets.insert(
                    0, at_most(report, rf"{line}[\d.]+x the", long, plain, indices.PLAIN)
                )
            rows.append(
                Row(order, (("feedline", long), ("blocks of 2,048", short)), tuple(targets))
            )
        axis = "nanoseconds of CPU time per index; less is better"
        title = f"Indices of every order, {place}"
        panel = Bars(axis, tuple(rows))
        yield Picture(f"bench-indices-{name}", title, (panel,), report.caption)
    lists = []
    for sampler in report.figures["lists"]:
        number = report.number("lists", sampler, show=show_ns)
        targets = below(report, re.escape(f"lists, {sampler}: "), number.text)
        lists.append(Row(sampler, (("feedline", number),), targets))
    panel = Bars("nanoseconds of CPU time per index; less is better", tuple(lists))
    yield Picture("bench-lists", "Samplers that yield integers", (panel,), report.caption)


def at_most(report: Report, pattern: str, ours: Number, other: Number, name: str) -> Target:
    """Return a target that is an upper bound, as a multiple of another number."""
    ((bound, written),), verdict, line = report.verdict(pattern)
    text = f"target {written}× {name}: {times(ours.value / other.value)}, {verdict}"
    return Target(bound * other.value, text, verdict == "met", line)
