"""What is kept on this machine is not written to a folder that is named like a URL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import feedline
from feedline.errors import InvalidValueError
from feedline.packing import pack_anndata

CASES: dict[str, Callable[[str], object]] = {
    "log": lambda folder: feedline.DataLoader(feedline.open("data"), 5, log=folder),
    "cache_folder": lambda folder: feedline.open("s3://bucket/data", cache_folder=folder),
    "folder": lambda folder: pack_anndata("a.h5ad", folder),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("folder", ["s3://bucket/kept", "hdfs://host/kept", ""])
def test_a_folder_is_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: str
) -> None:
    if name == "cache_folder":
        pytest.importorskip("obstore")
    if name == "folder":
        pytest.importorskip("anndata")
    monkeypatch.chdir(tmp_path)
    feedline.pack({"x": np.arange(10)}, "data")
    (tmp_path / "a.h5ad").touch()
    with pytest.raises(InvalidValueError, match=f"{name}="):
        list(CASES[name](folder))  # type: ignore[call-overload]
    assert {path.name for path in tmp_path.iterdir()} == {"data", "a.h5ad"}
