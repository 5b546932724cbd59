"""Samples as JSON: what a library's own reader said of the data that it wrote.

The scripts in the folders beside this file run with numpy and their library only.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def dump(samples: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write samples, in the order of the dataset; values are numbers, arrays, bytes or texts."""
    lines = [json.dumps({name: _encoded(value) for name, value in s.items()}) for s in samples]
    # Without a name and a time, the same samples give the same file.
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write("\n".join(lines).encode())


def load(path: Path) -> list[dict[str, Any]]:
    """Return samples that `dump` has written."""
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")
    return [{k: _decoded(v) for k, v in json.loads(line).items()} for line in lines]


def _encoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return {
            "dtype": array.dtype.name,
            "shape": array.shape,
            "values": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode(),
        }
    assert value is None or isinstance(value, str | int | float | bool), value
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict) and "bytes" in value:
        return base64.b64decode(value["bytes"])
    if isinstance(value, dict):
        content = base64.b64decode(value["values"])
        return np.frombuffer(content, value["dtype"]).reshape(value["shape"])
    return value
