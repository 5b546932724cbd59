"""What the picture of costs that grow says, and all pictures together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import scale
from pictures import Bars, Picture, Row
from plotted_device import of_device
from plotted_formats import of_formats
from plotted_indices import of_indices
from plotted_pack import of_pack
from plotted_remote import of_remote
from plotted_results import MIB, Report, below, beside_peers


def of_scale() -> Iterator[Picture]:
    """Yield costs that grow, beside an earlier commit."""
    report = Report("scale")

    def row(figure: str) -> Row:
        bars = [
            (name, report.number(figure, key, show=partial(scale.show, figure)))
            for name, key in (("feedline", "now"), ("before", "before"))
        ]
        label = scale.LABELS[figure]
        return Row(label, tuple(bars), below(report, re.escape(label), bars[0][1].text))

    sizes = {"buckets, cursor": ("kB; less is better", 1e3)}
    sizes["buckets, memory"] = ("MiB of anonymous memory, at its peak; less is better", MIB)
    times = tuple(row(figure) for figure in report.figures if figure not in sizes)
    yield Picture(
        "bench-scale",
        "Very many buckets, sources and resizes",
        (
            Bars("CPU seconds, log scale; less is better", times, log=True),
            *(Bars(axis, (row(figure),), unit=unit) for figure, (axis, unit) in sizes.items()),
        ),
        report.caption,
    )


def pictures() -> list[Picture]:
    """Return all pictures of the last results."""
    others = (of_indices, of_device, of_scale, of_formats, of_remote, of_pack)
    return [*beside_peers(), *(picture for of in others for picture in of())]
