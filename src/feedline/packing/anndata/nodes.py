"""AnnData files, `.h5ad` or zarr: their groups and arrays, not trusted.

Sizes in headers are not trusted: arrays are read in parts, no chunk that is too large is decoded,
and links to other files are refused.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, InvalidValueError, UnsafeDataError
from feedline.packing.rows import SourceFault
from feedline.store.extras import import_extra
from feedline.store.runs import Runs
from feedline.store.zarr_arrays import (
    ZarrArray,
    damage_in,
    open_zarr,
    plain_codecs,
    read_runs,
)
from feedline.store.zarr_layout import MAX_CHUNK_BYTES

MayLack = Callable[[int, int], bool]


class Node(ABC):
    """A group or an array of a file; `where` names both for messages."""

    def __init__(self, raw: Any, path: Path, name: str) -> None:
        self.raw = raw
        self.path = path
        self.name = name
        self.where = f"{path}: {name}" if name else str(path)
        self.is_group = hasattr(raw, "keys")
        self.shape: tuple[int, ...] = ()
        #: Whether the values are strings, of any length.
        self.is_text = False
        #: How many entries along the first axis are decoded together.
        self.chunk_rows = 1

    def child(self, name: str) -> Node:
        """Return the element of a group by name, or raise."""
        found = self.get(name)
        if found is None:
            raise DamagedDataError(f"{self.where}: has no {name!r:.80}")
        return found

    @abstractmethod
    def get(self, name: str) -> Node | None:
        """Return the element of a group by name, or None."""

    def as_matrix(self, may_lack: MayLack) -> Node:
        """Return the same array, prepared for fast reading.

        `may_lack(start, end)` returns whether zarr may have omitted the file of these entries, as
        it does if all are 0.
        """
        return self

    def attribute(self, name: str) -> Any:
        """Return an attribute as a plain value, or None."""
        with damage_in(self.where):
            return _plain(self.raw.attrs.get(name))

    @property
    def encoding(self) -> str:
        """The encoding type of this element in AnnData."""
        found = self.attribute("encoding-type")
        return found if isinstance(found, str) else ""

    @property
    def num_rows(self) -> int:
        """The number of entries along the first axis."""
        return self.shape[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numbers, little-endian."""
        found: np.dtype[Any] = np.dtype(self.raw.dtype)
        if self.is_text or found.kind not in "biuf" or found.itemsize > 8:
            raise SourceFault(
                f"{self.where}: is of type {found} and must be of booleans, integers or floats of "
                "at most 64 bits; convert it"
            )
        return found.newbyteorder("<")

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return entries along the first axis: numbers, or objects that are strings."""
        with damage_in(self.where):
            values = self._read(start, stop)
        if not self.is_text:
            return values.astype(self.dtype, copy=False)
        return values.astype(object)

    @abstractmethod
    def _read(self, start: int, stop: int) -> NDArray[Any]:
        """Return entries along the first axis as the file has them."""

    def _check_array(self, chunks: tuple[int, ...] | None, itemsize: int) -> None:
        if not self.shape:
            raise DamagedDataError(f"{self.where}: is a single value and must be an array")
        num_bytes = math.prod(chunks or (1,)) * itemsize
        if num_bytes > MAX_CHUNK_BYTES:
            raise DamagedDataError(
                f"{self.where}: has chunks of {num_bytes} bytes, which must be at most "
                f"{MAX_CHUNK_BYTES}; write it again in smaller chunks"
            )
        self.chunk_rows = int(chunks[0]) if chunks else 1


class _H5Node(Node):
    def __init__(self, raw: Any, path: Path, name: str) -> None:
        super().__init__(raw, path, name)
        if self.is_group or not hasattr(raw, "shape"):
            return
        import h5py

        if raw.external or raw.is_virtual:
            raise UnsafeDataError(
                f"{self.where}: is stored in other files and must be in this one; write it again"
            )
        self.shape = tuple(raw.shape or ())
        self.is_text = h5py.check_string_dtype(raw.dtype) is not None
        if self.shape:
            self._check_array(raw.chunks, raw.dtype.itemsize)

    def get(self, name: str) -> Node | None:
        import h5py

        with damage_in(self.where):
            link = self.raw.get(name, getlink=True) if self.is_group else None
            if link is None:
                return None
            if not isinstance(link, h5py.HardLink):
                raise UnsafeDataError(
                    f"{self.where}: {name!r:.80} is a link, which may lead to another file; write "
                    "it again without links"
                )
            return _H5Node(self.raw[name], self.path, f"{self.name}/{name}".lstrip("/"))

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        source = self.raw.asstr() if self.is_text else self.raw
        return np.asarray(source[start:stop])


class _ZarrNode(Node):
    def __init__(self, raw: Any, path: Path, name: str, *, may_lack: MayLack | None = None) -> None:
        super().__init__(raw, path, name)
        self._matrix: ZarrArray | None = None
        if self.is_group:
            return
        self.shape = tuple(int(size) for size in raw.shape)
        dtype = np.dtype(raw.dtype)
        metadata = raw.metadata.to_dict()
        self.is_text = dtype.kind in "TU" or (dtype.kind == "O" and _is_utf8(metadata))
        if self.shape:
            self._check_array(raw.chunks, dtype.itemsize)
        if may_lack is not None:
            self._matrix = ZarrArray(raw, may_lack=may_lack)

    def get(self, name: str) -> Node | None:
        with damage_in(self.where), plain_codecs():
            if not self.is_group or name not in self.raw:
                return None
            return _ZarrNode(self.raw[name], self.path, f"{self.name}/{name}".lstrip("/"))

    def as_matrix(self, may_lack: MayLack) -> Node:
        return _ZarrNode(self.raw, self.path, self.name, may_lack=may_lack)

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        if self._matrix is None:
            return np.asarray(self.raw[start:stop])
        out = np.empty((stop - start, *self.shape[1:]), self._matrix.dtype)
        runs = Runs(np.array([start], np.int64), np.array([stop], np.int64))
        read_runs([(self._matrix, runs, out)])
        return out


class Scan:
    """Reads an array from its beginning to its end, each chunk once.

    Args:
        node: The array.
        max_bytes: A larger band of adjacent chunks is not kept, but read again.
    """

    def __init__(self, node: Node, max_bytes: int) -> None:
        self._node = node
        self._step = node.chunk_rows
        if len(node.shape) > 1:
            row_bytes = int(np.prod(node.shape[1:], dtype=object)) * node.dtype.itemsize
            self._step = node.chunk_rows if node.chunk_rows * row_bytes <= max_bytes else 1
        self._held = node.read(0, 0)
        self._start = 0

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the next entries; `start` never goes back."""
        held = self._held[start - self._start :]
        end = start + len(held)
        if stop > end:
            end, begin = min(self._node.num_rows, -(-stop // self._step) * self._step), end
            parts = [held, self._node.read(begin, end)]
            held = np.concatenate(parts) if len(held) else parts[1]
        self._held, self._start = held, start
        return held[: stop - start]


@contextmanager
def open_node(path: Path) -> Iterator[Node]:
    """Open a file or a zarr folder for reading, and close it at the end."""
    if path.is_dir():
        node = open_zarr(path)
        if not hasattr(node, "group_keys"):
            raise DamagedDataError(f"{path}: is a zarr array and must be an AnnData group")
        yield _ZarrNode(node, path, "")
        return
    if not path.is_file():
        raise InvalidValueError(f"source={str(path)!r} does not exist; check the path")
    h5py = import_extra("h5py", extra="anndata", what=".h5ad files")
    try:
        file = h5py.File(os.fspath(path), "r")
    except Exception as error:  # h5py raises many kinds for damaged files
        raise DamagedDataError(f"{path}: is not an HDF5 file ({error!s:.300})") from None
    with file:
        yield _H5Node(file, path, "")


def _is_utf8(metadata: dict[str, Any]) -> bool:
    return "vlen-utf8" in str(metadata.get("filters")) or metadata.get("data_type") == "string"


def _plain(value: Any) -> Any:
    """Return an attribute of either library as JSON values."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return value
