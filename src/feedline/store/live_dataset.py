"""A `datasets.Dataset` of Hugging Face in memory, as a store: samples are read from its table.

The library is not imported here: whoever has such a dataset has imported it.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError, StoreError, check_integer, check_sequence
from feedline.lazy import lazy
from feedline.store.access import with_lists
from feedline.store.arrow_chunk import Leaves, arrays_of_table, leaves_to_read
from feedline.store.arrow_columns import Seen, columns_of_groups
from feedline.store.arrow_files import Counts
from feedline.store.arrow_types import Form, Leaf, is_any, leaves_of, storage_type
from feedline.store.chunk import OpenChunk, OpenChunks, max_open_files
from feedline.store.columns import MISSING, Arrays, Column, make_out, with_masks
from feedline.store.extras import import_arrow
from feedline.store.gather import scatter
from feedline.store.lists import Lists, ListSource
from feedline.store.matrix import rows_by_part
from feedline.store.protocol import Store, check_rows
from feedline.store.scattered import Rows

_PATH = Path("datasets.Dataset")
# With indices, a sample may lie anywhere; this many are a chunk.
_CHUNK_SAMPLES = 4096
_NUM_PROBES = 64
# All samples of a small dataset count for its fingerprint, as all bytes of a small file do.
_WHOLE_BYTES, _WHOLE_SAMPLES = 2**18, 2**14
_ITERABLE = ("iterable_dataset", "IterableDataset")


def is_live_dataset(value: Any) -> bool:
    """Whether this is a dataset of the library, by the name of its class."""
    kinds = (("arrow_dataset", "Dataset"), ("dataset_dict", "DatasetDict"), _ITERABLE)
    return any(_is_named(value, *kind) for kind in kinds)


def open_live(value: Any, *, split: str | None = None, **options: Any) -> DatasetStore:
    """Return a store of a `datasets.Dataset`, or of a split of a `DatasetDict`."""
    if _is_named(value, "dataset_dict", "DatasetDict"):
        splits = list(value)
        if split not in splits:
            given = "is a DatasetDict" if split is None else f"has no split {split!r:.80}"
            raise InvalidValueError(
                f"the dataset {given}; open one of its splits with split=...: {', '.join(splits)}"
            )
        return DatasetStore(value[split], **options)
    if _is_named(value, *_ITERABLE):
        raise InvalidValueError(
            "a datasets.IterableDataset has no samples by number; load the dataset with "
            "streaming=False, or save it to disk and open the folder; or pass it to a DataLoader "
            "of Feedline as it is, which resumes it (docs/iterables.md)"
        )
    if split is not None:
        raise InvalidValueError(f"split={split!r:.80} cannot be used: this is one split; omit it")
    return DatasetStore(value, **options)


def _is_named(value: Any, module: str, name: str) -> bool:
    wanted = (f"datasets.{module}", name)
    return any((kind.__module__, kind.__name__) == wanted for kind in type(value).__mro__)


class DatasetStore(Store):
    """The samples of a `datasets.Dataset`, read from its Arrow table in whole batches.

    Formats such as `with_format("torch")` are ignored, except for the columns that they choose.

    Args:
        dataset: The dataset.
        columns: The columns to read; by default all.
        lists: Columns to read as lists of any length, even if all seem to have one length.
        cache_bytes: Bytes of decoded data to keep.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        columns: Iterable[str] | None = None,
        lists: Iterable[str] = (),
        cache_bytes: int = 2**28,
    ) -> None:
        shape = dataset.format
        if shape["type"] == "custom":
            raise InvalidValueError(
                "the dataset has a transform of its own (set_transform or with_transform), which a "
                "store does not call; reset it with reset_format(), and pass the transform to the "
                "DataLoader"
            )
        if not len(dataset):
            raise StoreError(f"{_PATH}: has 0 samples and must have at least 1")
        self._dataset = dataset
        self._shown = tuple(shape["columns"])
        self._lists = check_sequence("lists", lists)
        self._cache_bytes = check_integer("cache_bytes", cache_bytes, 0)
        self._selected = None if columns is None else self._check_selection(columns)
        self._open_batches = self._fresh_batches()

    def _check_selection(self, columns: Iterable[str]) -> tuple[str, ...]:
        names = check_sequence("columns", columns)
        known = [leaf.name for leaf in leaves_of(import_arrow(), self._schema)]
        wrong = [n for n in names if n not in known and str(n).removesuffix(MISSING) not in known]
        if wrong or not names:
            raise _unknown(wrong, known)
        return names

    def select(self, columns: Iterable[str]) -> DatasetStore:
        """Return the same store with fewer columns."""
        other = copy.copy(self)
        other._selected = self._check_selection(columns)
        for name in ("columns", "_known"):
            other.__dict__.pop(name, None)
        other._open_batches = other._fresh_batches()
        return other

    def _fresh_batches(self) -> OpenChunks[OpenChunk]:
        return OpenChunks(self._open, max_open_files(), self._cache_bytes)

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_dataset", "_shown", "_lists", "_cache_bytes", "_selected", "_known")
        return {name: value for name, value in self.__dict__.items() if name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open_batches = self._fresh_batches()

    @property
    def _where(self) -> str:
        return f" of {type(self._dataset).__name__}"

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return len(self._dataset)

    @lazy
    def chunk_sizes(self) -> NDArray[np.int64]:
        """The number of samples in each chunk: a batch of the table, or of the indices."""
        if self._indices is None:
            return np.diff(self._batch_edges)
        edges = np.arange(0, self.num_samples, _CHUNK_SAMPLES)
        return np.diff(np.append(edges, self.num_samples))

    @lazy
    def columns(self) -> dict[str, Column]:
        """The columns of every sample."""
        names = with_masks(self._selected or list(self._known), self._known)
        wrong = [name for name in names if name not in self._known]
        if wrong:
            raise _unknown(wrong, list(self._known))
        return {name: self._known[name] for name in names}

    @lazy
    def fingerprint(self) -> str:
        """A short string that changes when the data does: types, length and some samples.

        Of a small dataset it is all samples.
        """
        digest = hashlib.blake2b(digest_size=16, person=b"feedline.store.1")
        arrow, table = import_arrow(), self._table
        for field in table.schema:
            digest.update(f"{field.name} {storage_type(arrow, field.type)}\0".encode())
        digest.update(f"{self.num_samples}\0".encode())
        if self.num_samples <= _WHOLE_SAMPLES and table.nbytes <= _WHOLE_BYTES:
            every = table.to_pylist()
            for row in self._rows_of(np.arange(self.num_samples)).tolist():
                digest.update(repr([every[row]]).encode())
            return digest.hexdigest()
        probes = np.linspace(0, self.num_samples - 1, _NUM_PROBES, dtype=np.int64)
        for row in self._rows_of(np.unique(probes)):
            digest.update(repr(table.slice(int(row), 1).to_pylist()).encode())
        return digest.hexdigest()

    def read(self, chunk: int, rows: Any, out: Arrays | None = None) -> Arrays:
        """Return rows of one chunk, column by column; written to `out` if given."""
        chunk = check_integer("chunk", chunk, 0, len(self.chunk_sizes) - 1)
        rows = check_rows(rows, int(self.chunk_sizes[chunk]), "the dataset")
        columns = self.columns
        out = make_out(columns, len(rows), out)
        lists: dict[str, list[Lists]] = {c.name: [] for c in columns.values() if c.has_lists}
        at: list[NDArray[np.int64]] = []
        places_of = rows_by_part(self._rows_of(self.edges[chunk] + rows), self._batch_edges)
        for batch, places, inside in places_of:
            source = self._open_batches.get(batch)
            found = source.read(inside, columns, make_out(columns, len(inside), None))
            at.append(places)
            for name, values in found.items():
                if name in lists:
                    lists[name].append(values)
                else:
                    scatter(values, out[name], places)
        return with_lists(columns, out, lists, at)

    def row_sources(self, chunk: int) -> Mapping[str, Rows] | None:
        """Return the columns of a batch; None if indices choose the samples."""
        return self._open_batches.get(chunk).rows if self._indices is None else None

    def keeps_open(self, chunks: Sequence[int]) -> bool:
        """Whether all of these batches are kept, of which no more are than may be at once."""
        return self._open_batches.has_all(chunks)

    def describe_row(self, chunk: int, row: int) -> str:
        """Return the number of a row in the dataset."""
        return f"{_PATH}, row {int(self.edges[chunk]) + row}"

    def prefetch(self, chunk: int) -> None:
        """Do nothing: the table is in memory, or mapped by the library."""
        return

    def close(self) -> None:
        """Forget decoded batches."""
        self._open_batches.clear()

    def _rows_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of the table that samples are in."""
        return samples if self._indices is None else self._indices[samples].astype(np.int64)

    @lazy
    def _table(self) -> Any:
        table = self._dataset.data
        return getattr(table, "table", table)

    @lazy
    def _schema(self) -> Any:
        """The schema of the columns that the dataset shows."""
        return import_arrow().schema([self._table.schema.field(name) for name in self._shown])

    @lazy
    def _indices(self) -> NDArray[Any] | None:
        indices = self._dataset._indices
        if indices is None:
            return None
        column = getattr(indices, "table", indices).column(0)
        found: NDArray[Any] = column.to_numpy()
        if found.max() >= self._table.num_rows:
            raise StoreError(
                f"{_PATH}: its indices go to {found.max()}, which must be below "
                f"{self._table.num_rows}, the rows of its table"
            )
        return found

    @lazy
    def _batches(self) -> list[Any]:
        return [batch for batch in self._table.to_batches() if batch.num_rows]

    @lazy
    def _batch_edges(self) -> NDArray[np.int64]:
        return np.cumsum([0, *(batch.num_rows for batch in self._batches)], dtype=np.int64)

    @lazy
    def _known(self) -> dict[str, Column]:
        """The columns that are read, and where their values are missing."""
        leaves = self._leaves(self._selected)
        seen = {name: Seen(form) for name, (_, form) in leaves.items()}
        sizes = [batch.num_rows for batch in self._batches]
        for name, both in leaves.items():
            seen[name].add(range(len(sizes)), sizes, self._counts(*both))
        return columns_of_groups(seen, range(len(sizes)), self._lists, self._open_some)

    def _counts(self, leaf: Leaf, form: Form) -> Counts:
        arrow = import_arrow()
        nulls, values = [], []
        for batch in self._batches:
            array = batch.column(batch.schema.get_field_index(leaf.steps[0]))
            num_nulls = 0
            for step in (None, *leaf.steps[1:]):
                while isinstance(array.type, arrow.BaseExtensionType):
                    array = array.storage
                array = array if step is None else array.field(step)
                num_nulls += array.null_count
            nulls.append(num_nulls)
            while isinstance(array.type, arrow.BaseExtensionType):
                array = array.storage
            if form.may_be_lists and is_any(arrow, array.type, "is_list", "is_large_list"):
                values.append(array.offsets[-1].as_py() - array.offsets[0].as_py())
        found = np.array(values, np.int64) if values else None
        return Counts(np.array(nulls, np.int64), found, np.zeros(len(nulls), np.int64))

    def _leaves(self, names: Sequence[str] | None) -> Leaves:
        return leaves_to_read(import_arrow(), _PATH, self._schema, names)

    def _open_some(self, batch: int, names: Sequence[str], lists: Collection[str]) -> OpenChunk:
        leaves = self._leaves(names)
        arrays = arrays_of_table(_PATH, self._batches[batch], leaves, names, None, lists)
        return OpenChunk(_PATH, arrays, num_files=0)

    def _open(self, batch: int) -> OpenChunk:
        names = list(self.columns)
        leaves = self._leaves(names)
        arrays = arrays_of_table(_PATH, self._batches[batch], leaves, names, self._known, ())
        held = sum(map(_bytes_of_ours, arrays.values()))
        return OpenChunk(_PATH, arrays, num_bytes_held=held, num_files=0)


def _unknown(wrong: list[str], known: list[str]) -> InvalidValueError:
    return InvalidValueError(
        f"columns={wrong!s:.200} must be among those of the dataset, at least 1 of them: "
        f"{', '.join(known):.300}"
    )


def _bytes_of_ours(values: NDArray[Any] | ListSource) -> int:
    """Return the bytes that values take beside the table's own."""
    if isinstance(values, ListSource):
        return values.starts.nbytes + values.lengths.nbytes
    root = values
    while isinstance(root.base, np.ndarray):
        root = root.base
    return values.nbytes if root.flags.owndata else 0
