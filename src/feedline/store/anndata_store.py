"""AnnData in zarr: the matrix and the columns of `obs`, read without the anndata package."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, InvalidValueError, check_sequence
from feedline.store.zarr_arrays import ZarrArray, damage_in, open_zarr, plain_codecs, read_whole
from feedline.store.zarr_store import CsrPart, CsrStore, DensePart, DenseStore, may_lack_columns
from feedline.words import several


def open_anndata(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    element: str = "X",
    obs: Iterable[str] = (),
) -> CsrStore | DenseStore:
    """Open AnnData groups, zarr arrays or CSR groups as one matrix, one below the other.

    Args:
        paths: A zarr folder, or several with the same columns.
        element: The matrix of an AnnData group, such as `"X"` or `"layers/counts"`.
        obs: The columns of `obs` to hold in memory. Categorical codes are resolved to their values.

    Examples:
        >>> open_anndata("nowhere.zarr")
        Traceback (most recent call last):
            ...
        feedline.errors.MissingDataError: nowhere.zarr: does not exist; check the path
    """
    listed = [paths] if isinstance(paths, str | os.PathLike) else check_sequence("paths", paths)
    folders = [Path(path) for path in listed]
    parts: list[Any] = []
    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in obs}
    digests = []
    for folder in folders:
        with damage_in(folder), plain_codecs():
            matrix, group = _find_matrix(folder, open_zarr(folder), element)
            parts.append(_part_of(folder, matrix))
            for name, values in columns.items():
                values.append(_obs_column(folder, group, name, parts[-1].shape[0]))
            digests.append(parts[-1].fingerprint)
    if len({type(part) for part in parts}) != 1:
        raise InvalidValueError(
            f"{folders[0]}: some matrices are sparse and some are dense; they must be all sparse "
            "or all dense"
        )
    joined = {name: np.concatenate(values) for name, values in columns.items()}
    digest = hashlib.blake2b("".join(digests).encode(), digest_size=16).hexdigest()
    store = CsrStore if isinstance(parts[0], CsrPart) else DenseStore
    return store(parts, joined, digest)


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
        return DensePart(str(folder), ZarrArray(matrix, may_lack=_always))
    encoding = matrix.attrs.get("encoding-type")
    if encoding != "csr_matrix":
        raise DamagedDataError(
            f"{folder}: is encoded as {encoding!r} but must be csr_matrix or a dense array; write "
            "it with rows as the compressed axis"
        )
    with damage_in(folder, "its sparse matrix is incomplete (data, indices or indptr is missing)"):
        num_rows, num_columns = (int(size) for size in matrix.attrs["shape"])
        edges, data, indices = (matrix[name] for name in ("indptr", "data", "indices"))
        if edges.shape != (num_rows + 1,):
            raise DamagedDataError(
                f"{folder}: indptr has shape {edges.shape} but the matrix should have {num_rows} "
                "rows"
            )
        return CsrPart(
            name=str(folder),
            data=ZarrArray(data, may_lack=_never),
            indices=ZarrArray(
                indices, may_lack=_always if may_lack_columns(num_columns) else _never
            ),
            indptr=read_whole(edges).astype(np.int64),
            num_columns=num_columns,
        )


def _never(start: int, end: int) -> bool:
    return False


def _always(start: int, end: int) -> bool:
    return True


def _obs_column(folder: Path, group: Any | None, name: str, num_rows: int) -> NDArray[Any]:
    try:
        if group is None:
            raise KeyError("obs")
        column = group["obs"][name]
    except KeyError:
        raise DamagedDataError(f"{folder}: has no column obs/{name}") from None
    encoding = column.attrs.get("encoding-type")
    if encoding == "categorical":
        codes = _list_of(folder, name, column["codes"], num_rows)
        categories = read_whole(column["categories"])
        if len(codes) and (codes.min() < -1 or codes.max() >= len(categories)):
            raise DamagedDataError(
                f"{folder}: obs/{name} has codes without a category; write it again"
            )
        if len(codes) and codes.min() < 0:
            categories = np.array([*categories.tolist(), None], dtype=object)
        values: NDArray[Any] = categories[codes]
        return values
    if encoding in ("nullable-integer", "nullable-boolean", "nullable-string-array"):
        values = _list_of(folder, name, column["values"], num_rows)
        missing = _list_of(folder, name, column["mask"], num_rows)
        if missing.any():
            values = values.astype(object)
            values[missing] = None
        return values
    return _list_of(folder, name, column, num_rows)


def _list_of(folder: Path, name: str, array: Any, num_rows: int) -> NDArray[Any]:
    """Return a value for each row; the number is checked before any value is read."""
    if array.shape[:1] != (num_rows,):
        raise DamagedDataError(
            f"{folder}: obs/{name} has {'×'.join(map(str, array.shape))} values but the matrix has "
            f"{several(num_rows, 'row')}"
        )
    return read_whole(array)
