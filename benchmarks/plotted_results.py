"""What the pictures say: read from `results/*.json` and `results/*.md`.

Targets and verdicts are those that the benchmarks themselves wrote down.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import measure
from pictures import Bars, Curves, Number, Picture, Row, Target
from plot_drawing import show_count

MIB = 2.0**20
Show = Callable[[float], str]
UNITS = {"": 1.0, "%": 0.01, "kB": 1e3, "MiB": MIB, "s": 1.0, "ms": 1e-3, "µs": 1e-6}
PROSE = {"plain reader": "the plain reader", "files alone": "reading the files"}
BOUND = re.compile(r"\(([\d,.]+) ?(%|kB|MiB|s|ms|µs|)\)")


class Report:
    """The last results of a benchmark."""

    def __init__(self, name: str) -> None:
        path = measure.RESULTS / f"{name}.json"
        if not path.exists():
            raise SystemExit(f"{path} is missing; run `make bench`")
        self.name = name
        self.figures = json.loads(path.read_text(encoding="utf-8"))
        self.text = path.with_suffix(".md").read_text(encoding="utf-8")

    def number(self, *keys: str | int, show: Show = measure.show_time) -> Number:
        """Return a figure."""
        found = self.figures
        for key in keys:
            found = found[key]
        return Number(found, show(found), (self.name, *keys))

    def has(self, pattern: str) -> bool:
        """Whether there is such a target."""
        return bool(self._lines(pattern))

    def verdict(self, pattern: str) -> tuple[list[tuple[float, str]], str, str]:
        """Return a target's bounds, as numbers and as they are written; the verdict; the line."""
        lines = self._lines(pattern)
        if len(lines) != 1:
            raise SystemExit(f"{len(lines)} targets in {self.name}.md match {pattern!r}, not one")
        verdict, line = lines[0]
        bounds = [
            (
                float(count.replace(",", "")) * UNITS[unit],
                f"{count} {unit}".rstrip().replace(" %", "%"),
            )
            for count, unit in BOUND.findall(line)
        ]
        return bounds, verdict, f"{verdict}: {line}"

    def _lines(self, pattern: str) -> list[tuple[str, str]]:
        return re.findall(rf"^- (met|MISSED): ({pattern}.*)$", self.text, re.MULTILINE)

    @property
    def caption(self) -> str:
        """How it was measured, in the words above the report's first table."""
        heading, *paragraphs = self.text.partition("\n|")[0].strip().split("\n\n")
        subject = heading.partition(": ")[2]
        first = [f"{subject[0].upper()}{subject[1:]}."] if subject else []
        text = " ".join([*first, *paragraphs]).replace("\n", " ")
        return re.sub(r"\b1e\+\d+\b", lambda found: show_count(float(found[0])), text)


def beside(
    report: Report, pattern: str, ours: Number, *others: tuple[str, Number], less: bool = False
) -> tuple[Target, ...]:
    """Return a target that is a factor or a share of what another has; or of several, one of which
    is enough. Where less is better, the factor is one of speed.
    """
    bounds, verdict, line = report.verdict(pattern)
    found: list[Target] = []
    for (bound, written), (name, other) in zip(bounds, others, strict=True):
        at = other.value / bound if less else other.value * bound
        ratio = other.value / ours.value if less else ours.value / other.value
        if len(others) > 1:
            verdict = "met" if ratio >= bound else "MISSED"
        wanted, value = f"{written}×", times(ratio)
        if written.endswith("%"):
            wanted, value = f"{written} of", f"{ratio:.0%}"
        subject = ("the speed of " if less else "") + PROSE.get(name, name)
        text = f"{'or' if found else 'target'} {wanted} {subject}"
        found.append(Target(at, f"{text}: {value}, {verdict}", verdict == "met", line))
    return tuple(found)


def below(report: Report, pattern: str, found: str) -> tuple[Target, ...]:
    """Return a target that is an upper bound."""
    ((bound, written),), verdict, line = report.verdict(pattern)
    return (Target(bound, f"target below {written}: {found}, {verdict}", verdict == "met", line),)


