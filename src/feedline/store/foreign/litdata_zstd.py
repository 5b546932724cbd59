"""litdata's chunks whose samples are compressed one by one, or some of them together."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from feedline.errors import DamagedDataError
from feedline.store.foreign.headers import Bytes, numbers_at
from feedline.store.foreign.inflating import inflate
from feedline.store.slices import Numbers
from feedline.words import several

_MAGIC = b"LDFZ01\0\0"
# The magic, version, flags, number of samples, samples in a frame, number of frames.
_PREFIX = np.dtype([("magic", "S8"), ("version", "<u2"), ("flags", "<u2"), ("numbers", "<u4", 3)])
_FRAME = np.dtype(
    [("first", "<u4"), ("count", "<u4"), ("start", "<u8"), ("size", "<u4"), ("raw", "<u4")]
)
_ZSTD = 0xFD2FB528


def open_frames(path: Path, data: Bytes, num_samples: int) -> tuple[Bytes, Numbers]:
    """Return the samples of a chunk that is compressed in frames, and where they begin."""
    if data.size < _PREFIX.itemsize or data[:8].tobytes() != _MAGIC:
        raise DamagedDataError(
            f"{path}: does not begin with {_MAGIC[:6].decode()}, as a chunk of frames does; copy "
            "or write it again"
        )
    prefix = data[: _PREFIX.itemsize].view(_PREFIX)[0]
    version, (declared, _, num_frames) = int(prefix["version"]), prefix["numbers"].tolist()
    table = _PREFIX.itemsize + 4 * (declared + 1)
    end = table + _FRAME.itemsize * num_frames
    if version != 1 or declared != num_samples or end > data.size or not num_frames:
        raise DamagedDataError(
            f"{path}: has version {version}, {several(declared, 'sample')} and "
            f"{several(num_frames, 'frame')} in {several(data.size, 'byte')}, but should have "
            f"version 1 and {num_samples:,}; copy or write it again"
        )
    offsets = data[_PREFIX.itemsize : table].view("<u4").astype(np.int64)
    frames = data[table:end].view(_FRAME)
    starts, sizes = frames["start"].astype(np.int64), frames["size"].astype(np.int64)
    counts, raw = frames["count"].astype(np.int64), frames["raw"].astype(np.int64)
    firsts = np.cumsum(counts) - counts
    is_sound = (
        offsets[0] == 0
        and not np.any(offsets[1:] < offsets[:-1])
        and np.array_equal(firsts, frames["first"])
        and int(counts.sum()) == num_samples
        and np.array_equal(np.diff(offsets[np.append(firsts, num_samples)]), raw)
        # They follow each other, so that they can be inflated as one.
        and starts[0] == end
        and np.array_equal(starts[1:], (starts + sizes)[:-1])
        and int(starts[-1] + sizes[-1]) == data.size
    )
    if not is_sound:
        raise DamagedDataError(
            f"{path}: its table of frames does not fit its samples; copy or write it again"
        )
    return _inflated(path, data[end:], int(offsets[-1])), offsets


def open_samples(path: Path, data: Bytes, offsets: Numbers) -> tuple[Bytes, Numbers]:
    """Return the samples of a chunk that are compressed one by one, and where they begin."""
    sizes = _declared_sizes(path, data, offsets)
    begins = np.zeros(len(offsets), np.int64)
    np.cumsum(sizes, out=begins[1:])
    return _inflated(path, data[offsets[0] : offsets[-1]], int(begins[-1])), begins


def _inflated(path: Path, data: Bytes, size: int) -> Bytes:
    found = inflate(data, "zstd", size, path)
    if found.size != size:
        raise DamagedDataError(
            f"{path}: inflates to {several(found.size, 'byte')} but should to {size:,}; copy or "
            "write it again"
        )
    return found


def _declared_sizes(path: Path, data: Bytes, offsets: Numbers) -> Numbers:
    """Return the size that the header of each zstd frame declares."""
    starts, ends = offsets[:-1], offsets[1:]
    if np.any(starts + 5 > ends):
        raise _not_frames(path)
    words = numbers_at(data, starts, 1, "<u4")[:, 0]
    flags = data[starts + 4].astype(np.int64)
    is_single = flags >> 5 & 1
    widths = np.where(flags >> 6 == 0, is_single, 1 << (flags >> 6))
    places = starts + 5 + (1 - is_single) + np.array([0, 1, 2, 4])[flags & 3]
    if np.any(words != _ZSTD) or np.any(widths == 0) or np.any(places + widths > ends):
        raise _not_frames(path)
    sizes = np.empty(len(starts), np.int64)
    for width in np.unique(widths).tolist():
        rows = np.flatnonzero(widths == width)
        found = numbers_at(data, places[rows], 1, f"<u{width}")[:, 0]
        # Two bytes begin to count where one byte ends.
        sizes[rows] = np.minimum(found.astype(np.uint64), 2**32).astype(np.int64) + (
            256 if width == 2 else 0
        )
    if sizes.sum() >= 2**32:
        raise _not_frames(path)
    return sizes


def _not_frames(path: Path) -> DamagedDataError:
    return DamagedDataError(
        f"{path}: a sample is not a zstd frame that tells its size; copy or write it again"
    )
