"""A Ray Data dataset as a source: its blocks, in an order that does not depend on the cluster."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from feedline.packing.arrow_columns import paths_in, to_columns
from feedline.packing.rows import Batch, Flat, Rows, SourceFault, describe_files, part_of_rows
from feedline.packing.selection import Selection, select
from feedline.store.extras import import_arrow
from feedline.store.lists import Lists

_WHERE = "the Ray dataset"
_REMEDY = (
    "write it to parquet with write_parquet and pack the files; to shuffle, use pack(shuffle=True)"
)
# Operations whose result, with `preserve_order`, depends on their input alone. Functions of the
# user must return the same for the same rows, which nobody can see from here.
_ORDERED = {
    *("Read", "ReadFiles", "ListFiles", "InputData", "FromItems", "FromBlocks", "FromNumpy"),
    *("FromArrow", "FromPandas", "MapBatches", "MapRows", "Filter", "Project", "FlatMap"),
    *("Limit", "Union", "Zip", "Repartition", "StreamingRepartition"),
}
# Every so many rows one is remembered, and compared when the dataset is read again.
_ROWS_PER_MARK = 257


def is_ray_dataset(source: Any) -> bool:
    """Whether a source is a dataset of Ray Data, which is not imported for that."""
    data = sys.modules.get("ray.data")
    return data is not None and isinstance(source, data.Dataset)


class RayRows:
    """The rows of a Ray dataset, block after block.

    It is executed each time that it is read, with `preserve_order`. What may come in another order
    then is refused. Some rows are remembered, and compared when packing reads it again.

    Args:
        dataset: The dataset.
        selection: The columns to take; by default all.
    """

    can_restart = True
    num_rows = num_rows_guess = None

    def __init__(self, dataset: Any, selection: Selection | None) -> None:
        import_arrow()
        self._dataset = dataset
        operations = list(_operations(dataset._logical_plan.dag))
        for operation in operations:
            _refuse_unordered(operation)
        self._marks: dict[int, bytes] = {}
        self._num_read: int | None = None
        tables = self._tables()
        first = next((table for table in tables if table.num_rows), None)
        tables.close()
        if first is None:
            raise SourceFault(f"{_WHERE} has 0 rows and must have at least 1; check its filters")
        self._selection = select(selection, [path for path, _ in paths_in(first.schema)], _WHERE)
        digest = hashlib.blake2b(digest_size=16)
        for mark in _marks_of(0, self._batch(0, first.slice(0, 1)).arrays).values():
            digest.update(mark)
        self.identity: dict[str, Any] = {
            **_described_files(dataset),
            "operations": [type(operation).__name__ for operation in operations],
            "first_row": digest.hexdigest(),
        }

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all rows from `start`; earlier rows are made again and skipped."""
        row = 0
        for table in self._tables():
            if not table.num_rows:
                continue
            batch = self._batch(row, table)
            self._compare(_marks_of(row, batch.arrays))
            skip = max(start - row, 0)
            if skip < batch.num_rows:
                rows = part_of_rows(batch.arrays, skip, batch.num_rows)
                yield Batch(batch.where, row + skip, rows)
            row += table.num_rows
        if self._num_read not in (None, row):
            raise _changed(f"{self._num_read} rows before, and {row} now")
        self._num_read = row

    def _tables(self) -> Generator[Any, None, None]:
        """Yield the blocks as tables, in order."""
        with _in_order(self._dataset.context.execution_options):
            batches = self._dataset.iter_batches(
                batch_size=None, batch_format="pyarrow", prefetch_batches=1
            )
            for table in batches:
                yield _without_extensions(table)

    def _batch(self, row: int, table: Any) -> Batch:
        flat = Flat({}, {})
        wanted = set(self._selection.values())
        known = paths_in(table.schema)
        if missing := wanted - {path for path, _ in known}:
            raise SourceFault(
                f"{_WHERE}: rows from {row} on have no column {min(missing)!r:.80}, which the "
                "first block has; add it, or choose common columns with columns=[…]"
            )
        for name in dict.fromkeys(field for path, field in known if path in wanted):
            flat.add(to_columns(_WHERE, row, name, table.column(name)), _WHERE)
        return Batch(_WHERE, row, flat.chosen(self._selection, _WHERE))

    def _compare(self, marks: dict[int, bytes]) -> None:
        for row, mark in marks.items():
            if self._marks.setdefault(row, mark) != mark:
                raise _changed(f"row {row} is another one")


def _changed(how: str) -> SourceFault:
    return SourceFault(
        f"{_WHERE} yields other rows when it is executed again: {how}; its functions must return "
        f"the same each time; else {_REMEDY}"
    )


@contextmanager
def _in_order(options: Any) -> Iterator[None]:
    """Let the blocks of a dataset come in its own order, and not as they are done."""
    before, options.preserve_order = options.preserve_order, True
    try:
        yield
    finally:
        options.preserve_order = before


