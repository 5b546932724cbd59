"""The suites for users pass on sound stores and loaders, and find what is broken in others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

import feedline
from feedline.errors import InvalidValueError
from feedline.store import Column, Lists, Store
from feedline.testing import check_loader, check_store
from foreign import NAMES, data_of, few_of


class Squares(Store):
    """Sound: numbers and texts, in chunks of 10 and a rest."""

    num_samples = 37
    columns: ClassVar = {"x": Column("x", "int64"), "name": Column("name", "uint8", kind="text")}
    fingerprint = "squares"

    @property
    def chunk_sizes(self) -> NDArray[np.int64]:
        return np.array([10, 10, 10, 7])

    def read(self, chunk: int, rows: Any, out: Any = None) -> dict[str, Any]:
        rows = np.asarray(rows, dtype=np.int64)
        if len(rows) and (rows.min() < 0 or rows.max() >= self.chunk_sizes[chunk]):
            raise ValueError("no such row")
        numbers = (chunk * 10 + rows) ** 2
        found = {} if out is None else out
        if "x" in found:
            found["x"][:] = numbers
        else:
            found["x"] = numbers
        texts = [str(number) for number in numbers]
        found["name"] = Lists.of(texts) if texts else Lists.none_of(self.columns["name"])
        return found

    def describe_row(self, chunk: int, row: int) -> str:
        return f"square {chunk * 10 + row}"


def test_a_sound_store_of_the_users_own_passes() -> None:
    check_store(Squares(), reopen=Squares)


@pytest.mark.parametrize("name", few_of(NAMES))
def test_stores_of_other_formats_pass(name: str) -> None:
    check_store(feedline.open(data_of(name)), reopen=lambda: feedline.open(data_of(name)))


def test_a_packed_folder_passes(tmp_path: Path) -> None:
    columns = {"x": np.arange(50), "y": np.ones((50, 3), np.float32)}
    feedline.pack(columns, tmp_path / "data", chunk_samples=20)
    check_store(feedline.open(tmp_path / "data"), reopen=lambda: feedline.open(tmp_path / "data"))


class WrongSum(Squares):
    num_samples = 36


class WrongType(Squares):
    columns: ClassVar = {**Squares.columns, "x": Column("x", "int32")}


class IgnoresOrder(Squares):
    def read(self, chunk: int, rows: Any, out: Any = None) -> dict[str, Any]:
        return super().read(chunk, np.sort(rows), out)


class IgnoresOut(Squares):
    def read(self, chunk: int, rows: Any, out: Any = None) -> dict[str, Any]:
        return super().read(chunk, rows)


class TakesAnyRow(Squares):
    def read(self, chunk: int, rows: Any, out: Any = None) -> dict[str, Any]:
        return super().read(chunk, np.clip(rows, 0, self.chunk_sizes[chunk] - 1), out)


class OtherEachTime(Squares):
    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        return str(id(self))


class Strings(Squares):
    def read(self, chunk: int, rows: Any, out: Any = None) -> dict[str, Any]:
        found = super().read(chunk, rows, out)
        return {**found, "name": found["name"].tolist()}


class ChangesRows(Squares):
    def read(self, chunk: int, rows: Any, out: Any = None) -> dict[str, Any]:
        found = super().read(chunk, rows, out)
        rows.sort()
        return found


class OneColumnMore(Squares):
    def read(self, chunk: int, rows: Any, out: Any = None) -> dict[str, Any]:
        found = super().read(chunk, rows, out)
        return {**found, "more": found["x"]}


class Unpicklable(Squares):
    def __init__(self) -> None:
        self.held = lambda: None


BROKEN: dict[str, tuple[Callable[[], Store], str]] = {
    "sizes": (WrongSum, "must be the sum of chunk_sizes"),
    "type": (WrongType, "must have"),
    "order": (IgnoresOrder, "in another order"),
    "out": (IgnoresOut, "was not written to the array"),
    "bad rows": (TakesAnyRow, "must raise ValueError"),
    "fingerprint": (OtherEachTime, "another fingerprint"),
    "lists": (Strings, "must be read as Lists"),
    "rows": (ChangesRows, "read changed the rows that it was given"),
    "more": (OneColumnMore, "read returns 'more', which is not in columns"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_in_a_store_is_found(name: str) -> None:
    make, said = BROKEN[name]
    with pytest.raises(AssertionError, match=said):
        check_store(make(), reopen=make)


def test_a_store_that_cannot_be_sent_to_workers_is_found() -> None:
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        check_store(Unpicklable())


def test_something_else_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="must be a store"):
        check_store([1, 2])  # type: ignore[arg-type]


class Broken:
    """A loader that is another one, except for what is given."""

    def __init__(self, loader: Any, **other: Any) -> None:
        self._loader = loader
        self._other = other

    def __getattr__(self, name: str) -> Any:
        return self._other.get(name) or getattr(self._loader, name)

    def __iter__(self) -> Any:
        return iter(self._loader)


def loaders(**other: Callable[[Any], Any]) -> Callable[..., Any]:
    store = Squares()

    def make(**sizes: Any) -> Any:
        loader = feedline.DataLoader(store, shuffle=True, **sizes)
        return Broken(loader, **{name: made(loader) for name, made in other.items()})

    return make


def test_a_sound_loader_passes() -> None:
    check_loader(loaders(), num_samples=37)


def test_a_loader_that_forgets_its_place_is_found() -> None:
    make = loaders(load_state_dict=lambda loader: lambda state: None)
    with pytest.raises(AssertionError, match=r"saved unchanged|resume at batch|came twice"):
        check_loader(make)


def test_states_that_depend_on_the_rank_are_found() -> None:
    make = loaders(
        state_dict=lambda loader: lambda: {**loader.state_dict(), "rank": loader.peers.rank}
    )
    with pytest.raises(AssertionError, match="same on every rank"):
        check_loader(make)


def test_a_loader_that_skips_other_batches_is_found() -> None:
    make = loaders(
        skip_batches=lambda loader: lambda count, after: loader.skip_batches(count, after + 1)
    )
    with pytest.raises(AssertionError, match="in spite of the skip"):
        check_loader(make)
    make = loaders(skip_batches=lambda loader: lambda count, after: None)
    with pytest.raises(AssertionError, match="must not count the batches that are skipped"):
        check_loader(make)


def test_an_epoch_of_another_size_is_found() -> None:
    with pytest.raises(AssertionError, match="each of 36 samples once"):
        check_loader(loaders(), num_samples=36)
