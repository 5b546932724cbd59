"""A store whose rows Python code makes, one by one, in any process; what befalls it there."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.store import Column, Lists, Store

CHUNK_ROWS = 300


class PythonStore(Store):
    """Numbers and texts.

    Args:
        num_rows: The number of rows.
        folder: Where processes leave their numbers, as names of files.
        home: The process that packs; nothing befalls it.
        fate: What befalls another one that reads row 2000: it is killed "once", or "always", or it
            sends an "interrupt" to the one that packs; or it "fails" to read the row.
    """

    def __init__(self, num_rows: int, folder: Path, fate: str = "") -> None:
        self._num_rows, self._folder, self._fate = num_rows, folder, fate
        self._home = os.getpid()

    @property
    def num_samples(self) -> int:
        return self._num_rows

    @property
    def chunk_sizes(self) -> NDArray[np.int64]:
        firsts = np.arange(0, self._num_rows, CHUNK_ROWS)
        return np.minimum(CHUNK_ROWS, self._num_rows - firsts)

    @property
    def columns(self) -> dict[str, Column]:
        return {
            "item": Column("item", "int64"),
            "text": Column("text", "uint8", kind="text", mean_bytes=9),
        }

    @property
    def fingerprint(self) -> str:
        return f"python {self._num_rows}"

    def describe_row(self, chunk: int, row: int) -> str:
        return f"row {chunk * CHUNK_ROWS + row}"

    def read(self, chunk: int, rows: NDArray[np.int64], out: Any = None) -> dict[str, Any]:
        numbers = [chunk * CHUNK_ROWS + row for row in rows.tolist()]
        if os.getpid() != self._home:
            (self._folder / str(os.getpid())).touch()
            if 2000 in numbers:
                self._befall()
        return {"item": np.array(numbers), "text": Lists.of([f"text {n}" for n in numbers])}

    def _befall(self) -> None:
        spent = self._folder / "spent"
        if self._fate == "always" or (self._fate == "once" and not spent.exists()):
            spent.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._fate == "interrupt":
            os.kill(os.getppid(), signal.SIGINT)
        elif self._fate == "fails":
            raise MemoryError

    @property
    def pids(self) -> list[int]:
        """The processes that have read."""
        return [int(path.name) for path in self._folder.iterdir() if path.name.isdigit()]
