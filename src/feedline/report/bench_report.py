"""The report of how fast data gets to the training loop."""

from __future__ import annotations

from feedline.report.charts import Bars, Chart, Fact, Lines, Panel, Report, Series, Table, Verdict
from feedline.runs.bench.advice import Findings, named, rate
from feedline.runs.bench.figures import DataFigures
from feedline.words import bytes_in_words, several


def report_bench(found: DataFigures, findings: Findings, *, title: str) -> Report:
    """Return the figures as bars and a table, with the bottleneck and what to change.

    Args:
        found: What was measured.
        findings: What it means.
        title: The headline.
    """
    where = "in the memory of this process" if found.device is None else f"on {found.device}"
    advice = "\n".join(findings.advice)
    panels = [Panel("advice", "What to change", advice, [_bars(found, findings)])]
    if len(found.gathers) > 1:
        panels.append(Panel("threads", "Threads", _of_threads(found), [_threads(found)]))
    panels.append(Panel("figures", "All figures", _of_missing(found), [_table(found, findings)]))
    return Report(
        title=title,
        origin="measurement",
        subtitle=f"Measured on this data, with batches {where}.",
        verdict=Verdict(findings.is_good, verdict_of(findings)),
        facts=_facts(found),
        panels=panels,
    )


def verdict_of(findings: Findings) -> str:
    """Return the bottleneck in a sentence."""
    return f"The bottleneck is {named(findings.figure)}, at {rate(findings.figure)}."


def _facts(found: DataFigures) -> list[Fact]:
    chunks = f"in {found.num_chunks:,} chunks" if found.num_chunks > 1 else "in 1 chunk"
    return [
        Fact("samples", found.num_samples, note=chunks),
        Fact("bytes of a sample", found.row_bytes),
        Fact("files", bytes_in_words(found.file_bytes)),
        Fact("free memory", bytes_in_words(found.memory_bytes)),
        Fact("batch size", found.batch_size),
        Fact("threads", found.num_threads, note=f'"auto" is {found.auto_threads}'),
        Fact("window", found.window),
    ]


def _bars(found: DataFigures, findings: Findings) -> Chart:
    unit, factor = found.unit
    sizes = [figure.bytes_per_second / factor for figure in found.figures]
    are_slow = [figure is findings.figure for figure in found.figures]
    others = [None if is_slow else size for size, is_slow in zip(sizes, are_slow, strict=True)]
    slowest = [size if is_slow else None for size, is_slow in zip(sizes, are_slow, strict=True)]
    return Bars(
        title=f"Each stage, in {unit}",
        note="Bytes of samples; of storage, bytes of files.",
        names=[f"{figure.stage}: {figure.name}" for figure in found.figures],
        series=[Series(unit, others), Series("the bottleneck", slowest)],
    )


def _threads(found: DataFigures) -> Chart:
    unit, factor = found.unit
    counts = sorted(found.gathers)
    one = found.gathers[counts[0]].bytes_per_second / factor
    gathered = [found.gathers[count].bytes_per_second / factor for count in counts]
    ideal = [one * count / counts[0] for count in counts]
    return Lines(
        title="Rows gathered from memory",
        x_label="threads",
        y_label=unit,
        x=counts,
        series=[Series("gather", gathered), Series("in proportion", ideal, style="dashed")],
    )


def _of_threads(found: DataFigures) -> str:
    best = max(found.gathers, key=lambda count: found.gathers[count].rows_per_second)
    threads = f"{several(best, 'thread')} gathered the most"
    return f"{threads}; the loader has {several(found.num_threads, 'thread')}."


def _of_missing(found: DataFigures) -> str:
    return "\n".join(f"Not measured: {name}, because {why}." for name, why in found.missing.items())


def _table(found: DataFigures, findings: Findings) -> Chart:
    unit, factor = found.unit
    rows = [
        (
            *(figure.stage, figure.name + ", the bottleneck" * (figure is findings.figure)),
            *(figure.bytes_per_second / factor, round(figure.rows_per_second)),
        )
        for figure in found.figures
    ]
    header = ("stage", "what", unit, "samples/s")
    return Table(title="In bytes and in samples", header=header, rows=rows)
