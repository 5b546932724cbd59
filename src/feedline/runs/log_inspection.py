"""What a consumption log holds, in values that can be printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from feedline.runs.consumption_log import iter_log, read_log_header
from feedline.runs.log_entries import LoggedEvent

__all__ = ["facts_of_log", "facts_of_logs"]


def facts_of_log(path: Path) -> dict[str, Any]:
    """Return whose log it is, what was received and when, and how long it was waited for.

    Memory grows with the epochs and events, and not with the batches.
    """
    header = read_log_header(path)
    # Before the records are read: a run that has not ended adds to them.
    num_bytes = path.stat().st_size
    with open(path, "rb") as file:
        end = len(file.readline())
    epochs: dict[int, dict[str, int]] = {}
    events: list[dict[str, Any]] = []
    total = longest = 0.0
    for end, entry in iter_log(path):  # noqa: B007
        if isinstance(entry, LoggedEvent):
            events.append({"event": "", **entry.fields} | {"event": entry.name})
            continue
        counts = {"epoch": entry.epoch, "first_step": entry.step, "last_step": entry.step}
        zeros = dict.fromkeys(("num_batches", "num_samples", "num_padded"), 0)
        counts = epochs.setdefault(entry.epoch, {**counts, **zeros})
        counts["first_step"] = min(counts["first_step"], entry.step)
        counts["last_step"] = max(counts["last_step"], entry.step)
        counts["num_batches"] += 1
        counts["num_samples"] += len(entry.ids)
        counts["num_padded"] += len(entry.ids) - len(entry.real_ids)
        total, longest = total + entry.wait, max(longest, entry.wait)
    listed = list(epochs.values())
    sums = {
        name: sum(counts[name] for counts in listed)
        for name in ("num_batches", "num_samples", "num_padded")
    }
    return {
        **{"run": header.run, "rank": header.rank, "world_size": header.world_size},
        "info": dict(header.info),
        **sums,
        "first_step": min((counts["first_step"] for counts in listed), default=None),
        "last_step": max((counts["last_step"] for counts in listed), default=None),
        "wait": {
            "total_seconds": total,
            "mean_seconds": total / sums["num_batches"] if listed else 0.0,
            "longest_seconds": longest,
        },
        "num_bytes": num_bytes,
        "is_cut_short": end < num_bytes,
        "epochs": listed,
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
