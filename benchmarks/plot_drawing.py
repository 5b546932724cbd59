"""Pictures as SVG, drawn with matplotlib.

Lengths are in points. A text is one line that is anchored where it must not move, since only the
browser that shows it knows its width.
"""

from __future__ import annotations

import io
import json
import re
import textwrap
from html import escape
from typing import Any

import measure
from pictures import Bars, Curves, Picture, Target

WIDTH, MARGIN, LEFT, VALUES, LINE = 345, 12, 122, 68, 14
SCALE = 600 / WIDTH
INK, FAINT, GRID, PAPER = "#1f2328", "#57606a", "#e4e7eb", "#ffffff"
MET, MISSED = "#116329", "#c01c28"
COLOURS = {
    "feedline": "#0a5ea8",
    "torch": "#c8500a",
    "grain": "#00795c",
    "annbatch": "#a64d86",
    "plain reader": "#8a7a2f",
    "plain rules": "#8a7a2f",
}
REFERENCE = "#9aa3ad"  # what is no peer, but shows how fast it could be
BAND = "#d8e6f3"
MARKERS = {"feedline": "o", "torch": "s", "grain": "D"}
STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # matplotlib brings it; the browser takes its own
    "font.size": 9.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "feedline",
}


class Sheet:
    """A figure on which lines of text and axes follow each other from top to bottom."""

    def __init__(self, height: float) -> None:
        from matplotlib.figure import Figure

        self.figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, facecolor=PAPER)
        self.height, self.top = height, 0.0

    def text(self, text: str, x: float = MARGIN, step: float = LINE, **style: Any) -> None:
        """Write one line, and go on below it."""
        self.top += step
        style = {"color": INK, "va": "baseline", **style}
        self.figure.text(x / WIDTH, 1 - (self.top - 3.5) / self.height, text, **style)

    def target(self, target: Target, across: float, along: float) -> None:
        """Write a line about a target, behind a mark of this half width and half height."""
        from matplotlib.lines import Line2D

        style = {"color": MET} if target.met else {"color": MISSED, "fontweight": "bold"}
        self.text(target.text, x=MARGIN + 20, fontsize=9.2, **style)
        x, y = MARGIN + 10, self.top - LINE / 2
        self.figure.add_artist(
            Line2D(
                [(x - across) / WIDTH, (x + across) / WIDTH],
                [1 - (y - along) / self.height, 1 - (y + along) / self.height],
                color=BAND if target.at is None else mark_colour(target),
                linewidth=8 if target.at is None else 1.8,
                solid_capstyle="butt",
            )
        )

    def axes(self, height: float, right: float) -> Any:
        """Return axes, and go on below them."""
        self.top += height
        place = (LEFT / WIDTH, 1 - self.top / self.height)
        extent = ((WIDTH - LEFT - right) / WIDTH, height / self.height)
        axes = self.figure.add_axes((*place, *extent), facecolor="none")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(FAINT)
        axes.tick_params(colors=FAINT, labelsize=8.5, length=3)
        axes.set_axisbelow(True)
        return axes


def show_count(size: float) -> str:
    """Return a large round number in words."""
    for name, unit in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if size >= unit:
            return f"{size / unit:.0f} {name}"
    return f"{size:,.0f}"


