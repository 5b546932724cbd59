"""The parts of a report: panels of charts, as plain values that a page can draw.

Every chart is only data. `page/` decides how it looks; each kind has a file there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedline.words import one_line

_DIGITS = 6


@dataclass(frozen=True)
class Series:
    """Numbers under one name; `None` where there is no value. `style` is line, dashed, steps or
    area; areas are stacked."""

    name: str
    values: Sequence[float | None]
    style: str = "line"


@dataclass(frozen=True)
class Mark:
    """An event at one place of an axis."""

    x: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A picture with a title. `format` of its numbers is number, share or seconds."""

    title: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Lines(Chart):
    """Series over one axis."""

    x_label: str
    y_label: str
    x: Sequence[float]
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    format: str = "number"


@dataclass(frozen=True, kw_only=True)
class Bars(Chart):
    """A row of bars for each name; several series are stacked. `targets` are ticks beside them."""

    names: Sequence[str]
    series: Sequence[Series]
    targets: Sequence[float | None] = ()
    format: str = "number"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One way to colour a map: a number for each cell, or the number of a category."""

    name: str
    values: Sequence[Sequence[float | None]]
    categories: Sequence[str] = ()
    format: str = "number"


@dataclass(frozen=True, kw_only=True)
class Map(Chart):
    """Cells in rows and columns. `is_faded` says which columns do not count, and `groups` where a
    group of columns begins."""

    column_label: str
    row_label: str
    columns: Sequence[float]
    rows: Sequence[float]
    layers: Sequence[Layer]
    is_faded: Sequence[bool] = ()
    groups: Sequence[Mark] = ()


@dataclass(frozen=True, kw_only=True)
class Scatter(Chart):
    """Points of several series; `points` has x and y in turn for each."""

    x_label: str
    y_label: str
    names: Sequence[str]
    points: Sequence[Sequence[Sequence[float]]]


@dataclass(frozen=True, kw_only=True)
class Measures(Chart):
    """Measured values, each with its expected value and tolerance."""

    names: Sequence[str]
    values: Sequence[float]
    expected: Sequence[float]
    tolerances: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of steps `[start, end)`, of which those from `counted_end` on do not count."""

    name: str
    note: str
    start: int
    counted_end: int
    end: int
    marks: Sequence[Mark] = ()


@dataclass(frozen=True, kw_only=True)
class Timeline(Chart):
    """Stretches of steps one below the other, with their events."""

    x_label: str
    spans: Sequence[Span]


@dataclass(frozen=True, kw_only=True)
class Table(Chart):
    """Rows below a header."""

    header: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True)
class Panel:
    """Charts that answer one question; `name` is its anchor in the page.

    Each line of `text` is a paragraph.
    """

    name: str
    title: str
    text: str
    charts: Sequence[Chart]


@dataclass(frozen=True)
class Fact:
    """One number in the head of the report."""

    label: str
    value: object
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """The verdict, in a sentence."""

    is_good: bool
    text: str


@one_line
@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that a page shows. `origin` is plan, simulation, log or measurement.

    Args:
        title: The title of the page.
        origin: `plan`, `simulation`, `log` or `measurement`.
        subtitle: The line below the title.
        verdict: Whether all is well.
        facts: Numbers that stand above the panels.
        panels: Pictures and tables, in order.
    """

    title: str
    origin: str
    subtitle: str
    verdict: Verdict
    facts: Sequence[Fact]
    panels: Sequence[Panel]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return dict(as_json_values(self))


def as_json_values(value: Any) -> Any:
    """Return dataclasses, arrays and numbers as JSON values; floats are rounded.

    Examples:
        >>> as_json_values(Series(name="a", values=np.array([1 / 3, np.nan])))
        {'name': 'a', 'values': [0.333333, None], 'style': 'line'}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # Each kind of chart has a file of its name in `page/`, or a part of one.
        kind = {"kind": type(value).__name__.lower()} if isinstance(value, Chart) else {}
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {**kind, **as_json_values(fields)}
    if isinstance(value, Mapping):
        return {str(name): as_json_values(inner) for name, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return as_json_values(value.tolist())
    if isinstance(value, list | tuple | range):
        return [as_json_values(inner) for inner in value]
    if isinstance(value, float):
        return _rounded(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _rounded(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded
