"""Reads matrices with random damage, and prints what came of each try as one JSON object.

Arguments: a folder with matrices, a folder to work in, the number of tries and a seed. A crash ends
the process by a signal; all else is counted: what could be read, errors of Feedline, and others.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

from feedline.errors import FeedlineError
from feedline.store import open_anndata

# Damage in a header may ask for any amount of memory; so it is refused before it hurts.
MAX_BYTES = 8 * 2**30


def damage(path: Path, rng: np.random.Generator) -> str:
    """Change, cut off or append some bytes of a file of a matrix; return its name."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    # Most damage to headers is found by zarr at once.
    chosen = [file for file in files if file.name != "zarr.json" or rng.random() < 0.2]
    file = chosen[rng.integers(len(chosen))]
    content = bytearray(file.read_bytes())
    kind = rng.integers(8)
    if kind == 0:
        content = content[: rng.integers(len(content))]
    elif kind == 1:
        content += rng.bytes(rng.integers(1, 50))
    else:
        for place in rng.integers(0, len(content), rng.integers(1, 6)):
            content[place] ^= rng.integers(1, 256)
    file.write_bytes(content)
    return str(file.relative_to(path))


def main(source: Path, work: Path, num_tries: int, seed: int) -> None:
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    rng = np.random.default_rng(seed)
    matrices = sorted(source.iterdir())
    counts: Counter[str] = Counter()
    others: set[str] = set()
    for _ in range(num_tries):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(matrices[rng.integers(len(matrices))], work)
        # Opening looks at some chunks itself; damage that comes later meets other decoders.
        opened = open_anndata(work) if rng.random() < 0.6 else None
        name = damage(work, rng)
        try:
            store = opened or open_anndata(work, obs=["number", "label"])
            num_rows = min(store.shape[0], 1000)
            rows = store.fetch(np.arange(num_rows)).take(rng.permutation(num_rows))
            # Whatever was read, it must be safe to use.
            _ = rows.toarray() if hasattr(rows, "toarray") else rows.copy()
            counts["read"] += 1
        except FeedlineError:
            counts["refused"] += 1
        except Exception as error:
            counts["other"] += 1
            others.add(f"{name}: {type(error).__name__}: {error}"[:80])
    print(json.dumps({"counts": counts, "others": sorted(others)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
