"""Shards of records: each sample is the bytes of its fields, one after another."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from feedline.errors import DamagedDataError
from feedline.lazy import lazy
from feedline.store.chunk import OpenChunk
from feedline.store.columns import Column
from feedline.store.foreign.fields import Field
from feedline.store.foreign.headers import Bytes, Span, numbers_at
from feedline.store.foreign.surveys import kept_survey
from feedline.store.lists import empty_arrays
from feedline.store.progress import open_progress
from feedline.store.shards import ListedShards
from feedline.store.slices import Numbers
from feedline.words import several


class Records(NamedTuple):
    """The bytes of a shard, and where each record begins; the last one ends at the last offset."""

    path: Path
    memory: Bytes
    offsets: Numbers
    num_bytes_held: int


class RecordShards(ListedShards):
    """What is in shards of records.

    Args:
        path: What the user has opened.
        files: The file of each shard.
        sizes: The number of samples in each shard.
        fields: The fields of every record, in their order.
        index: The file that lists the shards.
    """

    def __init__(
        self,
        path: Path,
        files: Sequence[Path],
        sizes: Sequence[int],
        fields: Sequence[Field],
        index: Path,
    ) -> None:
        super().__init__(path, files, sizes, index)
        self.fields = tuple(fields)
        if not self._sizes.sum():
            raise DamagedDataError(f"{path}: has 0 samples and must have at least 1")

    @abstractmethod
    def records(self, chunk: int) -> Records:
        """Return the bytes of a shard."""

    @lazy
    def columns(self) -> Mapping[str, Column]:
        """The columns of every sample; the first time, some data is looked through."""
        return {column.name: column for columns in self._columns for column in columns}

    @lazy
    def _columns(self) -> list[list[Column]]:
        """The columns of each field."""
        first = int(np.flatnonzero(self._sizes)[0])
        records = self.records(first)
        spans = self.spans(records)
        means = [-(-int(span.lengths.sum()) // len(span.lengths)) for span in spans]
        surveyed = [n for n, field in enumerate(self.fields) if field.is_surveyed]
        if not surveyed:
            return self._decided({}, means)
        what = repr([(n, self.fields[n]) for n in surveyed])
        return kept_survey(
            what,
            self.files,
            lambda: self._survey(surveyed),
            lambda found: self._decided(dict(zip(surveyed, found, strict=True)), means),
        )

    def _decided(self, found: Mapping[int, Any], means: Sequence[int]) -> list[list[Column]]:
        """Return the columns of each field, by what was found in some of them."""
        columns = [
            field.columns(found.get(number), mean)
            for number, (field, mean) in enumerate(zip(self.fields, means, strict=True))
        ]
        names = [column.name for part in columns for column in part]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DamagedDataError(f"{self._index}: has column {twice!r:.80} twice; write it again")
        return columns

    def _survey(self, numbers: Sequence[int]) -> list[Any]:
        """Return what is in some fields of all shards."""
        found: list[Any] = []
        with open_progress(None) as progress:
            progress.begin(f"looks through {self.path.name}", len(self._files), unit="shards")
            for chunk in np.flatnonzero(self._sizes).tolist():
                records = self.records(chunk)
                spans = self.spans(records)
                here = []
                for place, number in enumerate(numbers):
                    field, where = self.fields[number], self._where(chunk, number)
                    result = field.survey(records.memory, spans[number], where)
                    here.append(field.merged(found[place], result, where) if found else result)
                found = here
                progress.advance(1)
        return found

    def open(self, chunk: int, names: Sequence[str]) -> OpenChunk:
        """Open one shard: tables of where each value lies; only texts of numbers are decoded."""
        path = self._files[chunk]
        if not self._sizes[chunk]:
            return OpenChunk(path, empty_arrays(self.columns), num_files=0)
        records = self.records(chunk)
        spans = self.spans(records)
        arrays: dict[str, Any] = {}
        num_bytes_held = records.num_bytes_held
        for number, columns in enumerate(self._columns):
            if any(column.name in names for column in columns):
                span, where = spans[number], self._where(chunk, number)
                arrays |= self.fields[number].open(records.memory, span, columns, where)
                num_bytes_held += span.starts.nbytes + span.lengths.nbytes
        decoded = [array.nbytes for array in arrays.values() if isinstance(array, np.ndarray)]
        return OpenChunk(path, arrays, num_bytes_held=num_bytes_held + sum(decoded))

    def _where(self, chunk: int, field: int) -> str:
        return f"{self._files[chunk]}: column {self.fields[field].name!r:.80}"

    def spans(self, records: Records) -> list[Span]:
        """Return where the values of each field lie, or raise if lengths do not add up.

        A record begins with the lengths of all fields whose size is not known.
        """
        num_words = sum(field.size is None for field in self.fields)
        starts, ends = records.offsets[:-1], records.offsets[1:]
        place = starts + 4 * num_words
        if np.any(place > ends):
            raise _not_adding_up(records.path)
        lengths = iter(numbers_at(records.memory, starts, num_words, "<u4").astype(np.int64).T)
        spans = []
        for field in self.fields:
            if field.size is None:
                length = np.ascontiguousarray(next(lengths))
            else:
                length = np.full(len(starts), field.size, np.int64)
            spans.append(Span(place, length))
            place = place + length
        if not np.array_equal(place, ends):
            raise _not_adding_up(records.path)
        return spans


def offsets_in(path: Path, memory: Bytes, num_samples: int) -> Numbers:
    """Return where records begin and end, by the table at the head of a shard, or raise.

    The table is the number of records and one more offset than that, in 32 bits each.
    """
    declared = int(memory[:4].view("<u4")[0]) if memory.size >= 4 else 0
    if declared != num_samples:
        raise DamagedDataError(
            f"{path}: has {several(declared, 'sample')} but should have {num_samples:,}; copy or "
            "write it again"
        )
    end = 4 * (num_samples + 2)
    if end > memory.size:
        raise DamagedDataError(
            f"{path}: has {several(memory.size, 'byte')}, too few for a table of "
            f"{several(num_samples, 'sample')}; it is truncated; copy or write it again"
        )
    offsets = memory[4:end].view("<u4").astype(np.int64)
    if offsets[0] < end or offsets[-1] > memory.size or np.any(offsets[1:] < offsets[:-1]):
        raise DamagedDataError(
            f"{path}: a sample lies outside of the file, which has {several(memory.size, 'byte')}; "
            "it is truncated or damaged; copy or write it again"
        )
    return offsets


def _not_adding_up(path: Path) -> DamagedDataError:
    return DamagedDataError(
        f"{path}: the lengths of the values of a sample do not add up to its own; the file is "
        "damaged; copy or write it again"
    )
