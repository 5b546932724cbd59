"""The input of `pack.py`: rows of 4 KiB as one `.npy` file, and texts as one JSONL file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROW_BYTES = 4096
TEXT_BYTES = 1000
CHUNK_BYTES = 2**26


def make(kind: str, folder: Path, num_bytes: int) -> str:
    """Write the input of a kind, of about so many bytes; return its path."""
    import numpy as np

    path = folder / f"{kind}-{num_bytes}.{'jsonl' if kind == 'texts' else 'npy'}"
    noise = np.random.default_rng(0)
    if kind == "texts":
        words = np.array(
            ["".join(map(chr, noise.integers(97, 123, n % 9 + 2))) for n in range(999)]
        )
        texts = [" ".join(noise.choice(words, TEXT_BYTES // 7)) for _ in range(512)]
        with open(path, "w", encoding="utf-8") as file:
            for number in range(num_bytes // TEXT_BYTES):
                file.write(json.dumps({"id": number, "text": texts[number % 512]}) + "\n")
        return str(path)
    width = 8 if kind == "small" else ROW_BYTES // 4
    shape = (num_bytes // (4 * width), width)
    out = np.lib.format.open_memmap(path, "w+", np.int32, shape)
    block = noise.integers(0, 2**31, (4096, width), np.int32)
    for first in range(0, len(out), len(block)):
        out[first : first + len(block)] = block[: len(out) - first]
    out.flush()
    return str(path)


def read(kind: str, path: str) -> Any:
    """Return the rows as the writers of others take them: one dict each, by number."""
    if kind == "texts":
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    import numpy as np

    rows = np.load(path, mmap_mode="r")
    return _Rows(rows)


class _Rows:
    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"x": self._rows[number].tobytes()}
