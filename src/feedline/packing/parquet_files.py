"""Parquet files as a source, decoded by pyarrow a few thousand rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from feedline.errors import PackError
from feedline.packing.arrow_arrays import to_array
from feedline.packing.batch import Batch, SourceFault
from feedline.packing.file_list import describe_files
from feedline.packing.names import Selection, old_names, select
from feedline.packing.text_files import refuse_other_columns
from feedline.store.arrow import import_arrow

__all__ = ["ParquetFiles"]

# Decoding takes several times the memory of its result.
_BATCH_BYTES = 2**20
_MAX_BATCH_ROWS = 2**16
_READ_BYTES = 2**20
_MAX_VALUE_BYTES = 8


class ParquetFiles:
    """Parquet files with the same columns."""

    def __init__(self, paths: list[Path], selection: Selection | None) -> None:
        self._paths = paths
        self._arrow = import_arrow()
        self.identity = describe_files("parquet", paths)
        self._selection = selection
        self._num_rows: list[int] = []
        for path in paths:
            with self._open(path) as file:
                names = file.schema_arrow.names
                if selection is None and self._num_rows:
                    assert self._selection is not None
                    refuse_other_columns(path, names, list(self._selection))
                self._selection = select(self._selection, names, str(path))
                self._num_rows.append(file.metadata.num_rows)
        self.num_rows: int | None = sum(self._num_rows)
        self.num_rows_guess: int | None = self.num_rows

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all rows from `start` on; files and row groups before it are not read."""
        for path, num_rows in zip(self._paths, self._num_rows, strict=True):
            if start < num_rows:
                yield from self._batches_of(path, start)
            start = max(start - num_rows, 0)

    def _batches_of(self, path: Path, start: int) -> Iterator[Batch]:
        assert self._selection is not None
        with self._open(path) as file:
            groups = [
                file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)
            ]
            first, row = 0, 0
            while row + groups[first].num_rows <= start:
                row += groups[first].num_rows
                first += 1
            skip = start - row
            row_bytes = max(_bytes_per_row(group) for group in groups)
            for table in file.iter_batches(
                batch_size=max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // row_bytes)),
                row_groups=range(first, len(groups)),
                columns=old_names(self._selection),
            ):
                if skip < table.num_rows:
                    yield self._batch(path, row + skip, table.slice(skip))
                row += table.num_rows
                skip = max(skip - table.num_rows, 0)

    def _batch(self, path: Path, row: int, table: Any) -> Batch:
        assert self._selection is not None
        return Batch(
            str(path),
            row,
            {
                new: to_array(str(path), row, old, table.column(old))
                for new, old in self._selection.items()
            },
        )

    @contextmanager
    def _open(self, path: Path) -> Iterator[Any]:
        parquet = import_arrow("pyarrow.parquet")
        try:
            # A buffer makes it read a row group bit by bit instead of whole.
            with parquet.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
                yield file
        except OSError as error:
            raise PackError(f"{path}: cannot be read ({error!s:.300})") from None
        except self._arrow.ArrowException as error:
            raise SourceFault(
                f"{path}: cannot be read ({error!s:.300}); check that it is a whole parquet file"
            ) from None


def _bytes_per_row(group: Any) -> int:
    """Return at most how many bytes a row has when it is decoded; in the file it may have few."""
    num_values: int = sum(group.column(number).num_values for number in range(group.num_columns))
    num_rows: int = group.num_rows
    return max(1, _MAX_VALUE_BYTES * num_values // max(1, num_rows))
