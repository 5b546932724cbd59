"""Arrow files as a source: their record batches, one after another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from feedline.errors import PackError
from feedline.packing.rows import Batch, SourceFault, describe_files
from feedline.packing.selection import Selection, select
from feedline.packing.table_files import batch_of_table, names_of, refuse_other_columns
from feedline.store.extras import import_arrow

_BATCH_BYTES = 2**22


class ArrowFiles:
    """Arrow files (Feather of version 2) and streams with the same columns."""

    can_restart = True
    num_rows = num_rows_guess = None

    def __init__(self, paths: list[Path], selection: Selection | None, num_threads: int) -> None:
        self._paths = paths
        self._arrow = import_arrow()
        self.identity = describe_files("arrow", paths)
        chosen = selection
        for path in paths:
            with self._open(path) as (schema, _):
                names = names_of(path, schema)
                if selection is None and chosen is not None:
                    refuse_other_columns(path, names, list(chosen))
                chosen = select(chosen, names, str(path))
        assert chosen is not None
        self._selection = chosen

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all rows from `start`."""
        for path in self._paths:
            row = 0
            with self._open(path) as (_, tables):
                for table in tables:
                    skip = min(max(start - row, 0), table.num_rows)
                    rest = table.slice(skip)
                    row_bytes = max(1, rest.nbytes // max(1, rest.num_rows))
                    step = max(1, _BATCH_BYTES // row_bytes)
                    for first in range(0, rest.num_rows, step):
                        part = rest.slice(first, step)
                        yield batch_of_table(path, row + skip + first, part, self._selection)
                    row += table.num_rows
            start = max(start - row, 0)

    @contextmanager
    def _open(self, path: Path) -> Iterator[tuple[Any, Iterator[Any]]]:
        """Open a file, with its schema and its record batches."""
        try:
            with self._arrow.memory_map(str(path)) as file:
                is_file = file.read(6) == b"ARROW1"
                file.seek(0)
                if is_file:
                    reader = self._arrow.ipc.open_file(file)
                    numbers = range(reader.num_record_batches)
                    yield reader.schema, self._checked(map(reader.get_batch, numbers))
                else:
                    stream = self._arrow.ipc.open_stream(file)
                    yield stream.schema, self._checked(iter(stream))
        except OSError as error:
            raise PackError(f"{path}: cannot be read ({error!s:.300})") from None
        except self._arrow.ArrowException as error:
            raise SourceFault(
                f"{path}: cannot be read ({error!s:.300}); check that it is a complete Arrow file"
            ) from None

    def _checked(self, tables: Iterator[Any]) -> Iterator[Any]:
        for table in tables:
            # Buffers that are shorter than they should be are found here.
            table.validate(full=True)
            yield table
