"""Figures of `feedline bench-data` as a machine might have them, given in GiB/s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedline.runs.bench import figures as named
from feedline.runs.bench.figures import DataFigures, Figure

__all__ = ["figures_of"]


def figures_of(
    *,
    cold: float | None = 20,
    warm: float = 30,
    direct: float | None = None,
    cold_rows: float | None = None,
    decode: float | None = None,
    gathers: Mapping[int, float] | None = None,
    link: float | None = None,
    shuffle: float = 9,
    windows: float = 9,
    **facts: Any,
) -> DataFigures:
    """Return figures: by default those of data in memory, with nothing to gain."""
    known: dict[str, Any] = {
        **{"num_samples": 10**6, "num_chunks": 100, "row_bytes": 8192, "file_bytes": 2**33},
        **{"memory_bytes": 2**36, "cached_share": 1.0, "is_decoded": decode is not None},
        **{"batch_size": 256, "num_threads": 8, "auto_threads": 8, "window": "8 chunks"},
        **{"device": None if link is None else "cuda:0"},
        **facts,
    }

    def figure(stage: str, name: str, size: float, threads: int | None = None) -> Figure:
        return Figure(
            stage=stage,
            name=name,
            rows_per_second=size * 2**30 / known["row_bytes"],
            bytes_per_second=size * 2**30,
            num_threads=threads,
        )

    given = gathers or {4: 10, 8: 10}
    listed = [
        (named.STORAGE, named.COLD, cold),
        (named.STORAGE, named.WARM, warm),
        (named.STORAGE, named.DIRECT, direct),
        (named.GATHER, named.COLD_ROWS, cold_rows),
        (named.DECODE, "whole chunks", decode),
        *((named.GATHER, f"{n} threads", size, n) for n, size in given.items()),
        (named.LINK, named.COPIES, link),
        (named.BATCHES, named.SHUFFLE, shuffle),
        (named.BATCHES, named.WINDOWS, windows),
    ]
    made = tuple(figure(*one) for one in listed if one[2] is not None)
    missing = {name: "it was not asked for" for _, name, size, *_ in listed if size is None}
    return DataFigures(**known, figures=made, missing=missing)
