"""The files of a dataset in one folder: their order, and whether they belong together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from feedline.errors import MissingDataError, StoreError
from feedline.store.paths import file_in
from feedline.words import several

_SPLITS = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
_SPLIT_OF = {word: split for split, words in _SPLITS.items() for word in words}
_WORD = re.compile("[A-Za-z]+")
_NUMBER = re.compile("([0-9]+)")
# Such as train-00003-of-00010.
_NUMBERED = re.compile(r"^(.*)-([0-9]{1,18})-of-([0-9]{1,18})(?![0-9])(.*)$", re.DOTALL)
_COMPRESSED = re.compile(r"\.(gz|zlib|zst|xz|bz2)$", re.IGNORECASE)
_MOST_NAMED = 3


def names_in(folder: Path, is_shard: Callable[[str], bool]) -> list[str]:
    """Return the names of the shards in a folder, sorted so that 2 comes before 10."""
    names = (found.name for found in folder.iterdir() if not found.name.startswith("."))
    return sorted((name for name in names if is_shard(name)), key=_natural)


def shards_in(path: Path, is_shard: Callable[[str], bool]) -> list[Path]:
    """Return the shards in a folder, or the one file, or raise if they are not one dataset."""
    if not path.is_dir():
        return [path]
    names = names_in(path, is_shard)
    _check_folders(path, names, is_shard)
    _check_splits(path, names)
    _check_complete(path, names)
    _check_once(path, names)
    return [file_in(path, name) for name in names]


def _natural(name: str) -> tuple[list[tuple[str, int]], str]:
    parts = _NUMBER.split(name)
    pairs = zip(parts[::2], [*parts[1::2], "0"], strict=True)
    return [(text, int(digits)) for text, digits in pairs], name


def _check_folders(folder: Path, names: Iterable[str], is_shard: Callable[[str], bool]) -> None:
    """Raise if there are more shards in folders inside: they would be left out silently."""
    known = set(names)
    for entry in folder.iterdir():
        if entry.name in known or entry.name.startswith(".") or not entry.is_dir():
            continue
        inside = (found.name for found in entry.rglob("*") if not found.name.startswith("."))
        found = next((name for name in inside if is_shard(name)), None)
        if found is not None:
            raise StoreError(
                f"{folder}: has shards, and more of them in {entry.name!r:.80}, such as "
                f"{found!r:.80}; all of them must be in one folder; move them, or give each folder "
                "a place of its own"
            )


def _check_splits(folder: Path, names: Iterable[str]) -> None:
    """Raise if names tell of several splits: nobody wants to train on the test data."""
    found: dict[str, str] = {}
    for name in names:
        words = (word.lower() for word in _WORD.findall(name))
        split = next((_SPLIT_OF[word] for word in words if word in _SPLIT_OF), None)
        if split is not None:
            found.setdefault(split, name)
    if len(found) > 1:
        raise StoreError(
            f"{folder}: has shards of {several(len(found), 'split')} "
            f"({', '.join(found.values())}) and must have those of one; move each split into a "
            "folder of its own"
        )


def _check_complete(folder: Path, names: Iterable[str]) -> None:
    """Raise if names count their shards, as in `x-00003-of-00010`, and some are not there."""
    groups: dict[tuple[str, int, str], set[int]] = {}
    for name in names:
        numbered = _NUMBERED.match(name)
        if numbered:
            before, number, total, after = numbered.groups()
            groups.setdefault((before, int(total), after), set()).add(int(number))
    totals: dict[tuple[str, str], int] = {}
    for (before, total, after), numbers in groups.items():
        other = totals.setdefault((before, after), total)
        if other != total:
            raise StoreError(
                f"{folder}: has shards of {before + after!r:.80} that count to {other} and to "
                f"{total}; they were written at two times; remove those of one, or move them"
            )
        # Some count from 1. There may be any number of them by their names.
        if len(numbers) < total or max(numbers) - min(numbers) >= total:
            missing = (n for n in range(total) if n not in numbers)
            num_missing = total - sum(number < total for number in numbers)
            first = [next(missing) for _ in range(min(_MOST_NAMED, num_missing))]
            raise MissingDataError(
                f"{folder}: has {several(len(numbers), 'shard')} of {total} of "
                f"{before + after!r:.80}; missing are {', '.join(map(str, first))}"
                f"{', …' if num_missing > len(first) else ''}; restore them"
            )


def _check_once(folder: Path, names: Iterable[str]) -> None:
    """Raise if a shard is there twice, compressed and as it was before."""
    known = set(names)
    for name in names:
        plain = _COMPRESSED.sub("", name)
        if plain != name and plain in known:
            raise StoreError(
                f"{folder}: has {plain!r:.80} and {name!r:.80}, so its samples would come twice; "
                "remove one of them, or move it to another folder"
            )
