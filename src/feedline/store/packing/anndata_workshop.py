"""Where packing AnnData goes on until all is done, and what it may replace."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from feedline.errors import FeedlineError, PackError
from feedline.store.packing.workshop import Workshop

__all__ = ["MARK", "AnnDataWorkshop", "told"]

#: The attribute of a group that packing has written.
MARK = "feedline-pack"


class AnnDataWorkshop(Workshop):
    """A workshop whose product is a zarr group: only such a one is ever replaced."""

    def check_target(self) -> None:
        if not os.path.lexists(self.folder):
            return
        if not self._overwrite:
            raise PackError(
                f"{self.folder}: is there already; choose another folder, or replace it by "
                "overwrite=True"
            )
        if not _is_packed(self.folder):
            raise PackError(
                f"{self.folder}: was not written by packing AnnData, so it will not be replaced; "
                "choose another folder, or remove it"
            )


def _is_packed(folder: Path) -> bool:
    if not folder.is_dir() or folder.is_symlink():
        return False
    try:
        return MARK in json.loads((folder / "zarr.json").read_bytes())["attributes"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextmanager
def told(folder: Path) -> Iterator[None]:
    """Turn a failure of the operating system into an error that names the file and the remedy."""
    try:
        yield
    except FeedlineError:
        raise
    except OSError as error:
        raise PackError(
            f"{error.filename or folder}: cannot be written ({error.strerror or error}); make "
            "space or repair the disk, and pack again"
        ) from None
