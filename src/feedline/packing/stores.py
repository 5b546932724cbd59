"""A store as a source: anything that `feedline.open` opens, read chunk by chunk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from feedline.packing.parts import Part, parts_between, rows_between
from feedline.packing.rows import Batch, Values, as_column, describe_files
from feedline.packing.selection import Selection, select
from feedline.store.columns import MISSING
from feedline.store.lists import Lists
from feedline.store.protocol import Store

_BATCH_BYTES = 2**22


class StoreSource:
    """The samples of a store, in its order.

    Args:
        store: The store.
        selection: The columns to take; by default all. Of a column with missing values, the column
            that tells where they are comes with it.
    """

    can_restart = True

    def __init__(self, store: Store, selection: Selection | None) -> None:
        self._store = store
        self._where = str(path_of(store) or f"the {type(store).__name__}")
        files = getattr(getattr(store, "shards", None), "files", ())
        # The fingerprint of remote files has their ETags.
        files = [path for path in files if not hasattr(path, "tree")]
        known = store.columns
        chosen = select(selection, known, self._where)
        for new, old in list(chosen.items()):
            if old + MISSING in known and old + MISSING not in chosen.values():
                chosen = {**chosen, new + MISSING: old + MISSING}
        self._chosen = chosen
        names = list(dict.fromkeys(chosen.values()))
        if set(names) != set(known) and hasattr(store, "select"):
            # So that nothing else is decoded.
            self._store = store.select(names)
        self._type_names = {
            new: known[old].type_name
            for new, old in chosen.items()
            if known[old].type_name == "bfloat16"
        }
        self.num_rows = self.num_rows_guess = store.num_samples
        columns = [str(known[old]) for old in names]
        digest = hashlib.blake2b(repr((names, columns)).encode(), digest_size=16).hexdigest()
        self.identity: dict[str, Any] = {
            # A folder that packing wrote finds out by itself whether its files change.
            **describe_files("store", files),
            **{"fingerprint": store.fingerprint, "num_samples": store.num_samples},
            "columns": digest,
        }

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all samples from `start`; earlier chunks are not read."""
        store = self._store
        edges = store.edges
        sample_bytes = sum(column.sample_bytes for column in store.columns.values())
        step = max(1, _BATCH_BYTES // max(1, sample_bytes))
        # A store of the user's own may lack it.
        release = getattr(store, "release", lambda chunk: None)
        first_chunk = int(np.searchsorted(edges, start, side="right")) - 1
        for chunk in range(first_chunk, len(edges) - 1):
            first, end = int(edges[chunk]), int(edges[chunk + 1])
            if chunk + 1 < len(edges) - 1:
                store.prefetch(chunk + 1)
            for row in range(max(start, first), end, step):
                rows = np.arange(row, min(row + step, end)) - first
                yield self._batch(row, store.read(chunk, rows))
            release(chunk)

    def parts(self, num_bytes: int, row_bytes: int) -> list[Part]:
        """Return runs of chunks."""
        return parts_between(map(int, self._store.edges), max(1, num_bytes // max(1, row_bytes)))

    def read(self, part: Part, row: int) -> Iterator[Batch]:
        """Yield the samples of a part."""
        return rows_between(self, part.start, part.stop)

    def _batch(self, row: int, found: dict[str, Any]) -> Batch:
        arrays: dict[str, Values] = {}
        for new, old in self._chosen.items():
            values = found[old]
            if isinstance(values, Lists):
                inner = as_column(self._where, row, old, values.values)
                arrays[new] = Lists(inner, values.offsets, values.kind)
            else:
                arrays[new] = as_column(self._where, row, old, values)
        return Batch(self._where, row, arrays, self._type_names)


def path_of(store: Any) -> Path | None:
    """Return the file or folder that a store reads from, if it tells."""
    for owner in (store, getattr(store, "shards", None)):
        for name in ("folder", "path"):
            found = getattr(owner, name, None)
            if hasattr(found, "tree"):
                # It is at a URL.
                return None
            if isinstance(found, str | Path):
                return Path(found)
    return None
