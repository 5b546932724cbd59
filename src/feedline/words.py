"""Numbers as people read them, in messages and reports."""

from __future__ import annotations


def several(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun, in the plural where it should be.

    Examples:
        >>> several(1, "rank"), several(12_000, "sample"), several(2, "batch", "batches")
        ('1 rank', '12,000 samples', '2 batches')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def bytes_in_words(num_bytes: float | None) -> str:
    """Return a number of bytes in the unit that suits it; None is "unknown".

    Examples:
        >>> bytes_in_words(512), bytes_in_words(3 * 2**20)
        ('512 bytes', '3.0 MiB')
    """
    if num_bytes is None:
        return "unknown"
    if num_bytes < 1024:
        return several(int(num_bytes), "byte")
    power = min(6, (int(num_bytes).bit_length() - 1) // 10)
    return f"{num_bytes / 1024**power:,.1f} {'KMGTPE'[power - 1]}iB"
