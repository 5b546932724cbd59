"""Opening zarr groups and arrays, and choosing what decodes them.

The zarrs pipeline decodes in threads of its own, which are gone after a fork: a process that was
forked after its parent used them would wait for them forever. So small arrays are read by zarr's
own pipeline, zarrs is used for the matrix only, and not where a parent has begun to.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

from feedline.errors import DamagedDataError, MissingDataError

__all__ = ["open_zarr", "with_fast_codecs"]

_PLAIN = "zarr.core.codec_pipeline.BatchedCodecPipeline"
_FAST = "zarrs.ZarrsCodecPipeline"

#: The process that began to decode with zarrs, or whose child this one is.
_decoding_process: int | None = None


def open_zarr(path: Path) -> Any:
    """Return the zarr group or array in a folder, opened for reading."""
    zarr = _import_zarr()
    if not path.exists():
        raise MissingDataError(f"{path}: there is no such folder")
    try:
        with zarr.config.set({"codec_pipeline.path": _PLAIN}):
            return zarr.open(path, mode="r")
    except Exception as error:  # zarr raises many kinds for damaged metadata
        raise DamagedDataError(f"{path}: is no zarr group or array ({error})") from None


def with_fast_codecs(array: Any) -> Any:
    """Return the same array, decoded by zarrs where that is installed and can be used here."""
    global _decoding_process
    zarr = _import_zarr()
    if importlib.util.find_spec("zarrs") is None:
        return array
    if _decoding_process not in (None, os.getpid()):
        return array
    if _decoding_process is None and multiprocessing.parent_process() and "zarrs" in sys.modules:
        # The parent may have used zarrs on its own.
        return array
    _decoding_process = os.getpid()
    with zarr.config.set({"codec_pipeline.path": _FAST}):
        return zarr.open_array(array.store_path, mode="r")


def _import_zarr() -> Any:
    try:
        import zarr
    except ModuleNotFoundError as error:
        if error.name != "zarr":
            raise
        raise ModuleNotFoundError(
            "zarr stores need zarr, which is not installed; install feedline[zarr]", name="zarr"
        ) from None
    return zarr