def times(value: float) -> str:
    """Return a factor."""
    return f"{value:,.{2 if value < 2 else 1 if value < 100 else 0}f}×"


def show_whole(value: float) -> str:
    return f"{value:,.0f}"


def show_ns(value: float) -> str:
    return f"{value:,.0f} ns"


def show_rate(value: float) -> str:
    return f"{value:.2f} GiB/s"


def of_plan() -> Iterator[Picture]:
    """Yield the order beside torch's sampler and grain's shuffle, at several dataset sizes."""
    report = Report("plan")
    caption = f"{report.caption} torch and grain were measured at the sizes drawn only."

    def numbers(key: str, show: Show) -> dict[tuple[str, int], Number]:
        return {
            (case["system"], case["n"]): report.number(place, key, show=show)
            for place, case in enumerate(report.figures)
        }

    def points(found: dict[tuple[str, int], Number]) -> tuple[tuple[str, int, Number], ...]:
        return tuple((system, size, number) for (system, size), number in found.items())

    def of_feedline(found: dict[tuple[str, int], Number]) -> list[Number]:
        return [number for (system, _), number in found.items() if system == "feedline"]

    def flat_panel(
        title: str, key: str, show: Show, powers: range, peers: dict[str, str]
    ) -> Curves:
        found = numbers(key, show)
        size = max(size for system, size in found if system != "feedline")
        targets = []
        for peer, pattern in peers.items():
            ours, other = found["feedline", size], found[peer, size]
            (target,) = beside(report, pattern, ours, (peer, other), less=True)
            assert target.at is not None
            note = f"{peer} ÷ {show_whole(other.value / target.at)}"
            targets.append(replace(target, size=size, note=note))
        ((bound, written),), verdict, line = report.verdict(f"{key} flat")
        values = [number.value for number in of_feedline(found)]
        text = f"target flat within {written}×: {times(max(values) / min(values))}"
        targets.append(Target(None, f"{text}, {verdict}", verdict == "met", line))
        ticks = tuple((10.0**power, show(10.0**power)) for power in powers)
        flat = (min(values), min(values) * bound)
        axis = "log scale; less is better"
        return Curves(title, axis, points(found), tuple(targets), ticks, flat)

    yield Picture(
        "bench-start",
        "Start and resume at any dataset size",
        tuple(
            flat_panel(title, key, measure.show_time, range(-4, 3), {"torch": f"{key} .* torch"})
            for title, key in (
                ("From nothing to the first batch", "first_batch"),
                ("From nothing to the batch at 90% of the epoch", "resume"),
            )
        ),
        caption,
    )
    peers = {peer: f"a rank's epoch .* {peer}" for peer in ("torch", "grain")}
    memory = numbers("memory", measure.show_bytes)
    most = max(of_feedline(memory), key=lambda number: number.value)
    sizes = ("16 KiB", "256 KiB", "4 MiB", "64 MiB", "1 GiB", "16 GiB")
    yield Picture(
        "bench-order",
        "Time per index, and growth of memory",
        (
            flat_panel("Nanoseconds per index", "ns_per_index", show_ns, range(1, 6), peers),
            Curves(
                "Growth of resident memory, at its peak",
                "log scale; less is better",
                points(memory),
                below(report, "memory", f"at most {most.text}"),
                tuple((2.0**14 * 16**place, size) for place, size in enumerate(sizes)),
            ),
        ),
        caption,
    )


