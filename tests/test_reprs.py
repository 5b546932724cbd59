"""Every public object shows in one short line what it is, and asks nobody to do so."""

from __future__ import annotations

import gc
import inspect
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

import feedline
from feedline.feed import Feed
from feedline.plan import SamplePlan, Shuffled
from feedline.store import FolderStore
from feedline.torch import DataLoader, TorchPeers
from public_names import classes
from public_objects import make_objects

MOST_SIGNS = 200


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    folder = tmp_path_factory.mktemp("objects")
    found = make_objects(folder)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
    found.append(TorchPeers())
    dist.destroy_process_group()
    yield found
    found.clear()
    gc.collect()


def test_every_public_class_is_among_the_objects(objects: list[Any]) -> None:
    kinds = {type(found) for found in objects}
    missing = [
        name
        for name, kind in classes().items()
        if not issubclass(kind, BaseException)
        and kind not in kinds
        and not (is_abstract(kind) and any(issubclass(one, kind) for one in kinds))
    ]
    assert not missing, "add them to tests/support/public_objects.py"


def is_abstract(kind: type) -> bool:
    """Whether only subclasses have objects, with or without the metaclass that forbids others."""
    members = (inspect.getattr_static(kind, name) for name in dir(kind))
    return any(getattr(member, "__isabstractmethod__", False) for member in members)


def test_every_object_shows_itself_in_one_short_line(objects: list[Any]) -> None:
    faults = [
        text
        for found in objects
        if "0x" in (text := repr(found))
        or len(text.splitlines()) != 1
        or len(text) > MOST_SIGNS
        or type(found).__name__ not in text
    ]
    assert not faults


def test_a_loader_shows_its_data_plan_ranks_and_place(tmp_path: Path) -> None:
    feedline.pack({"x": np.arange(100)}, tmp_path / "data")
    store = feedline.open(tmp_path / "data")
    loader = DataLoader(store, batch_size=8, shuffle=True, num_replicas=2, rank=1)
    plan = "SamplePlan(order=Shuffled(num_samples=100, seed=0), tail='even')"
    shown = f"<DataLoader of FolderStore: {plan}, batches of 8 samples; rank 1 of 2, epoch 0, "
    assert repr(loader) == f"{shown}batch 0 of 7>"
    batches = iter(loader)
    next(batches), next(batches)
    assert repr(loader) == f"{shown}batch 2 of 7>"
    resumed = feedline.DataLoader(store, batch_size=8, shuffle=True, num_replicas=2, rank=1)
    resumed.load_state_dict(loader.state_dict())
    assert repr(resumed) == f"{shown}resumes from a state>"


def test_ranks_that_are_not_looked_up_yet_are_not_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    loader = DataLoader(list(range(100)), batch_size=8)
    assert "ranks are found at first use" in repr(loader)
    with pytest.raises(ValueError, match="WORLD_SIZE=4"):
        len(loader)
    assert "ranks are found at first use" in repr(loader)


def test_showing_a_loader_opens_no_file(tmp_path: Path) -> None:
    feedline.pack({"x": np.arange(100)}, tmp_path / "data")
    store = FolderStore(tmp_path / "data")
    feed = Feed(store, SamplePlan(order=Shuffled(num_samples=100)), batch_size=8)
    loader = DataLoader(store, batch_size=8)
    before = [repr(feed), repr(loader), repr(store)]
    shutil.rmtree(tmp_path / "data")
    assert [repr(feed), repr(loader), repr(store)] == before


def test_a_store_that_cannot_be_read_shows_why(tmp_path: Path) -> None:
    class Broken(feedline.Store):
        @property
        def columns(self) -> Any:
            raise FileNotFoundError(f"{tmp_path}/gone")

    text = repr(Broken())
    assert "cannot be read" in text
    assert "gone" in text
