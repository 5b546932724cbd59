"""Chunks to read in tests: sample arrays, hand-made headers, and files that were tampered with."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PLAIN_TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)


def counting(type_name: str, *shape: int) -> NDArray[Any]:
    """An array whose values differ from place to place, as far as the type allows."""
    count = int(np.prod(shape))
    values = np.arange(count) % 2 if type_name == "bool" else np.arange(count) % 101
    return values.astype(type_name).reshape(shape)


def npy_bytes(header: str, data: bytes = b"", version: int = 1, length: int | None = None) -> bytes:
    """A `.npy` file with any header text, and any length that it claims for it."""
    size = 2 if version == 1 else 4
    text = header.encode()
    claimed = len(text) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + claimed.to_bytes(size, "little") + text + data


def safetensors_bytes(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A `.safetensors` file with any header, and any length that it claims for it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    claimed = len(text) if length is None else length
    return claimed.to_bytes(8, "little") + text + data


def written(path: Path, content: bytes) -> Path:
    """The path, after writing the content to it."""
    path.write_bytes(content)
    return path


def with_flips(content: bytes, flips: list[tuple[int, int]]) -> bytes:
    """The content with bytes replaced; places count around its end."""
    changed = bytearray(content)
    for place, value in flips:
        changed[place % len(changed)] = value
    return bytes(changed)


@contextmanager
def little_memory(num_bytes: int = 2**22) -> Iterator[None]:
    """Fail if Python or numpy take more than `num_bytes` at any moment inside."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak < num_bytes
