"""The chunks of litdata: `index.json` beside `chunk-0-0.bin` and others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feedline.errors import DamagedDataError, InvalidValueError, UnsafeDataError
from feedline.store.columns import Column
from feedline.store.foreign.fields import Field, Plain, Ragged
from feedline.store.foreign.headers import Flat, Pictures, Span, Words
from feedline.store.foreign.indexes import INDEX, Table, begins_with_key, read_index
from feedline.store.foreign.inflating import inflate
from feedline.store.foreign.litdata_rows import RowShards, has_table
from feedline.store.foreign.litdata_zstd import open_frames, open_samples
from feedline.store.foreign.records import Records, RecordShards, offsets_in
from feedline.store.mapped import map_file
from feedline.store.paths import file_in
from feedline.store.shards import Shards
from feedline.words import several

_NUMPY = dict(
    enumerate(
        (
            *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
            *("float16", "float32", "float64", "complex64", "complex128", "bool"),
        )
    )
)
_TORCH = dict(
    enumerate(
        (
            *("float32", "float32", "float64", "float64", "complex64", "complex64"),
            *("complex128", "complex128", "float16", "float16", "bfloat16", "uint8", "int8"),
            *("int16", "int16", "int32", "int32", "int64", "int64", "bool", "uint16"),
        )
    )
)
_NUMBERS = {"int": "int64", "float": "float64", "bool": "bool"}
_TEXTS = ("str", "text")
_BYTES = (
    *("bytes", "jpeg", "image", "tifffile", "tiff", "video", "audio", "file", "pdf", "mesh"),
    "nifti",
)
# What litdata packs in ways of its own; there are no columns for it.
_PACKED = ("jpeg_array", "json")
_ARRAYS = ("numpy", "tensor", "no_header_numpy", "no_header_tensor")
_KNOWN = (*_NUMBERS, *_TEXTS, *_BYTES, *_PACKED, *_ARRAYS, "pil")
_UNSAFE = ("pickle", "graph")

_MOST_LEVELS = 64
_LEVELS = ("chunk", "batch", "sample")


def matches(path: Path) -> bool:
    """Return whether a folder has an index of chunks."""
    return begins_with_key(path / INDEX, "chunks")


def open_shards(path: Path) -> Shards:
    """Return what is in a folder with an index of chunks."""
    index = Table(path / INDEX, read_index(path / INDEX))
    config = index.table_at("config")
    chunks = [index.inner(chunk, "a chunk") for chunk in index.list_at("chunks")]
    _check_loader(config)
    files = [file_in(path, chunk.text_at("filename")) for chunk in chunks]
    sizes = [chunk.count_at("chunk_size") for chunk in chunks]
    first = next((file for file, size in zip(files, sizes, strict=True) if size), None)
    if first is None:
        raise DamagedDataError(f"{path / INDEX}: lists 0 samples and must list at least 1")
    num_bytes = [chunk.count_at("chunk_bytes") for chunk in chunks]
    shards: Shards
    if has_table(first):
        compression = config.get("ipc_compression")
        shards = RowShards(path, files, sizes, path / INDEX, num_bytes, compression)
    else:
        shards = LitdataShards(path, files, sizes, num_bytes, config)
    _ = shards.columns
    return shards


class LitdataShards(RecordShards):
    """The chunks of records that litdata has written.

    Args:
        path: The folder.
        files: The file of each chunk.
        sizes: The number of samples in each chunk.
        num_bytes: The bytes of each chunk; before it is compressed, if it is as a whole.
        config: What the index says about all chunks.
    """

    def __init__(
        self,
        path: Path,
        files: Sequence[Path],
        sizes: Sequence[int],
        num_bytes: Sequence[int],
        config: Table,
    ) -> None:
        self._is_tokens = config.get("item_loader") == "TokensLoader"
        self._level = _level_of(config)
        self._num_bytes = tuple(num_bytes)
        super().__init__(path, files, sizes, _fields(config, self._is_tokens), config.path)

    @property
    def compression(self) -> str | None:
        """The name of the compression of chunks; None if they are read as they lie."""
        return None if self._level is None else "zstd"

    def records(self, chunk: int) -> Records:
        """Return the bytes of a chunk: mapped, or inflated into memory."""
        path, num_samples = self._files[chunk], int(self._sizes[chunk])
        data, held = map_file(path), 0
        if self._level == "chunk":
            data = inflate(data, "zstd", self._num_bytes[chunk], path)
            held = data.nbytes
        if data.size != self._num_bytes[chunk]:
            raise DamagedDataError(
                f"{path}: has {several(data.size, 'byte')} but should have "
                f"{self._num_bytes[chunk]:,}; copy or write it again"
            )
        if self._level == "batch":
            data, offsets = open_frames(path, data, num_samples)
        elif self._level == "sample":
            data, offsets = open_samples(path, data, offsets_in(path, data, num_samples))
        else:
            offsets = offsets_in(path, data, num_samples)
        if self._level in ("batch", "sample"):
            held = data.nbytes
        return Records(path, data, offsets, held + offsets.nbytes)

    def spans(self, records: Records) -> list[Span]:
        """Return where the values of each field lie; of tokens, records have nothing else."""
        if self._is_tokens:
            return [Span(records.offsets[:-1], np.diff(records.offsets))]
        return super().spans(records)


def _check_loader(config: Table) -> None:
    """Raise if chunks were written in another way."""
    name = config.optional_text_at("item_loader") or "PyTreeLoader"
    if name not in ("PyTreeLoader", "TokensLoader"):
        hint = "open its parquet files instead" if name == "ParquetLoader" else "write it again"
        raise InvalidValueError(
            f"{config.path}: was written for {name:.80}, which must be PyTreeLoader or "
            f"TokensLoader; {hint}"
        )
    if config.get("encryption") is not None:
        raise InvalidValueError(
            f"{config.path}: its chunks are encrypted; write them again without encryption"
        )


def _level_of(config: Table) -> str | None:
    """Return what is compressed: whole chunks, some samples together, or each; None if nothing."""
    compression = config.optional_text_at("compression")
    if compression is None:
        return None
    level = config.optional_text_at("compression_level") or "chunk"
    if compression.partition(":")[0] != "zstd" or level not in _LEVELS:
        raise InvalidValueError(
            f"{config.path}: compression {compression!r:.80} of each {level!r:.80} must be zstd of "
            f"each {', '.join(_LEVELS)}; write it again"
        )
    return level


def _fields(config: Table, is_tokens: bool) -> list[Field]:
    """Return the fields of every record."""
    formats = config.list_at("data_format")
    names = ["tokens"] if is_tokens else _names(config, len(formats))
    if not formats or len(formats) != len(names):
        raise DamagedDataError(
            f"{config.path}: has {len(formats)} formats of values and {len(names)} names, which "
            "must be equally many; write it again"
        )
    fields = [
        _field(f"{config.path}: column {name!r:.80}", name, format_)
        for name, format_ in zip(names, formats, strict=True)
    ]
    if is_tokens and not isinstance(getattr(fields[0], "reader", None), Flat):
        raise DamagedDataError(
            f"{config.path}: tokens have format {formats[0]!r:.80}, which must be no_header_numpy "
            "or no_header_tensor; write it again"
        )
    return fields


def _names(config: Table, num_leaves: int) -> list[str]:
    """Return the path of each value in a sample; numbers if that is not written as JSON."""
    numbered = [str(number) for number in range(num_leaves)]
    text = config.get("data_spec")
    if not isinstance(text, str):
        return numbered
    try:
        protocol, spec = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return numbered
    if protocol != 1:
        return numbered
    try:
        return list(_leaves(spec, ())) if num_leaves else []
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedDataError(
            f"{config.path}: data_spec is not the structure of a sample ({error!s:.120}); write it "
            "again"
        ) from None


def _leaves(spec: Any, path: tuple[str, ...]) -> Iterator[str]:
    if len(path) > _MOST_LEVELS:
        raise ValueError(f"it has more than {_MOST_LEVELS} levels")
    children = spec["children_spec"]
    if spec["type"] is None:
        # A sample that is one value has no name for it.
        yield "/".join(path) or "value"
        return
    context = json.loads(spec["context"]) if isinstance(spec["context"], str) else spec["context"]
    if isinstance(context, dict):
        context = context.get("dict_context")
    has_names = isinstance(context, list) and len(context) == len(children)
    names = context if has_names and isinstance(context, list) else range(len(children))
    for name, child in zip(names, children, strict=True):
        yield from _leaves(child, (*path, str(name)))


def _field(where: str, name: str, format_: Any) -> Field:
    if not isinstance(format_, str):
        raise DamagedDataError(f"{where}: format {format_!r:.80} must be a text; write it again")
    kind, _, option = format_.partition(":")
    if kind in _UNSAFE:
        raise UnsafeDataError(
            f"{where}: has format {format_!r:.80}: unpickling runs code from the file; write it "
            "again as arrays, texts or bytes"
        )
    if kind in _NUMBERS:
        return Plain(name, None, Column(name, _NUMBERS[kind]))
    if kind in _TEXTS or kind in _BYTES:
        lists = "text" if kind in _TEXTS else "bytes"
        return Plain(name, None, Column(name, "uint8", kind=lists))
    if kind in _PACKED:
        name = f"{name}/litdata_{kind}"
        return Plain(name, None, Column(name, "uint8", kind="bytes"))
    if kind == "pil":
        return Ragged(name, None, Pictures())
    types = _TORCH if kind.endswith("tensor") else _NUMPY
    if kind in ("numpy", "tensor"):
        return Ragged(name, None, Words(types))
    if kind in _ARRAYS and option.isascii() and option.isdigit() and len(option) < 4:
        if int(option) in types:
            return Ragged(name, None, Flat(types[int(option)]))
        raise InvalidValueError(
            f"{where}: arrays of type {option} must be of one in "
            f"{', '.join(map(str, types))}; write it again as numbers"
        )
    raise InvalidValueError(
        f"{where}: format {format_!r:.80} must be one of {', '.join(_KNOWN)}; write it again"
    )
