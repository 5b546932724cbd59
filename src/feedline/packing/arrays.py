"""Arrays in memory and `.npy` files as a source; files are mapped, not loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.packing.batch import Batch, SourceFault, as_column
from feedline.packing.files import describe_files
from feedline.packing.settings import Selection, select

__all__ = ["ArraySource", "NpyFiles"]

_BATCH_BYTES = 2**22
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
        self.num_rows: int | None = next(iter(lengths.values()), 0)
        self.num_rows_guess: int | None = self.num_rows

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
        """Yield all rows from `start` on."""
        num_rows = self.num_rows or 0
        row_bytes = sum(array.nbytes for array in self._arrays.values()) // max(1, num_rows)
        step = max(1, _BATCH_BYTES // max(1, row_bytes))
        for row in range(start, num_rows, step):
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
        self.num_rows: int | None = sum(part.num_rows or 0 for part in self._parts)
        self.num_rows_guess: int | None = self.num_rows

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield all rows from `start` on."""
        for part in self._parts:
            num_rows = part.num_rows or 0
            if start < num_rows:
                yield from part.batches(start)
            start = max(start - num_rows, 0)


def _map(path: Path) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (OSError, ValueError, EOFError) as error:
        raise SourceFault(
            f"{path}: cannot be read ({error!s:.300}); check that it is a whole .npy file "
            "of numbers"
        ) from None


def _as_rows(where: str, name: str, values: Any) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise SourceFault(f"{where}: column {name!r:.80} is no array ({error})") from None
    if array.ndim == 0:
        raise SourceFault(
            f"{where}: column {name!r:.80} is one value and must have at least 1 axis, which "
            "counts the rows; give an array of shape (1,)"
        )
    as_column(where, 0, name, array[:0])
    return array
