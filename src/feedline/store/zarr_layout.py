"""The header of a zarr array, checked before zarr sees it: known codecs, and sizes within bounds.

zarr looks codecs up by name, and some can run code; so only these are let through.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedline.errors import DamagedDataError, UnsafeDataError

#: A chunk is decoded as a whole, so its size is what a header can make us allocate.
MAX_CHUNK_BYTES = 2**29
#: So is a row, and the number of its chunks is what a header can make us look for.
MAX_ROW_BYTES, _MAX_ROW_CHUNKS = 2**29, 2**16
_MAX_SIZE, _MAX_AXES, _MAX_INNER, _MAX_TEXTS = 2**62, 32, 2**22, 2**24

_V2_COMPRESSORS = ("blosc", "zstd", "gzip", "zlib", "lz4")
_V3_COMPRESSORS = ("blosc", "zstd", "gzip")
_TEXT = "vlen-utf8"
_V3_KNOWN = (*_V3_COMPRESSORS, "bytes", "crc32c", "sharding_indexed", "transpose", _TEXT)
_SIZED = ("fixed_length_utf32", "null_terminated_bytes", "raw_bytes")
_TIMES = ("numpy.datetime64", "numpy.timedelta64")
_NUMBERS = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)


@dataclass(frozen=True)
class ZarrLayout:
    """How the files of an array are laid out.

    `chunk_bytes` is what a chunk decodes to, or None for text. `num_inner` is the number of chunks
    in a shard, or None if each file is one chunk; `index_bytes` is the size of a shard's index.
    """

    chunk_bytes: int | None
    num_values: int
    compressor: str | None
    num_checksums: int
    num_inner: int | None = None
    index_bytes: int = 0
    is_index_first: bool = False


def layouts_in(document: Any, name: str, where: str) -> Iterator[tuple[str, ZarrLayout]]:
    """Yield the path below a node and the layout of each array that a header describes, or raise.

    Args:
        document: The header, or the headers of a whole group that were written together.
        name: The name of the file.
        where: What to call it in errors.
    """
    if not isinstance(document, Mapping):
        raise DamagedDataError(f"{where}: must contain a JSON object, not a {_kind(document)}")
    if name == ".zarray":
        yield "", _layout_v2(document, where)
    elif name == ".zmetadata":
        for path, inner in _entries(document.get("metadata"), where):
            if path.rpartition("/")[2] == ".zarray":
                for _, layout in layouts_in(inner, ".zarray", f"{where}: {path:.80}"):
                    yield path.removesuffix(".zarray").rstrip("/"), layout
    elif name == "zarr.json":
        if document.get("node_type") == "array":
            yield "", _layout_v3(document, where)
        together = document.get("consolidated_metadata")
        if together is not None:
            inside = together.get("metadata") if isinstance(together, Mapping) else None
            for path, inner in _entries(inside, where):
                for below, layout in layouts_in(inner, "zarr.json", f"{where}: {path:.80}"):
                    yield f"{path}/{below}".rstrip("/"), layout


def _entries(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        raise DamagedDataError(f"{where}: its consolidated metadata must be a JSON object")
    yield from value.items()


def _layout_v2(document: Mapping[str, Any], where: str) -> ZarrLayout:
    shape, chunks = _sizes(document, "shape", where), _sizes(document, "chunks", where, low=1)
    filters = [_identity(entry) for entry in document.get("filters") or ()]
    compressor = _identity(document.get("compressor"))
    for name in filters:
        _check_known(name, (_TEXT,), where)
    if compressor is not None:
        _check_known(compressor, _V2_COMPRESSORS, where)
    if len(filters) > 1:
        raise DamagedDataError(f"{where}: has filters={filters!r:.80} and must have at most one")
    if document.get("dimension_separator", ".") not in (".", "/"):
        raise _unknown(where, "dimension_separator", document["dimension_separator"], "'.' or '/'")
    itemsize = None if filters else _itemsize_v2(document.get("dtype"), where)
    chunk_bytes = _check_bytes(shape, chunks, chunks, itemsize, where)
    return ZarrLayout(chunk_bytes, math.prod(chunks), compressor, 0)


def _layout_v3(document: Mapping[str, Any], where: str) -> ZarrLayout:
    shape = _sizes(document, "shape", where)
    grid = _named(document.get("chunk_grid"))
    if grid[0] != "regular":
        raise _unknown(where, "chunk_grid", grid[0], "'regular'")
    separator = _named(document.get("chunk_key_encoding"))[1].get("separator", "/")
    if separator not in (".", "/"):
        raise _unknown(where, "separator", separator, "'.' or '/'")
    stored = _sizes(grid[1], "chunk_shape", where, low=1)
    codecs = _codecs(document, "codecs", where)
    chunks, num_inner, index_bytes, is_index_first = stored, None, 0, False
    if "sharding_indexed" in dict(codecs):
        if len(codecs) != 1:
            raise _unknown(where, "codecs", [name for name, _ in codecs], "one list of shards")
        options = codecs[0][1]
        chunks = _sizes(options, "chunk_shape", where, low=1)
        num_inner = _count_inner(stored, chunks, where)
        index = [name for name, _ in _codecs(options, "index_codecs", where)]
        if index.count("bytes") != 1 or set(index) - {"bytes", "crc32c"}:
            raise _unknown(where, "index_codecs", index, "'bytes' and 'crc32c'")
        index_bytes = 16 * num_inner + 4 * index.count("crc32c")
        is_index_first = options.get("index_location", "end") == "start"
        codecs = _codecs(options, "codecs", where)
        if "sharding_indexed" in dict(codecs):
            raise _unknown(where, "codecs", "shards in shards", "one level of shards")
    names = [name for name, _ in codecs]
    compressors = [name for name in names if name in _V3_COMPRESSORS]
    if len(compressors) > 1:
        raise _unknown(where, "codecs", names, "at most one compressor")
    # Bytes that are added behind what was compressed.
    after = names[names.index(compressors[0]) :] if compressors else names
    itemsize = None if _TEXT in names else _itemsize_v3(document.get("data_type"), where)
    return ZarrLayout(
        chunk_bytes=_check_bytes(shape, stored, chunks, itemsize, where),
        num_values=math.prod(chunks),
        compressor=next(iter(compressors), None),
        num_checksums=after.count("crc32c"),
        num_inner=num_inner,
        index_bytes=index_bytes,
        is_index_first=is_index_first,
    )


def _count_inner(stored: tuple[int, ...], chunks: tuple[int, ...], where: str) -> int:
    if len(stored) != len(chunks) or any(s % c for s, c in zip(stored, chunks, strict=True)):
        raise DamagedDataError(f"{where}: has chunks {chunks!s:.80} that do not fill its shards")
    num_inner = math.prod(s // c for s, c in zip(stored, chunks, strict=True))
    if num_inner > _MAX_INNER:
        raise DamagedDataError(
            f"{where}: has {num_inner} chunks in a shard, which must be at most {_MAX_INNER}; "
            "write it again with smaller shards"
        )
    return num_inner


def _check_bytes(
    shape: tuple[int, ...],
    stored: tuple[int, ...],
    chunks: tuple[int, ...],
    itemsize: int | None,
    where: str,
) -> int | None:
    """Return the bytes of a decoded chunk, or None for text; raise if any size is out of bounds."""
    if not len(shape) == len(stored) == len(chunks):
        raise DamagedDataError(f"{where}: has {len(shape)} axes but its chunks have {len(chunks)}")
    row_chunks = math.prod(
        -(-size // step) for size, step in zip(shape[1:], chunks[1:], strict=True)
    )
    if row_chunks > _MAX_ROW_CHUNKS:
        raise DamagedDataError(
            f"{where}: has {row_chunks} chunks in a row, which must be at most {_MAX_ROW_CHUNKS}; "
            "write it again in wider chunks"
        )
    if itemsize is None:
        num_texts = max(math.prod(chunks), math.prod(shape[1:]))
        if num_texts > _MAX_TEXTS:
            raise DamagedDataError(
                f"{where}: has chunks or rows of {num_texts} texts, which must be at most "
                f"{_MAX_TEXTS}; write it again in smaller chunks"
            )
        return None
    num_bytes = math.prod(chunks) * itemsize
    if num_bytes > MAX_CHUNK_BYTES:
        raise DamagedDataError(
            f"{where}: has chunks of {num_bytes} bytes, which must be at most {MAX_CHUNK_BYTES}; "
            "write it again in smaller chunks"
        )
    row_bytes = math.prod(shape[1:]) * itemsize
    if row_bytes > MAX_ROW_BYTES:
        raise DamagedDataError(
            f"{where}: has rows of {row_bytes} bytes, which must be at most {MAX_ROW_BYTES}; "
            "write it again with fewer columns"
        )
    return num_bytes


def _sizes(document: Mapping[str, Any], key: str, where: str, low: int = 0) -> tuple[int, ...]:
    found = document.get(key)
    if not isinstance(found, list) or len(found) > _MAX_AXES:
        raise DamagedDataError(
            f"{where}: {key}={found!r:.80} must be a list of at most {_MAX_AXES} sizes"
        )
    for size in found:
        if type(size) is not int or not low <= size <= _MAX_SIZE:
            shown = hex(size)[:40] if type(size) is int else f"{size!r:.80}"
            raise DamagedDataError(
                f"{where}: {key} has {shown}, which must be an integer in [{low}, 2**62]"
            )
    return tuple(found)


def _codecs(
    document: Mapping[str, Any], key: str, where: str
) -> list[tuple[str, Mapping[str, Any]]]:
    listed = document.get(key)
    if not isinstance(listed, list):
        raise DamagedDataError(f"{where}: {key}={listed!r:.80} must be a list of codecs")
    codecs = [_named(entry) for entry in listed]
    for name, _ in codecs:
        _check_known(name, _V3_KNOWN, where)
    return codecs


def _named(entry: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the options of an extension point; a text is a name alone."""
    if not isinstance(entry, Mapping):
        return f"{entry!s:.80}", {}
    options = entry.get("configuration", {})
    return f"{entry.get('name')!s:.80}", options if isinstance(options, Mapping) else {}


