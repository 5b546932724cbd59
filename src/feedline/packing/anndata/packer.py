"""`pack_anndata`: from AnnData files to one shuffled, sharded zarr group."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.errors import InvalidValueError, PackError, check_integer, check_sequence
from feedline.packing.anndata.checking import check_files
from feedline.packing.anndata.columns import check_path_name
from feedline.packing.anndata.sources import AnnDataFiles
from feedline.packing.anndata.writer import AnnDataWriter, chunk_entries
from feedline.packing.rows import Rows, check_unchanged
from feedline.packing.settings import DEFAULT_MEMORY, check_memory
from feedline.packing.shuffle import Shuffle
from feedline.packing.workshop import Product, Workshop, check_apart
from feedline.plan.seeds import Seed, check_seed, describe_seed
from feedline.store.progress import Progress, open_progress
from feedline.store.writing import reported, sync_chunk
from feedline.words import one_line

#: The column of `obs` that has the number of the row in the sources.
SOURCE_ROW = "feedline_source_row"
_MAX_THREADS = 8
#: The attribute of a group that packing has written.
_MARK = "feedline-pack"


@one_line
@dataclass(frozen=True, kw_only=True)
class AnnDataPackResult:
    """What packing AnnData has written.

    `num_values` counts the stored values of the matrix, and `num_bytes` the bytes on disk. `obs`
    names the columns.

    Args:
        folder: Where it lies.
        num_sources: The number of files that were packed.
        num_rows: The number of rows of the matrix.
        num_columns: The number of columns of the matrix.
        num_values: The number of stored values.
        num_bytes: The bytes on disk.
        is_sparse: Whether the matrix is sparse.
        dtype: The type of its values.
        obs: The names of the columns of `obs`.
    """

    folder: Path
    num_sources: int
    num_rows: int
    num_columns: int
    num_values: int
    num_bytes: int
    is_sparse: bool
    dtype: str
    obs: tuple[str, ...]


def pack_anndata(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    *,
    element: str = "X",
    obs: Iterable[str] | None = None,
    chunk_rows: int = 64,
    shard_rows: int | None = None,
    shuffle: bool = True,
    seed: int | str = 0,
    source_row: str | None = SOURCE_ROW,
    memory_budget: int = DEFAULT_MEMORY,
    progress: bool | None = None,
    overwrite: bool = False,
) -> AnnDataPackResult:
    """Write AnnData files as one zarr v3 group, shuffled and sharded, and return what was written.

    The result is AnnData's own encoding: `open_anndata` and `anndata.read_zarr` read it. It has the
    matrix, as `X`, the columns of `obs`, and the names of the variables. It appears at the end,
    complete, or not at all. `memory_budget` does not change it. Needs the extra `anndata`.

    Each `.h5ad` file is read twice: the first time in a process of its own, with limits of time and
    memory, because a damaged file can make the HDF5 library hang or crash.

    Args:
        sources: A `.h5ad` file or a zarr folder, or several; their rows follow one another. All
            must have the same variables in the same order.
        folder: The folder to write, such as `"packed.zarr"`.
        element: The matrix, such as `"X"`, `"layers/counts"` or `"raw/X"`; CSR or dense.
        obs: The columns of `obs` to take; by default all of the first source.
        chunk_rows: About the number of rows that are compressed, and later decoded, together.
        shard_rows: About the number of rows in a file; by default 256 MiB of values.
        shuffle: Shuffle all rows uniformly. This writes all data to disk twice.
        seed: The seed of the shuffle.
        source_row: The name of a column of `obs` for the row's number in the sources; None omits
            it.
        memory_budget: About the number of bytes of memory to use, plus one decoded chunk of each
            array of a source.
        progress: Show progress on stderr; by default if that is a terminal.
        overwrite: Replace an existing collection, at the very end.

    Raises:
        InvalidValueError: If an argument is outside its bounds.
        StoreError: If a source is damaged or unsafe.
        PackError: If the sources differ or cannot be packed, the disk is full, or
            another process is packing to the same folder.

    Examples:
        >>> pack_anndata("nowhere.h5ad", "packed.zarr")
        Traceback (most recent call last):
            ...
        feedline.errors.InvalidValueError: source='nowhere.h5ad' does not exist; it must be a \
