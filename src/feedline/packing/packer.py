"""`pack`: from any source to a folder of chunks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.errors import InvalidValueError
from feedline.packing.batch import Source, SourceFault, columns_in
from feedline.packing.chunk_writer import ChunkWriter
from feedline.packing.file_list import describe_files
from feedline.packing.formats import stored_columns
from feedline.packing.pipeline import Pipeline
from feedline.packing.settings import DEFAULT_MEMORY, Settings, make_settings
from feedline.packing.sources import open_source, paths_of
from feedline.packing.splits import Splits, make_splits
from feedline.packing.workshop import Workshop
from feedline.store.columns import Column
from feedline.store.manifest import read_manifest, write_manifest
from feedline.store.progress import Progress, open_progress
from feedline.store.writing import reported, sync

__all__ = ["PackResult", "pack"]


@dataclass(frozen=True, kw_only=True)
class PackResult:
    """What packing has written.

    `splits` has the number of samples of each split, in `folder / name`; it is empty without a
    split. `num_resumed_chunks` counts the chunks that an interrupted run had finished.
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
    num_threads: int | None = None,
    memory_budget: int = DEFAULT_MEMORY,
    progress: bool | None = None,
    resume: bool = True,
    overwrite: bool = False,
) -> PackResult:
    """Write a source as a folder of chunks that can be read at random, and return what was written.

    The folder appears at the end, complete, or not at all. Until then the work is in
    `<folder>.partial`. After an interruption of any kind, the same call goes on there, and the
    result is the same to the byte. Neither threads nor memory change the result.

    Args:
        source: A parquet, CSV, JSONL or `.npy` file, a list of files of one kind, or a folder of
            them, read in the order of their names. One `.npy` file is column "data"; a mapping of
            columns to `.npy` files, or a folder of them, has several columns. Or a mapping of
            columns to arrays, or an iterable of records, which are mappings of columns to numbers,
            lists or arrays. Iterables are read again from the beginning when packing goes on, so
            they must give the same records again.
        folder: The folder to write.
        format: The format of the chunks: "safetensors", "npy", "pt" or "parquet".
        columns: Which columns to take, as a list, or as a mapping of new names to names in the
            source; by default all. All rows of a column must have one shape and a type of numbers.
        chunk_samples: The number of samples of a chunk.
        chunk_bytes: The number of bytes of a chunk, if not the number of samples; by default
            64 MiB, or less where `memory_budget` is small.
        shuffle: Whether to shuffle all samples, uniformly. This writes all data to disk twice.
        seed: What the shuffle and the choice of rows for splits depend on.
        split: The share of each split by name, such as `{"train": 0.9, "validation": 0.1}`, or only
            that of the validation split. Each is a folder in `folder`. A split gets its exact share
            of every thousand rows, at random.
        num_threads: The number of threads; by default that of the processor's cores.
        memory_budget: About how many bytes of memory to use.
        progress: Whether to show progress on stderr; by default if that is a terminal.
        resume: Whether to go on after an interruption; if not, start over.
        overwrite: Whether to replace a folder that is there already, once all is done.

    Raises:
        InvalidValueError: If an argument is outside its bounds.
        PackError: If the source holds what cannot be packed, the disk is full, another process is
            packing to the same folder, or an interrupted run had other parameters.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     source = {"x": np.arange(10), "y": np.zeros((10, 3), np.float32)}
        ...     result = pack(source, f"{parent}/data", chunk_samples=4, split=0.2, shuffle=True)
        >>> result.num_samples, result.num_chunks, result.splits
        (10, 3, {'train': 8, 'validation': 2})
    """
    settings = make_settings(
        format=format,
        columns=columns,
        chunk_samples=chunk_samples,
        chunk_bytes=chunk_bytes,
        shuffle=shuffle,
        seed=seed,
        split=split,
        num_threads=num_threads,
        memory_budget=memory_budget,
    )
    workshop = Workshop(folder, overwrite=overwrite)
    _check_apart(source, workshop.folder)
    with open_progress(progress) as bars:
        reader = open_source(source, settings.selection, settings.num_threads)
        job = _Job(settings, reader, _first_columns(reader))
        workshop.open(job.parameters, resume=resume)
        num_resumed = 0
        try:
            if not workshop.is_published:
                num_resumed = job.run(workshop, bars)
                _check_unchanged(reader.identity)
                workshop.publish()
            workshop.clear()
        except (SourceFault, InvalidValueError):
            # Only another source or other arguments can help, and neither could go on from here.
            workshop.clear()
            raise
        finally:
            workshop.journal.close()
            workshop.unlock()
    return _result(workshop.folder, tuple(settings.shares), num_resumed)


