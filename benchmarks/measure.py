"""What all benchmarks share: fresh processes, medians, memory, and the table they print."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

RESULTS = Path(__file__).parent / "results"


def seconds(action: Callable[[], Any]) -> float:
    """Return how long one call takes."""
    start = perf_counter()
    action()
    return perf_counter() - start


def median_seconds(action: Callable[[], Any], repetitions: int) -> float:
    """Return the median duration of several calls."""
    return statistics.median(seconds(action) for _ in range(repetitions))


def reset_peak() -> int:
    """Forget the process's peak of resident memory; return what it holds now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def peak() -> int:
    """Return the peak of resident memory since `reset_peak`, in bytes."""
    return status("VmHWM")


def status(field: str) -> int:
    """Return a field of the process's status that counts memory, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def in_fresh_process(script: str, *arguments: str) -> dict[str, Any]:
    """Run `script arguments…`, which prints one line of JSON, and return that."""
    done = subprocess.run(
        [sys.executable, script, *arguments], check=True, capture_output=True, text=True
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of every figure."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def machine() -> str:
    """Return a line about the machine, without its name."""
    return f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}"


def show_time(value: float) -> str:
    """Return a duration with a fitting unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def show_bytes(value: float) -> str:
    """Return a size in MiB or GiB."""
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.2f} MiB"


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: list[str]) -> str:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        return "| " + " | ".join(padded) + " |"

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


def finish(name: str, report: str, figures: Any, checks: list[tuple[str, bool]]) -> int:
    """Print and save a benchmark's report; return 1 if any of its targets was missed."""
    verdicts = "\n".join(f"- {'met' if met else 'MISSED'}: {text}" for text, met in checks)
    text = f"{report}\n\nTargets:\n\n{verdicts}\n"
    print(text)
    (RESULTS / name).parent.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    (RESULTS / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0 if all(met for _, met in checks) else 1
