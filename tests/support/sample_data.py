"""Folders with columns of bytes, text and lists, and files of several kinds to put into them."""

from __future__ import annotations

import io
import wave
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from feedline.store import Column, FolderStore, Lists
from feedline.store.manifest import ChunkFile, write_manifest

__all__ = [
    "jpeg_bytes",
    "make_samples",
    "npy_bytes",
    "photo",
    "png_bytes",
    "wav_bytes",
    "write_samples",
]


def write_samples(
    folder: Path, columns: Mapping[str, Sequence[Any] | NDArray[Any]], chunk_samples: int = 8
) -> FolderStore:
    """Write columns of arrays, and of bytes, texts and lists of int64, and open them."""
    num_samples = len(next(iter(columns.values())))
    files = []
    found: dict[str, Column] = {}
    for number, first in enumerate(range(0, num_samples, chunk_samples)):
        path = folder / f"chunk-{number:06}"
        count = min(chunk_samples, num_samples - first)
        for name, values in columns.items():
            part = values[first : first + count]
            if isinstance(part, np.ndarray):
                found[name] = Column(name, part.dtype.name, part.shape[1:])
                _save(path / f"{name}.npy", part)
                continue
            lists = Lists.of(part, dtype=np.int64)
            found[name] = Column(name, lists.values.dtype.name, kind=lists.kind, mean_bytes=100)
            _save(path / name / "values.npy", lists.values)
            _save(path / name / "offsets.npy", lists.offsets)
        files.append(ChunkFile(path=path.name, num_samples=count))
    write_manifest(folder, files, found.values())
    return FolderStore(folder)


def _save(path: Path, array: NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


def make_samples(folder: Path, num_samples: int = 60, bad: Sequence[int] = ()) -> FolderStore:
    """Write samples with an id, an array, a list, a text and a file; some files are damaged."""
    arrays = [npy_bytes(np.full(3, number)) for number in range(num_samples)]
    for number in bad:
        arrays[number] = arrays[number][:-5]
    return write_samples(
        folder,
        {
            "id": np.arange(num_samples),
            "x": np.arange(2.0 * num_samples, dtype=np.float32).reshape(-1, 2),
            "tokens": [list(range(number % 4)) for number in range(num_samples)],
            "text": [f"text {number}" for number in range(num_samples)],
            "file": arrays,
        },
    )


def photo(height: int, width: int, seed: int = 0, channels: int = 3) -> NDArray[np.uint8]:
    """Return a smooth picture, which JPEG hardly changes."""
    rng = np.random.default_rng(seed)
    down, across, both = (rng.uniform(0, 80, channels) for _ in range(3))
    y, x = np.mgrid[0 : 1 : 1j * height, 0 : 1 : 1j * width]
    picture = 30 + y[..., None] * down + x[..., None] * across + (x * y)[..., None] * both
    found: NDArray[np.uint8] = picture.astype(np.uint8)
    return found if channels > 1 else found[..., 0]


def jpeg_bytes(pixels: NDArray[np.uint8], **options: Any) -> bytes:
    """Return pixels as a JPEG file."""
    return _image_bytes(Image.fromarray(pixels), "JPEG", quality=95, **options)


def png_bytes(pixels: NDArray[Any]) -> bytes:
    """Return pixels as a PNG file."""
    return _image_bytes(Image.fromarray(pixels), "PNG")


def _image_bytes(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def wav_bytes(samples: NDArray[np.int16], rate: int = 16_000) -> bytes:
    """Return samples of shape (frames, channels) as a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(samples.shape[1])
        out.setsampwidth(samples.dtype.itemsize)
        out.setframerate(rate)
        out.writeframes(samples.tobytes())
    return file.getvalue()


def npy_bytes(array: NDArray[Any]) -> bytes:
    """Return an array as a `.npy` file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