def draw(picture: Picture) -> str:
    """Return a picture as SVG."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        trial = Sheet(1000)
        fill(trial, picture)
        sheet = Sheet(trial.top + 10)
        fill(sheet, picture)
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        sheet.figure.savefig(file, format="svg", metadata=nothing)
    return finished(file.getvalue(), picture)


def fill(sheet: Sheet, picture: Picture) -> None:
    """Draw all that a picture says."""
    sheet.top = 8
    for line in textwrap.wrap(picture.title, 42):
        sheet.text(line, fontsize=12, fontweight="bold", step=17)
    for panel in picture.panels:
        sheet.top += 8
        if panel.title:
            sheet.text(panel.title, fontweight="bold", fontsize=10.5)
        if isinstance(panel, Curves):
            fill_curves(sheet, panel)
        else:
            fill_bars(sheet, panel)
    sheet.top += 6
    for line in textwrap.wrap(picture.caption, 66):
        sheet.text(line, fontsize=8.5, color=FAINT, step=12)


def fill_bars(sheet: Sheet, panel: Bars) -> None:
    """Draw rows: a label, a line for each number, and one for each target."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    top = sheet.top
    lines = sum(1.3 + len(row.bars) + len(row.targets) for row in panel.rows) + 0.4
    axes = sheet.axes(lines * LINE, right=VALUES)
    bottom = sheet.top
    axes.set(ylim=(lines, 0), yticks=[])
    values = [number.value for row in panel.rows for _, number in row.bars]
    values += [target.at for row in panel.rows for target in row.targets if target.at is not None]
    most = max(values) / panel.unit
    if panel.log:
        axes.set(xscale="log", xlim=(min(values) / 2, most * 2))
        axes.xaxis.set_major_locator(LogLocator(numticks=6))
    else:
        axes.set_xlim(0, most * 1.03)
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    show = measure.show_time if panel.log else "{:,g}".format
    if panel.log and "per second" in panel.axis:
        show = "{:,.0f}".format
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: show(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    line = 0.0
    for row in panel.rows:
        line += 1.3
        sheet.top = top + (line - 1) * LINE
        sheet.text(row.label, fontweight="bold")
        axes.vlines(ticks, line, line + len(row.bars), color=GRID, linewidth=0.7, zorder=0)
        for target in row.targets:
            assert target.at is not None
            mark(axes, [target.at / panel.unit] * 2, [line - 0.05, line + 1.05], target)
        for name, number in row.bars:
            shade = INK if name == "feedline" else FAINT
            colour = COLOURS.get(name, REFERENCE)
            if panel.log:
                axes.plot(number.value, line + 0.5, MARKERS.get(name, "v"), color=colour)
            else:
                axes.barh(line + 0.5, number.value / panel.unit, height=0.7, color=colour)
            sheet.text(name, x=MARGIN + 6, color=shade)
            sheet.text(number.text, x=WIDTH - MARGIN, step=0, ha="right", color=shade)
            line += 1
        for target in row.targets:
            sheet.target(target, 0, 5)
            line += 1
    sheet.top = bottom + 14
    sheet.text(panel.axis, x=LEFT, fontsize=8.5, color=FAINT)


def fill_curves(sheet: Sheet, panel: Curves) -> None:
    """Draw numbers against dataset sizes, and a line for each target."""
    from matplotlib.ticker import NullLocator

    sheet.text(panel.axis, fontsize=8.5, color=FAINT)
    sheet.top += 8
    axes = sheet.axes(150, right=MARGIN)
    sizes = sorted({size for _, size, _ in panel.points})
    (lowest, _), *_, (highest, _) = panel.ticks
    axes.set(xscale="log", yscale="log")
    axes.set(xlim=(sizes[0] / 5, sizes[-1] * 15), ylim=(lowest / 2.5, highest))
    axes.set_xticks(sizes, [show_count(size) for size in sizes])
    axes.set_yticks([tick for tick, _ in panel.ticks], [text for _, text in panel.ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    if panel.flat:
        axes.axhspan(*panel.flat, color=BAND, linewidth=0)
    for target in panel.targets:
        if target.at is not None:
            ends = (target.size / 3, target.size * 3) if target.size else axes.get_xlim()
            mark(axes, ends, [target.at] * 2, target)
            label(axes, target.note, (ends[1], target.at), (4, -3), "left", mark_colour(target))
    for system in dict.fromkeys(system for system, _, _ in panel.points):
        points = [(size, number) for name, size, number in panel.points if name == system]
        style = {"marker": MARKERS[system], "color": COLOURS[system], "markersize": 5}
        axes.plot([size for size, _ in points], [number.value for _, number in points], **style)
        for size, number in points[:-1]:
            # Not above torch's, which rise steeply, nor above ours, which lie below others.
            offset, anchor = {"torch": ((7, -8), "left"), "feedline": ((0, -12), "center")}.get(
                system, ((0, 6), "center")
            )
            label(axes, number.text, (size, number.value), offset, anchor, COLOURS[system])
        size, number = points[-1]
        offset = (0, -12 if system == "feedline" else 6)
        text = f"{system} {number.text}"
        label(axes, text, (size, number.value), offset, "center", COLOURS[system])
    sheet.top += 16
    sheet.text("samples in the dataset, log scale", x=LEFT, fontsize=8.5, color=FAINT)
    for target in panel.targets:
        sheet.target(target, 6, 0)


def label(axes: Any, text: str, place: Any, offset: Any, anchor: str, colour: str) -> None:
    """Write a text near a place on the axes."""
    style = {"textcoords": "offset points", "fontsize": 8.5, "color": colour, "ha": anchor}
    axes.annotate(text, place, offset, **style)


def mark(axes: Any, x: Any, y: Any, target: Target) -> None:
    """Draw where a target lies, with a rim that stands out on a bar."""
    for colour, width in ((PAPER, 3.5), (mark_colour(target), 1.8)):
        axes.plot(x, y, color=colour, linewidth=width, solid_capstyle="butt", clip_on=False)


def mark_colour(target: Target) -> str:
    return INK if target.met else MISSED


def finished(svg: str, picture: Picture) -> str:
    """Return an SVG with a generic font, a title and its content, and without references."""
    svg = re.sub(r"<!DOCTYPE.*?>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: sans-serif", svg)
    svg = re.sub(r" +$", "", svg, flags=re.MULTILINE)
    content = escape(json.dumps(picture.content(), ensure_ascii=False), quote=False)
    title = escape(picture.title, quote=False)
    head = f"<title>{title}</title>\n<metadata>{content}</metadata>"
    start = svg.index("<svg ")
    end = svg.index(">", start)
    # Shown larger than laid out where there is room, so that it can be read where there is little.
    scaled = re.sub(
        r'\b(width|height)="([\d.]+)pt"',
        lambda found: f'{found[1]}="{float(found[2]) * SCALE:.0f}"',
        svg[start:end],
    )
    return f'{svg[:start]}{scaled} role="img">\n{head}{svg[end + 1 :]}'
