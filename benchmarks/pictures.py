"""What a picture of results is made of, before it is drawn."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Number:
    """A figure of a results file, and how it is shown."""

    value: float
    text: str
    source: tuple[str | int, ...]  # the name of the results file, then the keys in it


@dataclass(frozen=True)
class Target:
    """Where feedline's number should lie, and what the benchmark said about it."""

    at: float | None  # on the axis of values; None if that is no single place
    text: str
    met: bool
    line: str  # as it stands in the report
    size: int | None = None  # for curves: at which dataset size, or None for all
    note: str = ""  # for curves: what stands beside the mark


@dataclass(frozen=True)
class Row:
    """Numbers of several systems that did the same, feedline's first."""

    label: str
    bars: tuple[tuple[str, Number], ...]
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True)
class Bars:
    """A panel with a bar for each number, or, as a log scale has no zero, with a dot."""

    axis: str
    rows: tuple[Row, ...]
    unit: float = 1.0  # of the axis
    title: str = ""
    log: bool = False  # then the values are times, or rates "per second"


@dataclass(frozen=True)
class Curves:
    """A panel of numbers against the size of the dataset, both on log scales."""

    title: str
    axis: str
    points: tuple[tuple[str, int, Number], ...]
    targets: tuple[Target, ...]
    ticks: tuple[tuple[float, str], ...]
    flat: tuple[float, float] | None = None  # the band that holds feedline's if they are flat


@dataclass(frozen=True)
class Picture:
    """One SVG file."""

    name: str
    title: str
    panels: tuple[Bars | Curves, ...]
    caption: str

    def content(self) -> dict[str, Any]:
        """Return all that it says, as JSON gives it back."""
        content: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return content
