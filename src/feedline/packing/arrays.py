"""Arrays, `.npy` files and records as a source; files are mapped, not loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError
from feedline.packing.fitting import column_of, no_value
from feedline.packing.parts import Part, parts_between, rows_between
from feedline.packing.rows import (
    Batch,
    Flat,
    Rows,
    SourceFault,
    as_column,
    describe_files,
    part_of_rows,
    take_rows,
)
from feedline.packing.selection import Selection, old_names, select
from feedline.packing.values import column_from, column_of_items
from feedline.store.lists import Lists

_BATCH_BYTES = 2**22
_BATCH_ROWS = 1024
_NUM_DIGEST_ROWS = 64
# Hashed whole in well under a second.
_MAX_DIGEST_BYTES = 2**26


class ArraySource:
    """Columns of equally many rows: arrays, lists, `Lists`, and columns in columns."""

    can_restart = True

    def __init__(
        self, arrays: Mapping[str, Any], selection: Selection | None, where: str = "source"
    ) -> None:
        self._where = where
        flat = Flat({}, {})
        wanted = None if selection is None else old_names(selection)
        for name, values in arrays.items():
            if wanted is None or not isinstance(name, str) or _is_wanted(name, wanted):
                flat.add(column_from(where, name, values), where)
            else:
                flat.values[name] = np.empty(0)
        chosen = select(selection, flat.values, where)
        self._columns = flat.chosen(chosen, where)
        lengths = {name: len(array) for name, array in self._columns.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
            raise SourceFault(f"{where}: columns must have equally many rows, but {listed:.300}")
        self.num_rows = self.num_rows_guess = next(iter(lengths.values()))
        for name, column in self._columns.items():
            values = column.values if isinstance(column, Lists) else column
            if self.num_rows and values.dtype == object:
                raise no_value(where, name, self.num_rows)

    @property
    def identity(self) -> dict[str, Any]:
        """The types and shapes, and a digest of all rows, or of some that are evenly spread."""
        digest = hashlib.blake2b(digest_size=16)
        shapes = {}
        is_small = sum(column.nbytes for column in self._columns.values()) <= _MAX_DIGEST_BYTES
        for name, column in self._columns.items():
            array = column.values if isinstance(column, Lists) else column
            shapes[name] = [array.dtype.name, list(array.shape)]
            for rows in _rows_to_digest(column, is_small):
                digest_rows(digest, {name: column}, rows)
        return {"kind": "arrays", "shapes": shapes, "digest": digest.hexdigest()}

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all rows from `start`."""
        num_bytes = sum(column.nbytes for column in self._columns.values())
        step = max(1, _BATCH_BYTES // max(1, num_bytes // max(1, self.num_rows)))
        for row in range(start, self.num_rows, step):
            arrays = {
                name: column[row : row + step]
                if isinstance(column, Lists)
                else as_column(self._where, row, name, column[row : row + step])
                for name, column in self._columns.items()
            }
            yield Batch(self._where, row, arrays)


def _is_wanted(name: str, wanted: list[str]) -> bool:
    return any(old == name or old.startswith(f"{name}/") for old in wanted)


def _rows_to_digest(column: Any, is_small: bool) -> Iterator[NDArray[np.int64]]:
    """Yield the rows that tell whether a column has changed, some at a time."""
    num_rows = len(column)
    if num_rows and not is_small:
        yield np.linspace(0, num_rows - 1, _NUM_DIGEST_ROWS).astype(np.int64)
    elif num_rows:
        step = max(1, _BATCH_BYTES * num_rows // max(1, column.nbytes))
        for row in range(0, num_rows, step):
            yield np.arange(row, min(row + step, num_rows))


def digest_rows(digest: Any, rows: Rows, places: NDArray[np.int64]) -> None:
    """Add some rows to a digest."""
    for column in take_rows(rows, places).values():
        parts = (column.offsets, column.values) if isinstance(column, Lists) else (column,)
        for part in parts:
            digest.update(part.tobytes())


class NpyFiles:
    """One or several `.npy` files for each column; several are read one after another."""

    can_restart = True

    def __init__(self, files: Mapping[str, list[Path]], selection: Selection | None) -> None:
        self._opened_with = files, selection
        chosen = select(selection, files, "source")
        paths = [path for old in chosen.values() for path in files[old]]
        self.identity = describe_files("npy", paths)
        # Mapped files cost nothing until they are read, so all can be open at once.
        self._parts = [
            ArraySource({new: _map(files[old][number]) for new, old in chosen.items()}, None, where)
            for number, where in enumerate(str(path) for path in files[next(iter(chosen.values()))])
        ]
        self.num_rows = self.num_rows_guess = sum(part.num_rows for part in self._parts)

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all rows from `start`."""
        for part in self._parts:
            if start < part.num_rows:
                yield from part.batches(start)
            start = max(start - part.num_rows, 0)

    def parts(self, num_bytes: int, row_bytes: int) -> list[Part]:
        """Return ranges of rows; any row can be read alone."""
        step = max(1, num_bytes // max(1, row_bytes))
        return parts_between([*range(0, self.num_rows, step), self.num_rows], step)

    def read(self, part: Part, row: int) -> Iterator[Batch]:
        """Yield the rows of a part."""
        return rows_between(self, part.start, part.stop)

    def __reduce__(self) -> tuple[Any, ...]:
        # Mapped files would be pickled with all that is in them.
        return NpyFiles, self._opened_with


def _map(path: Path) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (OSError, ValueError, EOFError) as error:
        raise SourceFault(
            f"{path}: cannot be read ({error!s:.300}); check that it is a complete .npy file of "
            "numbers"
        ) from None


class Records:
    """Records, from an iterable that can be iterated once, or again and again."""

    num_rows = num_rows_guess = None

    def __init__(self, records: Iterable[Any], selection: Selection | None) -> None:
        self._records = records
        self._selection = selection
        #: A generator is used up by reading it.
        self.can_restart = not isinstance(records, Iterator)
        self._rest = _read_records(records, selection)
        self._is_begun = False
        # Kept, as it is asked for once to see the columns and once to be packed.
        self._first = list(islice(self._rest, 1))
        # The rest cannot be looked at without being used up.
        self.identity = {"kind": "records", "first_records": _digest_of(self._first)}

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all rows from `start`; earlier rows are read again and skipped."""
        for batch in self._all():
            skip = max(start - batch.row, 0)
            if skip < batch.num_rows:
                rows = part_of_rows(batch.arrays, skip, batch.num_rows)
                yield Batch(batch.where, batch.row + skip, rows)

    def _all(self) -> Iterator[Batch]:
        yield from self._first
        if self._is_begun:
            assert self.can_restart
            self._rest = _read_records(self._records, self._selection)
            if _digest_of(list(islice(self._rest, 1))) != self.identity["first_records"]:
                raise SourceFault(
                    "source: yields other records when it is iterated again, and packing has to "
                    "start over, because late records show lists or missing values that the first "
                    "ones do not have; pass a list"
                )
        self._is_begun = True
        yield from self._rest


def _digest_of(batches: list[Batch]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for batch in batches:
        typed = {n: v for n, v in batch.arrays.items() if column_of(n, v, {}) is not None}
        digest_rows(digest, typed, np.arange(batch.num_rows))
    return digest.hexdigest()


def _read_records(records: Iterable[Any], selection: Selection | None) -> Iterator[Batch]:
    row, num_bytes = 0, 0
    keys: list[str] = []
    wanted: list[str] = []
    items: dict[str, list[Any]] = {}
    reader = _Columns(selection)
    for number, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise InvalidValueError(
                f"source: record {number} is {record!r:.80} and must be a mapping from columns "
                "to values"
            )
        if number == 0:
            keys = wanted = list(record)
            if selection is not None:
                old = old_names(selection)
                wanted = [k for k in keys if isinstance(k, str) and _is_wanted(k, old)]
            if not wanted:
                select(selection, keys, "source")
        odd = [name for name in wanted if name not in record]
        if selection is None and len(record) != len(keys):
            odd = odd or [name for name in record if name not in keys]
        if odd:
            raise SourceFault(
                f"source: record {number} and record 0 differ by the columns "
                f"{', '.join(map(repr, odd)):.200}; all records must have the same columns; add "
                "None for missing values, or choose common columns with columns=[…]"
            )
        for name in wanted:
            items.setdefault(name, []).append(record[name])
            num_bytes += _about_bytes(record[name])
        if number + 1 - row == _BATCH_ROWS or num_bytes >= _BATCH_BYTES:
            yield reader.batch(row, items)
            row, num_bytes, items = number + 1, 0, {}
    if items:
        yield reader.batch(row, items)


def _about_bytes(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(map(_about_bytes, value.values()))
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    # Lists of lists are seldom long.
    return 8 * len(value) if isinstance(value, list | tuple) else _length(value)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | bytearray) else 8


class _Columns:
    """Makes columns of the values of records, the same ones each time."""

    def __init__(self, selection: Selection | None) -> None:
        self._selection = selection
        self._paths: dict[str, list[str]] = {}

    def batch(self, row: int, items: Mapping[str, list[Any]]) -> Batch:
        """Return some records, by the values of each of their columns."""
        flat = Flat({}, {})
        for name, values in items.items():
            found = column_of_items("source", row, name, values)
            paths = self._paths.setdefault(name, list(found.values))
            if list(found.values) == [name] != paths and name in found.missing:
                # Of records that are all missing, each column is.
                values_of_all = dict.fromkeys(paths, found.values[name])
                found = Flat(values_of_all, dict.fromkeys(paths, found.missing[name]))
            flat.add(found, "source")
        chosen = select(self._selection, flat.values, "source")
        return Batch("source", row, flat.chosen(chosen, "source"))
