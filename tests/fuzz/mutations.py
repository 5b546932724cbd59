"""Damage to files: bytes, numbers in headers, structures of JSON, and the files of a folder."""

from __future__ import annotations

import json
import os
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

NUMBERS = [
    *(0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 1000, 65535, 65536, 2**24, 2**28, 2**31 - 1),
    *(2**31, 2**32 - 1, 2**32, 2**33, 2**40, 2**48, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
    *(2**70, 10**30, -1, -2, -(2**31), -(2**63), -(2**70)),
]
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        "",
        "x",
        "\0",
        "\ud800",
        "../../etc/passwd",
        "/dev/zero",
        "a" * 5000,
        [],
        {},
    ),
    *(0.5, -0.0, 1e308, float("inf"), float("nan"), [[]], [0], {"": 0}, "\x1b]0;x\x07", "\u202e"),
]


def damage_bytes(rng: Random, data: bytes) -> bytes:
    """Return bytes with one to four faults."""
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        size = len(content)
        place = rng.randrange(size + 1)
        kind = rng.randrange(9)
        if kind == 0:
            del content[place:]
        elif kind == 1:
            content[place:place] = rng.randbytes(rng.choice((1, 4, 50)))
        elif kind == 2:
            del content[place : place + rng.choice((1, 4, 64))]
        elif kind == 3 and size:
            source = rng.randrange(size)
            length = rng.choice((1, 8, 100))
            content[place : place + length] = content[source : source + length]
        elif kind in (4, 5) and size:
            width = rng.choice((1, 2, 4, 8))
            number = rng.choice(NUMBERS) % 2 ** (8 * width)
            content[place : place + width] = number.to_bytes(width, rng.choice(("little", "big")))
        elif kind == 6:
            content += content[:place]
        else:
            for _ in range(rng.choice((1, 1, 3, 20))):
                if content:
                    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def damage_value(rng: Random, value: Any) -> Any:
    """Return a JSON value with one fault somewhere in it."""
    places = list(_places(value))
    if not places or rng.random() < 0.03:
        return _other(rng, value)
    holder, key = rng.choice(places)
    kind = rng.randrange(8)
    if (kind == 0 and isinstance(holder, dict)) or (kind == 0 and isinstance(holder, list)):
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, deepcopy(holder[rng.randrange(len(holder))]))
    elif kind == 1 and isinstance(holder, dict):
        holder[rng.choice(list(holder)) + rng.choice(("", "x"))] = deepcopy(holder[key])
    elif kind == 2:
        other_holder, other_key = rng.choice(places)
        holder[key] = deepcopy(other_holder[other_key])
    elif kind == 3 and isinstance(holder, list):
        holder *= rng.choice((2, 3, 40))
    else:
        holder[key] = _other(rng, holder[key])
    return value


def _places(value: Any) -> Any:
    if isinstance(value, dict):
        for key in value:
            yield value, key
            yield from _places(value[key])
    elif isinstance(value, list):
        for number in range(len(value)):
            yield value, number
            yield from _places(value[number])


def _other(rng: Random, value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.8:
        return rng.choice((*NUMBERS, value + 1, value - 1, value * 2, -value))
    if isinstance(value, str) and value and rng.random() < 0.5:
        place = rng.randrange(len(value))
        return value[:place] + rng.choice(("", "x", "/", "0", "\0", "é")) + value[place + 1 :]
    if rng.random() < 0.1:
        nested: Any = 1
        for _ in range(rng.choice((5, 60, 300))):
            nested = [nested] if rng.random() < 0.5 else {"a": nested}
        return nested
    return deepcopy(rng.choice((*VALUES, *NUMBERS)))


def damage_json(rng: Random, data: bytes) -> bytes:
    """Return the text of a JSON value with faults in its structure, or else in its bytes."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):  # it was damaged before
        return damage_bytes(rng, data)
    if rng.random() < 0.2:
        return damage_bytes(rng, data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        value = damage_value(rng, value)
    return json.dumps(value).encode()


def damage_file(rng: Random, path: Path) -> None:
    """Damage a file by what it is."""
    data = path.read_bytes()
    is_json = path.suffix == ".json" or path.name.startswith(".z")
    path.write_bytes(damage_json(rng, data) if is_json else damage_bytes(rng, data))


def damage_tree(rng: Random, folder: Path) -> None:
    """Damage one or two files of a folder: what they hold, or what they are."""
    for _ in range(rng.choice((1, 1, 2))):
        files = sorted(
            file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()
        )
        if not files:
            return
        file = rng.choice(files)
        if file.stat().st_size > 2**24:
            continue
        headers = [f for f in files if f.suffix == ".json" or f.name.startswith(".z")]
        if headers and rng.random() < 0.5:
            file = rng.choice(headers)
            if file.stat().st_size > 2**24:
                continue
        kind = rng.randrange(24)
        if kind == 0:
            file.unlink()
        elif kind == 1:
            file.unlink()
            os.symlink(rng.choice(("/dev/zero", "/etc/passwd", ".", file.name)), file)
        elif kind == 2:
            file.unlink()
            os.mkfifo(file)
        elif kind == 3:
            file.unlink()
            file.mkdir()
        elif kind == 4:
            os.truncate(file, 2**33)
        elif kind == 5:
            other = rng.choice(files)
            if other.is_file() and other.stat().st_size <= 2**24:
                file.write_bytes(other.read_bytes())
        else:
            damage_file(rng, file)
