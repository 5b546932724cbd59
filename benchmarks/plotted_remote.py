"""What the picture of `remote.py` says."""

from __future__ import annotations

from collections.abc import Iterator

import measure
from pictures import Bars, Number, Picture, Row, Target
from plotted_results import MIB, Report, Show, below, beside

PEERS = {"mds": "MosaicML", "litdata": "litdata"}
WORKERS = (0, 2)


def of_remote() -> Iterator[Picture]:
    """Yield data in object storage: what arrives, when it begins, and what is fetched for it."""
    if not (measure.RESULTS / "remote.json").exists():
        # It needs nginx, so not everyone who runs the others has run it.
        return
    report = Report("remote")

    def others(key: str, show: Show) -> list[tuple[str, Number]]:
        return [
            (f"{shown}, {count} workers", report.number(f"{name}, {count} workers", key, show=show))
            for name, shown in PEERS.items()
            for count in WORKERS
        ]

    def of_peers(
        what: str, ours: Number, bars: list[tuple[str, Number]], less: bool
    ) -> list[Target]:
        targets: list[Target] = []
        for name, shown in PEERS.items():
            choose = min if less else max
            numbers = [number for who, number in bars if who.startswith(shown)]
            best = choose(numbers, key=lambda number: number.value)
            pattern = f"{what}: .*x {name}"
            targets += beside(report, pattern, ours, (f"{shown}, its best", best), less=less)
        return targets

    cold, alone, able, warm, local = (
        report.number(name, "rate", show=show_mib)
        for name in ("cold", "obstore alone", "obstore, CRC-32, files", "warm", "local folder")
    )
    rates = others("rate", show_mib)
    of_obstore = beside(report, "cold: .* of obstore", cold, ("obstore alone", alone))
    of_folder = beside(report, "warm: ", warm, ("the local folder", local))
    beside_cold = (("obstore alone", alone), ("obstore, CRC-32, files", able), *rates)
    cold_row = Row(
        "an epoch with an empty cache",
        (("feedline", cold), *beside_cold),
        (*of_obstore, *of_peers("cold", cold, rates, less=False)),
    )
    warm_row = Row("all in the cache", (("feedline", warm), ("the local folder", local)), of_folder)
    first = [report.number(name, "first") for name in ("cold", "warm", "local folder")]
    first_rows = (
        Row("with an empty cache", (("feedline", first[0]), *others("first", measure.show_time))),
        Row("all in the cache", (("feedline", first[1]), ("the local folder", first[2]))),
    )
    resume, resumes = report.number("resume", "resume"), others("resume", measure.show_time)
    resume_row = Row(
        "with an empty cache",
        (("feedline", resume), *resumes),
        tuple(of_peers("resume", resume, resumes, less=True)),
    )
    names = {"resume": ("until the end of an epoch, from 90%", "resume: bytes")}
    for name in report.figures:
        count = name.removeprefix("nodes, ")
        if count != name:
            label = "1 node" if count == "1" else f"each of {count} nodes"
            names[name] = (f"an epoch, {label}", f"{label}: bytes")
    byte_rows = []
    for name, (label, pattern) in names.items():
        number = report.number(name, "bytes", show=show_share)
        byte_rows.append(Row(label, (("feedline", number),), below(report, pattern, number.text)))
    yield Picture(
        "bench-remote",
        "Data in object storage",
        (
            Bars("MiB per second; more is better", (cold_row,), unit=MIB),
            Bars("MiB per second; more is better", (warm_row,), unit=MIB),
            Bars("seconds to the first batch, log scale; less is better", first_rows, log=True),
            Bars("seconds to resume at 90%, log scale; less is better", (resume_row,), log=True),
            Bars("bytes fetched, of those of the chunks that are read", tuple(byte_rows)),
        ),
        report.caption,
    )


def show_mib(value: float) -> str:
    return f"{value / MIB:,.0f} MiB/s"


def show_share(value: float) -> str:
    return f"{value:.3f}"
