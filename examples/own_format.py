"""A format of your own in some twenty lines: records of CSV lines, read by number.

The store says how many samples there are and reads rows; `feedline.testing.check_store` checks what
every store promises. Shuffling, resuming, other numbers of ranks and workers come with it.

    python examples/own_format.py
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import feedline
from feedline.store import Column, Lists
from feedline.testing import check_store


class Lines(feedline.Store):
    """The lines of text files; each file is a chunk."""

    columns: ClassVar = {"line": Column("line", "uint8", kind="text", mean_bytes=20)}

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.txt"))
        self.sizes = np.array([path.read_bytes().count(b"\n") for path in self.paths])

    @property
    def num_samples(self) -> int:
        return int(self.sizes.sum())

    @property
    def chunk_sizes(self) -> NDArray[np.int64]:
        return self.sizes

    @property
    def fingerprint(self) -> str:
        contents = b"\0".join(path.read_bytes() for path in self.paths)
        return hashlib.blake2b(contents, digest_size=16).hexdigest()

    def read(self, chunk: int, rows: Any, out: dict[str, Any] | None = None) -> dict[str, Any]:
        if len(rows) and not 0 <= min(rows) <= max(rows) < self.sizes[chunk]:
            raise ValueError(f"rows must be in [0, {self.sizes[chunk]})")
        content = np.fromfile(self.paths[chunk], np.uint8)
        edges = np.concatenate([[0], np.flatnonzero(content == ord("\n")) + 1])
        lines = Lists(content, edges, "text").take(np.asarray(rows, np.int64))
        return {**(out or {}), "line": lines}

    def describe_row(self, chunk: int, row: int) -> str:
        return f"{self.paths[chunk]}, line {row + 1}"


def main() -> None:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        for number in range(4):
            lines = [f"file {number}, line {line}\n" for line in range(20 + number)]
            (folder / f"{number}.txt").write_text("".join(lines), encoding="utf-8")
        store = Lines(folder)
        print(store)
        check_store(store, reopen=lambda: Lines(folder))
        print("check_store: every promise is kept")

        loader = feedline.DataLoader(store, batch_size=8, shuffle=True, seed=1)
        batches = iter(loader)
        seen = [line for _ in range(4) for line in next(batches)["line"]]
        state = loader.state_dict()
        for rank in range(3):
            resumed = feedline.DataLoader(
                store, batch_size=5, shuffle=True, seed=1, num_replicas=3, rank=rank
            )
            resumed.load_state_dict(state)
            seen += [line for batch in resumed for line in batch["line"]]
        assert sorted(seen) == sorted(store[:]["line"])
        print(f"4 batches on one rank, the rest on three: {len(seen)} lines, each once")


if __name__ == "__main__":
    main()
