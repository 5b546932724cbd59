"""The pickle inside a `.pt` file, read as data: nothing in it is ever called or imported.

`torch.save` writes a tensor as a call of a rebuild function. Here such a call yields a
`TensorHeader`, and any other call is refused. Only the opcodes that tensors in dicts, lists and
tuples need are known, and none allocates more than the file holds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.errors import DamagedDataError, StoreError, UnsafeDataError

_STORAGE_TYPES = {
    **{"BoolStorage": "bool", "CharStorage": "int8", "ShortStorage": "int16"},
    **{"IntStorage": "int32", "LongStorage": "int64", "ByteStorage": "uint8"},
    **{"HalfStorage": "float16", "FloatStorage": "float32", "DoubleStorage": "float64"},
    **{"BFloat16Storage": "bfloat16", "ComplexFloatStorage": "complex64"},
    "ComplexDoubleStorage": "complex128",
}
_UNTYPED = ("torch.storage", "UntypedStorage")
_DTYPES = {"bool", "bfloat16", "complex64", "complex128", "float16", "float32", "float64"}
_DTYPES |= {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_MAX_KEY = 2**31
_REBUILD = ("torch._utils", "_rebuild_tensor_v2")
_REBUILD_TYPED = ("torch._utils", "_rebuild_tensor_v3")
_REBUILD_PARAMETER = ("torch._utils", "_rebuild_parameter")
_ORDERED_DICT = ("collections", "OrderedDict")


@dataclass(frozen=True)
class TensorHeader:
    """Where a tensor lies: which record of the file, and how it is laid out in there."""

    record: str
    type_name: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class _Name:
    """A global that the pickle refers to; it is compared, never looked up."""

    module: str
    name: str

    @property
    def key(self) -> tuple[str, str]:
        return self.module, self.name


@dataclass(frozen=True)
class _Storage:
    record: str
    type_name: str | None


def read_tensor_pickle(data: bytes, path: Path) -> Any:
    """Return what a pickle holds: dicts, lists, tuples, numbers, text and tensor headers."""
    try:
        return _Machine(data, path).run()
    except StoreError:
        raise
    except (IndexError, KeyError, ValueError, TypeError, struct.error, OverflowError) as error:
        raise DamagedDataError(
            f"{path}: its table of tensors is damaged ({_shorten(error)}); write this chunk again"
        ) from None


def _shorten(error: Exception) -> str:
    # An error of decoding text shows all of it; that may be the whole file.
    if isinstance(error, UnicodeDecodeError):
        return "a name is no text"
    return f"{error!r:.200}"


class _Machine:
    """The stack machine that a pickle is written for, less everything that could do harm."""

    def __init__(self, data: bytes, path: Path) -> None:
        self._data = data
        self._path = path
        self._at = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        while True:
            opcode = self._take(1)
            if opcode == b".":
                return self._stack.pop()
            action = _ACTIONS.get(opcode)
            if action is None:
                raise UnsafeDataError(
                    f"{self._path}: its pickle has opcode {opcode!r}, which tensors in dicts and "
                    "tuples do not need; it was not run. Save plain tensors with torch.save"
                )
            action(self)

    def _take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise DamagedDataError(
                f"{self._path}: its table of tensors is cut short; write this chunk again"
            )
        self._at += count
        return self._data[self._at - count : self._at]

    def _number(self, layout: str) -> Any:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _line(self) -> str:
        end = self._data.index(b"\n", self._at)
        line = self._take(end - self._at + 1)
        return line[:-1].decode("utf-8")

    def _text(self, layout: str) -> None:
        self._stack.append(self._take(self._number(layout)).decode("utf-8", "surrogatepass"))

    def _push_number(self, layout: str) -> None:
        self._stack.append(self._number(layout))

    def _long(self) -> None:
        self._stack.append(int.from_bytes(self._take(self._number("<B")), "little", signed=True))

    def _remember(self, key: int) -> None:
        self._memo[key] = self._stack[-1]

    def _recall(self, layout: str) -> None:
        self._stack.append(self._memo[self._number(layout)])

    def _since_mark(self) -> list[Any]:
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _last(self, count: int) -> list[Any]:
        if count > len(self._stack):
            raise IndexError("stack is empty")
        items = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return items

    def _set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise TypeError("items for something that is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # The hash of nested tuples can take for ever, and long integers can share one.
            is_number = isinstance(key, int) and -_MAX_KEY < key < _MAX_KEY
            if not isinstance(key, str) and not is_number:
                raise TypeError("a key is neither text nor a small number")
            target[key] = value

    def _append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise TypeError("entries for something that is no list")
        target.extend(items)

    def _global(self, module: str, name: str) -> None:
        known = (_REBUILD, _REBUILD_TYPED, _REBUILD_PARAMETER, _ORDERED_DICT, _UNTYPED)
        is_type = module == "torch" and (name in _STORAGE_TYPES or name in _DTYPES)
        if (module, name) not in known and not is_type:
            raise UnsafeDataError(
                f"{self._path}: its pickle asks for {module:.80}.{name:.80}, which is no part of a "
                "tensor of a known type; it was not run. Save plain tensors with torch.save"
            )
        self._stack.append(_Name(module, name))

    def _stack_global(self) -> None:
        module, name = self._last(2)
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError("a global without a name")
        self._global(module, name)

    def _persistent(self) -> None:
        kind, name, record, _, _ = self._stack.pop()
        if kind != "storage" or not isinstance(name, _Name) or not isinstance(record, str):
            raise ValueError("an unknown kind of storage")
        if name.key == _UNTYPED:
            self._stack.append(_Storage(record, None))
        else:
            self._stack.append(_Storage(record, _STORAGE_TYPES[name.name]))

    def _call(self) -> None:
        name, arguments = self._last(2)
        if not isinstance(name, _Name) or not isinstance(arguments, tuple):
            raise TypeError("a call of something that is no function")
        if name.key == _REBUILD_PARAMETER:
            self._stack.append(arguments[0])
        elif name.key == _ORDERED_DICT and not arguments:
            self._stack.append({})
        elif name.key in (_REBUILD, _REBUILD_TYPED):
            self._stack.append(_header(self._path, name, arguments))
        else:
            raise TypeError(f"a call of {name.module}.{name.name}")

    def _set_attributes(self) -> None:
        """Pass over the attributes of a dict: the state of a module has some, and nobody needs
        them."""
        target, _ = self._last(2)
        if not isinstance(target, dict):
            raise TypeError("attributes for something that is no dict")
        self._stack.append(target)


def _header(path: Path, name: _Name, arguments: tuple[Any, ...]) -> TensorHeader:
    storage, offset, shape, strides = arguments[:4]
    if not isinstance(storage, _Storage):
        raise TypeError("a tensor without a storage")
    type_name = storage.type_name
    if name.key == _REBUILD_TYPED:
        dtype = arguments[6]
        if not isinstance(dtype, _Name) or dtype.name not in _DTYPES:
            raise ValueError("a tensor of an unknown type")
        type_name = dtype.name
    sizes = [offset, *shape, *strides]
    if type_name is None or not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError("a tensor without a type, or with a negative size")
    if len(shape) != len(strides) or len(shape) > 32:
        raise ValueError(f"a tensor with {len(shape)} axes and {len(strides)} strides")
    more = arguments[7:] if name.key == _REBUILD_TYPED else arguments[6:]
    if any(more):
        raise DamagedDataError(
            f"{path}: a tensor is stored as the conjugate or the negative of another; save it "
            "after resolve_conj() and resolve_neg()"
        )
    return TensorHeader(storage.record, type_name, offset, tuple(shape), tuple(strides))


_ACTIONS: dict[bytes, Callable[[_Machine], Any]] = {
    b"\x80": lambda m: m._take(1),
    b"\x95": lambda m: m._take(8),
    b"(": lambda m: m._marks.append(len(m._stack)),
    b"}": lambda m: m._stack.append({}),
    b"]": lambda m: m._stack.append([]),
    b")": lambda m: m._stack.append(()),
    b"t": lambda m: m._stack.append(tuple(m._since_mark())),
    b"\x85": lambda m: m._stack.append(tuple(m._last(1))),
    b"\x86": lambda m: m._stack.append(tuple(m._last(2))),
    b"\x87": lambda m: m._stack.append(tuple(m._last(3))),
    b"X": lambda m: m._text("<I"),
    b"\x8c": lambda m: m._text("<B"),
    b"\x8d": lambda m: m._text("<Q"),
    b"K": lambda m: m._push_number("<B"),
    b"M": lambda m: m._push_number("<H"),
    b"J": lambda m: m._push_number("<i"),
    b"G": lambda m: m._push_number(">d"),
    b"\x8a": _Machine._long,
    b"N": lambda m: m._stack.append(None),
    b"\x88": lambda m: m._stack.append(True),
    b"\x89": lambda m: m._stack.append(False),
    b"q": lambda m: m._remember(m._number("<B")),
    b"r": lambda m: m._remember(m._number("<I")),
    b"\x94": lambda m: m._remember(len(m._memo)),
    b"h": lambda m: m._recall("<B"),
    b"j": lambda m: m._recall("<I"),
    b"c": lambda m: m._global(m._line(), m._line()),
    b"\x93": _Machine._stack_global,
    b"Q": _Machine._persistent,
    b"R": _Machine._call,
    b"s": lambda m: m._set_items(m._last(2)),
    b"u": lambda m: m._set_items(m._since_mark()),
    b"b": _Machine._set_attributes,
    b"a": lambda m: m._append(m._last(1)),
    b"e": lambda m: m._append(m._since_mark()),
}