class _Job:
    """A source with its columns known, and all that follows from them."""

    def __init__(self, settings: Settings, source: Source, columns: list[Column]) -> None:
        self._settings = settings
        self._source = source
        self._columns = columns
        self._stored = stored_columns(settings.format, columns)
        self._row_bytes = sum(column.row_bytes for column in self._stored)
        self._chunk_samples = settings.num_samples_per_chunk(self._row_bytes)
        self._splits: Splits = make_splits(settings.shares, settings.seed, self._row_bytes)
        if source.num_rows is not None:
            _refuse_empty(self._splits, self._splits.counts(source.num_rows))

    @property
    def parameters(self) -> dict[str, Any]:
        """All that the result depends on."""
        return self._settings.describe(self._source.identity, self._columns, self._chunk_samples)

    def run(self, workshop: Workshop, progress: Progress) -> int:
        """Write all chunks and their metadata; return how many were there already."""
        folders = [workshop.data / name for name in self._splits.names]
        writer = ChunkWriter(
            folders=folders,
            format_=self._settings.format,
            chunk_samples=self._chunk_samples,
            journal=workshop.journal,
            entries=workshop.entries,
            num_threads=self._settings.num_threads,
            num_waiting=self._settings.num_waiting_chunks(self._chunk_samples * self._row_bytes),
        )
        try:
            counts = Pipeline(
                settings=self._settings,
                source=self._source,
                columns=self._columns,
                splits=self._splits,
                chunk_samples=self._chunk_samples,
                workshop=workshop,
                writer=writer,
                progress=progress,
            ).run()
            _refuse_empty(self._splits, counts)
            writer.finish()
        except BaseException:
            writer.abandon()
            raise
        with reported(workshop.data):
            for folder, count, finished in zip(folders, counts, writer.finished, strict=True):
                files = [finished[number] for number in range(len(finished))]
                assert sum(file.num_samples for file in files) == count
                write_manifest(folder, files, self._stored)
            sync([*folders, workshop.data])
        return writer.num_resumed


def _first_columns(source: Source) -> list[Column]:
    for batch in source.batches(0):
        if batch.num_rows:
            return columns_in(batch)
    raise SourceFault("source has 0 rows and must have at least 1; check that it is the right one")


def _check_unchanged(identity: dict[str, Any]) -> None:
    """Raise if files have changed while they were read."""
    paths = [Path(path) for path, *_ in identity.get("files", ())]
    if paths and describe_files(identity["kind"], paths) != identity:
        raise SourceFault(
            "source has changed while it was packed, so what was read is a mixture; pack again "
            "when it is complete"
        )


def _refuse_empty(splits: Splits, counts: list[int]) -> None:
    for name, count in zip(splits.names, counts, strict=True):
        if not count:
            raise SourceFault(
                f"split {name!r} gets 0 of {sum(counts)} rows and must get at least 1; give it a "
                "larger share, or more rows"
            )


def _check_apart(source: Any, folder: Path) -> None:
    """Raise if the source is in the folder to write, which would be replaced at the end."""
    target = folder.resolve()
    for path in paths_of(source):
        if path.resolve().is_relative_to(target):
            raise InvalidValueError(
                f"source={str(path)!r} must not be in folder={str(folder)!r}; choose another folder"
            )


def _result(folder: Path, splits: tuple[str, ...], num_resumed: int) -> PackResult:
    manifests = {name: read_manifest(folder / name) for name in splits or ("",)}
    columns = next(iter(manifests.values())).columns or {}
    return PackResult(
        folder=folder,
        num_samples=sum(manifest.num_samples for manifest in manifests.values()),
        num_chunks=sum(len(manifest) for manifest in manifests.values()),
        num_bytes=sum(e["bytes"] for manifest in manifests.values() for e in manifest.entries),
        columns=tuple(columns.values()),
        splits={name: manifests[name].num_samples for name in splits},
        num_resumed_chunks=num_resumed,
    )