def of_samplers() -> Iterator[Picture]:
    """Yield the torch samplers and the loader beside torch's and beside plain rules."""
    report = Report("samplers")

    def sampler(name: str, ours: str, theirs: str, words: str) -> Row:
        peer = "torch" if name == "distributed" else "plain rules"
        one, other = (report.number("samplers", name, key) for key in (ours, theirs))
        targets = beside(report, f"{name}: {words}", one, (peer, other), less=True)
        return Row(name, (("feedline", one), (peer, other)), targets)

    def panel(title: str, ours: str, theirs: str, words: str) -> Bars:
        rows = tuple(sampler(name, ours, theirs, words) for name in report.figures["samplers"])
        return Bars("log scale; less is better", rows, title=title, log=True)

    yield Picture(
        "bench-samplers",
        "Samplers for torch",
        (
            panel("An epoch of one rank", "ours", "plain", "epoch"),
            panel("From nothing to the batch at 90%", "our resume", "plain resume", "resume"),
        ),
        report.caption,
    )

    def loader(size: str) -> Row:
        names = {"feedline": "ours", "torch": "per item", "np.take": "np.take"}
        bars = [
            (name, report.number("loaders", size, key, show=show_ns)) for name, key in names.items()
        ]
        targets: tuple[Target, ...] = ()
        for other, words in zip(bars[1:], ("per-item", "of np.take"), strict=True):
            pattern = f"loader at {size} bytes: .* {words}"
            if report.has(pattern):
                targets += beside(report, pattern, bars[0][1], other, less=True)
        return Row(f"rows of {int(size):,} bytes", tuple(bars), targets)

    _, medians, machine, *_ = report.caption.split(". ")
    (how,) = re.findall(r"^(Loader, .*), ns per sample:$", report.text, re.MULTILINE)
    rows = tuple(loader(size) for size in report.figures["loaders"])
    yield Picture(
        "bench-loader",
        "The loader, with whole batches",
        (Bars("nanoseconds per sample; less is better", rows),),
        f"{how}, rows in RAM; torch item by item. {medians.partition(',')[0]}. {machine}.",
    )


def of_folder() -> Iterator[Picture]:
    """Yield a folder of chunks beside a plain reader, np.take and reading the files."""
    report = Report("folder")
    batches = sorted({int(name.split()[-1]) for name in report.figures})

    def pair(kind: str, batch: int, figure: str, show: Show) -> list[tuple[str, Number]]:
        return [
            (name, report.number(f"{kind} {reader} {batch}", figure, show=show))
            for name, reader in (("feedline", "feedline"), ("plain reader", "plain"))
        ]

    epochs, workers, first, memory = [], [], [], []
    for batch in batches:
        bars = pair("epoch", batch, "rate", show_rate)
        bars.append(("np.take", report.number(f"take take {batch}", "rate", show=show_rate)))
        targets = beside(report, f"batch {batch}: .* the plain reader", bars[0][1], bars[1])
        targets += beside(report, f"batch {batch}: .* of np.take", bars[0][1], bars[2])
        epochs.append(Row(f"an epoch, batches of {batch}", tuple(bars), targets))
        bars = pair("workers", batch, "rate", show_rate)
        targets = beside(report, f"batch {batch}, 2 workers", bars[0][1], bars[1])
        workers.append(Row(f"in two workers, batches of {batch}", tuple(bars), targets))
        bars = pair("epoch", batch, "first", measure.show_time)
        targets = beside(report, f"batch {batch}: first", bars[0][1], bars[1], less=True)
        first.append(Row(f"first batch of {batch}", tuple(bars), targets))
        bars = pair("memory", batch, "growth", measure.show_bytes)
        targets = below(report, f"batch {batch}: memory", bars[0][1].text)
        memory.append(Row(f"growth of memory, batches of {batch}", tuple(bars), targets))
    bars = pair("cold", 512, "rate", show_rate)
    bars.append(("files alone", report.number("cold files 512", "rate", show=show_rate)))
    targets = beside(report, "cold", bars[0][1], *bars[1:])
    cold = Row("from a cold cache, batches of 512", tuple(bars), targets)
    yield Picture(
        "bench-folder",
        "A folder of chunks: throughput",
        (Bars("GiB per second; more is better", (*epochs, *workers, cold)),),
        report.caption,
    )
    axis = "MiB of anonymous memory, at its peak; less is better"
    yield Picture(
        "bench-folder-start",
        "A folder of chunks: start and memory",
        (
            Bars("milliseconds; less is better", tuple(first), unit=1e-3),
            Bars(axis, tuple(memory), unit=MIB),
        ),
        report.caption,
    )


