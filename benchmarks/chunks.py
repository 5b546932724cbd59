"""Shuffled batches of a sparse matrix in zarr, beside annbatch's Loader on the same store.

200,000 rows of 20,000 columns, 7.8% of them filled (about 1 GiB on disk, in inner chunks of 64
rows). Both loaders use the zarrs codec pipeline and draw random chunks without replacement; beside
them stands the bare decoding of all chunks in order, in two threads. A figure is the median of
seven passes of a few seconds each, taken in turn, after one of each that is not counted.

Needs Python 3.12, because annbatch does: run it with `make bench`. The last results lie in
`results/chunks.md`.
"""

from __future__ import annotations

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
ROWS_PER_CHUNK, CHUNKS_PER_SHARD = 64, 64
CASES = ((256, 32, 128), (256, 32, 4096), (32, 512, 128))
REPETITIONS = 7
SECONDS = 3.0


def write_matrix(path: Path) -> None:
    """Write a random sparse matrix in AnnData's encoding."""
    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    size = int(NUM_COLUMNS * DENSITY) * ROWS_PER_CHUNK
    layout = {"chunks": (size,), "shards": (size * CHUNKS_PER_SHARD,)}
    rng = np.random.default_rng(0)
    indptr = np.zeros(NUM_ROWS + 1, np.int64)
    parts = []
    for first in range(0, NUM_ROWS, 1000):
        rows, columns = np.nonzero(rng.random((1000, NUM_COLUMNS), np.float32) < DENSITY)
        indptr[first + 1 : first + 1001] = np.bincount(rows, minlength=1000)
        parts.append(columns.astype(np.int32))
    np.cumsum(indptr, out=indptr)
    group = zarr.open_group(path, mode="w", zarr_format=3)
    matrix = group.create_group("X")
    attributes = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
    matrix.attrs.update({**attributes, "shape": [NUM_ROWS, NUM_COLUMNS]})
    indices = matrix.create_array("indices", shape=(int(indptr[-1]),), dtype="i4", **layout)
    data = matrix.create_array("data", shape=(int(indptr[-1]),), dtype="f4", **layout)
    step = size * CHUNKS_PER_SHARD
    columns = np.concatenate(parts)
    for first in range(0, len(columns), step):
        end = min(first + step, len(columns))
        indices[first:end] = columns[first:end]
        data[first:end] = rng.poisson(1.5, end - first).astype(np.float32) + 1
    matrix.create_array("indptr", data=indptr)


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


def bare_decode(path: Path) -> float:
    """Decode the values and the columns in two threads, shard by shard; return rows per second."""
    matrix = zarr.open_group(path, mode="r")["X"]

    def decode(name: str) -> None:
        array = matrix[name]
        for first in range(0, array.shape[0], array.shards[0]):
            array[first : first + array.shards[0]]

    start = perf_counter()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(decode, ("data", "indices")))
    return NUM_ROWS / (perf_counter() - start)


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
