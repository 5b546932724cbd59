"""What an engine takes over from the journal of an interrupted run."""

from __future__ import annotations

from collections.abc import Sequence

from feedline.packing.workshop import Entry


def entries_since(entries: Sequence[Entry], name: str) -> list[Entry]:
    """Return the last journal entry with a name and all after it; none if there is no such entry.

    What one engine has on its way to chunks means nothing to another.
    """
    begun = [place for place, entry in enumerate(entries) if name in entry]
    return list(entries[begun[-1] :]) if begun else []
