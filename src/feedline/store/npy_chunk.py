"""Chunks of `.npy` files: one file is one column, a folder has one column per file."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, StoreError, UnsafeDataError
from feedline.store.chunk import OpenChunk
from feedline.store.columns import TYPE_NAMES, dtype_named
from feedline.store.mapped import map_file, view
from feedline.store.paths import file_in
from feedline.words import several

_SUFFIX = ".npy"
_MAGIC = b"\x93NUMPY"
# The length of the field that holds the length of the header, by major version.
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
# Python's parser is only safe on short text; numpy has the same bound.
_MAX_HEADER = 10_000
# Only these: `np.dtype` would build any type that a file names, with objects in it.
_DTYPES = {
    code: dtype
    for dtype in map(dtype_named, TYPE_NAMES)
    for code in (dtype.str, f"<{dtype.str[1:]}")
}
# As numpy writes it; other programs may write the same in other words.
_USUAL_HEADER = re.compile(
    r"\{'descr': '([^'\\]*)', 'fortran_order': (True|False), "
    r"'shape': \(((?:\d{1,19}, ?)*(?:\d{1,19})?)\), \}\s*"
)
_parser = Lock()


def _renew_parser() -> None:
    """Make a new lock: another thread may have held it when this process was forked."""
    global _parser
    _parser = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_parser)


def open_npy(path: Path) -> OpenChunk:
    """Open a `.npy` file as column "data", or a folder of them with a column named after each.

    A file in a subfolder gives a column such as "sequences/item". Hidden files and files with other
    extensions are ignored.
    """
    if not path.is_dir():
        return OpenChunk(path, {"data": _map_array(path)})
    names = sorted(_list_columns(path))
    if not names:
        raise DamagedDataError(
            f"{path}: has 0 {_SUFFIX} files and must have at least 1, one for each column; write "
            "this chunk again"
        )
    arrays = {name: _map_array(file_in(path, name + _SUFFIX)) for name in names}
    return OpenChunk(path, arrays, num_files=len(arrays))


def _list_columns(folder: Path) -> list[str]:
    """Return the names of the columns in a folder, in no order."""
    names = list(getattr(folder, "inside", ()))
    if hasattr(folder, "inside"):
        return [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
    for parent, folders, files in os.walk(folder, onerror=_refuse_walking):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            # os.walk would pass over such a link, and with it over columns.
            if os.path.islink(os.path.join(parent, name)):
                raise UnsafeDataError(
                    f"{os.path.join(parent, name)}: must not be a link to a folder; copy the "
                    "folder instead"
                )
        for name in files:
            if name.endswith(_SUFFIX) and not name.startswith("."):
                names.append((Path(parent) / name).relative_to(folder).as_posix())
    return [name.removesuffix(_SUFFIX) for name in names]


def _refuse_walking(error: OSError) -> None:
    raise StoreError(
        f"{error.filename}: cannot be listed ({error.strerror}); check that it is readable"
    ) from None


def _map_array(path: Path) -> NDArray[Any]:
    bytes_ = map_file(path)
    text, offset = read_header(path, bytes_)
    array = view(bytes_, path=path, what="data", offset=offset, **parse_header(path, text))
    if offset + array.nbytes != bytes_.size:
        raise DamagedDataError(
            f"{path}: has {several(bytes_.size, 'byte')} but its header describes "
            f"{offset + array.nbytes}; write one array to each file"
        )
    return array


def read_header(path: Path, bytes_: NDArray[np.uint8]) -> tuple[str, int]:
    """Return the header as text, and the place where the values begin."""
    start = bytes_[:12].tobytes()
    num_length_bytes = _LENGTH_BYTES.get(start[6]) if len(start) == 12 else None
    if start[:6] != _MAGIC or num_length_bytes is None or start[7] != 0:
        raise DamagedDataError(
            f"{path}: begins with {start[:8]!r} and must be a .npy file of version 1, 2 or 3; "
            "write it with numpy.save"
        )
    begin = 8 + num_length_bytes
    length = int.from_bytes(start[8:begin], "little")
    if length > min(_MAX_HEADER, bytes_.size - begin):
        raise DamagedDataError(
            f"{path}: the header has {length} bytes and must have at most {_MAX_HEADER} and fit in "
            f"the file, which has {bytes_.size}; it is truncated or damaged; write it again"
        )
    return bytes_[begin : begin + length].tobytes().decode("utf-8", "replace"), begin + length


def parse_header(path: Path, text: str) -> dict[str, Any]:
    """Return the type, the shape and the order of the values, as `view` takes them."""
    header = _header_of(text)
    if not isinstance(header, dict) or header.keys() != {"descr", "fortran_order", "shape"}:
        raise DamagedDataError(
            f"{path}: the header {text!r:.80} must have descr, fortran_order and shape; it is "
            "damaged; write it again with numpy.save"
        )
    shape, is_fortran = header["shape"], header["fortran_order"]
    if not isinstance(shape, tuple) or type(is_fortran) is not bool:
        raise DamagedDataError(
            f"{path}: the header {text!r:.200} must have a tuple as shape and True or False as "
            "fortran_order; it is damaged; write it again with numpy.save"
        )
    dtype = _dtype_of(path, header["descr"])
    if not shape:
        raise DamagedDataError(
            f"{path}: has 0 axes and must have at least 1, which counts the samples; save an array "
            "of one sample with shape (1,)"
        )
    return {"dtype": dtype, "shape": shape, "is_fortran": is_fortran}


def _header_of(text: str) -> object:
    """Return the value that a header is written as; None if it is none."""
    found = _USUAL_HEADER.fullmatch(text)
    if found is not None:
        shape = tuple(int(size) for size in found[3].split(",") if size.strip())
        return {"descr": found[1], "fortran_order": found[2] == "True", "shape": shape}
    try:
        # Python 3.11's parser fails at random when two threads use it.
        with _parser:
            # Plain types need no escapes, and Python warns about those it does not know.
            return None if "\\" in text else ast.literal_eval(text.strip())
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _dtype_of(path: Path, descr: object) -> np.dtype[Any]:
    if isinstance(descr, str) and descr in _DTYPES:
        return _DTYPES[descr]
    if isinstance(descr, str) and descr[1:] == "O":
        raise UnsafeDataError(
            f"{path}: contains Python objects, which could run code when loaded; save an array of "
            "numbers"
        )
    if isinstance(descr, str) and descr.startswith(">"):
        remedy = 'save array.astype(array.dtype.newbyteorder("<"))'
    elif isinstance(descr, str):
        remedy = "save an array of numbers"
    else:
        remedy = "save each field of a structured array to its own file"
    raise DamagedDataError(
        f"{path}: dtype {descr!r:.80} must be little-endian and one of bool, integer, float or "
        f"complex; {remedy}"
    )