file or a zarr folder
    """
    paths = _check_sources(sources)
    names = None if obs is None else _check_names(obs, str(paths[0]))
    budget = check_memory(memory_budget)
    chunk_rows = check_integer("chunk_rows", chunk_rows, 1, 2**31)
    if shard_rows is not None:
        shard_rows = check_integer("shard_rows", shard_rows, chunk_rows, 2**62)
    seed = check_seed(seed)
    if not isinstance(element, str) or not all(element.split("/")):
        raise InvalidValueError(f"element={element!r:.80} must be like 'X' or 'layers/counts'")
    check_apart(paths, Path(os.path.abspath(folder)), may_hold=False)
    workshop = Workshop(folder, overwrite=overwrite, product=_PRODUCT)
    options: dict[str, Any] = {"element": element, "obs": names, "max_bytes": budget // 8}
    with open_progress(progress) as bars, ExitStack() as stack:
        check_files(paths, memory_budget=budget, bars=bars, **options)
        files = stack.enter_context(closing(AnnDataFiles(paths, **options)))
        _check_source_row(source_row, files)
        layout = {
            "chunk": chunk_entries(files, chunk_rows, budget // 8),
            "num_chunks": None if shard_rows is None else -(-shard_rows // chunk_rows),
        }
        mark = {_MARK: {"version": 1, "is_shuffled": bool(shuffle)}}
        num_threads = min(_MAX_THREADS, os.cpu_count() or 1)
        parameters = {
            "source": {**files.identity, "folders": [_folder_stamp(path) for path in paths]},
            **{"element": element, "obs": list(files.columns), "layout": layout, "mark": mark},
            **{"seed": describe_seed(seed), "source_row": source_row},
        }
        with (
            reported(workshop.folder, remedy="free some space or repair the disk, and pack again"),
            # Leftovers of a killed run are not resumed but removed, unless it was complete.
            workshop.opened(parameters, resume=True),
        ):
            if not workshop.is_published:
                with (
                    ThreadPoolExecutor(num_threads, thread_name_prefix="feedline-pack") as pool,
                    closing(
                        AnnDataWriter(workshop.data, files, layout, source_row, mark, pool)
                    ) as writer,
                ):
                    if shuffle:
                        rows = _shuffled(files, workshop, bars, pool, seed=seed, budget=budget)
                    else:
                        bars.begin("packing", files.num_rows)
                        rows = files.blocks()
                    for part in rows:
                        writer.append(part)
                        bars.advance(len(part["row"]))
                    writer.finish()
                sync_chunk(workshop.data)
                check_unchanged(files.identity)
                workshop.publish()
    return AnnDataPackResult(
        folder=workshop.folder,
        num_sources=len(paths),
        num_rows=files.num_rows,
        num_columns=files.matrix.num_columns,
        num_values=files.num_values,
        num_bytes=sum(p.stat().st_size for p in workshop.folder.rglob("*") if p.is_file()),
        is_sparse=files.is_sparse,
        dtype=files.matrix.dtype.name,
        obs=(*list(files.columns)[1:], *([source_row] if source_row else [])),
    )


def _folder_stamp(path: Path) -> list[Any]:
    """Return JSON values that change when a zarr folder changes; a file says it by itself."""
    digest = hashlib.sha256()
    for parent, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            state = os.lstat(os.path.join(parent, name))
            digest.update(f"{name!r} {state.st_size} {state.st_mtime_ns}\n".encode())
        digest.update(f"{os.path.relpath(parent, path)!r}\n".encode())
    return [os.path.abspath(path), digest.hexdigest()]


def _shuffled(
    files: AnnDataFiles,
    workshop: Workshop,
    bars: Progress,
    pool: ThreadPoolExecutor,
    *,
    seed: Seed,
    budget: int,
) -> Iterator[Rows]:
    """Yield all rows in the order of the shuffle."""
    num_bytes = files.num_bytes_guess
    free = shutil.disk_usage(next(p for p in workshop.folder.parents if p.exists())).free
    if num_bytes > free:
        raise PackError(
            f"{workshop.folder}: a shuffle needs about {num_bytes} bytes on the disk, which has "
            f"{free}; free some space, choose another disk, or pack without a shuffle"
        )
    shuffle = Shuffle(
        workshop.spills, seed=seed, num_bytes=num_bytes, max_bytes=budget // 4, pool=pool
    )
    bars.begin("dealing", files.num_rows)
    for rows in files.blocks():
        shuffle.add(rows)
        bars.advance(len(rows["row"]))
    shuffle.finish()
    bars.begin("shuffling", files.num_rows)
    for _, shuffled in shuffle.shuffled():
        assert shuffled is not None
        yield shuffled


def _is_packed(folder: Path) -> bool:
    if not folder.is_dir() or folder.is_symlink():
        return False
    try:
        return _MARK in json.loads((folder / "zarr.json").read_bytes())["attributes"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


_PRODUCT = Product(
    _is_packed,
    "was not written by packing AnnData, so it will not be replaced",
    can_resume=False,
)


def _check_sources(sources: Any) -> list[Path]:
    listed = [sources] if isinstance(sources, str | os.PathLike) else sources
    paths = [Path(path) for path in check_sequence("sources", listed)]
    if not paths:
        raise InvalidValueError("sources=[] must have at least 1 file")
    for path in paths:
        if not path.exists():
            raise InvalidValueError(
                f"source={str(path)!r} does not exist; it must be a file or a zarr folder"
            )
    return paths


def _check_names(obs: Any, where: str) -> list[str]:
    names = [check_path_name(name, where) for name in check_sequence("obs", obs)]
    if len(set(names)) != len(names):
        raise InvalidValueError(f"obs={names!r:.200} names a column twice; name each once")
    return names


def _check_source_row(name: str | None, files: AnnDataFiles) -> None:
    if name is None:
        return
    check_path_name(name, "source_row")
    if name in files.columns:
        raise InvalidValueError(
            f"source_row={name!r:.80} is already a column of the sources; exclude that with "
            "obs=[…], or use another name, or source_row=None"
        )