def _identity(entry: Any) -> str | None:
    if entry is None:
        return None
    return f"{entry.get('id') if isinstance(entry, Mapping) else entry!s:.80}"


def _check_known(name: str | None, known: tuple[str, ...], where: str) -> None:
    if name not in known:
        raise UnsafeDataError(
            f"{where}: is encoded with {name!r}, which must be one of {', '.join(known)}; it was "
            "not decoded. Write it again with zstd or blosc"
        )


def _itemsize_v2(given: Any, where: str) -> int:
    try:
        dtype = np.dtype(given) if isinstance(given, str) and len(given) < 40 else None
    except (TypeError, ValueError):
        dtype = None
    if dtype is None or dtype.kind not in "biufcSUVMm" or not dtype.itemsize:
        raise _unknown(where, "dtype", given, "numbers or text of one length")
    return dtype.itemsize


def _itemsize_v3(given: Any, where: str) -> int:
    name, options = _named(given)
    if name in _NUMBERS:
        return np.dtype(name).itemsize
    if name in _TIMES:
        return 8
    length = options.get("length_bytes")
    if name in _SIZED and type(length) is int and 0 < length <= MAX_CHUNK_BYTES:
        return length
    raise _unknown(where, "data_type", given, "numbers or text")


def _unknown(where: str, name: str, value: object, bound: str) -> DamagedDataError:
    return DamagedDataError(f"{where}: {name}={value!r:.80} must be {bound}; write it again")


def _kind(value: object) -> str:
    return type(value).__name__
