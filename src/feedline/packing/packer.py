"""`pack`: from any source to a folder of chunks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.errors import InvalidValueError, check_flag
from feedline.packing.engines import local, ray
from feedline.packing.fitting import Widened, Wider
from feedline.packing.plan import Plan
from feedline.packing.rows import check_unchanged
from feedline.packing.settings import DEFAULT_MEMORY, Settings
from feedline.packing.sources import open_source, paths_of, with_absolute_paths
from feedline.packing.uploading import KeptFolder, pack_to_url
from feedline.packing.workshop import Workshop, check_apart
from feedline.store.columns import Column
from feedline.store.manifest import read_manifest
from feedline.store.opening import open as open_store
from feedline.store.progress import open_progress
from feedline.store.remote.urls import is_url
from feedline.words import one_line

_ENGINES = {"local": local.run, "ray": ray.run}


@one_line
@dataclass(frozen=True, kw_only=True)
class PackResult:
    """What packing has written.

    `splits` has the number of samples of each split, in `folder / name`; it is empty without a
    split. `num_resumed_chunks` counts the chunks that an interrupted run had finished.

    Args:
        folder: Where it lies.
        num_samples: The number of samples.
        num_chunks: The number of chunks.
        num_bytes: The bytes on disk.
        columns: What every sample has.
        splits: The number of samples of each split.
        num_resumed_chunks: The number of chunks that were there already.
    """

    folder: Path
    num_samples: int
    num_chunks: int
    num_bytes: int
    columns: tuple[Column, ...]
    splits: Mapping[str, int]
    num_resumed_chunks: int


def pack(
    source: Any,
    folder: str | os.PathLike[str],
    *,
    format: str = "safetensors",
    columns: Iterable[str] | Mapping[str, str] | None = None,
    chunk_samples: int | None = None,
    chunk_bytes: int | None = None,
    shuffle: bool = False,
    seed: int | str = 0,
    split: float | Mapping[str, float] | None = None,
    engine: str = "local",
    num_threads: int | None = None,
    memory_budget: int = DEFAULT_MEMORY,
    progress: bool | None = None,
    resume: bool = True,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> PackResult:
    """Write a source as a folder of chunks with random access, and return what was written.

    The folder appears at the end, complete, or not at all. Until then the work is in
    `<folder>.partial`. After an interruption of any kind, the same call resumes there, and the
    result is the same to the byte. The numbers of threads and processes and the memory budget do
    not change the result.

    Args:
        source: A parquet, Arrow, CSV, JSONL or `.npy` file, a list of files of one kind, or a
            folder of them, read in the order of their names. One `.npy` file is column "data"; a
            mapping of columns to `.npy` files, or a folder of them, has several columns. Or a
            store, or the path or URL of anything else that `feedline.open` opens. Or a mapping of
            columns to arrays, lists of values or `feedline.store.Lists`; or an iterable of records,
            which are mappings of columns to values; or a dataset of Ray Data, in its order, unless
            that is random. Values are numbers, arrays, lists of any
            length, texts, bytes, dates, and records of these, whose columns get names such as
            "a/b". None is a missing value. Iterables are read again from the start when packing
            resumes, so they must yield the same records again.
        folder: The folder to write, or its URL: then the data is packed on disk first, in
            `$FEEDLINE_CACHE` or `~/.cache/feedline`, and `metadata.json` is written last.
        format: The format of the chunks: "safetensors", "npy", "pt" or "parquet".
        columns: The columns to take, as a list, or as a mapping of new names to names in the
            source; by default all. All values of a column must have one type. Values of one shape
            become an array, others lists. Where values are missing, the column has zeros or empty
            values, and a column of bools "<name>/is_missing" beside it tells where.
        chunk_samples: The number of samples in a chunk.
        chunk_bytes: The most bytes in a chunk, instead of the number of samples; by default 64 MiB,
            or less if `memory_budget` is small. A sample that has more is a chunk of its own.
        shuffle: Shuffle all samples uniformly. This writes all data to disk twice.
        seed: The seed of the shuffle and of the splits.
        split: The share of each split by name, such as `{"train": 0.9, "validation": 0.1}`, or only
            the share of the validation split. Each is a folder in `folder`. A split gets its exact
            share of every thousand rows, at random.
        engine: "local", or "ray" to pack with tasks on a Ray cluster, which every process of it
            can run that sees source and folder: on shared storage, or the source at a URL. The
            result is the same. Connects as `ray.init()` does, unless that was called.
        num_threads: The number of threads; by default the number of cores. A source whose rows
            Python code decodes slowly, one after another, is read by as many processes, 8 at most.
            On a cluster the number of tasks at once, by default all cores.
        memory_budget: About the number of bytes of memory to use; on a cluster, by each task.
        progress: Show progress on stderr; by default if that is a terminal.
        resume: Resume after an interruption; if False, start over. Of records, and
            of arrays above 64 MiB, only some rows are compared with those of the interrupted run:
            start over if others have changed.
        overwrite: Replace an existing folder, at the very end.
        storage_options: For URLs: how to get at them; see `feedline.open`.

    Raises:
        InvalidValueError: If an argument is outside its bounds.
        PackError: If the source cannot be packed, the disk is full, another process is
            packing to the same folder, or an interrupted run had other parameters.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     source = {"x": np.arange(10), "y": np.zeros((10, 3), np.float32)}
        ...     result = pack(source, f"{parent}/data", chunk_samples=4, split=0.2, shuffle=True)
        >>> result.num_samples, result.num_chunks, result.splits
        (10, 3, {'train': 8, 'validation': 2})
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     source = {"text": ["a", None, "bc"], "tokens": [[1, 2], [3], []]}
        ...     [f"{c.name}: {c}" for c in pack(source, f"{parent}/data").columns]
        ['text: text', 'text/is_missing: bool', 'tokens: list of int64']
    """
    for name, flag in (("shuffle", shuffle), ("overwrite", overwrite)):
        check_flag(name, flag)
    if is_url(source):
        source = open_store(source, storage_options=storage_options)
    elif storage_options is not None and not is_url(folder):
        raise InvalidValueError("storage_options cannot be used: neither side is a URL; omit it")
    settings = Settings(
        format=format,
        columns=columns,
        chunk_samples=chunk_samples,
        chunk_bytes=chunk_bytes,
        shuffle=shuffle,
        seed=seed,
        split=split,
        engine=engine,
        num_threads=num_threads,
        memory_budget=memory_budget,
    )
    if is_url(folder):
        return pack_to_url(
            os.fspath(folder),
            lambda folder, kept: _pack(
                source, settings, folder, progress=progress, resume=resume, kept=kept
            ),
            splits=settings.shares,
            storage_options=storage_options,
            overwrite=overwrite,
            progress=progress,
        )
    return _pack(source, settings, folder, progress=progress, resume=resume, overwrite=overwrite)


def _pack(
    source: Any,
    settings: Settings,
    folder: str | os.PathLike[str],
    *,
    progress: bool | None,
    resume: bool,
    overwrite: bool = False,
    kept: KeptFolder | None = None,
) -> PackResult:
    workshop = Workshop(folder, overwrite=overwrite or kept is not None)
    check_apart(paths_of(source), workshop.folder)
    with open_progress(progress) as bars:
        if settings.engine == "ray":
            source = with_absolute_paths(source)
        reader = open_source(source, settings.selection, settings.reading_threads)
        request = settings.request(reader.identity)
        if kept is not None and request is not None and resume and kept.is_of(request):
            return _result(workshop.folder, tuple(settings.shares), None)
        if kept is not None:
            kept.forget()
        begun = workshop.begun_with if resume else {}
        is_same = begun.get("source") == reader.identity
        widened = Widened.from_described(begun.get("widened") if is_same else None)
        num_resumed: int | None = None
        while True:
            plan = Plan(settings, reader, widened)
            try:
                with workshop.opened(plan.parameters, resume=resume):
                    if not workshop.is_published:
                        num_resumed = _ENGINES[settings.engine](plan, workshop, bars)
                        check_unchanged(reader.identity)
                        workshop.publish()
                break
            except Wider as wider:
                before, widened = widened, wider.add_to(widened)
                assert before != widened, "each time something new is shown"
    if kept is not None and request is not None:
        kept.keep(request)
    return _result(workshop.folder, tuple(settings.shares), num_resumed)


def _result(folder: Path, splits: tuple[str, ...], num_resumed: int | None) -> PackResult:
    """Return what is in a folder; None means that all chunks were there already."""
    manifests = {name: read_manifest(folder / name) for name in splits or ("",)}
    columns = next(iter(manifests.values())).columns or {}
    num_chunks = sum(len(manifest) for manifest in manifests.values())
    return PackResult(
        folder=folder,
        num_samples=sum(manifest.num_samples for manifest in manifests.values()),
        num_chunks=num_chunks,
        num_bytes=sum(e["bytes"] for manifest in manifests.values() for e in manifest.entries),
        columns=tuple(columns.values()),
        splits={name: manifests[name].num_samples for name in splits},
        num_resumed_chunks=num_chunks if num_resumed is None else num_resumed,
    )