def _operations(last: Any) -> Iterator[Any]:
    """Yield the operations of a plan, from the sources on."""
    for operation in last.input_dependencies:
        yield from _operations(operation)
    yield last


def _refuse_unordered(operation: Any) -> None:
    """Raise if the result of an operation may come in another order when it runs again."""
    name = type(operation).__name__
    function = getattr(_field(operation, "fn"), "__qualname__", "")
    reader = _field(operation, "datasource")
    is_shuffled = any(
        getattr(reader, one, None) is not None for one in ("_shuffle", "_file_metadata_shuffler")
    )
    factory = getattr(operation, "shuffle_config_factory", None)
    is_shuffled |= factory is not None and factory() is not None
    is_shuffled |= bool(_field(operation, "shuffle")) or bool(_field(operation, "keys"))
    if function.startswith("Dataset.random_sample."):
        name = "random_sample"
    elif name in _ORDERED and not is_shuffled:
        return
    shown = f"{name} with a shuffle" if is_shuffled else name
    raise SourceFault(
        f"{_WHERE} has the operation {shown}, whose rows may come in another order when it runs "
        f"again, as packing does to resume; {_REMEDY}"
    )


def _field(operation: Any, name: str) -> Any:
    """Return a part of an operation; earlier releases have it under a private name."""
    return getattr(operation, name, getattr(operation, f"_{name}", None))


def _described_files(dataset: Any) -> dict[str, Any]:
    """Return JSON values that change when the files that a dataset reads change."""
    paths = sorted(str(path) for path in dataset.input_files())
    local = [Path(path) for path in paths if Path(path).is_file()]
    if len(local) == len(paths):
        return describe_files("ray", local)
    return {"kind": "ray", "paths": paths}


def _marks_of(row: int, rows: Rows) -> dict[int, bytes]:
    """Return digests of some rows, which do not depend on the blocks that these came in."""
    num_rows = len(next(iter(rows.values())))
    marks = {}
    for place in range(-row % _ROWS_PER_MARK, num_rows, _ROWS_PER_MARK):
        digest = hashlib.blake2b(digest_size=8)
        for column in rows.values():
            if isinstance(column, Lists):
                values = column.values[column.offsets[place] : column.offsets[place + 1]]
            else:
                values = column[place]
            # A column of objects has no values here.
            if getattr(values, "dtype", None) != np.dtype(object):
                digest.update(np.ascontiguousarray(values).tobytes())
        marks[row + place] = digest.digest()
    return marks


def _without_extensions(table: Any) -> Any:
    """Return a table whose tensors are lists of lists, as they are elsewhere in Arrow."""
    arrow = import_arrow()
    for number, field in enumerate(table.schema):
        if isinstance(field.type, arrow.BaseExtensionType):
            column = table.column(number).combine_chunks()
            pieces = column.chunks if isinstance(column, arrow.ChunkedArray) else [column]
            plain = [_plain(arrow, field.name, piece) for piece in pieces]
            chunked = arrow.chunked_array(plain) if len(plain) > 1 else plain[0]
            table = table.set_column(number, field.name, chunked)
    return table


def _plain(arrow: Any, name: str, array: Any) -> Any:
    storage, shape = array.storage, getattr(array.type, "shape", None)
    if storage.null_count:
        raise SourceFault(
            f"{_WHERE}: column {name!r:.80} has tensors without a value; fill them, or exclude the "
            "column with columns=[…]"
        )
    if arrow.types.is_struct(storage.type):
        return _ragged(arrow, name, storage)
    if shape is None or not hasattr(storage, "flatten"):
        raise SourceFault(
            f"{_WHERE}: column {name!r:.80} is of type {array.type!s:.80}, such as Python objects, "
            "and must be of numbers, texts, bytes, dates or lists of these; convert it, or exclude "
            "it with columns=[…]"
        )
    return _nested(arrow, storage.flatten(), shape)


def _nested(arrow: Any, values: Any, shape: Any) -> Any:
    """Return values as lists of one length for each axis."""
    for size in reversed(shape):
        values = arrow.FixedSizeListArray.from_arrays(values, int(size))
    return values


def _ragged(arrow: Any, name: str, storage: Any) -> Any:
    """Return tensors of several shapes as lists, if they differ along their first axis alone."""
    data, shapes = storage.flatten()
    told = np.array([one.as_py() for one in shapes], np.int64).reshape(len(shapes), -1)
    inner = told[:1, 1:].reshape(-1) if len(told) else np.empty(0, np.int64)
    if not (told[:, 1:] == inner).all():
        raise SourceFault(
            f"{_WHERE}: column {name!r:.80} has tensors that differ in more than their first axis; "
            "pad or flatten them, or exclude the column with columns=[…]"
        )
    values = _nested(arrow, data.flatten(), inner.tolist())
    offsets = np.concatenate([[0], np.cumsum(told[:, 0])])
    return arrow.LargeListArray.from_arrays(arrow.array(offsets, arrow.int64()), values)
