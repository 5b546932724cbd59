"""Shuffled batches of a sparse matrix in zarr, beside annbatch's Loader on the same store.

200,000 rows of 20,000 columns, 7.8% of them filled, written as annbatch writes by default (0.7 GiB
on disk, in inner chunks of 64 rows). Both loaders use the zarrs codec pipeline and draw random
chunks without replacement. Beside them stands the bare decoding of all chunks in order, in two
threads that have no use for what they decode. A figure is the median of seven passes of a few
seconds each, taken in turn, after one of each that is not counted.

Needs Python 3.12, because annbatch does: run it with `make bench`. The last results lie in
`results/chunks.md`.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import measure
import numpy as np
import zarr

NUM_ROWS, NUM_COLUMNS, DENSITY = 200_000, 20_000, 0.078
CASES = ((256, 32, 128), (256, 32, 4096), (32, 512, 128))
REPETITIONS = 7
SECONDS = 3.0


def write_matrix(path: Path) -> None:
    """Write a random sparse matrix as annbatch does by default: lz4, sharded, 64 rows a chunk."""
    import anndata
    from annbatch import write_sharded
    from scipy.sparse import csr_matrix

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    rng = np.random.default_rng(0)
    indptr = np.zeros(NUM_ROWS + 1, np.int64)
    parts = []
    for first in range(0, NUM_ROWS, 1000):
        rows, columns = np.nonzero(rng.random((1000, NUM_COLUMNS), np.float32) < DENSITY)
        indptr[first + 1 : first + 1001] = np.bincount(rows, minlength=1000)
        parts.append(columns.astype(np.int32))
    indices = np.concatenate(parts)
    data = rng.poisson(1.5, len(indices)).astype(np.float32) + 1
    rows = (data, indices, np.cumsum(indptr))
    matrix = csr_matrix(rows, shape=(NUM_ROWS, NUM_COLUMNS), copy=False)
    write_sharded(zarr.open_group(path, mode="w", zarr_format=3), anndata.AnnData(X=matrix))


def our_loader(path: Path, case: tuple[int, int, int]) -> Any:
    from feedline.chunks import RandomSampler
    from feedline.feed import ChunkLoader
    from feedline.store import open_anndata

    loader = ChunkLoader(open_anndata(path), RandomSampler(*case, rng=0))
    return lambda: (batch.X.shape[0] for batch in loader)


def their_loader(path: Path, case: tuple[int, int, int]) -> Any:
    import anndata
    from annbatch import Loader
    from annbatch.samplers import RandomSampler

    sampler = RandomSampler(*case, rng=np.random.default_rng(0))
    loader = Loader(batch_sampler=sampler, preload_to_gpu=False)
    loader.add_dataset(anndata.io.sparse_dataset(zarr.open_group(path, mode="r")["X"]))
    return lambda: (batch["X"].shape[0] for batch in loader)


def rate(batches: Any) -> float:
    """Return rows per second over some seconds."""
    start, num_rows = perf_counter(), 0
    for size in batches:
        num_rows += size
        if perf_counter() - start > SECONDS:
            break
    return num_rows / (perf_counter() - start)


def stored_chunks(array: Any) -> list[tuple[int, int, int]]:
    """Return the open file, the place and the length of every chunk of a sharded array."""
    per_shard = array.shards[0] // array.chunks[0]
    num_bytes = 16 * per_shard
    found = []
    for path in sorted(Path(array.store.root, array.path, "c").iterdir()):
        file = os.open(path, os.O_RDONLY)
        end = os.fstat(file).st_size - 4
        index = np.frombuffer(os.pread(file, num_bytes, end - num_bytes), "<u8").reshape(-1, 2)
        found += [(file, *place) for place in index.tolist() if place[0] != 2**64 - 1]
    return found


def bare_decode(path: Path) -> float:
    """Decode all chunks in two threads, each always into the same memory; return rows a second."""
    from numcodecs import blosc

    group: Any = zarr.open_group(path, mode="r")["X"]
    jobs = [
        (group[name], chunk) for name in ("data", "indices") for chunk in stored_chunks(group[name])
    ]

    def decode(number: int) -> None:
        memory = {name: np.empty(group[name].chunks, group[name].dtype) for name in group}
        for array, (file, first, length) in jobs[number::2]:
            blosc.decompress(os.pread(file, length, first), memory[array.basename])

    start = perf_counter()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(decode, range(2)))
    seconds = perf_counter() - start
    for file in {chunk[0] for _, chunk in jobs}:
        os.close(file)
    return NUM_ROWS / seconds


def measure_case(path: Path, case: tuple[int, int, int]) -> dict[str, float]:
    loaders: dict[str, Callable[[], Any]] = {
        "feedline": our_loader(path, case),
        "annbatch": their_loader(path, case),
    }
    runs: dict[str, list[float]] = {name: [] for name in loaders}
    for repetition in range(REPETITIONS + 1):
        for name, begin in loaders.items():
            found = rate(begin())
            if repetition:
                runs[name].append(found)
    return {name: statistics.median(found) for name, found in runs.items()}


def main() -> int:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as parent:
        path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(parent) / "matrix.zarr"
        if not path.exists():
            write_matrix(path)
        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
        figures = {str(case): measure_case(path, case) for case in CASES}
        bare_decode(path)
        decode = statistics.median(bare_decode(path) for _ in range(REPETITIONS))
    rows, checks = [], []
    for case in CASES:
        ours, theirs = figures[str(case)]["feedline"], figures[str(case)]["annbatch"]
        name = f"chunk {case[0]} x {case[1]}, batch {case[2]}"
        rows.append([name, f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}x"])
        checks.append((f"{name}: {ours / theirs:.2f}x annbatch (1.5)", ours >= 1.5 * theirs))
    ours = figures[str(CASES[0])]["feedline"]
    rows.append(
        ["… beside bare decoding", f"{ours:,.0f}", f"{decode:,.0f}", f"{ours / decode:.0%}"]
    )
    checks.append((f"{ours / decode:.0%} of bare decoding (40%)", ours >= 0.4 * decode))
    table = measure.table(["rows per second", "feedline", "beside it", ""], rows)
    text = (
        f"# A sparse matrix in zarr\n\n{NUM_ROWS:,} x {NUM_COLUMNS:,}, {DENSITY:.1%} filled. "
        f"Medians of {REPETITIONS}; {measure.machine()}.\n\n{table}"
    )
    return measure.finish("chunks", text, {**figures, "decode": decode}, checks)


if __name__ == "__main__":
    sys.exit(main())
