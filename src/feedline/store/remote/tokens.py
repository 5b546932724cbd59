"""Windows over a remote file of tokens, of which the parts that are read are fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, InvalidValueError, check_choice, check_integer
from feedline.lazy import lazy
from feedline.store.chunk import OpenChunk
from feedline.store.columns import Column, dtype_named
from feedline.store.mapped import map_file
from feedline.store.npy_chunk import parse_header, read_header
from feedline.store.remote.paths import RemotePath
from feedline.store.remote.stores import RemoteShardStore
from feedline.store.shards import Shards
from feedline.store.tokens import TYPE_NAMES
from feedline.words import several

# A chunk is a part of the file of about this size.
_CHUNK_BYTES = 2**22
# More than the header of an .npy file may have.
_HEADER_BYTES = 2**14


class TokenShards(Shards):
    """Windows over tokens; consecutive ones are a chunk.

    Args:
        path: A `.bin` file of little-endian tokens only, or a `.npy` file with one axis.
        window: The number of tokens in a sample.
        stride: The distance between the starts of samples; by default `window`.
        dtype: The type of the tokens in a `.bin` file, by default "uint16".
    """

    def __init__(
        self, path: RemotePath, window: int, stride: int | None = None, dtype: str | None = None
    ) -> None:
        super().__init__(path)
        self.window = check_integer("window", window, 1)
        self.stride = self.window if stride is None else check_integer("stride", stride, 1)
        asked = None if dtype is None else check_choice("dtype", dtype, TYPE_NAMES)
        self.type_name, self._start, num_tokens = _tokens_in(path, asked)
        check_integer(
            "window",
            self.window,
            1,
            num_tokens,
            remedy=f"the number of tokens in {path}; use a shorter window",
        )
        self._num_windows = (num_tokens - self.window) // self.stride + 1
        self._step = max(1, _CHUNK_BYTES // (self.stride * self._item_bytes))

    @property
    def _item_bytes(self) -> int:
        return dtype_named(self.type_name).itemsize

    @lazy
    def chunk_sizes(self) -> NDArray[np.int64]:
        """The number of windows in each chunk; only the last may have fewer."""
        edges = np.append(np.arange(0, self._num_windows, self._step), self._num_windows)
        return np.diff(edges)

    @property
    def columns(self) -> Mapping[str, Column]:
        """The one column, "tokens"."""
        return {"tokens": Column("tokens", self.type_name, (self.window,))}

    @property
    def files(self) -> Sequence[Path]:
        """The file."""
        return (self.path,)

    def files_of(self, chunk: int) -> Sequence[Path]:
        """Return the part of the file that a chunk is read from."""
        first = chunk * self._step * self.stride
        last = (chunk * self._step + int(self.chunk_sizes[chunk]) - 1) * self.stride
        places = (first, last + self.window)
        start, end = (self._start + place * self._item_bytes for place in places)
        path: Any = self.path
        return (path.part(start, end),)

    def open(self, chunk: int, names: Sequence[str]) -> OpenChunk:
        """Open some windows, mapped."""
        (part,) = self.files_of(chunk)
        tokens = map_file(part).view(dtype_named(self.type_name))
        windows = sliding_window_view(tokens, self.window)[:: self.stride]
        return OpenChunk(part, {"tokens": windows})

    def describe_row(self, chunk: int, row: int) -> str:
        """Return the file and the tokens in it."""
        begin = (chunk * self._step + int(row)) * self.stride
        return f"file {self.path}, tokens {begin} to {begin + self.window}"


class RemoteTokenStore(RemoteShardStore):
    """Samples that are windows over one long list of tokens, in object storage.

    Args:
        shards: The windows.
    """

    shards: TokenShards

    def __init__(self, shards: TokenShards) -> None:
        super().__init__(shards)

    def _described(self, number: int) -> str:
        of = self.shards
        return f"{super()._described(number)} {of.window} {of.stride} {of.type_name}"


def _tokens_in(path: RemotePath, asked: str | None) -> tuple[str, int, int]:
    """Return the type of the tokens in a file, where they begin, and how many there are."""
    size = path.identity[1]
    if path.suffix == ".bin":
        type_name = asked or "uint16"
        item_bytes = dtype_named(type_name).itemsize
        if size % item_bytes:
            raise DamagedDataError(
                f"{path}: has {several(size, 'byte')}, which must be a multiple of the "
                f"{item_bytes} of each {type_name} token; pass the dtype that it was written with, "
                "or write it again"
            )
        return type_name, 0, size // item_bytes
    text, start = read_header(path, np.frombuffer(path.first_bytes(_HEADER_BYTES), np.uint8))
    header = parse_header(path, text)
    shape, type_name = header["shape"], header["dtype"].name
    if len(shape) != 1 or type_name not in TYPE_NAMES:
        raise DamagedDataError(
            f"{path}: has {len(shape)} axes of {type_name} and must have 1 axis of integers; save "
            "array.reshape(-1)"
        )
    if asked not in (None, type_name):
        raise InvalidValueError(f"dtype={asked!r} must be {type_name!r}, as in {path}; omit it")
    num_bytes = start + shape[0] * header["dtype"].itemsize
    if type(shape[0]) is not int or num_bytes != size:
        raise DamagedDataError(
            f"{path}: has {several(size, 'byte')} but its header describes {num_bytes}; write it "
            "again"
        )
    return type_name, start, shape[0]
