"""What figures mean: the stage that is the bottleneck, and what to change.

Stages are compared in samples per second: bytes of compressed files and of samples differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from feedline.runs.bench.figures import (
    BATCHES,
    COLD,
    COLD_ROWS,
    COPIES,
    DECODE,
    DIRECT,
    GATHER,
    LINK,
    SHUFFLE,
    STORAGE,
    WINDOWS,
    DataFigures,
    Figure,
)
from feedline.words import bytes_in_words, several

# Smaller differences may be chance.
_GAIN = 1.3
# Below this share of the slowest stage, what is between the stages costs more than they do.
_FAR_BELOW = 0.5
_LINK_REACHED = 0.6
_SMALL_ROW, _SMALL_BATCH = 2**12, 2**22


class Findings(NamedTuple):
    """What figures mean.

    Args:
        bottleneck: The stage that the others wait for.
        figure: Its figure.
        advice: What to change, in sentences; the first matters most.
        is_good: Whether there is nothing to change but the hardware.
    """

    bottleneck: str
    figure: Figure
    advice: tuple[str, ...]
    is_good: bool


def advise(found: DataFigures) -> Findings:
    """Return the bottleneck, and what to change.

    Args:
        found: What was measured.
    """
    figure = find_bottleneck(found)
    told = [rule(found, figure) for rule in _RULES]
    advice = [text for text in told if text]
    is_good = not advice
    if is_good:
        best = best_batches(found)
        advice = [
            f"There is nothing to change: the loader delivers {rate(best)}, and {named(figure)} "
            f"could do {rate(figure)}."
        ]
    return Findings(figure.stage, figure, tuple(advice), is_good)


def find_bottleneck(found: DataFigures) -> Figure:
    """Return the figure of the slowest stage.

    Files in the page cache are read in place, so storage counts only when they are not there. The
    loader passes through all stages: it is the bottleneck only if it is far below all of them.
    """
    best = best_batches(found)
    stages = [gather_of(found), found.find(LINK, COPIES)]
    decode = found.find(DECODE, "whole chunks")
    if decode is not None and best.rows_per_second < _GAIN * decode.rows_per_second:
        # A loader that is faster has decoded chunks in memory, which then are enough for it.
        stages.append(decode)
    if found.is_cold:
        stages.append(found.find(STORAGE, COLD) or found.find(STORAGE, DIRECT))
    slowest = min(
        (figure for figure in stages if figure is not None), key=lambda f: f.rows_per_second
    )
    is_far_below = best.rows_per_second < _FAR_BELOW * slowest.rows_per_second
    return best if is_far_below else slowest


def gather_of(found: DataFigures) -> Figure:
    """Return what is gathered with as many threads as the loader has."""
    return found.gathers[max(1, found.num_threads)]


def best_batches(found: DataFigures) -> Figure:
    """Return the faster way of the loader."""
    return max(found.batches, key=lambda figure: figure.rows_per_second)


def named(figure: Figure) -> str:
    """Return a stage as the subject of a sentence.

    Examples:
        >>> made = Figure(stage="link", name="", rows_per_second=1, bytes_per_second=1)
        >>> named(made)
        'the link'
    """
    return {
        STORAGE: "storage",
        DECODE: "decoding chunks",
        GATHER: "gathering rows",
        LINK: "the link",
        BATCHES: "the loader itself",
    }[figure.stage]


def rate(figure: Figure) -> str:
    """Return the bytes of a figure in a second, as text."""
    return f"{bytes_in_words(figure.bytes_per_second)}/s"


def _on_storage(found: DataFigures, bottleneck: Figure) -> str | None:
    if bottleneck.stage != STORAGE:
        return None
    text = (
        f"Storage delivers {rate(bottleneck)}, less than gathering rows could use "
        f"({rate(gather_of(found))})."
    )
    if found.fits_in_memory:
        return (
            f"{text} The files ({bytes_in_words(found.file_bytes)}) fit into memory: from the "
            "second epoch on they come from the page cache. Read them once before the training."
        )
    return (
        f"{text} The files ({bytes_in_words(found.file_bytes)}) do not fit into the free memory "
        f"({bytes_in_words(found.memory_bytes)}): copy them to a faster disk, stripe them over "
        "several, or use a host with more memory."
    )


def _on_cold_rows(found: DataFigures, _: Figure) -> str | None:
    rows, chunks = found.find(GATHER, COLD_ROWS), found.find(STORAGE, COLD)
    if not found.is_cold or rows is None or chunks is None:
        return None
    if rows.rows_per_second >= _FAR_BELOW * chunks.rows_per_second:
        return None
    return (
        f'Use window="{found.window}" instead of a full shuffle: single rows come from a cold disk '
        f"at {rate(rows)}, whole chunks at {rate(chunks)}."
    )


def _on_windows(found: DataFigures, bottleneck: Figure) -> str | None:
    shuffle, windows = found.find(BATCHES, SHUFFLE), found.find(BATCHES, WINDOWS)
    if shuffle is None or windows is None or _on_cold_rows(found, bottleneck):
        return None
    if windows.rows_per_second >= _GAIN * shuffle.rows_per_second:
        return (
            f'window="{found.window}" delivers {rate(windows)}, a full shuffle {rate(shuffle)}: '
            "use it if a shuffle within a few chunks suffices."
        )
    if shuffle.rows_per_second >= _GAIN * windows.rows_per_second:
        return (
            f"A full shuffle delivers {rate(shuffle)}, windows of {found.window} {rate(windows)}: "
            "omit window, or try a larger one."
        )
    return None


def _on_direct(found: DataFigures, bottleneck: Figure) -> str | None:
    cold, direct = found.find(STORAGE, COLD), found.find(STORAGE, DIRECT)
    if bottleneck.stage != STORAGE or cold is None or direct is None:
        return None
    if direct.rows_per_second < _GAIN * cold.rows_per_second:
        return None
    return (
        f"Past the page cache, direct I/O reads {rate(direct)}: the disk can do more than cold "
        "reads ask of it. Raise its read-ahead (blockdev --setra), or num_threads."
    )


def _on_decoding(_: DataFigures, bottleneck: Figure) -> str | None:
    if bottleneck.stage != DECODE:
        return None
    return (
        f"Chunks are decoded at {rate(bottleneck)}, which is the limit. Store them uncompressed: "
        "what feedline pack --format safetensors writes of tables is read in place."
    )


def _on_threads(found: DataFigures, bottleneck: Figure) -> str | None:
    if bottleneck.stage not in (GATHER, DECODE, BATCHES):
        return None
    if not found.num_threads:
        return 'Use num_threads="auto": with 0, the loop reads by itself, and waits meanwhile.'
    now = gather_of(found)
    count, most = max(found.gathers.items(), key=lambda item: item[1].rows_per_second)
    if count > found.num_threads and most.rows_per_second >= _GAIN * now.rows_per_second:
        return (
            f"Raise num_threads from {found.num_threads} to {count}: then rows are gathered at "
            f"{rate(most)} instead of {rate(now)}."
        )
    if count < found.num_threads and most.rows_per_second >= _GAIN * now.rows_per_second:
        return (
            f"Lower num_threads from {found.num_threads} to {count}: then rows are gathered at "
            f"{rate(most)} instead of {rate(now)}."
        )
    if bottleneck.stage != GATHER or found.num_threads < found.auto_threads:
        return None
    if found.num_threads <= 1:
        return (
            f"Give the process more cores: it has enough for 1 thread, which gathers {rate(now)}."
        )
    count, half = max(
        ((n, f) for n, f in found.gathers.items() if n <= found.num_threads / 2),
        key=lambda item: item[0],
    )
    if now.rows_per_second < _GAIN * half.rows_per_second:
        return None
    return (
        f"Give the process more cores: {several(found.num_threads, 'thread')} gather {rate(now)}, "
        f"{several(count, 'thread')} {rate(half)}."
    )


def _on_link(found: DataFigures, bottleneck: Figure) -> str | None:
    link = found.find(LINK, COPIES)
    if link is None:
        return None
    if bottleneck.stage == LINK:
        return (
            f"The link is the limit, at {rate(link)}. Send fewer bytes: uint8 or bfloat16 instead "
            "of float32, converted on the device by transform."
        )
    best = best_batches(found)
    if bottleneck.stage != GATHER or best.rows_per_second >= _LINK_REACHED * link.rows_per_second:
        return None
    text = (
        f"The link could take {rate(link)}, but rows of {bytes_in_words(found.row_bytes)} are "
        f"gathered at {rate(gather_of(found))}."
    )
    if found.row_bytes < _SMALL_ROW:
        text += " Larger rows are gathered faster: pack what is used together as one sample."
    return text


def _on_rows(found: DataFigures, bottleneck: Figure) -> str | None:
    if bottleneck.stage != GATHER or found.device is not None or found.row_bytes >= _SMALL_ROW:
        return None
    return (
        f"Rows of {bytes_in_words(found.row_bytes)} are gathered at {rate(bottleneck)}. Larger "
        "rows are gathered faster: pack what is used together as one sample."
    )


def _on_batches(found: DataFigures, bottleneck: Figure) -> str | None:
    if bottleneck.stage != BATCHES:
        return None
    batch_size = min(found.batch_size, found.num_samples)
    batch_bytes = batch_size * found.row_bytes
    micros = 1e6 * batch_size / bottleneck.rows_per_second
    text = (
        f"The loader delivers {rate(bottleneck)}, far below what its stages can do: a batch of "
        f"{several(batch_size, 'sample')} ({bytes_in_words(batch_bytes)}) takes "
        f"{micros:,.0f} µs."
    )
    if found.num_samples < 2 * found.batch_size:
        return f"{text} The data has hardly more than a batch, so each epoch starts anew."
    if batch_bytes < _SMALL_BATCH:
        return f"{text} Use a larger batch_size: each batch costs some time of its own."
    return f"{text} Raise memory_budget, so that more batches are read ahead."


def _on_first_epoch(found: DataFigures, bottleneck: Figure) -> str | None:
    cold, best = found.find(STORAGE, COLD), best_batches(found)
    if found.is_cold or cold is None or bottleneck.stage == STORAGE:
        return None
    if _GAIN * cold.rows_per_second >= best.rows_per_second:
        return None
    return (
        f"The first epoch is slower if the files are not in the page cache yet: they are read at "
        f"{rate(cold)}. Read them once before the training."
    )


_RULES: tuple[Callable[[DataFigures, Figure], str | None], ...] = (
    _on_storage,
    _on_cold_rows,
    _on_direct,
    _on_decoding,
    _on_batches,
    _on_threads,
    _on_link,
    _on_rows,
    _on_windows,
    _on_first_epoch,
)
