"""Windows over a flat file of tokens."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, InvalidValueError, check_choice, check_integer
from feedline.lazy import lazy
from feedline.store.checksums import digest_parts
from feedline.store.columns import Arrays, Column, dtype_named, make_out
from feedline.store.gather import RowSource
from feedline.store.mapped import map_file, view
from feedline.store.npy_chunk import open_npy
from feedline.store.protocol import Store, check_rows
from feedline.words import path_shown, several

#: The types that tokens may have.
TYPE_NAMES = ("uint16", "uint32", "int32", "int64", "uint64", "int16", "uint8", "int8")


class TokenStore(Store):
    """Samples that are windows over one long list of tokens, read from a mapped file.

    Sample i is `tokens[i * stride : i * stride + window]`, in the column "tokens". Tokens at the
    end that do not fill a window are not read.

    Args:
        path: A `.bin` file of little-endian tokens only, or a `.npy` file with one axis.
        window: The number of tokens in a sample.
        stride: The distance between the starts of samples; by default `window`, so that they do not
            overlap.
        dtype: The type of the tokens in a `.bin` file, by default "uint16"; `.npy` files know it.
        chunk_windows: The number of samples in a chunk.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.arange(10, dtype="<u2").tofile(f"{folder}/tokens.bin")
        ...     store = TokenStore(f"{folder}/tokens.bin", window=4, stride=3)
        ...     store.num_samples, store.read(0, [2, 0])["tokens"].tolist()
        (3, [[6, 7, 8, 9], [0, 1, 2, 3]])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        window: int,
        *,
        stride: int | None = None,
        dtype: str | None = None,
        chunk_windows: int = 1024,
    ) -> None:
        # Absolute, because the process may change its working directory.
        self.path = Path(path).absolute()
        self._given_path = Path(path)
        self.window = check_integer("window", window, 1)
        self.stride = self.window if stride is None else check_integer("stride", stride, 1)
        self._chunk_windows = check_integer("chunk_windows", chunk_windows, 1)
        self._asked_dtype = None if dtype is None else check_choice("dtype", dtype, TYPE_NAMES)
        tokens = self._map_tokens()
        self._dtype_name = tokens.dtype.name
        self._num_tokens = len(tokens)
        check_integer(
            "window",
            self.window,
            1,
            self._num_tokens,
            remedy=f"the number of tokens in {self.path}; use a shorter window",
        )
        self._windows: RowSource | None = self._windows_over(tokens)

    def __getstate__(self) -> dict[str, Any]:
        # The tokens are mapped again where they are needed, not sent.
        return {**self.__dict__, "_windows": None}

    @property
    def _where(self) -> str:
        return f" {path_shown(self._given_path)!r}"

    @property
    def num_samples(self) -> int:
        """The number of windows."""
        return (self._num_tokens - self.window) // self.stride + 1

    @lazy
    def chunk_sizes(self) -> NDArray[np.int64]:
        """The number of samples in each chunk; only the last may have fewer."""
        num_chunks = -(-self.num_samples // self._chunk_windows)
        sizes = np.full(num_chunks, min(self._chunk_windows, self.num_samples), np.int64)
        sizes[-1] = self.num_samples - self._first(num_chunks - 1)
        sizes.flags.writeable = False
        return sizes

    @property
    def columns(self) -> dict[str, Column]:
        """The one column, "tokens"."""
        return {"tokens": Column("tokens", self._dtype_name, (self.window,))}

    @lazy
    def fingerprint(self) -> str:
        """A short string that changes when the tokens or the windows do."""
        parts = [digest_parts(self.path), self.window, self.stride, self._dtype_name]
        digest = hashlib.blake2b(digest_size=16, person=b"feedline.token.1")
        digest.update(json.dumps(parts).encode())
        return digest.hexdigest()

    def read(self, chunk: int, rows: Any, out: Arrays | None = None) -> Arrays:
        """Return rows of one chunk, as column "tokens"; written to `out` if given."""
        chunk = check_integer("chunk", chunk, 0, len(self.chunk_sizes) - 1)
        rows = check_rows(rows, int(self.chunk_sizes[chunk]), f"chunk {chunk} of {self.path}")
        out = make_out(self.columns, len(rows), out)
        self._open_windows().gather(rows + self._first(chunk), out["tokens"])
        return out

    def describe_row(self, chunk: int, row: int) -> str:
        """Return the file and the tokens in it."""
        begin = (self._first(chunk) + int(row)) * self.stride
        return f"file {self.path}, tokens {begin} to {begin + self.window}"

    def prefetch(self, chunk: int) -> None:
        """Do nothing: the kernel reads ahead in the one file."""

    def close(self) -> None:
        """Close the file; a later read opens it again."""
        self._windows = None

    def _first(self, chunk: int) -> int:
        return int(chunk) * self._chunk_windows

    def _windows_over(self, tokens: NDArray[Any]) -> RowSource:
        return RowSource(sliding_window_view(tokens, self.window)[:: self.stride])

    def _open_windows(self) -> RowSource:
        # Another thread may close at any time, so only the local name is sure to stay.
        windows = self._windows
        if windows is None:
            tokens = self._map_tokens()
            if len(tokens) != self._num_tokens or tokens.dtype.name != self._dtype_name:
                raise DamagedDataError(
                    f"{self.path}: has {len(tokens)} {tokens.dtype} tokens but had "
                    f"{self._num_tokens} {self._dtype_name} tokens before; restore it or open a "
                    "new store"
                )
            self._windows = windows = self._windows_over(tokens)
        return windows

    def _map_tokens(self) -> NDArray[Any]:
        if self.path.suffix == ".bin":
            return _map_bin(self.path, self._asked_dtype or "uint16")
        if self.path.suffix != ".npy":
            raise InvalidValueError(
                f"path={str(self.path)!r} must end with .bin or .npy; write the tokens with "
                "numpy's tofile or save"
            )
        tokens: NDArray[Any] = open_npy(self.path).arrays["data"]
        if tokens.ndim != 1 or tokens.dtype.name not in TYPE_NAMES:
            raise DamagedDataError(
                f"{self.path}: has {tokens.ndim} axes of {tokens.dtype} and must have 1 axis of "
                "integers; save array.reshape(-1)"
            )
        if self._asked_dtype not in (None, tokens.dtype.name):
            raise InvalidValueError(
                f"dtype={self._asked_dtype!r} must be {tokens.dtype.name!r}, as in {self.path}; "
                "omit it"
            )
        return tokens


def _map_bin(path: Path, dtype_name: str) -> NDArray[Any]:
    dtype = dtype_named(dtype_name)
    bytes_ = map_file(path)
    if bytes_.size % dtype.itemsize:
        raise DamagedDataError(
            f"{path}: has {several(bytes_.size, 'byte')}, which must be a multiple of the "
            f"{dtype.itemsize} of each {dtype_name} token; pass the dtype that it was written "
            "with, or write it again"
        )
    shape = (bytes_.size // dtype.itemsize,)
    return view(bytes_, path=path, what="tokens", dtype=dtype, shape=shape, offset=0)
