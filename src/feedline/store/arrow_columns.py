"""The columns of all parquet or Arrow files of a dataset, decided once for all of their groups.

A list column of Arrow may hold lists of one length, which are an array with one more axis, or lists
of many; and any column may have nulls or none. One group cannot tell for all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from feedline.errors import DamagedDataError, InvalidValueError, StoreError
from feedline.store.arrow_chunk import leaves_to_read, open_group
from feedline.store.arrow_files import Counts, opened_file
from feedline.store.arrow_types import Form
from feedline.store.chunk import OpenChunk
from feedline.store.columns import MISSING, Column
from feedline.store.extras import import_arrow

# Where statistics are missing, nulls are looked for in groups of this many bytes together. Beyond
# that a column counts as one that may have some.
_MAX_LOOK_BYTES = 2**28


_Opener = Callable[[Any, Sequence[str], Collection[str]], OpenChunk]


@dataclass
class Seen:
    """What is known of a column of all groups together.

    Args:
        form: How its values are held.
        has_nulls: Whether some value is known to be null.
        is_ragged: Whether its lists are known to have different lengths.
        length: The mean length of the lists in each group so far; -1 if there were none.
        num_bytes: About what it takes to look at the groups in `unknown`.
        unknown: The groups that may have nulls.
    """

    form: Form
    has_nulls: bool = False
    is_ragged: bool = False
    length: int = -1
    num_bytes: int = 0
    unknown: list[Any] = field(default_factory=list)

    def add(self, groups: Sequence[Any], sizes: Sequence[int], counts: Counts) -> None:
        """Add what is known of some groups."""
        rows = np.array(sizes, np.int64)
        filled = rows > 0
        self.has_nulls |= bool((counts.num_nulls > 0).any())
        for group in np.flatnonzero(filled & (counts.num_nulls < 0)).tolist():
            self.unknown.append(groups[group])
            self.num_bytes += int(counts.num_bytes[group])
        if counts.num_values is not None and filled.any():
            lengths, rests = np.divmod(counts.num_values[filled], rows[filled])
            self.length = int(lengths[0]) if self.length < 0 else self.length
            self.is_ragged |= bool(rests.any() or (lengths != self.length).any())


def columns_of_files(
    paths: Iterable[Path],
    names: Sequence[str] | None = None,
    lists: Collection[str] = (),
    *,
    must_agree: bool = True,
) -> dict[str, Column]:
    """Return the columns of files, each with one that tells where values are missing if any are.

    Args:
        paths: The files; at least one has samples.
        names: The columns to read; by default all.
        lists: Columns that are read as lists, even if all have one length.
        must_agree: Raise if a file is damaged or has other columns than the first with samples.
            Otherwise such a file is refused when it is read, and all others can be.
    """
    seen: dict[str, Seen] = {}
    filled: list[tuple[Path, int]] = []
    for path in paths:
        try:
            sizes = _add_file(seen, path, names)
        except StoreError:
            if must_agree or not filled:
                raise
            continue
        filled += [(path, group) for group, size in enumerate(sizes) if size]
    if not filled:
        raise DamagedDataError(f"{path}: has 0 samples and must have at least 1; write it again")
    return columns_of_groups(seen, filled, lists, _open)


def _open(group: tuple[Path, int], names: Sequence[str], lists: Collection[str]) -> OpenChunk:
    return open_group(*group, names, lists=lists)


def columns_of_groups(
    seen: Mapping[str, Seen],
    filled: Sequence[Any],
    lists: Collection[str],
    open_: _Opener,
) -> dict[str, Column]:
    """Return the columns of groups, each with its mask if it needs one.

    Args:
        seen: What is known of each column.
        filled: All groups that have samples.
        lists: Columns that are read as lists, even if all have one length.
        open_: A function that opens a group: some columns, some of them as lists.
    """
    for name in lists:
        if name not in seen or not seen[name].form.may_be_lists:
            ragged = [name for name, about in seen.items() if about.form.may_be_lists]
            raise InvalidValueError(
                f"lists={list(lists)!s:.200} must be among the columns of lists: {ragged!s:.200}"
            )
    as_lists = {name for name, about in seen.items() if name in lists or about.is_ragged}
    for name, about in seen.items():
        about.has_nulls = about.has_nulls or _look_for_nulls(name, about, open_)
        # A null list has no length.
        if about.has_nulls and about.form.may_be_lists:
            as_lists.add(name)
    columns = _looked_up(filled, seen, as_lists, open_)
    found: dict[str, Column] = {}
    for name, column in columns.items():
        found[name] = column
        mask = name + MISSING
        if seen[name].has_nulls:
            found[mask] = Column(mask, "bool")
            if mask in columns:
                raise StoreError(
                    f"{open_(filled[0], [name], as_lists).path}: column {name!r:.80} has nulls, "
                    f"which {mask!r:.80} would tell, but that is a column of its own; rename it, "
                    "or fill the nulls"
                )
    return found


def check_recorded_lists(columns: Mapping[str, Column], lists: Sequence[str]) -> None:
    """Raise if `lists` has other columns than those that are recorded as columns of lists."""
    wrong = [name for name in lists if name not in columns or not columns[name].has_lists]
    if wrong:
        raise InvalidValueError(
            f"lists={wrong!s:.200} cannot be used: metadata.json records which columns have lists; "
            "omit it"
        )


def _add_file(seen: dict[str, Seen], path: Path, names: Sequence[str] | None) -> tuple[int, ...]:
    """Add what a file says about its columns, and return the sizes of its groups."""
    with opened_file(path) as file:
        sizes = file.sizes()
        leaves = leaves_to_read(import_arrow(), path, file.schema, names)
        counts = file.counts(list(leaves.values()))
        if any(len(of_leaf.num_nulls) != len(sizes) for of_leaf in counts):
            raise ValueError("its metadata counts other groups than it has")
    forms = {name: form for name, (_, form) in leaves.items()}
    if not seen:
        seen.update({name: Seen(form) for name, form in forms.items()})
    wrong = [name for name in forms if name not in seen or seen[name].form != forms[name]]
    wrong += [name for name in seen if name not in forms]
    if wrong:
        name = wrong[0]
        before, now = (
            _shown(forms_[name]) if name in forms_ else "absent"
            for forms_ in ({n: about.form for n, about in seen.items()}, forms)
        )
        raise DamagedDataError(
            f"{path}: column {name!r:.80} is {now} and should be {before}, as in the files before; "
            "all files of a folder must have the same columns; choose common ones with "
            "columns=[...]"
        )
    for name, of_leaf in zip(forms, counts, strict=True):
        seen[name].add([(path, group) for group in range(len(sizes))], sizes, of_leaf)
    return sizes


def _shown(form: Form) -> str:
    return form.kind if form.kind != "array" else "lists of " * len(form.axes) + form.type_name


def _look_for_nulls(name: str, about: Seen, open_: _Opener) -> bool:
    """Whether some value is null, where the files do not say; True if it would take too long."""
    if about.num_bytes > _MAX_LOOK_BYTES:
        return True
    lists = [name] if about.form.may_be_lists else []
    for group in about.unknown:
        found = open_(group, [name, name + MISSING], lists).arrays
        if found[name + MISSING].any():
            return True
    return False


def _looked_up(
    groups: Sequence[Any], seen: Mapping[str, Seen], as_lists: set[str], open_: _Opener
) -> dict[str, Column]:
    """Return the columns as in the first group that shows them."""
    left = list(seen)
    found: dict[str, Column] = {}
    for group in groups:
        columns = open_(group, left, as_lists).columns
        # Lists of length 0 say nothing about others.
        again = [
            name
            for name, column in columns.items()
            if seen[name].form.may_be_lists and not column.has_lists and 0 in column.shape
        ]
        if again:
            as_lists.update(again)
            columns |= open_(group, again, as_lists).columns
        found |= columns
        # Without values, lists inside of lists do not tell how long they would be.
        left = [name for name in left if found[name].has_lists and 0 in found[name].shape]
        if not left:
            break
    if left:
        path = open_(groups[0], left, as_lists).path
        raise StoreError(
            f"{path}: column {left[0]!r:.80} has lists inside of lists, all of them empty, so that "
            "their length is unknown; select other columns with columns=[...]"
        )
    return {name: found[name] for name in seen}
