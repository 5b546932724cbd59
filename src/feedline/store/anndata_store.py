"""AnnData in zarr: the matrix and the columns of `obs`, read without the anndata package."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, InvalidValueError, check_sequence
from feedline.store.csr_store import CsrPart, CsrStore
from feedline.store.dense_store import DensePart, DenseStore
from feedline.store.zarr_reading import open_zarr
from feedline.store.zarr_runs import ZarrArray

__all__ = ["open_anndata"]


def open_anndata(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    element: str = "X",
    obs: Iterable[str] = (),
) -> CsrStore | DenseStore:
    """Open AnnData groups, zarr arrays or CSR groups as one matrix, one below the other.

    Args:
        paths: A zarr folder, or several with the same columns.
        element: Which matrix of an AnnData group, such as `"X"` or `"layers/counts"`.
        obs: Which columns of `obs` to hold in memory. Categories come as codes are resolved.

    Examples:
        >>> open_anndata("nowhere.zarr")
        Traceback (most recent call last):
            ...
        feedline.errors.MissingDataError: nowhere.zarr: there is no such folder
    """
    listed = [paths] if isinstance(paths, str | os.PathLike) else check_sequence("paths", paths)
    folders = [Path(path) for path in listed]
    names = list(obs)
    parts: list[Any] = []
    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    digests = []
    for folder in folders:
        node = open_zarr(folder)
        matrix, group = _find_matrix(folder, node, element)
        parts.append(_part_of(folder, matrix))
        for name in names:
            values = _obs_column(folder, group, name)
            if len(values) != parts[-1].num_rows:
                raise DamagedDataError(
                    f"{folder}: obs/{name} has {len(values)} values but the matrix has "
                    f"{parts[-1].num_rows} rows"
                )
            columns[name].append(values)
        digests.append(_fingerprint(folder, matrix, parts[-1]))
    kinds = {type(part) for part in parts}
    if len(kinds) != 1:
        raise InvalidValueError(f"{folders[0]} and others must be all sparse or all dense")
    joined = {name: np.concatenate(values) for name, values in columns.items()}
    digest = hashlib.blake2b("".join(digests).encode(), digest_size=16).hexdigest()
    if isinstance(parts[0], CsrPart):
        return CsrStore(parts, joined, digest)
    return DenseStore(parts, joined, digest)


def _find_matrix(folder: Path, node: Any, element: str) -> tuple[Any, Any | None]:
    """Return the matrix, and the group that has `obs`, if there is one."""
    if not hasattr(node, "group_keys"):
        return node, None
    if node.attrs.get("encoding-type") in ("csr_matrix", "csc_matrix"):
        return node, None
    try:
        return node[element], node
    except KeyError:
        raise DamagedDataError(
            f"{folder}: has no {element!r}, only {sorted(node.keys())}; name the matrix with "
            "element="
        ) from None


def _part_of(folder: Path, matrix: Any) -> CsrPart | DensePart:
    if not hasattr(matrix, "group_keys"):
        return DensePart(str(folder), ZarrArray(matrix, must_exist=False))
    encoding = matrix.attrs.get("encoding-type")
    if encoding != "csr_matrix":
        raise DamagedDataError(
            f"{folder}: is encoded as {encoding!r} but must be csr_matrix or a dense array; write "
            "it with rows as the compressed axis"
        )
    try:
        num_rows, num_columns = (int(size) for size in matrix.attrs["shape"])
        indptr = np.asarray(matrix["indptr"][:]).astype(np.int64)
        data, indices = (ZarrArray(matrix[name], must_exist=True) for name in ("data", "indices"))
        part = CsrPart(str(folder), data, indices, indptr, num_columns)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedDataError(f"{folder}: its sparse matrix is incomplete ({error!r})") from None
    if part.num_rows != num_rows:
        raise DamagedDataError(
            f"{folder}: indptr has {part.num_rows} rows but the matrix should have {num_rows}"
        )
    return part


def _obs_column(folder: Path, group: Any | None, name: str) -> NDArray[Any]:
    try:
        if group is None:
            raise KeyError("obs")
        column = group["obs"][name]
    except KeyError:
        raise DamagedDataError(f"{folder}: has no column obs/{name}") from None
    encoding = column.attrs.get("encoding-type")
    if encoding == "categorical":
        codes = np.asarray(column["codes"][:])
        categories = np.asarray(column["categories"][:])
        if len(codes) and (codes.min() < -1 or codes.max() >= len(categories)):
            raise DamagedDataError(f"{folder}: obs/{name} has codes without a category")
        if len(codes) and codes.min() < 0:
            categories = np.array([*categories.tolist(), None], dtype=object)
        values: NDArray[Any] = categories[codes]
        return values
    if encoding in ("nullable-integer", "nullable-boolean", "nullable-string-array"):
        values = np.asarray(column["values"][:])
        missing = np.asarray(column["mask"][:])
        if missing.any():
            values = values.astype(object)
            values[missing] = None
        return values
    return np.asarray(column[:])


def _fingerprint(folder: Path, matrix: Any, part: CsrPart | DensePart) -> str:
    """Return a digest of the layout and of a few values spread over the matrix."""
    digest = hashlib.blake2b(digest_size=16)
    readers = [part.data, part.indices] if isinstance(part, CsrPart) else [part.array]
    for array in (reader.array for reader in readers):
        layout = [list(array.shape), str(array.dtype), list(array.chunks), list(array.shards or ())]
        digest.update(json.dumps(layout).encode())
        for place in (np.arange(8) * (max(array.shape[0], 1) - 1)) // 7:
            if array.shape[0]:
                digest.update(np.ascontiguousarray(array[int(place)]).tobytes())
    if isinstance(part, CsrPart):
        digest.update(part.indptr.tobytes())
    return digest.hexdigest()
