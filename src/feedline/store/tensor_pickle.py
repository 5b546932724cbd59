"""The pickle inside a `.pt` file, read as data: nothing in it is ever called or imported.

`torch.save` writes a tensor as a call of a rebuild function. Here such a call yields a
`TensorHeader`, and any other call is refused. Only the opcodes that tensors in dicts, lists and
tuples need are known, and none allocates more than the file holds.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from feedline.errors import DamagedDataError, StoreError, UnsafeDataError
from feedline.store.columns import TYPE_NAMES

_STORAGE_TYPES = {
    **{"BoolStorage": "bool", "CharStorage": "int8", "ShortStorage": "int16"},
    **{"IntStorage": "int32", "LongStorage": "int64", "ByteStorage": "uint8"},
    **{"HalfStorage": "float16", "FloatStorage": "float32", "DoubleStorage": "float64"},
    **{"BFloat16Storage": "bfloat16", "ComplexFloatStorage": "complex64"},
    "ComplexDoubleStorage": "complex128",
}
_MAX_KEY = 2**31
_MAX_EXPANDED, _MAX_NESTED = 2**26, 500
_OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}


@dataclass(frozen=True)
class TensorHeader:
    """The location of a tensor: its record in the file, and its layout."""

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


_UNTYPED = _Name("torch.storage", "UntypedStorage")
_REBUILD = _Name("torch._utils", "_rebuild_tensor_v2")
_REBUILD_TYPED = _Name("torch._utils", "_rebuild_tensor_v3")
_REBUILD_PARAMETER = _Name("torch._utils", "_rebuild_parameter")
_ORDERED_DICT = _Name("collections", "OrderedDict")
_KNOWN = {_UNTYPED, _REBUILD, _REBUILD_TYPED, _REBUILD_PARAMETER, _ORDERED_DICT}
_KNOWN |= {_Name("torch", name) for name in (*_STORAGE_TYPES, *TYPE_NAMES)}


@dataclass(frozen=True)
class _Storage:
    record: str
    type_name: str | None


def read_tensor_pickle(data: bytes, path: Path) -> Any:
    """Return the contents of a pickle: dicts, lists, tuples, numbers, text and tensor headers."""
    try:
        content = _Machine(path).run(data)
        check_expanded(content)
        return content
    except StoreError:
        raise
    except (LookupError, ValueError, TypeError, OverflowError, DeprecationWarning) as error:
        # The warning is about escapes in a name, if warnings are errors. An error of decoding text
        # shows all of it; that may be the whole file.
        is_text = isinstance(error, UnicodeDecodeError)
        reason = "a name is not text" if is_text else f"{error!r:.200}"
        raise DamagedDataError(
            f"{path}: its table of tensors is damaged ({reason}); write this chunk again"
        ) from None


def check_expanded(content: Any) -> None:
    """Raise `ValueError` if values that are shared would be too many once they are written out.

    A few bytes can let a list hold another one twice, which holds the next one twice, and so on; or
    hold itself. Each is looked at once.
    """
    sizes: dict[int, int] = {}
    # What is entered and not yet left; a value in it that comes again holds itself.
    entered: set[int] = set()
    stack: list[tuple[Any, bool]] = [(content, False)]
    while stack:
        value, is_done = stack.pop()
        inner = _inside(value)
        if is_done:
            entered.discard(id(value))
            sizes[id(value)] = 1 + sum(_weight(entry, sizes) for entry in inner)
            if sizes[id(value)] > _MAX_EXPANDED:
                raise ValueError("values that hold each other over and over")
        elif id(value) in entered:
            raise ValueError("a value that holds itself")
        elif inner and id(value) not in sizes:
            entered.add(id(value))
            if len(entered) > _MAX_NESTED:
                raise ValueError(f"values nested more than {_MAX_NESTED} deep")
            stack.append((value, True))
            stack.extend(
                (entry, False) for entry in inner if isinstance(entry, dict | list | tuple)
            )


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return list(value) if isinstance(value, list | tuple) else []


def _weight(entry: Any, sizes: dict[int, int]) -> int:
    return sizes.get(id(entry), 1) if not isinstance(entry, str) else 1 + len(entry)


class _Machine:
    """The stack machine of pickles, without everything that could do harm."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        """Return what is on the stack at the end of the pickle."""
        stream = BytesIO(data)
        while code := stream.read(1):
            opcode = _OPCODES.get(code.decode("latin-1"))
            action = None if opcode is None else _ACTIONS.get(opcode.name)
            if opcode is None or action is None:
                raise UnsafeDataError(
                    f"{self._path}: its pickle has opcode {code!r}, which tensors in dicts and "
                    "tuples do not need; it was not run. Save plain tensors with torch.save"
                )
            action(self, None if opcode.arg is None else opcode.arg.reader(stream))
            if opcode.name == "STOP":
                return self._stack.pop()
        raise ValueError("cut short")

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def since_mark(self) -> list[Any]:
        return self.last(len(self._stack) - self._marks.pop())

    def last(self, count: int) -> list[Any]:
        start = len(self._stack) - count
        if not 0 <= start <= len(self._stack):
            raise IndexError("stack is empty")
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def remember(self, key: int | None = None) -> None:
        self._memo[len(self._memo) if key is None else key] = self._stack[-1]

    def recall(self, key: int) -> None:
        self.push(self._memo[key])

    def set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise TypeError("items for something that is not a dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # The hash of nested tuples may never end, and long integers can share one.
            is_number = isinstance(key, int) and -_MAX_KEY < key < _MAX_KEY
            if not isinstance(key, str) and not is_number:
                raise TypeError("a key is neither text nor a small number")
            target[key] = value

    def append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise TypeError("entries for something that is not a list")
        target.extend(items)

    def find(self, module: Any, name: Any) -> None:
        """Push a known name."""
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError("a global without a name")
        if _Name(module, name) not in _KNOWN:
            raise UnsafeDataError(
                f"{self._path}: its pickle asks for {module:.80}.{name:.80}, which is not part of "
                "a tensor of a known type; it was not run. Save plain tensors with torch.save"
            )
        self.push(_Name(module, name))

    def find_storage(self) -> None:
        """Push the storage that a persistent id stands for."""
        kind, name, record, _, _ = self._stack.pop()
        if kind != "storage" or not isinstance(name, _Name) or not isinstance(record, str):
            raise ValueError("an unknown kind of storage")
        self.push(_Storage(record, None if name == _UNTYPED else _STORAGE_TYPES[name.name]))

    def call(self, name: Any, arguments: Any) -> None:
        """Push what a call of a known function means."""
        if not isinstance(name, _Name) or not isinstance(arguments, tuple):
            raise TypeError("a call of something that is not a function")
        if name == _REBUILD_PARAMETER:
            self.push(arguments[0])
        elif name == _ORDERED_DICT and not arguments:
            self.push({})
        elif name in (_REBUILD, _REBUILD_TYPED):
            self.push(_header(self._path, name, arguments))
        else:
            raise TypeError(f"a call of {name.module}.{name.name}")

    def set_attributes(self, target: Any, _: Any) -> None:
        """Skip the attributes of a dict: modules' states have some that are not needed."""
        if not isinstance(target, dict):
            raise TypeError("attributes for something that is not a dict")
        self.push(target)


