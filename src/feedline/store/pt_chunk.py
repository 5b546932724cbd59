"""Chunks that `torch.save` wrote, mapped into memory without torch and without unpickling.

A `.pt` file is a zip file: a pickle that describes the tensors, and their uncompressed records. So
each tensor is a view of the file.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError
from feedline.store.chunk import OpenChunk
from feedline.store.columns import dtype_named
from feedline.store.mapped import map_file, view
from feedline.store.tensor_pickle import TensorHeader, read_tensor_pickle

TUPLE_NAMES = ("sequences", "targets", "sequence_ids", "subsequence_ids", "start_positions")
_MAX_PICKLE_BYTES = 2**26
_LOCAL_HEADER = struct.Struct("<4s22xHH")


def open_pt(path: Path) -> OpenChunk:
    """Open a chunk: the documented tuple of five, or a dict of tensors.

    The tensors of the first two, which are dicts, become columns such as `sequences/item`.
    """
    data = map_file(path)
    records = _Records(path, data)
    arrays: dict[str, NDArray[Any]] = {}
    type_names: dict[str, str] = {}
    for name, header in _named_tensors(path, read_tensor_pickle(records.pickle(), path)):
        if name in arrays:
            raise DamagedDataError(f"{path}: has two tensors named {name!r:.80}")
        if not header.shape:
            raise DamagedDataError(
                f"{path}: {name!r} has 0 axes but its first axis must count samples; save it with "
                "shape (1,)"
            )
        dtype = dtype_named(header.type_name)
        record = records.find(header.record)
        arrays[name] = view(
            record,
            path=path,
            what=name,
            dtype=dtype,
            shape=header.shape,
            offset=header.offset * dtype.itemsize,
            strides=tuple(stride * dtype.itemsize for stride in header.strides),
        )
        type_names[name] = header.type_name
    return OpenChunk(path, arrays, type_names)


def _named_tensors(path: Path, content: Any) -> Iterator[tuple[str, TensorHeader]]:
    if isinstance(content, tuple) and len(content) == len(TUPLE_NAMES):
        parts = dict(zip(TUPLE_NAMES, content, strict=True))
    elif isinstance(content, dict):
        parts = content
    else:
        raise DamagedDataError(
            f"{path}: must contain a dict of tensors, or the tuple ({', '.join(TUPLE_NAMES)}), but "
            f"contains {_kind_of(content)}"
        )
    for name, part in parts.items():
        if isinstance(part, TensorHeader):
            yield str(name), part
        elif isinstance(part, dict):
            for key, header in part.items():
                if not isinstance(header, TensorHeader):
                    raise DamagedDataError(f"{path}: {name}/{key} is not a tensor")
                yield f"{name}/{key}", header
        elif part is not None:
            raise DamagedDataError(f"{path}: {name} is neither a tensor nor a dict of tensors")


def _kind_of(content: Any) -> str:
    if isinstance(content, tuple | list):
        return f"a {type(content).__name__} of {len(content)}"
    return "a tensor" if isinstance(content, TensorHeader) else f"a {type(content).__name__}"


class _Records:
    """The records of the zip file, as parts of the mapped file."""

    def __init__(self, path: Path, data: NDArray[np.uint8]) -> None:
        self._path = path
        self._data = data
        if bytes(data[:2]) != b"PK":
            raise DamagedDataError(
                f"{path}: is not a torch.save archive (a zip file); save it again with a current "
                "release of torch, or restore it if it is damaged"
            )
        try:
            with zipfile.ZipFile(path) as archive:
                listed = archive.infolist()
        except Exception as error:  # zipfile raises many kinds for damaged files
            raise self._damaged(str(error)) from None
        self._members = {info.filename: info for info in listed}
        if len(self._members) < len(listed):
            raise self._damaged("it has two members of one name")
        pickles = [name for name in self._members if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise self._damaged(f"{len(pickles)} tables of tensors instead of 1")
        self._prefix = pickles[0].removesuffix("data.pkl")
        order = self._members.get(self._prefix + "byteorder")
        if order is not None and bytes(self._bytes_of(order)[:8]) != b"little":
            raise DamagedDataError(
                f"{path}: is big-endian but must be little-endian; save it again on a "
                "little-endian machine"
            )

    def pickle(self) -> bytes:
        """Return the pickle that describes the tensors."""
        found = self._bytes_of(self._members[self._prefix + "data.pkl"])
        if len(found) > _MAX_PICKLE_BYTES:
            raise self._damaged(f"its table of tensors has {len(found)} bytes")
        return found.tobytes()

    def find(self, record: str) -> NDArray[np.uint8]:
        """Return the bytes of one storage."""
        member = self._members.get(f"{self._prefix}data/{record}")
        if member is None:
            raise self._damaged(f"record {record!r:.80} is missing")
        return self._bytes_of(member)

    def _bytes_of(self, member: zipfile.ZipInfo) -> NDArray[np.uint8]:
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise DamagedDataError(
                f"{self._path}: {member.filename!r:.80} is compressed, so it cannot be mapped; "
                "save it again with torch.save"
            )
        start = member.header_offset
        header = self._data[start : start + _LOCAL_HEADER.size].tobytes()
        if start < 0 or len(header) < _LOCAL_HEADER.size or header[:4] != b"PK\3\4":
            raise self._damaged(f"{member.filename!r:.80} has no header")
        _, name_length, extra_length = _LOCAL_HEADER.unpack(header)
        start += _LOCAL_HEADER.size + name_length + extra_length
        if start + member.file_size > len(self._data):
            raise self._damaged(f"{member.filename!r:.80} reaches beyond the end of the file")
        return self._data[start : start + member.file_size]

    def _damaged(self, reason: str) -> DamagedDataError:
        return DamagedDataError(
            f"{self._path}: is truncated or damaged ({reason}); restore it or write it again"
        )
