"""Reading `index.json` of others: JSON whose values are checked one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.errors import DamagedDataError
from feedline.store.mapped import map_file

#: The file that lists what is in a folder.
INDEX = "index.json"

_HEAD_BYTES = 4096
_MOST_BYTES = 2**30
_MOST = 2**48


def begins_with_key(path: Path, key: str) -> bool:
    """Return whether a file begins as JSON with a key near its start."""
    try:
        if not path.is_file():
            return False
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return (
        re.match(rb"\s*\{(.*,)?\s*" + b'"' + key.encode() + rb'"\s*:\s*\[', head, re.S) is not None
    )


def read_index(path: Path) -> Any:
    """Return what is in a JSON file, or raise."""
    data = map_file(path)
    if data.size > _MOST_BYTES:
        raise DamagedDataError(
            f"{path}: has {data.size:,} bytes and must have at most {_MOST_BYTES:,}"
        )
    try:
        return json.loads(data.tobytes())
    except (ValueError, RecursionError) as error:
        raise DamagedDataError(
            f"{path}: is not JSON ({error!s:.120}); copy or write it again"
        ) from None


@dataclass(frozen=True)
class Table:
    """A JSON object in an index; its values are checked when they are asked for.

    Args:
        path: The file.
        values: The object.
        what: What it is, for errors.
    """

    path: Path
    values: Mapping[str, Any]
    what: str = "it"

    def __post_init__(self) -> None:
        if not isinstance(self.values, dict):
            raise DamagedDataError(
                f"{self.path}: {self.what} is {self.values!r:.80} and must be a JSON object; copy "
                "or write it again"
            )

    def inner(self, value: Any, what: str) -> Table:
        """Return an object inside of it."""
        return Table(self.path, value, what)

    def get(self, key: str) -> Any:
        """Return a value that may be anything, or missing."""
        return self.values.get(key)

    def table_at(self, key: str) -> Table:
        """Return an object."""
        return Table(self.path, self.values.get(key), key)  # type: ignore[arg-type]

    def list_at(self, key: str) -> list[Any]:
        """Return a list."""
        found: list[Any] = self._checked(key, list, "a list")
        return found

    def text_at(self, key: str) -> str:
        """Return a text."""
        found: str = self._checked(key, str, "a text")
        return found

    def optional_text_at(self, key: str) -> str | None:
        """Return a text, or None if it is null or missing."""
        return None if self.values.get(key) is None else self.text_at(key)

    def count_at(self, key: str) -> int:
        """Return an integer of at least 0."""
        value = self.values.get(key)
        if type(value) is not int or not 0 <= value <= _MOST:
            self._refuse(key, f"an integer in [0, {_MOST}]")
        assert isinstance(value, int)
        return value

    def _checked(self, key: str, kind: type, noun: str) -> Any:
        value = self.values.get(key)
        if not isinstance(value, kind):
            self._refuse(key, noun)
        return value

    def _refuse(self, key: str, noun: str) -> None:
        value = self.values.get(key)
        # Python refuses to write very long integers in decimal.
        is_long = type(value) is int and value.bit_length() > 200
        shown = "a very large number" if is_long else f"{value!r:.80}"
        raise DamagedDataError(
            f"{self.path}: {key!r} of {self.what} is {shown} and must be {noun}; copy or write it "
            "again"
        )
