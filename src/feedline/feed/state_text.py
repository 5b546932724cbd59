"""States of other libraries as JSON: plain values, arrays and tensors, and no code.

A checkpoint may be written by anything and read by anyone, so a state is never pickled into it.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from feedline.errors import CursorFormatError, InvalidValueError

#: The key of what JSON has no sign for. A dict that has it is written as pairs.
_TAG = "!"
_MOST_DEPTH = 100


def to_plain(value: Any, where: str = "state", depth: int = 0) -> Any:
    """Return a value as JSON has it, or raise an error that says what cannot be saved.

    Args:
        value: A state: dicts, lists, tuples, sets, numbers, texts, bytes, arrays and tensors.
        where: The path of the value, for errors.
        depth: How deep the value lies in the state.

    Examples:
        >>> to_plain({"place": 3, "seed": (1, 2)})
        {'place': 3, 'seed': {'!': 'tuple', 'of': [1, 2]}}
    """
    if depth > _MOST_DEPTH:
        raise InvalidValueError(f"{where:.200} is nested deeper than {_MOST_DEPTH} levels")
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        is_json = value == value and abs(value) != float("inf")
        return value if is_json else {_TAG: "float", "of": repr(value)}
    if kind is dict:
        parts = [
            (to_plain(key, where, depth + 1), to_plain(part, f"{where}[{key!r:.40}]", depth + 1))
            for key, part in value.items()
        ]
        if all(type(key) is str for key in value) and _TAG not in value:
            return dict(parts)
        return {_TAG: "dict", "of": [list(pair) for pair in parts]}
    if kind in (list, tuple, set, frozenset):
        entries = sorted(value, key=repr) if kind in (set, frozenset) else value
        listed = [
            to_plain(part, f"{where}[{number}]", depth + 1) for number, part in enumerate(entries)
        ]
        return listed if kind is list else {_TAG: kind.__name__, "of": listed}
    if kind in (bytes, bytearray):
        return {_TAG: kind.__name__, "of": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        name = "array" if isinstance(value, np.ndarray) else "number"
        return {_TAG: name, **_array_to_plain(np.asarray(value))}
    torch = sys.modules.get("torch")
    if torch is not None and kind is torch.Tensor:
        numbers = value.detach().cpu().contiguous()
        raw = numbers.reshape(-1).view(torch.uint8).numpy()
        name = str(value.dtype).removeprefix("torch.")
        plain = {"type": name, "shape": list(value.shape), "of": _encoded(raw.tobytes())}
        return {_TAG: "tensor", **plain}
    raise InvalidValueError(
        f"{where:.200} is of type {kind.__name__}, which a state cannot hold; let state_dict "
        "return dicts, lists, numbers, texts, bytes, arrays or tensors"
    )


def from_plain(plain: Any) -> Any:
    """Return the value that `to_plain` was given, or raise `CursorFormatError`."""
    try:
        return _from_plain(plain, 0)
    except CursorFormatError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError, OverflowError) as error:
        raise CursorFormatError(
            f"the state of the dataset is damaged ({error}); use an earlier checkpoint"
        ) from error


def _from_plain(plain: Any, depth: int) -> Any:
    if depth > _MOST_DEPTH:
        raise ValueError(f"nested deeper than {_MOST_DEPTH} levels")
    if isinstance(plain, list):
        return [_from_plain(part, depth + 1) for part in plain]
    if not isinstance(plain, dict):
        return plain
    if _TAG not in plain:
        return {key: _from_plain(part, depth + 1) for key, part in plain.items()}
    kind: Any = plain[_TAG]
    held: Any = plain.get("of")
    if kind == "dict":
        return {_from_plain(key, depth + 1): _from_plain(part, depth + 1) for key, part in held}
    if kind in _BUILDERS:
        return _BUILDERS[kind]([_from_plain(part, depth + 1) for part in held])
    if kind in ("bytes", "bytearray"):
        decoded = base64.b64decode(held, validate=True)
        return decoded if kind == "bytes" else bytearray(decoded)
    if kind == "float" and held in ("nan", "inf", "-inf"):
        return float(held)
    if kind in ("array", "number"):
        array = _array_from_plain(plain)
        return array if kind == "array" else array[()]
    if kind == "tensor":
        return _tensor_from_plain(plain)
    raise ValueError(f"{kind!r:.40} is not a kind of value")


_BUILDERS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}


def _encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _array_to_plain(array: Any) -> dict[str, Any]:
    return {
        "type": array.dtype.str,
        "shape": list(array.shape),
        "of": _encoded(np.ascontiguousarray(array).tobytes()),
    }


def _array_from_plain(plain: dict[str, Any]) -> Any:
    dtype = np.dtype(plain["type"])
    if dtype.kind not in "biufc":
        raise ValueError(f"{plain['type']!r:.40} is not a type of numbers")
    raw = base64.b64decode(plain["of"], validate=True)
    return np.frombuffer(raw, dtype).reshape(plain["shape"]).copy()


def _tensor_from_plain(plain: dict[str, Any]) -> Any:
    torch = sys.modules.get("torch")
    dtype = None if torch is None else getattr(torch, str(plain["type"]), None)
    if torch is None or not isinstance(dtype, torch.dtype):
        raise ValueError("it holds a tensor, so torch must be imported first")
    raw = bytearray(base64.b64decode(plain["of"], validate=True))
    if not raw:
        return torch.zeros(plain["shape"], dtype=dtype)
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(plain["shape"])
