"""AnnData files as one table: rows of all files, one below the other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from feedline.errors import DamagedDataError, InvalidValueError
from feedline.packing.anndata.columns import (
    ColumnKind,
    SourceColumn,
    check_path_name,
    join_kinds,
)
from feedline.packing.anndata.matrices import SparseMatrix, open_matrix
from feedline.packing.anndata.nodes import Node, Scan, open_node
from feedline.packing.rows import Rows, SourceFault, describe_files

_NAMES_AT_ONCE = 2**15
_MAX_METADATA_BYTES = 2**26
_GUESSED_TEXT_BYTES = 24
# Where the names of the columns are; other elements, such as those of `obsm`, have none.
_PLACES_OF_VAR = {"X": ("var",), "layers": ("var",), "raw": ("raw", "var")}


def is_anndata(path: Path) -> bool:
    """Whether a path looks like AnnData: a file `.h5ad`, or a zarr folder.

    Examples:
        >>> is_anndata(Path("cells.h5ad")), is_anndata(Path("rows.parquet"))
        (True, False)
    """
    if path.suffix.lower() in (".h5ad", ".zarr"):
        return True
    for name, keys in (("zarr.json", ("attributes",)), (".zattrs", ())):
        file = path / name
        if not file.is_file() or file.stat().st_size > _MAX_METADATA_BYTES:
            continue
        try:
            attributes = json.loads(file.read_bytes())
            for key in keys:
                attributes = attributes[key]
            return bool(attributes["encoding-type"] == "anndata")
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
    return False


class AnnDataFiles:
    """Open files with matching types, and the selected columns of `obs`.

    Args:
        paths: The files and folders.
        element: The matrix.
        obs: The columns; None for all of the first file.
        max_bytes: The bytes to read at once.
    """

    def __init__(
        self, paths: Sequence[Path], *, element: str, obs: Sequence[str] | None, max_bytes: int
    ) -> None:
        self.identity = describe_files("anndata", [p for p in paths if p.is_file()])
        with ExitStack() as stack:
            nodes = [stack.enter_context(open_node(path)) for path in paths]
            self._files = [_File(node, element, max_bytes) for node in nodes]
            self._check_alike()
            self.matrix = self._files[0].matrix
            self.is_sparse = isinstance(self.matrix, SparseMatrix)
            #: The file that names the columns of the matrix, if one does.
            self.named = next((f for f in self._files if f.var_names), self._files[0])
            self.index_name = self._files[0].index_name
            names = self._files[0].column_names if obs is None else list(obs)
            for name in names:
                check_path_name(name, str(paths[0]))
            if self.index_name in names:
                raise InvalidValueError(f"obs names {self.index_name!r}, which is the index")
            for file in self._files:
                file.open_columns(names)
            #: The kind of each column, the index first.
            self.columns: dict[str, ColumnKind] = {
                name: join_kinds([file.columns[position] for file in self._files])
                for position, name in enumerate([self.index_name, *names])
            }
            self._stack = stack.pop_all()
        self.num_rows = sum(file.matrix.num_rows for file in self._files)
        self.num_values = sum(file.matrix.num_values for file in self._files)
        if not self.num_rows:
            self._stack.close()
            raise SourceFault(f"{paths[0]}: has 0 rows and must have at least 1")

    @property
    def num_bytes_guess(self) -> int:
        """About the number of bytes of memory that all rows would take."""
        kinds = self.columns.values()
        row_bytes = sum(k.dtype.itemsize + 1 if k.dtype else _GUESSED_TEXT_BYTES for k in kinds)
        return sum(file.matrix.num_bytes for file in self._files) + self.num_rows * row_bytes

    def read_names(self) -> None:
        """Read the names of the variables of every file."""
        for file in self._files:
            for _ in file.var_name_parts():
                pass

    def blocks(self) -> Iterator[Rows]:
        """Yield all rows: the matrix, "row", the number of the row over all files, and `obs`."""
        done = 0
        for file in self._files:
            for start, stop, matrix in file.matrix.blocks():
                rows: dict[str, Any] = {**matrix, "row": np.arange(done + start, done + stop)}
                for column, (name, kind) in zip(file.columns, self.columns.items(), strict=True):
                    rows |= column.read(f"obs/{name}", start, stop, kind)
                yield rows
            done += file.matrix.num_rows

    def close(self) -> None:
        """Close all files."""
        self._stack.close()

    def _check_alike(self) -> None:
        first = self._files[0]
        for file in self._files[1:]:
            for what in ("num_columns", "dtype"):
                found, wanted = (getattr(f.matrix, what) for f in (file, first))
                if found != wanted:
                    raise SourceFault(
                        f"{file.matrix.where}: has {what}={found} but {first.matrix.where} has "
                        f"{wanted}; convert the files to match, or pack them separately"
                    )
            if type(file.matrix) is not type(first.matrix):
                raise SourceFault(
                    f"{file.matrix.where} and {first.matrix.where}: one is sparse and one is "
                    "dense; convert one of them"
                )
        named = [file for file in self._files if file.var_names]
        for file in named[1:]:
            _check_same_names(named[0], file)


class _File:
    """One file: its matrix, its columns of `obs` and the names of its variables."""

    def __init__(self, root: Node, element: str, max_bytes: int) -> None:
        self.path = root.path
        self.matrix = open_matrix(root, element, max_bytes)
        self._max_bytes = max_bytes
        self._obs = root.child("obs")
        self.index_name = _index_name(self._obs)
        self.column_names = self._column_order()
        self.columns: list[SourceColumn] = []
        self.var_index_name = "_index"
        self.var_names = self._find_var_names(root, element)

    def open_columns(self, names: Iterable[str]) -> None:
        """Find the index and these columns."""
        missing = [name for name in names if self._obs.get(name) is None]
        if missing:
            raise SourceFault(
                f"{self.path}: has no column obs/{missing[0]:.80}, which all files must have; it "
                f"has {self.column_names!r:.300}; choose the columns with obs=[…]"
            )
        nodes = [self._obs.child(name) for name in (self.index_name, *names)]
        self.columns = [SourceColumn(n, self.matrix.num_rows, self._max_bytes) for n in nodes]

    def var_name_parts(self) -> Iterator[list[str]]:
        """Yield the names of the columns, part by part; they are numbers if the file has none."""
        scan = Scan(self.var_names, self._max_bytes) if self.var_names else None
        for start in range(0, self.matrix.num_columns, _NAMES_AT_ONCE):
            stop = min(self.matrix.num_columns, start + _NAMES_AT_ONCE)
            names = scan.read(start, stop).tolist() if scan else range(start, stop)
            yield [str(name) for name in names]

    def _column_order(self) -> list[str]:
        found = self._obs.attribute("column-order")
        if not isinstance(found, list) or len(set(map(str, found))) != len(found):
            raise DamagedDataError(
                f"{self._obs.where}: has column-order={found!r:.80}, which must be a list of names"
            )
        return found

    def _find_var_names(self, root: Node, element: str) -> Node | None:
        group: Node | None = root
        for part in _PLACES_OF_VAR.get(element.split("/")[0], ()):
            group = None if group is None else group.get(part)
        if group is None or group is root:
            return None
        self.var_index_name = _index_name(group)
        names = group.child(self.var_index_name)
        if names.encoding == "nullable-string-array":
            names = names.child("values")
        if names.is_group or names.shape != (self.matrix.num_columns,):
            raise DamagedDataError(
                f"{names.where}: has shape {names.shape} but must have one name for each of the "
                f"{self.matrix.num_columns} columns"
            )
        if not names.is_text:
            _ = names.dtype
        return names


def _index_name(group: Node) -> str:
    version = group.attribute("encoding-version")
    if group.encoding != "dataframe" or version != "0.2.0":
        raise SourceFault(
            f"{group.where}: is encoded as {group.encoding!r:.80} {version!r:.20} and must be a "
            "dataframe of version 0.2.0; read the file with anndata 0.8 or newer and write it again"
        )
    return check_path_name(group.attribute("_index"), group.where)


def _check_same_names(first: _File, other: _File) -> None:
    done = 0
    for ours, theirs in zip(first.var_name_parts(), other.var_name_parts(), strict=True):
        for place, (wanted, found) in enumerate(zip(ours, theirs, strict=True), done):
            if wanted != found:
                raise SourceFault(
                    f"{other.path}: variable {place} is {found!r:.80} but in {first.path} it is "
                    f"{wanted!r:.80}; all files must have the same var names in the same order; "
                    "reorder them with `adata[:, names]`"
                )
        done += len(ours)
