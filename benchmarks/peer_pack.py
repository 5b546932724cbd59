"""Packing with the writers of others: `peer_pack.py mds|litdata KIND SOURCE FOLDER WORKERS`.

It prints how many seconds writing takes, without starting and without importing.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from time import perf_counter
from typing import Any

import pack_data


def mds(kind: str, source: str, folder: str, num_workers: int) -> float:
    import peer_mds  # noqa: F401  (its import makes streaming importable)
    from streaming import MDSWriter

    columns = {"id": "int", "text": "str"} if kind == "texts" else {"x": "bytes"}
    start = perf_counter()
    with MDSWriter(out=folder, columns=columns, size_limit=pack_data.CHUNK_BYTES) as out:
        rows = pack_data.read(kind, source)
        for number in range(len(rows)):
            out.write(rows[number])
    return perf_counter() - start


def sample(kind: str, source: str, number: int) -> Any:
    """Return one row; a worker opens the input once."""
    rows = _OPENED.get(source)
    if rows is None:
        rows = _OPENED[source] = pack_data.read(kind, source)
    return rows[number]


_OPENED: dict[str, Any] = {}


def litdata(kind: str, source: str, folder: str, num_workers: int) -> float:
    from litdata import optimize

    start = perf_counter()
    numbers = list(range(len(pack_data.read(kind, source))))
    take = partial(sample, kind, source)
    optimize(take, numbers, folder, chunk_bytes=pack_data.CHUNK_BYTES, num_workers=num_workers)
    return perf_counter() - start


if __name__ == "__main__":
    write = {"mds": mds, "litdata": litdata}[sys.argv[1]]
    kind, source, folder, num_workers = sys.argv[2:]
    print()
    print(json.dumps({"seconds": write(kind, source, folder, int(num_workers))}))
