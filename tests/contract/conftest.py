"""The data that the loaders of the contract suite read."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from contract_loaders import make_data, serve_data
from object_server import s3_server


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = make_data(tmp_path_factory.mktemp("contract") / "data")
    if find_spec("moto") is None:
        # A machine with a GPU may have no server of objects; loaders over URLs fail there.
        yield folder
        return
    with s3_server() as server:
        serve_data(folder, server)
        yield folder
