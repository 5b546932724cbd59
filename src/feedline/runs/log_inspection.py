"""What a consumption log holds, in values that can be printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from feedline.runs.consumption_log import iter_log, read_log_header
from feedline.runs.log_entries import LoggedBatch, LoggedEvent

__all__ = ["facts_of_log", "facts_of_logs"]


@dataclass(kw_only=True)
class _EpochCounts:
    """What a rank received in one epoch, in which steps."""

    epoch: int
    first_step: int
    last_step: int
    num_batches: int = 0
    num_samples: int = 0
    num_padded: int = 0

    def add(self, batch: LoggedBatch) -> None:
        self.first_step = min(self.first_step, batch.step)
        self.last_step = max(self.last_step, batch.step)
        self.num_batches += 1
        self.num_samples += len(batch.ids)
        self.num_padded += len(batch.ids) - len(batch.real_ids)


def facts_of_log(path: Path) -> dict[str, Any]:
    """Return whose log it is, what was received and when, and how long it was waited for.

    Memory grows with the epochs and events, and not with the batches.
    """
    header = read_log_header(path)
    # Before the records are read: a run that goes on adds to them.
    num_bytes = path.stat().st_size
    end = _num_bytes_of_header(path)
    epochs: dict[int, _EpochCounts] = {}
    events: list[dict[str, Any]] = []
    waits = _Waits()
    for end, entry in iter_log(path):  # noqa: B007
        if isinstance(entry, LoggedEvent):
            events.append({"event": entry.name, **_without(entry.fields, "event")})
            continue
        fresh = _EpochCounts(epoch=entry.epoch, first_step=entry.step, last_step=entry.step)
        epochs.setdefault(entry.epoch, fresh).add(entry)
        waits.add(entry.wait)
    counts = list(epochs.values())
    return {
        "run": header.run,
        "rank": header.rank,
        "world_size": header.world_size,
        "info": dict(header.info),
        "num_batches": sum(epoch.num_batches for epoch in counts),
        "num_samples": sum(epoch.num_samples for epoch in counts),
        "num_padded": sum(epoch.num_padded for epoch in counts),
        "first_step": min((epoch.first_step for epoch in counts), default=None),
        "last_step": max((epoch.last_step for epoch in counts), default=None),
        "wait": waits.facts(),
        "num_bytes": num_bytes,
        "is_cut_short": end < num_bytes,
        "epochs": [asdict(epoch) for epoch in counts],
        "events": events,
    }


def facts_of_logs(paths: Sequence[Path]) -> dict[str, Any]:
    """Return what several logs hold, each on its own and all together."""
    logs = [{"path": str(path), **facts_of_log(path)} for path in paths]
    logs.sort(key=lambda log: (log["run"], log["rank"], log["path"]))
    return {
        "num_logs": len(logs),
        "num_runs": len({(log["run"] or str(Path(log["path"]).parent)) for log in logs}),
        "num_batches": sum(log["num_batches"] for log in logs),
        "num_samples": sum(log["num_samples"] for log in logs),
        "num_cut_short": sum(log["is_cut_short"] for log in logs),
        "logs": logs,
    }


class _Waits:
    """The seconds that a rank waited for its batches."""

    def __init__(self) -> None:
        self.count, self.total, self.longest = 0, 0.0, 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        self.longest = max(self.longest, seconds)

    def facts(self) -> dict[str, float]:
        mean = self.total / self.count if self.count else 0.0
        return {
            "total_seconds": self.total,
            "mean_seconds": mean,
            "longest_seconds": self.longest,
        }


def _num_bytes_of_header(path: Path) -> int:
    with open(path, "rb") as file:
        return len(file.readline())


def _without(fields: Any, name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}
