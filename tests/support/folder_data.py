"""Folders of chunks whose every value tells which sample it belongs to.

The last step of `sequences/item` is the number of the sample, and all other values follow from
that number, so a wrong row, a wrong column and a wrong step are all seen.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

NUM_STEPS = 5
GROUP_SIZE = 3
KINDS = ("pt", "npy", "safetensors", "parquet", "arrow")
NAMES = (
    *("sequences/item", "sequences/time", "targets/label"),
    *("sequence_ids", "subsequence_ids", "start_positions"),
)
_ENDINGS = {kind: f".{kind}" for kind in KINDS} | {"npy": ""}


def make_columns(ids: Sequence[int] | NDArray[np.int64], num_steps: int = NUM_STEPS) -> Arrays:
    """All columns of the samples with these numbers."""
    numbers = np.asarray(ids, dtype=np.int64)
    steps = np.arange(num_steps)
    return {
        "sequences/item": numbers[:, None] + (num_steps - 1 - steps) * 10**6,
        "sequences/time": (numbers[:, None] / 4 + steps).astype(np.float32),
        "targets/label": (numbers[:, None] * 3 + steps).astype(np.int32),
        "sequence_ids": numbers * 7,
        "subsequence_ids": (numbers % 5).astype(np.int16),
        "start_positions": numbers + 2**40,
    }


def as_chunk(arrays: Arrays) -> tuple[Any, ...]:
    """The documented tuple of five, of tensors."""
    import torch

    tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
    parts: list[Any] = [
        {n.split("/")[1]: tensor for n, tensor in tensors.items() if n.startswith(f"{group}/")}
        for group in ("sequences", "targets")
    ]
    return (*parts, *(tensors.get(name) for name in NAMES[3:]))


def write_chunk(path: Path, arrays: Arrays) -> Path:
    """Write one file, or folder of files, of the kind that the path's ending names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".pt":
        import torch

        torch.save(as_chunk(arrays), path)
    elif path.suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    elif path.suffix in (".parquet", ".arrow", ".feather"):
        _write_groups(path, arrays)
    else:
        for name, array in arrays.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            np.save(path / f"{name}.npy", array)
    return path


def _write_groups(path: Path, arrays: Arrays) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    columns = {}
    for name, array in arrays.items():
        values = pa.array(array.reshape(-1))
        if array.ndim == 2:
            values = pa.FixedSizeListArray.from_arrays(values, array.shape[1])
        columns[name] = values
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=GROUP_SIZE)
        return
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=GROUP_SIZE)


@dataclass
class FolderData:
    """A folder and what each of its chunks holds."""

    folder: Path
    files: list[Path]
    chunks: list[Arrays]

    @property
    def sizes(self) -> list[int]:
        return [len(chunk["sequence_ids"]) for chunk in self.chunks]

    def metadata(self) -> dict[str, Any]:
        """What `metadata.json` says."""
        found: dict[str, Any] = json.loads((self.folder / "metadata.json").read_text())
        return found

    def rewrite(self, **changes: Any) -> None:
        """Change keys of `metadata.json`."""
        (self.folder / "metadata.json").write_text(json.dumps(self.metadata() | changes))

    def rewrite_entry(self, number: int, **changes: Any) -> None:
        """Change keys of one entry of `batch_files`."""
        entries = self.metadata()["batch_files"]
        entries[number] |= changes
        self.rewrite(batch_files=entries)


def write_folder(
    folder: Path,
    sizes: Sequence[int],
    kind: str = "pt",
    *,
    first: int = 0,
    with_checksums: bool = False,
) -> FolderData:
    """Write a folder of files with these numbers of samples; "mixed" takes all kinds in turn."""
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    chunks: list[Arrays] = []
    entries: list[dict[str, Any]] = []
    for number, size in enumerate(sizes):
        kind_here = KINDS[number % len(KINDS)] if kind == "mixed" else kind
        arrays = make_columns(np.arange(first, first + size))
        path = write_chunk(folder / f"{number:04d}{_ENDINGS[kind_here]}", arrays)
        entry: dict[str, Any] = {"path": path.name, "samples": size}
        if with_checksums:
            entry["checksum"] = checksum_of(path)
        is_grouped = kind_here in ("parquet", "arrow")
        step = GROUP_SIZE if is_grouped else max(size, 1)
        chunks += [
            {name: array[start : start + step] for name, array in arrays.items()}
            for start in range(0, max(size, 1), step)
        ]
        files.append(path)
        entries.append(entry)
        first += size
    write_metadata(folder, entries)
    return FolderData(folder, files, chunks)


def write_metadata(folder: Path, entries: Sequence[Mapping[str, Any]], **more: Any) -> None:
    """Write `metadata.json` with the two documented keys."""
    total = sum(entry["samples"] for entry in entries)
    data = {"total_samples": total, "batch_files": list(entries)} | more
    (folder / "metadata.json").write_text(json.dumps(data))


def checksum_of(path: Path) -> str:
    """The checksum of a file, or of all files in a folder, one after another."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    content = b"".join(file.read_bytes() for file in files)
    return "blake2b:" + hashlib.blake2b(content, digest_size=16).hexdigest()


def same_columns(found: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]]) -> None:
    """Check names, types, shapes and values."""
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        assert np.array_equal(found[name], array), name


def pt_bytes(
    pickle: bytes,
    records: Mapping[str, bytes] | None = None,
    *,
    byteorder: bytes | None = b"little",
    compression: int = zipfile.ZIP_STORED,
) -> bytes:
    """A zip file as torch.save writes it, around any pickle and any records."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickle)
        if byteorder is not None:
            archive.writestr("archive/byteorder", byteorder)
        for name, content in (records or {}).items():
            archive.writestr(f"archive/data/{name}", content)
    return buffer.getvalue()


def member_spans(path: Path) -> dict[str, tuple[int, int]]:
    """Where the bytes of each member of a zip file begin and end."""
    content = path.read_bytes()
    spans = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            at = info.header_offset
            lengths = content[at + 26 : at + 30]
            start = at + 30 + int.from_bytes(lengths[:2], "little")
            start += int.from_bytes(lengths[2:], "little")
            spans[info.filename] = (start, start + info.file_size)
    return spans


def with_flags(content: bytes, name: str, flags: int) -> bytes:
    """A zip file with other flags of one member, in both of its headers."""
    changed = bytearray(content)
    for magic, flags_at, name_at in ((b"PK\3\4", 6, 30), (b"PK\1\2", 8, 46)):
        at = content.find(magic)
        while at >= 0:
            if content[at + name_at : at + name_at + len(name)] == name.encode():
                changed[at + flags_at : at + flags_at + 2] = flags.to_bytes(2, "little")
            at = content.find(magic, at + 1)
    return bytes(changed)


class Trap:
    """Making or restoring one with a path makes a folder there."""

    def __new__(cls, target: str | None = None) -> Trap:
        if target is not None:
            Path(target).mkdir()
        return object.__new__(cls)

    def __setstate__(self, target: str) -> None:
        Path(target).mkdir()
