"""Arrays, `.npy` files and records as a source; files are mapped, not loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError
from feedline.packing.rows import Batch, SourceFault, as_column, describe_files
from feedline.packing.selection import Selection, select

_BATCH_BYTES = 2**22
_BATCH_ROWS = 1024
_NUM_DIGEST_ROWS = 64


class ArraySource:
    """Arrays whose first axes count the same rows."""

    def __init__(
        self, arrays: Mapping[str, Any], selection: Selection | None, where: str = "source"
    ) -> None:
        self._where = where
        chosen = select(selection, arrays, where)
        self._arrays = {new: _as_rows(where, old, arrays[old]) for new, old in chosen.items()}
        lengths = {name: len(array) for name, array in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
            raise SourceFault(f"{where}: columns must have equally many rows, but {listed:.300}")
        self.num_rows = self.num_rows_guess = next(iter(lengths.values()))

    @property
    def identity(self) -> dict[str, Any]:
        """The types and shapes, and a digest of some evenly spread rows."""
        digest = hashlib.blake2b(digest_size=16)
        shapes = {}
        for name, array in self._arrays.items():
            shapes[name] = [array.dtype.name, list(array.shape)]
            spread = np.linspace(0, max(len(array) - 1, 0), _NUM_DIGEST_ROWS).astype(np.int64)
            digest.update(array[spread].tobytes() if len(array) else b"")
        return {"kind": "arrays", "shapes": shapes, "digest": digest.hexdigest()}

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all rows from `start`."""
        row_bytes = sum(array.nbytes for array in self._arrays.values()) // max(1, self.num_rows)
        step = max(1, _BATCH_BYTES // max(1, row_bytes))
        for row in range(start, self.num_rows, step):
            arrays = {
                name: as_column(self._where, row, name, array[row : row + step])
                for name, array in self._arrays.items()
            }
            yield Batch(self._where, row, arrays)


class NpyFiles:
    """One or several `.npy` files for each column; several are read one after another."""

    def __init__(self, files: Mapping[str, list[Path]], selection: Selection | None) -> None:
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
            yield from part.batches(start)
            start = max(start - part.num_rows, 0)


def _map(path: Path) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (OSError, ValueError, EOFError) as error:
        raise SourceFault(
            f"{path}: cannot be read ({error!s:.300}); check that it is a complete .npy file of "
            "numbers"
        ) from None


def _as_array(where: str, name: str, values: Any) -> NDArray[Any]:
    if np.ma.is_masked(values):
        raise SourceFault(
            f"{where}: column {name!r:.80} has masked values; fill them, and keep the mask as "
            "another column if it matters"
        )
    try:
        return np.asarray(values)
    except TypeError as error:
        raise SourceFault(
            f"{where}: column {name!r:.80} has no numpy type ({error!s:.200}); convert it, such as "
            "by tensor.float()"
        ) from None
    except (ValueError, OverflowError) as error:
        raise SourceFault(
            f"{where}: column {name!r:.80} is not an array of one shape ({error!s:.200}); pad or "
            "cut its lists to one length"
        ) from None


def _as_rows(where: str, name: str, values: Any) -> NDArray[Any]:
    array = _as_array(where, name, values)
    if array.ndim == 0:
        raise SourceFault(
            f"{where}: column {name!r:.80} is a single value and must have at least 1 axis, which "
            "counts the rows; use an array of shape (1,)"
        )
    as_column(where, 0, name, array[:0])
    return array


class Records:
    """Records that are read once, from the start."""

    num_rows = num_rows_guess = None

    def __init__(self, records: Iterable[Any], selection: Selection | None) -> None:
        self._batches = _read_records(records, selection)
        # Kept, as it is asked for once to see the columns and once to be packed.
        self._first = list(islice(self._batches, 1))
        digest = hashlib.blake2b(digest_size=16)
        for array in self._first[0].arrays.values() if self._first else ():
            digest.update(array.tobytes())
        # The rest cannot be looked at without being used up.
        self.identity = {"kind": "records", "first_records": digest.hexdigest()}

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all rows from `start`; earlier rows are read again and skipped."""
        for batch in chain(self._first, self._batches):
            skip = max(start - batch.row, 0)
            if skip < batch.num_rows:
                rows = {name: array[skip:] for name, array in batch.arrays.items()}
                yield Batch(batch.where, batch.row + skip, rows)


def _read_records(records: Iterable[Any], selection: Selection | None) -> Iterator[Batch]:
    row, num_bytes = 0, 0
    keys: Collection[str] = ()
    chosen: Selection = {}
    values: dict[str, list[NDArray[Any]]] = {}
    for number, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise InvalidValueError(
                f"source: record {number} is {record!r:.80} and must be a mapping from columns "
                "to numbers, lists or arrays"
            )
        if number == 0:
            keys, chosen = list(record), select(selection, record, "source")
        odd = [old for old in chosen.values() if old not in record]
        if selection is None and len(record) != len(keys):
            odd = odd or [name for name in record if name not in keys]
        if odd:
            raise SourceFault(
                f"source: record {number} and record 0 differ by the columns "
                f"{', '.join(map(repr, odd)):.200}; all records must have the same columns; add "
                "the missing values, or choose common columns with columns=[…]"
            )
        for new, old in chosen.items():
            array = _as_array(f"source: record {number}", old, record[old])
            array = as_column("source", number, old, array)
            known = values.setdefault(new, [])
            if known and (array.dtype, array.shape) != (known[0].dtype, known[0].shape):
                found, wanted = (f"{a.dtype.name}{list(a.shape)}" for a in (array, known[0]))
                raise SourceFault(
                    f"source: record {number}: column {old!r:.80} is {found} but {wanted} before; "
                    "all records must have one type and shape; convert it, for example with "
                    "numpy.asarray(value, dtype)"
                )
            known.append(array)
            num_bytes += array.nbytes
        if number + 1 - row == _BATCH_ROWS or num_bytes >= _BATCH_BYTES:
            yield _stack(row, values)
            row, num_bytes, values = number + 1, 0, {}
    if values:
        yield _stack(row, values)


def _stack(row: int, values: Mapping[str, list[NDArray[Any]]]) -> Batch:
    return Batch("source", row, {name: np.stack(arrays) for name, arrays in values.items()})
