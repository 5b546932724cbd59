"""What the pictures of `device.py` say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pictures import Bars, Picture, Row, Target
from plotted_results import Report, below, beside, show_rate, times


def at_least(report: Report, pattern: str, found: str) -> tuple[Target, ...]:
    """Return a target that is a lower bound."""
    ((bound, written),), verdict, line = report.verdict(pattern)
    return (Target(bound, f"target {written}: {found}, {verdict}", verdict == "met", line),)


def of_device() -> Iterator[Picture]:
    """Yield batches on a GPU beside torch's loader and the link."""
    report = Report("device")
    peers = ("torch, items", "torch, whole batches")
    rows, threads, steps, shares = [], [], [], []
    for kind in ("1 KiB", "4 KiB", "64 KiB", "images"):
        for order in ("windows", "shuffle"):
            name = f"{kind}, {order}"
            ours = report.number(name, show=show_rate)
            others = [(who, report.number(f"{kind}, {who}", show=show_rate)) for who in peers]
            bare = f"{name}: [\\d.]+ GiB/s"
            targets = at_least(report, bare, ours.text) if report.has(bare) else ()
            for other in others:
                targets += beside(report, f"{name}: .*{other[0]}", ours, other)
            link = ("the link", report.number(f"{kind}, link", show=show_rate))
            rows.append(Row(name, (("feedline", ours), *others, link), targets))
    resident = ("a resident tensor", report.number("step, a resident tensor, ms", show=show_ms))
    for order in ("windows", "shuffle"):
        one, eight = (
            report.number(f"no device, {order}, {count}", show=show_rate)
            for count in ("1 thread", "8 threads")
        )
        bars = (("feedline", eight), ("1 thread", one))
        targets = beside(report, f"no device, {order}", eight, bars[1])
        if order == "shuffle":
            loop = report.number("no device, shuffle, no thread", show=show_rate)
            bars = (*bars, ("the loop alone", loop))
        threads.append(Row(f"no device, {order}, 8 threads", bars, targets))
        step = report.number(f"step, {order}, ms", show=show_ms)
        steps.append(Row(f"a training step, {order}", (("feedline", step), resident)))
        share = report.number(f"step, {order}, to resident", show=times)
        targets = below(report, f"a training step, {order}", share.text)
        shares.append(Row(f"a training step, {order}", (("feedline", share),), targets))
    slow = ("torch, whole batches", report.number("step, torch, ms", show=show_ms))
    steps[0] = replace(steps[0], bars=(*steps[0].bars, slow))
    slow = ("torch, whole batches", report.number("step, torch, to resident", show=times))
    shares[0] = replace(shares[0], bars=(*shares[0].bars, slow))
    eaten = report.number("step, GiB/s", show=show_rate)
    model = Row("what the model consumes", (("feedline", eaten),))
    model = replace(model, targets=at_least(report, "the model", eaten.text))
    cost = report.number("consumer, us a batch", show=show_us)
    consumer = Row("next, while a batch is there", (("feedline", cost),))
    consumer = replace(consumer, targets=below(report, "the consumer", cost.text))
    for way in ("numpy alone", "numpy into a ring"):
        alone = [
            (name, report.number(f"{way}, {name}", show=show_rate))
            for name in ("8 threads", "1 thread")
        ]
        threads.append(Row(f"no device, {way}", tuple(alone)))
    rate = "GiB per second; more is better"
    yield Picture("bench-device", "Batches on a GPU", (Bars(rate, tuple(rows)),), report.caption)
    yield Picture(
        "bench-device-loop",
        "Batches on a GPU: the training loop, and threads without a device",
        (
            Bars("milliseconds a step; less is better", tuple(steps)),
            Bars("times a step on a resident tensor; less is better", tuple(shares)),
            Bars("microseconds a batch; less is better", (consumer,)),
            Bars(rate, (*threads, model)),
        ),
        report.caption,
    )


def show_ms(value: float) -> str:
    return f"{value:.2f} ms"


def show_us(value: float) -> str:
    return f"{value:.0f} µs"
