"""What packing does with a source, for every engine: its columns, chunks, splits and manifests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from feedline.packing.chunk_files import Finished
from feedline.packing.fitting import Fitting, Widened
from feedline.packing.formats import stored_columns
from feedline.packing.rows import Source, SourceFault
from feedline.packing.settings import Settings
from feedline.packing.splits import make_splits
from feedline.store.columns import Column
from feedline.store.manifest import write_manifest
from feedline.store.writing import reported, sync
from feedline.words import several


class Plan:
    """A source with known columns, and everything derived from them.

    Args:
        settings: The arguments of `pack`.
        source: The source; its first rows are read.
        widened: What earlier readings have shown.
    """

    def __init__(self, settings: Settings, source: Source, widened: Widened) -> None:
        self.settings = settings
        self.source = source
        self.fitting = Fitting(source, widened)
        self.columns = self.fitting.columns
        self._stored = stored_columns(settings.format, self.columns)
        self.cut = settings.cut(self._stored)
        row_bytes = sum(column.sample_bytes for column in self._stored)
        self.splits = make_splits(settings.shares, settings.seed, row_bytes)
        if source.num_rows is not None:
            self.refuse_empty(self.splits.counts(source.num_rows))

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that decides the result."""
        return {
            **self.settings.describe(self.source.identity, self.columns, self.cut),
            "widened": self.fitting.widened.describe(),
        }

    @property
    def spilled_row_bytes(self) -> int:
        """About the bytes of a row in a spill: its key is beside it, and sorting needs room."""
        return 24 + sum(column.sample_bytes for column in self.columns)

    def folders(self, data: Path) -> list[Path]:
        """Return the folder of each split."""
        return [data / name for name in self.splits.names]

    def complete(self, data: Path, finished: Finished, counts: Sequence[int]) -> None:
        """Write the metadata of all chunks, which hold so many samples of each split."""
        self.refuse_empty(counts)
        folders = self.folders(data)
        with reported(data):
            for split, folder in enumerate(folders):
                chunks = finished.files[split]
                files = [chunks[number] for number in range(len(chunks))]
                assert sum(file.num_samples for file in files) == counts[split]
                sizes = finished.list_bytes[split].values()
                columns = [_with_mean(column, sizes, counts[split]) for column in self._stored]
                write_manifest(folder, files, columns)
            sync([*folders, data])

    def refuse_empty(self, counts: Sequence[int]) -> None:
        """Raise if a split has no rows."""
        for name, num_rows in zip(self.splits.names, counts, strict=True):
            if not num_rows:
                raise SourceFault(
                    f"split {name!r} gets 0 of {several(sum(counts), 'row')} and must get at least "
                    "1; use a larger share, or more rows"
                )


def _with_mean(column: Column, sizes: Iterable[dict[str, int]], num_rows: int) -> Column:
    """Return a column of lists with the mean number of bytes that were written."""
    if not column.has_lists:
        return column
    num_bytes = sum(found[column.name] for found in sizes)
    return replace(column, mean_bytes=-(-num_bytes // num_rows))