def _header(path: Path, name: _Name, arguments: tuple[Any, ...]) -> TensorHeader:
    storage, offset, shape, strides = arguments[:4]
    if not isinstance(storage, _Storage):
        raise TypeError("a tensor without a storage")
    type_name, more = storage.type_name, list(arguments[6:])
    if name == _REBUILD_TYPED:
        dtype, *more = more
        if not isinstance(dtype, _Name) or dtype.name not in TYPE_NAMES:
            raise ValueError("a tensor of an unknown type")
        type_name = dtype.name
    sizes = [offset, *shape, *strides]
    if type_name is None or not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError("a tensor without a type, or with a negative size")
    if any(more):
        raise DamagedDataError(
            f"{path}: a tensor is stored as the conjugate or the negative of another; save it "
            "after resolve_conj() and resolve_neg()"
        )
    return TensorHeader(storage.record, type_name, offset, tuple(shape), tuple(strides))


# What each opcode does with its argument; its name and its layout are those of `pickletools`.
_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda m, _: None),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), _Machine.push),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), _Machine.push),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.remember),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _Machine.recall),
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "MARK": lambda m, _: m.mark(),
    "TUPLE": lambda m, _: m.push(tuple(m.since_mark())),
    "TUPLE1": lambda m, _: m.push(tuple(m.last(1))),
    "TUPLE2": lambda m, _: m.push(tuple(m.last(2))),
    "TUPLE3": lambda m, _: m.push(tuple(m.last(3))),
    "SETITEM": lambda m, _: m.set_items(m.last(2)),
    "SETITEMS": lambda m, _: m.set_items(m.since_mark()),
    "APPEND": lambda m, _: m.append(m.last(1)),
    "APPENDS": lambda m, _: m.append(m.since_mark()),
    "GLOBAL": lambda m, names: m.find(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.find(*m.last(2)),
    "BINPERSID": lambda m, _: m.find_storage(),
    "REDUCE": lambda m, _: m.call(*m.last(2)),
    "BUILD": lambda m, _: m.set_attributes(*m.last(2)),
}
