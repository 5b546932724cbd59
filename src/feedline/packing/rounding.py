"""Finds integers in text files that became floats of other values."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from decimal import Decimal
from json import JSONDecoder
from typing import Any

from feedline.store.extras import import_arrow

# All smaller integers are floats.
_LARGE = 2.0**53
_INTEGER = re.compile(r"[+-]?\d+")


class RoundedError(ValueError):
    """An integer that a float cannot hold."""

    def __init__(self, row: int, name: str, text: str) -> None:
        super().__init__(row, name, text)
        self.row = row
        self.name = name
        self.text = text


def large_floats(table: Any) -> list[str]:
    """Return the paths of columns with floats, also in lists, that may have been rounded."""
    leaves = (leaf for name in table.schema.names for leaf in _leaves(name, table[name]))
    return [path for path, values in leaves if _is_large(values)]


def refuse_rounded_texts(table: Any, texts: Any) -> None:
    """Refuse integers in columns of floats, by the texts that they were made of."""
    compute = import_arrow("pyarrow.compute")
    for name in texts.schema.names:
        places = compute.indices_nonzero(
            compute.fill_null(compute.greater_equal(compute.abs(table[name]), _LARGE), False)
        )
        for place, text in zip(
            places.to_pylist(), texts[name].take(places).to_pylist(), strict=True
        ):
            # pyarrow ignores spaces around a number.
            if _INTEGER.fullmatch(text.strip()) and _is_rounded(Decimal(text.strip())):
                raise RoundedError(place, name, text)


def refuse_rounded_json(schema: Any, paths: Collection[str], block: bytes) -> None:
    """Refuse integers in columns of floats of objects, one after another."""
    decoder = JSONDecoder(parse_int=Decimal)
    text = block.decode("utf-8-sig").strip()
    row = place = 0
    while place < len(text):
        try:
            record, place = decoder.raw_decode(text, place)
        except ValueError:
            # pyarrow reads `Inf`, which Python does not; the rest of the line is not looked at.
            record, end = {}, text.find("\n", place)
            place = end if end >= 0 else len(text)
        while text[place : place + 1].isspace():
            place += 1
        for field in schema:
            for path, value in _integers(field.name, record.get(field.name), field.type):
                if path in paths and _is_rounded(value):
                    raise RoundedError(row, path, str(value))
        row += 1


def _is_rounded(value: Decimal) -> bool:
    found = float(value)
    # Some programs write the shortest digits of a float, and then zeros.
    return Decimal(found) != value and Decimal(repr(found)) != value


def _leaves(path: str, values: Any) -> Iterator[tuple[str, Any]]:
    """Yield the columns of a field with their paths, as `paths_in` names them."""
    if not import_arrow().types.is_struct(values.type):
        yield path, values
        return
    for number, inner in enumerate(values.flatten()):
        yield from _leaves(f"{path}/{values.type.field(number).name}", inner)


def _is_large(values: Any) -> bool:
    types = import_arrow().types
    compute = import_arrow("pyarrow.compute")
    while types.is_list(values.type):
        values = compute.list_flatten(values)
    if not types.is_floating(values.type):
        return False
    return bool(compute.any(compute.greater_equal(compute.abs(values), _LARGE)).as_py())


def _integers(path: str, value: Any, type_: Any) -> Iterator[tuple[str, Decimal]]:
    """Yield the integers where the type has floats."""
    types = import_arrow().types
    if isinstance(value, dict) and types.is_struct(type_):
        for number in range(type_.num_fields):
            field = type_.field(number)
            yield from _integers(f"{path}/{field.name}", value.get(field.name), field.type)
    elif isinstance(value, list) and types.is_list(type_):
        for inner in value:
            yield from _integers(path, inner, type_.value_type)
    elif isinstance(value, Decimal) and types.is_floating(type_):
        yield path, value
