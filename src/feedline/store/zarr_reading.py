"""Opening zarr groups and arrays, reading small ones, and choosing what decodes them.

The zarrs pipeline decodes in threads of its own, which are gone after a fork: a process that was
forked after its parent used them would wait for them forever. So small arrays are read by zarr's
own pipeline, zarrs is used for the matrix only, and not where a parent may have used it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, FeedlineError, MissingDataError
from feedline.store.extras import import_extra

_PLAIN = "zarr.core.codec_pipeline.BatchedCodecPipeline"
_FAST = "zarrs.ZarrsCodecPipeline"

#: How many bytes a list may have, whatever its files say, and how many for each byte of them.
_SMALL, _BYTES_PER_STORED = 2**26, 1024

_is_forked = False


def _note_fork() -> None:
    global _is_forked
    _is_forked = _is_forked or "zarrs" in sys.modules


os.register_at_fork(after_in_child=_note_fork)


@contextmanager
def plain_codecs() -> Iterator[None]:
    """Let arrays that are opened meanwhile be decoded without threads."""
    with _import_zarr().config.set({"codec_pipeline.path": _PLAIN}):
        yield


def open_zarr(path: Path) -> Any:
    """Return the zarr group or array in a folder, opened for reading."""
    zarr = _import_zarr()
    if not path.exists():
        raise MissingDataError(f"{path}: there is no such folder")
    with damage_in(path, "is no zarr group or array"), plain_codecs():
        return zarr.open(path, mode="r")


def with_fast_codecs(array: Any) -> Any:
    """Return the same array, decoded by zarrs where that is installed and can be used here."""
    zarr = _import_zarr()
    is_fast = importlib.util.find_spec("zarrs") is not None and not _is_forked
    with zarr.config.set({"codec_pipeline.path": _FAST if is_fast else _PLAIN}):
        return zarr.open_array(array.store_path, mode="r")


def read_whole(array: Any) -> NDArray[Any]:
    """Return all values of a small array, unless its files cannot hold as many."""
    num_bytes = array.size * max(np.dtype(array.dtype).itemsize, 1)
    if num_bytes > _SMALL:
        root = Path(array.store.root) / array.path
        stored = sum(file.stat().st_size for file in root.rglob("*") if file.is_file())
        if num_bytes > stored * _BYTES_PER_STORED:
            raise DamagedDataError(
                f"{root}: should have {num_bytes} bytes but its files have {stored} only"
            )
    return np.asarray(array[:])


@contextmanager
def damage_in(where: object, what: str = "cannot be read") -> Iterator[None]:
    """Turn what zarr and its codecs raise for damaged files into `DamagedDataError`."""
    try:
        yield
    except FeedlineError:
        raise
    except Exception as error:
        raise DamagedDataError(f"{where}: {what} ({error!r:.200})") from error
    except BaseException as error:
        # A codec that is written in Rust may panic, which is no Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise DamagedDataError(f"{where}: {what} ({error!r:.200})") from None


def _import_zarr() -> Any:
    return import_extra("zarr", extra="zarr", what="zarr stores")
