"""The panel that shows how good the shuffle is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from feedline.report.charts import Chart, Lines, Measures, Panel, Scatter, Series
from feedline.report.trace import Trace
from feedline.runs.shuffle_quality import Measure, Stream, measures_of, split_by_source

_IN_ORDER = 0.99
_MOST_POINTS, _NUM_BINS, _MOST_STREAMS = 1200, 24, 4


def streams_of_trace(trace: Trace, epoch: int, batch_size: int) -> Iterator[Stream]:
    """Yield the samples of each source in one epoch, as they were received.

    Of many sources, those that come most often.
    """
    end = max((point.num_consumed for point in trace.coverage if point.epoch == epoch), default=0)
    runs = []
    for place in trace.counted:
        if trace.columns[place].epoch == epoch:
            first = trace.position_of(epoch, trace.columns[place].step)
            # What comes after the end of the epoch is of the next one.
            ids = trace.ids_of(place)[: end - first]
            positions = np.arange(first, first + len(ids), dtype=np.int64)
            known = (ids >= 0) & (ids < trace.num_samples)
            sources = trace.sources_of(ids[known])
            runs.append((positions[known], sources, ids[known] - trace.firsts[sources]))
    if runs:
        yield from split_by_source(runs, trace.sources, max(1, end), batch_size)


def quality_panel(streams: Sequence[Stream], *, has_windows: bool = True) -> Panel | None:
    """Return the measures and charts of the shuffle, or None if there are too few samples."""
    measures = [measure for stream in streams for measure in measures_of(stream)]
    if not measures:
        return None
    verdict = "All measures are within the tolerance of a random order."
    if not all(measure.is_good for measure in measures):
        verdict = "Some measures are outside the tolerance of a random order."
        if any(m.name == "position correlation" and m.value > _IN_ORDER for m in measures):
            verdict += " The data comes in order; it is not shuffled."
        elif has_windows:
            verdict += (
                " Windows of chunks are outside it by design: they trade some shuffling for few "
                "reads."
            )
    shown = streams[:_MOST_STREAMS]
    charts: list[Chart] = [_displacements(shown), _scatter(shown), _measured(measures)]
    return Panel("quality", "Quality of the shuffle", verdict, charts)


def _measured(measures: Sequence[Measure]) -> Measures:
    streams = {measure.stream for measure in measures}
    return Measures(
        title="Compared with a perfect shuffle",
        note="The band is the tolerance: four standard deviations on each side.",
        names=[m.name if len(streams) == 1 else f"{m.stream}: {m.name}" for m in measures],
        values=[measure.value for measure in measures],
        expected=[measure.expected for measure in measures],
        tolerances=[measure.tolerance for measure in measures],
    )


def _displacements(streams: Sequence[Stream]) -> Lines:
    """Return how far samples are moved, as shares of the epoch, compared with a random order."""
    edges = np.linspace(0, 1, _NUM_BINS + 1)
    series = []
    for stream in streams:
        places = (stream.positions + 0.5) / stream.num_positions
        moved = np.abs((stream.indices + 0.5) / stream.size - places)
        counts = np.histogram(moved, edges)[0]
        shares = (counts / max(1, counts.sum())).tolist()
        series.append(Series(stream.name, shares))
    # The distance of two random places in [0, 1) has the density 2 - 2x.
    chance = (2 * edges - edges**2)[1:] - (2 * edges - edges**2)[:-1]
    series.append(Series("chance", chance.tolist(), style="dashed"))
    return Lines(
        title="How far samples are moved",
        x_label="distance, as a share of the data",
        y_label="share of samples",
        x=((edges[1:] + edges[:-1]) / 2).tolist(),
        series=series,
        format="share",
    )


def _scatter(streams: Sequence[Stream]) -> Scatter:
    most = _MOST_POINTS // max(1, len(streams))
    points = []
    for stream in streams:
        positions, indices = stream.positions, stream.indices
        chosen = np.linspace(0, len(indices) - 1, min(most, len(indices))).astype(np.int64)
        places = positions[chosen] / stream.num_positions
        points.append(np.stack([places, indices[chosen] / stream.size], axis=1).tolist())
    return Scatter(
        title="Where samples go",
        note="Lines or bands show that some of the original order is left.",
        x_label="position in the epoch",
        y_label="index in the source",
        names=[stream.name for stream in streams],
        points=points,
    )
