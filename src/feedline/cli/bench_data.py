"""`feedline bench-data`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from feedline.cli.configs import DATA, PATH, size_in_bytes
from feedline.cli.printing import Outcome, Styled, command, echo, print_table, secho
from feedline.errors import InvalidValueError

if TYPE_CHECKING:
    from feedline.runs.bench.advice import Findings
    from feedline.runs.bench.figures import DataFigures
    from feedline.runs.bench.measuring import BenchDevice, BenchOptions
    from feedline.store import Store


def _whole_or_text(text: str) -> int | str:
    """Return a whole number if the text is one."""
    return int(text) if text.isdecimal() and len(text) < 20 else text


@command
@click.argument("path", type=DATA)
@click.option(
    "--batch-size",
    type=int,
    default=256,
    metavar="B",
    show_default=True,
    help="Samples in a batch.",
)
@click.option(
    "--seconds",
    type=float,
    default=2.0,
    metavar="S",
    show_default=True,
    help="Time of each measurement.",
)
@click.option(
    "--num-threads",
    type=_whole_or_text,
    default="auto",
    metavar="N",
    show_default=True,
    help="Threads of the loader.",
)
@click.option(
    "--window",
    type=_whole_or_text,
    default="8 chunks",
    metavar="WINDOW",
    show_default=True,
    help="Window of a shuffle in windows, in samples or as '8 chunks'.",
)
@click.option(
    "--memory",
    "memory_budget",
    type=size_in_bytes,
    metavar="SIZE",
    help="memory_budget of the loader, such as 256MiB.",
)
@click.option("--columns", metavar="NAME,NAME,...", help="Columns to read; by default all.")
@click.option("--split", metavar="NAME", help="Split to read, such as train.")
@click.option("--tokens", type=int, metavar="N", help="Of a file of tokens: tokens in a sample.")
@click.option("--device", metavar="DEVICE", help="Device for batches, such as cuda; needs torch.")
@click.option("--html", type=PATH, metavar="FILE", help="Draw the figures as one HTML file.")
def bench_data(
    path: Path | str,
    columns: str | None,
    split: str | None,
    tokens: int | None,
    device: str | None,
    html: Path | None,
    **options: Any,
) -> Outcome:
    """Measure how fast your data gets to the loop, and name the bottleneck.

    PATH is anything that feedline.open opens. For a few seconds each, this measures storage (files
    read front to back), gather (rows at random into memory), with --device the link, and what a
    loader delivers; then it says what to change. It takes about half a minute.

    Some of the files are dropped from the page cache to read them cold, so do not run this beside
    a training on them.

    \b
    Examples:
      feedline bench-data packed
      feedline bench-data packed --device cuda --batch-size 512 --html bench.html
      feedline bench-data packed --columns image,label --num-threads 8 --json
      feedline bench-data s3://bucket/packed
    """
    from feedline.report.page import check_target
    from feedline.runs.bench.advice import advise
    from feedline.runs.bench.measuring import BenchOptions, measure_data
    from feedline.store.progress import open_progress

    # What is wrong is told before anything is measured.
    measured = BenchOptions(**options)
    if html is not None:
        check_target(html)
    target = None if device is None else _device(device)
    store, measured = _open(path, columns, split, tokens, measured)
    with open_progress(None) as bars:
        found = measure_data(store, _split_at(path, split), measured, device=target, progress=bars)
    findings = advise(found)
    written = None if html is None else _draw(path, found, findings, html)
    described = {
        "path": str(path),
        **dataclasses.asdict(found),
        "bottleneck": findings.bottleneck,
        "advice": list(findings.advice),
        "is_good": findings.is_good,
        "html": written,
    }
    return Outcome(described, lambda: _print(found, findings, written))


def _device(name: str) -> BenchDevice:
    from feedline.torch.device.bench import TorchBenchDevice

    return TorchBenchDevice(name)


def _split_at(path: Path | str, split: str | None) -> Path | str:
    if split is None:
        return path
    return path / split if isinstance(path, Path) else f"{path}/{split}"


def _open(
    path: Path | str,
    columns: str | None,
    split: str | None,
    tokens: int | None,
    options: BenchOptions,
) -> tuple[Store, BenchOptions]:
    """Return the store, and the options with the share of a sample that is read."""
    from feedline.store import open as open_store
    from feedline.store.foreign.known import is_foreign

    is_bin = isinstance(path, Path) and path.suffix == ".bin" and path.exists()
    if is_bin and tokens is None and not is_foreign(Path(path)):
        raise InvalidValueError(
            f"{path}: holds tokens, so --tokens is required; pass the number of tokens in a "
            "sample, such as 2048"
        )
    store = open_store(path, split=split, window=tokens)
    if not len(store):
        raise InvalidValueError(
            f"{path}: has 0 samples and must have at least 1; pack again with samples"
        )
    if columns is None:
        return store, options
    chosen = open_store(path, split=split, window=tokens, columns=columns.split(","))
    share = _row_bytes(chosen) / max(1, _row_bytes(store))
    return chosen, dataclasses.replace(options, row_share=share)


def _row_bytes(store: Store) -> int:
    return sum(column.sample_bytes for column in store.columns.values())


def _draw(path: Path | str, found: DataFigures, findings: Findings, html: Path) -> Path:
    from feedline.report import write_report
    from feedline.report.bench_report import report_bench

    name = path.resolve().name if isinstance(path, Path) else path
    title = f"{name}, from its files to the training loop"
    return write_report(report_bench(found, findings, title=title), html)


def _print(found: DataFigures, findings: Findings, html: Path | None) -> None:
    from feedline.report.bench_report import verdict_of
    from feedline.words import bytes_in_words, several

    echo(
        f"{several(found.num_samples, 'sample')} of {bytes_in_words(found.row_bytes)} in "
        f"{several(found.num_chunks, 'chunk')}, files of {bytes_in_words(found.file_bytes)}; "
        f"batches of {found.batch_size:,}, {several(found.num_threads, 'thread')}"
        + ("" if found.device is None else f", on {found.device}")
    )
    rows = []
    unit, factor = found.unit
    for figure in found.figures:
        is_it = figure is findings.figure
        style = "bold yellow" if is_it else ""
        mark = "bottleneck" if is_it else ""
        size = f"{figure.bytes_per_second / factor:,.3g}"
        cells = (figure.stage, figure.name, size, f"{figure.rows_per_second:,.0f}", mark)
        rows.append([Styled(cell, style) for cell in cells])
    print_table("", ("stage", "what", unit, "samples/s", ""), rows)
    if found.fetched is not None:
        echo(f"fetched: {found.fetched}")
    for name, why in found.missing.items():
        echo(f"not measured: {name}, because {why}")
    secho(verdict_of(findings), fg="green" if findings.is_good else "yellow", bold=True)
    for text in findings.advice:
        echo(f"- {text}")
    if html is not None:
        echo(f"Open the picture: {html}")
