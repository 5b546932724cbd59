"""Megatron's indexed datasets: tokens in a `.bin` file, and where they begin in an `.idx` file.

A sample is a sequence. Its column "tokens" is a list; "document" is the number of the document that
it belongs to. "mode" is there if the index has modes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, MissingDataError
from feedline.lazy import lazy
from feedline.store.chunk import OpenChunk
from feedline.store.columns import Column, dtype_named
from feedline.store.lists import ListSource
from feedline.store.mapped import map_file
from feedline.store.paths import size_of
from feedline.store.shards import Shards
from feedline.words import several

_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_HEADER_BYTES = len(_MAGIC) + 8 + 1 + 8 + 8
_TYPES = {
    **{1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64"},
    **{6: "float64", 7: "float32", 8: "uint16"},
}
# A chunk is a run of sequences of about this size.
_CHUNK_BYTES = 2**22
_CHUNK_SEQUENCES = 2**16


def matches(path: Path) -> bool:
    """Whether the data at a path is an indexed dataset: either of its files, or their prefix."""
    if path.is_dir():
        return False  # Files beside a folder, of its name, are other data.
    return _index_beside(path).is_file() and _tokens_beside(path).is_file()


def open_shards(path: Path) -> Indexed:
    """Return what is in an indexed dataset."""
    return Indexed(path)


def token_type(path: Path) -> str | None:
    """Return the type of the tokens in a `.bin` file; None if there is no index beside it."""
    index = _index_beside(path)
    if not index.is_file():
        return None
    first_bytes = getattr(index, "first_bytes", None)
    start = map_file(index) if first_bytes is None else first_bytes(_HEADER_BYTES)
    return _read_header(index, np.frombuffer(start, np.uint8))[0]


def _index_beside(path: Path) -> Path:
    return _beside(path, ".idx")


def _tokens_beside(path: Path) -> Path:
    return _beside(path, ".bin")


def _beside(path: Path, ending: str) -> Path:
    is_one = path.suffix in (".bin", ".idx")
    return path.with_suffix(ending) if is_one else path.parent / f"{path.name}{ending}"


class Indexed(Shards):
    """The sequences of an indexed dataset, in chunks of consecutive ones.

    Args:
        path: The `.bin` or the `.idx` file, or both without their ending.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path.absolute())
        self._index, self._tokens = _index_beside(self.path), _tokens_beside(self.path)
        if not self._tokens.exists():
            raise MissingDataError(f"{self._tokens}: does not exist; it holds the tokens")
        table = _Table(self._index)
        self._type_name, self._has_modes = table.type_name, table.modes is not None
        self._mean_bytes = -(-int(table.sizes.sum(dtype=np.int64)) // max(1, len(table.sizes)))
        self._mean_bytes *= dtype_named(self._type_name).itemsize
        table.check()
        table.check_end(self._tokens)
        self._num_sequences = len(table.sizes)
        self._step = max(1, min(_CHUNK_SEQUENCES, _CHUNK_BYTES // max(1, self._mean_bytes)))

    @lazy
    def chunk_sizes(self) -> NDArray[np.int64]:
        """The number of sequences in each chunk; only the last may have fewer."""
        edges = np.append(np.arange(0, self._num_sequences, self._step), self._num_sequences)
        return np.diff(edges)

    @property
    def columns(self) -> Mapping[str, Column]:
        """The columns of every sequence."""
        tokens = Column("tokens", self._type_name, kind="list", mean_bytes=self._mean_bytes)
        columns = {"tokens": tokens, "document": Column("document", "int64")}
        return columns | ({"mode": Column("mode", "int8")} if self._has_modes else {})

    @property
    def files(self) -> Sequence[Path]:
        """The two files."""
        return (self._index, self._tokens)

    def files_of(self, chunk: int) -> Sequence[Path]:
        """Return the two files; of a remote one, the part that a chunk needs."""
        if not hasattr(self._tokens, "part"):
            return self.files
        return (self._index, self._part_of(chunk, _Table(self._index))[0])

    def _part_of(self, chunk: int, table: _Table) -> tuple[Path, int]:
        """Return the file with the tokens of a chunk, and its place in the whole file."""
        part = getattr(self._tokens, "part", None)
        some = slice(chunk * self._step, (chunk + 1) * self._step)
        sizes = table.sizes[some].astype(np.int64) * dtype_named(self._type_name).itemsize
        if part is None or not sizes.any():
            return self._tokens, 0
        starts = table.starts[some][sizes > 0]
        first, end = int(starts.min()), int((starts + sizes[sizes > 0]).max())
        if not 0 <= first < end <= size_of(self._tokens):
            raise DamagedDataError(
                f"{self._tokens}: has {size_of(self._tokens)} bytes, but its index has sequences "
                f"in bytes [{first}, {end}); write it again"
            )
        return part(first, end), first

    def prefetch(self, chunk: int) -> None:
        """Do nothing: the kernel reads ahead in the one file, which may be very large."""

    def open(self, chunk: int, names: Sequence[str]) -> OpenChunk:
        """Open a run of sequences, mapped."""
        table = _Table(self._index)
        if table.type_name != self._type_name or len(table.sizes) != self._num_sequences:
            raise DamagedDataError(
                f"{self._index}: has {several(len(table.sizes), 'sequence')} of {table.type_name} "
                f"but had {self._num_sequences} of {self._type_name} before; restore it, or open "
                "it again"
            )
        first = chunk * self._step
        some = slice(first, min(first + self._step, self._num_sequences))
        lengths = table.sizes[some].astype(np.int64) * dtype_named(self._type_name).itemsize
        tokens_path, offset = self._part_of(chunk, table)
        tokens = ListSource(
            map_file(tokens_path),
            np.where(lengths > 0, table.starts[some] - offset, 0) if offset else table.starts[some],
            lengths,
            type_name=self._type_name,
            where=f"{self._tokens}: tokens",
        )
        numbers = np.arange(some.start, some.stop)
        documents = np.searchsorted(table.documents, numbers, side="right") - 1
        arrays = {"tokens": tokens, "document": documents.astype(np.int64)}
        if table.modes is not None:
            arrays["mode"] = table.modes[some]
        held = documents.nbytes + lengths.nbytes + tokens.starts.nbytes
        return OpenChunk(
            self._tokens, {name: arrays[name] for name in names}, num_bytes_held=held, num_files=2
        )

    def describe_row(self, chunk: int, row: int) -> str:
        """Return the file and the number of the sequence."""
        return f"{self._tokens}, sequence {chunk * self._step + row}"


class _Table:
    """The tables of an `.idx` file, mapped: sizes and starts of sequences, and documents."""

    def __init__(self, path: Path) -> None:
        bytes_ = map_file(path)
        self.type_name, num_sequences, num_documents = _read_header(path, bytes_)
        widths = (4 * num_sequences, 8 * num_sequences, 8 * num_documents)
        # Python's integers, which cannot overflow.
        ends = list(accumulate(widths, initial=_HEADER_BYTES))
        if bytes_.size not in (ends[-1], ends[-1] + num_sequences):
            raise DamagedDataError(
                f"{path}: has {several(bytes_.size, 'byte')} but describes {ends[-1]}, for "
                f"{several(num_sequences, 'sequence')} and {several(num_documents, 'document')}; "
                "it is truncated or damaged; write it again"
            )
        parts = [bytes_[start:end] for start, end in pairwise(ends)]
        self.sizes: NDArray[np.int32] = parts[0].view("<i4")
        self.starts: NDArray[np.int64] = parts[1].view("<i8")
        self.documents: NDArray[np.int64] = parts[2].view("<i8")
        modes = bytes_[ends[-1] :].view(np.int8)
        self.modes = modes if len(modes) else None
        self._path = path

    def check(self) -> None:
        """Raise unless sizes and documents are sound."""
        path = self._path
        if len(self.sizes) and self.sizes.min() < 0:
            raise DamagedDataError(f"{path}: a sequence has fewer than 0 tokens; write it again")
        documents = self.documents
        is_sound = not len(self.sizes) or (
            len(documents) and documents[0] == 0 and documents[-1] == len(self.sizes)
        )
        if not is_sound or np.any(documents[1:] < documents[:-1]):
            raise DamagedDataError(
                f"{path}: documents must begin at sequence 0, ascend, and end at sequence "
                f"{len(self.sizes)}; write it again"
            )

    def check_end(self, tokens: Path) -> None:
        """Raise unless the last sequence ends where the file of tokens does."""
        width, end = dtype_named(self.type_name).itemsize, 0
        for first in range(0, len(self.sizes), _CHUNK_SEQUENCES):
            some = slice(first, first + _CHUNK_SEQUENCES)
            # Starts are not trusted: a sum that overflows is negative, and never the largest.
            ends = self.starts[some] + self.sizes[some].astype(np.int64) * width
            end = max(end, int(ends.max()))
        if end != size_of(tokens):
            raise DamagedDataError(
                f"{tokens}: has {size_of(tokens)} bytes, but the sequences in {self._path.name} "
                f"end at byte {end}; one of them is older, truncated or of other data; write both "
                "again"
            )


def _read_header(path: Path, bytes_: NDArray[np.uint8]) -> tuple[str, int, int]:
    """Return the type of the tokens, and the numbers of sequences and of document edges."""
    header = bytes_[:_HEADER_BYTES].tobytes()
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        raise DamagedDataError(
            f"{path}: begins with {header[:9]!r} and must begin with {_MAGIC!r}, as an index of "
            "Megatron does; write it again"
        )
    rest = header[len(_MAGIC) :]
    version, code = int.from_bytes(rest[:8], "little"), rest[8]
    if version != _VERSION or code not in _TYPES:
        raise DamagedDataError(
            f"{path}: has version {version} and type {code}, which must be version {_VERSION} and "
            f"a type of 1 to {len(_TYPES)}; write it again"
        )
    counts = [int.from_bytes(rest[at : at + 8], "little") for at in (9, 17)]
    return _TYPES[code], counts[0], counts[1]
