"""An iterable of records as a source: mappings from columns to numbers, lists or arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError
from feedline.packing.batch import Batch, SourceFault, as_column
from feedline.packing.settings import Selection, select

__all__ = ["Records"]

_BATCH_ROWS = 1024
_BATCH_BYTES = 2**22


class Records:
    """Records that are read once, from the beginning."""

    def __init__(self, records: Iterable[Any], selection: Selection | None) -> None:
        self._selection = selection
        self._keys: list[str] | None = None
        self._batches = self._read(iter(records))
        self._first = next(self._batches, None)
        digest = hashlib.blake2b(digest_size=16)
        if self._first is not None:
            for array in self._first.arrays.values():
                digest.update(array.tobytes())
        # The rest cannot be looked at without being used up.
        self.identity = {"kind": "records", "first_records": digest.hexdigest()}
        self.num_rows: int | None = None
        self.num_rows_guess: int | None = None

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all rows from `start` on; those before are read again and passed over."""
        if self._first is None:
            return
        for batch in self._all():
            end = batch.row + batch.num_rows
            if end > start:
                yield batch.part(max(start - batch.row, 0))

    def _all(self) -> Iterator[Batch]:
        # Kept, because the first batch is asked for once to see the columns and once to be packed.
        assert self._first is not None
        yield self._first
        yield from self._batches

    def _read(self, records: Iterator[Any]) -> Iterator[Batch]:
        row = 0
        chosen: Selection = {}
        values: dict[str, list[NDArray[Any]]] = {}
        num_bytes = 0
        for number, record in enumerate(records):
            if not isinstance(record, Mapping):
                raise InvalidValueError(
                    f"source: record {number} is {record!r:.80} and must be a mapping from columns "
                    "to numbers, lists or arrays"
                )
            if number == 0:
                chosen = select(self._selection, record, "source")
            self._check_keys(number, record, chosen)
            for new, old in chosen.items():
                array = _as_value(number, old, record[old])
                known = values.setdefault(new, [])
                if known and (array.dtype, array.shape) != (known[0].dtype, known[0].shape):
                    raise SourceFault(
                        f"source: record {number}: column {old!r:.80} is {_kind(array)} but "
                        f"{_kind(known[0])} before; all records must have one type and shape, so "
                        "convert it, for example by numpy.asarray(value, dtype)"
                    )
                known.append(array)
                num_bytes += array.nbytes
            if number + 1 - row == _BATCH_ROWS or num_bytes >= _BATCH_BYTES:
                yield _batch(row, values)
                row, num_bytes, values = number + 1, 0, {}
        if values:
            yield _batch(row, values)

    def _check_keys(self, number: int, record: Mapping[str, Any], chosen: Selection) -> None:
        if self._keys is None:
            self._keys = list(record)
        missing = [old for old in chosen.values() if old not in record]
        if missing or (self._selection is None and len(record) != len(self._keys)):
            odd = missing or [name for name in record if name not in self._keys]
            raise SourceFault(
                f"source: record {number} and record 0 differ by the columns "
                f"{', '.join(map(repr, odd)):.200}; all records must have the same, so fill them "
                "in, or choose common ones by columns=[…]"
            )


def _as_value(number: int, name: str, value: Any) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise SourceFault(
            f"source: record {number}: column {name!r:.80} is no array of one shape "
            f"({error!s:.200}); pad or cut its lists to one length"
        ) from None
    return as_column("source", number, name, array)


def _batch(row: int, values: Mapping[str, list[NDArray[Any]]]) -> Batch:
    return Batch("source", row, {name: np.stack(arrays) for name, arrays in values.items()})


def _kind(array: NDArray[Any]) -> str:
    return f"{array.dtype.name}{list(array.shape)}"
