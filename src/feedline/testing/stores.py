"""What every store promises, checked on one of your own."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError
from feedline.feed import DataLoader
from feedline.store import Column, Lists, Store, is_store
from feedline.testing.faults import fail, is_equal
from feedline.testing.loaders import check_loader
from feedline.words import several

# Chunks and samples of a store that are looked at; a larger one is looked at here and there.
_MOST_CHUNKS = 20
_MOST_SAMPLES = 2000
_NUM_THREADS = 4


def check_store(store: Store, *, reopen: Callable[[], Store] | None = None) -> None:
    """Check what every store promises, and raise an AssertionError that says what is broken.

    Rows come in any order, repeated, from several threads and into given arrays; a copy in another
    process is the same; the fingerprint is stable; loaders over it deliver each sample once, and
    resume on any number of ranks.

    Args:
        store: The store, with some hundred samples in a few chunks.
        reopen: Opens the same data again. With it, the fingerprint of a second store is compared.

    Raises:
        AssertionError: If a promise is broken.

    Examples:
        >>> import tempfile
        >>> import feedline
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = feedline.pack({"x": np.arange(100)}, f"{folder}/data", chunk_samples=30)
        ...     check_store(feedline.open(f"{folder}/data"))
    """
    if not is_store(store):
        raise InvalidValueError(f"store={store!r:.80} must be a store; derive it from Store")
    _check_sizes(store)
    chunks = _some(len(store.chunk_sizes), _MOST_CHUNKS)
    for chunk in chunks:
        _check_chunk(store, chunk)
    _check_bad_rows(store, chunks[0])
    _check_samples_by_number(store)
    _check_threads(store, chunks)
    _check_copies(store, reopen)
    # Beyond this size a whole epoch takes long.
    if store.num_samples <= _MOST_SAMPLES:
        check_loader(
            lambda **options: DataLoader(store, shuffle=True, seed=1, **options),
            num_samples=store.num_samples,
        )


def _check_sizes(store: Store) -> None:
    sizes = np.asarray(store.chunk_sizes)
    if sizes.dtype != np.int64 or sizes.ndim != 1 or not len(sizes) or sizes.min() < 0:
        fail("chunk_sizes must be a flat array of int64, none below 0, of at least 1 chunk")
    if int(sizes.sum()) != store.num_samples or not store.num_samples:
        fail(
            f"num_samples is {store.num_samples}, which must be the sum of chunk_sizes, "
            f"{int(sizes.sum())}, and at least 1"
        )
    if len(store) != store.num_samples:
        fail(f"len(store) is {len(store)} and must be num_samples, {store.num_samples}")
    if not store.columns:
        fail("columns must name at least 1 column")
    for name, column in store.columns.items():
        if not isinstance(column, Column) or column.name != name:
            fail(f"columns[{name!r}] must be a Column of that name, not {column!r:.80}")
    if not isinstance(store.fingerprint, str) or not store.fingerprint:
        fail(f"fingerprint must be a text, not {store.fingerprint!r:.80}")


def _check_chunk(store: Store, chunk: int) -> None:
    """Check that rows come in any order, repeated, none, and into given arrays."""
    size = int(store.chunk_sizes[chunk])
    rows = np.array(_some(size, 50), dtype=np.int64)
    there = store.read(chunk, rows)
    _check_values(store, chunk, there, len(rows))
    back = np.arange(len(rows))[::-1]
    for chosen, what in (
        (back, "in another order"),
        (np.repeat(back, 2), "twice"),
        (back[:0], "none"),
    ):
        asked = rows[chosen]
        found = store.read(chunk, asked)
        if not np.array_equal(asked, rows[chosen]):
            fail(f"chunk {chunk}: read changed the rows that it was given; it must copy them first")
        _check_values(store, chunk, found, len(chosen))
        _check_same(found, _taken(there, chosen), f"chunk {chunk}, rows asked for {what}")
    out = {
        name: np.empty((len(rows), *column.shape), column.dtype)
        for name, column in store.columns.items()
        if not column.has_lists
    }
    given = dict(out)
    found = store.read(chunk, rows, out=out)
    _check_same(found, there, f"chunk {chunk}, read into `out`")
    for name, array in given.items():
        if found[name] is not array and not np.shares_memory(found[name], array) and array.size:
            fail(f"chunk {chunk}: column {name!r} was not written to the array in `out`")
    if size and not isinstance(store.describe_row(chunk, 0), str):
        fail("describe_row must return a text")
    _check_sources(store, chunk, rows, there)


def _check_sources(store: Store, chunk: int, rows: NDArray[np.int64], there: Any) -> None:
    sources = store.row_sources(chunk)
    if sources is None:
        return
    for name in store.columns:
        source: Any = sources[name]
        if store.columns[name].has_lists:
            found = source.gather(rows)
        else:
            found = np.empty_like(there[name])
            source.gather(rows, found)
        if not is_equal(found, there[name]):
            fail(f"chunk {chunk}: row_sources and read differ in column {name!r}")


def _check_values(store: Store, chunk: int, found: Any, num_rows: int) -> None:
    unknown = sorted(found.keys() - store.columns.keys())
    if unknown:
        fail(f"chunk {chunk}: read returns {unknown[0]!r:.80}, which is not in columns")
    for name, column in store.columns.items():
        values = found.get(name)
        where = f"chunk {chunk}, column {name!r}"
        if column.has_lists:
            if not isinstance(values, Lists) or values.kind != column.kind:
                fail(f"{where}: must be read as Lists of kind {column.kind!r}, not {values!r:.80}")
            array, shape = values.values, column.shape
        else:
            array, shape = values, column.shape
            if not isinstance(array, np.ndarray) or len(array) != num_rows:
                fail(f"{where}: must be an array of {num_rows} rows, not {values!r:.80}")
        if len(values) != num_rows or array.dtype != column.dtype or array.shape[1:] != shape:
            fail(
                f"{where}: has {several(len(values), 'row')} of {array.dtype}{array.shape[1:]} and "
                f"must have {num_rows} of {column.dtype}{shape}"
            )


def _check_bad_rows(store: Store, chunk: int) -> None:
    size = int(store.chunk_sizes[chunk])
    for rows in ([size], [-1]):
        try:
            store.read(chunk, np.array(rows))
        except (ValueError, IndexError):
            continue
        fail(f"chunk {chunk} has {size} rows, so that reading row {rows[0]} must raise ValueError")


def _check_samples_by_number(store: Store) -> None:
    edges = np.concatenate([[0], np.cumsum(store.chunk_sizes)])
    for index in _some(store.num_samples, 30):
        chunk = int(np.searchsorted(edges, index, side="right")) - 1
        in_chunk = store.read(chunk, np.array([index - edges[chunk]]))
        sample = store[index]
        for name, column in store.columns.items():
            expected = in_chunk[name][0]
            if column.type_name != "bfloat16" and not is_equal(sample[name], expected):
                fail(f"store[{index}][{name!r}] differs from what read returns of its row")


def _check_threads(store: Store, chunks: list[int]) -> None:
    wanted = [(chunk, np.arange(min(int(store.chunk_sizes[chunk]), 50))) for chunk in chunks]
    alone = [store.read(*chosen) for chosen in wanted]
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        for found, expected in zip(
            pool.map(lambda chosen: store.read(*chosen), wanted * 3), alone * 3, strict=True
        ):
            _check_same(found, expected, "read by several threads at once")


def _check_copies(store: Store, reopen: Callable[[], Store] | None) -> None:
    copies = [("a pickled copy", pickle.loads(pickle.dumps(store)))]
    if reopen is not None:
        copies.append(("the data, opened again,", reopen()))
    for what, copy in copies:
        if copy.fingerprint != store.fingerprint:
            fail(f"{what} has another fingerprint; it must depend on the data only")
        _check_same(copy.read(0, np.arange(0)), store.read(0, np.arange(0)), what)
        index = store.num_samples - 1
        for name, value in copy[index].items():
            if not is_equal(value, store[index][name]):
                fail(f"{what} has another value in column {name!r} of sample {index}")
    store.close()
    if not is_equal(len(store[0]), len(store.columns)):
        fail("a store must be readable again after close()")


def _taken(values: Any, rows: NDArray[np.int64]) -> dict[str, Any]:
    return {name: v.take(rows) if isinstance(v, Lists) else v[rows] for name, v in values.items()}


def _check_same(found: Any, expected: Any, what: str) -> None:
    for name, values in expected.items():
        if name not in found or not is_equal(found[name], values):
            fail(f"{what}: column {name!r} differs from the first time it was read")


def _some(count: int, most: int) -> list[int]:
    """Return at most `most` of the first numbers, spread evenly over them."""
    return sorted(set(np.linspace(0, count - 1, min(count, most)).astype(int).tolist()))