def of_store() -> Iterator[Picture]:
    """Yield the loader over a store beside the lazy folder and torch's loader."""
    report = Report("store")

    def row(ours: str, other: str, end: str, pattern: str) -> Row:
        bars = [
            (name, report.number(f"{who}, {end}", show=show_rate))
            for name, who in (("feedline", ours), (other, other))
        ]
        return Row(f"{ours}, {end}", tuple(bars), beside(report, pattern, bars[0][1], bars[1]))

    rows = [
        row("windows", "lazy folder", end, f"windows, {end}")
        for end in (f"{workers} workers, batch {b}" for b in (64, 512) for workers in (0, 2))
    ]
    rows += [
        row("shuffled", "torch", f"0 workers, batch {b}", f"shuffled, batch {b}") for b in (64, 512)
    ]
    yield Picture(
        "bench-store",
        "A loader over a store: batches as dicts of tensors",
        (Bars("GiB per second; more is better", tuple(rows)),),
        report.caption,
    )


def of_chunks() -> Iterator[Picture]:
    """Yield a sparse matrix beside annbatch and bare decoding."""
    report = Report("chunks")
    rows: list[Row] = []
    for case in report.figures:
        if case == "decode":
            continue
        name = "chunk {} x {}, batch {}".format(*case.strip("()").split(", "))
        bars = [
            (who, report.number(case, who, show=show_whole)) for who in ("feedline", "annbatch")
        ]
        targets = beside(report, name, bars[0][1], bars[1])
        if not rows:  # bare decoding is compared with the first case
            bars.append(("bare decoding", report.number("decode", show=show_whole)))
            targets += beside(report, ".* of bare decoding", bars[0][1], bars[2])
        rows.append(Row(name.replace(" x ", " × "), tuple(bars), targets))
    yield Picture(
        "bench-chunks",
        "A sparse matrix in zarr: shuffled rows",
        (Bars("thousands of rows per second; more is better", tuple(rows), unit=1e3),),
        report.caption,
    )


def of_steps() -> Iterator[Picture]:
    """Yield the clock beside a bare loop and a bare all-reduce."""
    report = Report("steps")

    def row(label: str, other: str, bound: str, pattern: str, add: bool) -> Row:
        ours, bare = (report.number(label, key) for key in ("clock", "bare"))
        ((limit, written),), verdict, line = report.verdict(pattern)
        value = (
            measure.show_time(ours.value - bare.value) if add else times(ours.value / bare.value)
        )
        at = bare.value + limit if add else bare.value * limit
        text = f"target {bound.format(written)}: {value}, {verdict}"
        target = Target(at, text, verdict == "met", line)
        return Row(label, (("feedline", ours), (other, bare)), (target,))

    rows = (
        row("alone", "bare loop", "{} above a bare loop", ".* without peers", True),
        row("two ranks", "all-reduce", "below {}× a bare all-reduce", ".* all-reduce", False),
    )
    yield Picture(
        "bench-steps",
        "The clock: what each step costs",
        tuple(Bars("microseconds a step; less is better", (row,), unit=1e-6) for row in rows),
        report.caption,
    )


def of_cli() -> Iterator[Picture]:
    """Yield the command line and the log."""
    report = Report("cli")
    start, plan, record = (report.number(key) for key in ("help", "plan", "record"))
    rows = (
        Row("feedline --help", (("feedline", start),), below(report, "starts", start.text)),
        Row(
            "feedline plan, a trillion samples on 16,384 ranks",
            (("feedline", plan),),
            below(report, "plans", plan.text),
        ),
    )
    log = Row("a record of 32 samples in a log (no target)", (("feedline", record),))
    yield Picture(
        "bench-cli",
        "The command line and the log",
        (
            Bars("milliseconds; less is better", rows, unit=1e-3),
            Bars("microseconds; less is better", (log,), unit=1e-6),
        ),
        f"{report.caption} The record: the mean of one pass.",
    )


def beside_peers() -> list[Picture]:
    """Return the pictures of the last results, beside peers."""
    makers = (of_plan, of_samplers, of_folder, of_store, of_chunks, of_steps, of_cli)
    return [picture for maker in makers for picture in maker()]
