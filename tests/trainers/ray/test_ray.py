"""Loaders in workers of Ray Train: ranks, `prepare_data_loader`, and states in checkpoints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.train
import ray.train.torch
import ray_jobs
import torch

from feedline.errors import CursorFormatError, InvalidValueError, MissingDataError
from feedline.feed import FoundPeers
from feedline.feed.adapters import adapters_in_use
from feedline.torch import DataLoader, IterableLoader, StepScheduler
from feedline.trainers import ray as ours
from feedline.trainers.ray import RayPeers, load_state, save_state
from iterable_data import Counting

VERSION = f"ray {ray.__version__}"
IDS = torch.arange(40)


def a_loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(IDS, **{"batch_size": 4, "shuffle": True, "seed": 3, **options})


def ids_of(loader: Any) -> list[int]:
    return [one for batch in loader for one in batch.tolist()]


@pytest.fixture(scope="session")
def found(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two workers without a group of torch have found, by rank."""
    folder = tmp_path_factory.mktemp("look")
    kind = ray_jobs.trainer_without_torch()
    ray_jobs.fit(ray_jobs.look, {"folder": str(folder)}, folder, 2, kind=kind)
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(2)]


def test_workers_find_their_ranks_without_torch(found: list[dict[str, Any]]) -> None:
    assert [one["peers"] for one in found] == [
        "<RayPeers: rank 0 of 2>",
        "<RayPeers: rank 1 of 2>",
    ]


def test_workers_communicate_without_torch(found: list[dict[str, Any]]) -> None:
    for one in found:
        assert one["gathered"] == [{"rank": 0}, {"rank": 1}]
        assert one["maximum"] == [2**60 + step for step in range(20)]


def test_a_worker_that_others_wait_for_is_named(found: list[dict[str, Any]]) -> None:
    assert "DesyncError: rank 0 waited 1 s" in found[0]["late"]
    assert "no word of rank 1" in found[0]["late"]


def test_workers_with_other_seeds_are_refused(found: list[dict[str, Any]]) -> None:
    for one in found:
        assert "DesyncError: the 2 ranks do not agree" in one["seeds"]
        assert "seed" in one["seeds"]


def test_prepare_data_loader_passes_loaders_on(found: list[dict[str, Any]]) -> None:
    assert all(one["prepared"] and one["early"] for one in found)
    assert sorted(found[0]["ids"] + found[1]["ids"]) == list(range(40))


def test_prepare_data_loader_wraps_loaders_of_others(found: list[dict[str, Any]]) -> None:
    assert [one["foreign"] for one in found] == [[ours.WRAPPER, 40]] * 2


def test_batches_come_on_the_device_that_is_asked_for(found: list[dict[str, Any]]) -> None:
    for one in found:
        assert one["meta"] == ["meta"]
        assert "InvalidValueError: device='meta' must be 'cpu'" in one["twice"]


def test_more_workers_than_batches_left_get_each_sample_once(found: list[dict[str, Any]]) -> None:
    # Both have the 8 samples that were learned before.
    first, second = (one["few left"] for one in found)
    assert first[:8] == second[:8]
    assert sorted(first[:8] + first[8:] + second[8:]) == list(range(9))


@pytest.fixture
def wrapped(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ray's own wrapper of loaders, as it is before a loader of Feedline is made."""
    module = sys.modules[ours.WRAPPER_MODULES[0]]
    theirs = getattr(module, ours.WRAPPER)
    theirs = theirs.__mro__[1] if hasattr(theirs, "_feedline") else theirs
    for name in ours.WRAPPER_MODULES:
        if name in sys.modules:
            monkeypatch.setattr(sys.modules[name], ours.WRAPPER, theirs)
    return theirs


def test_a_loader_that_ray_has_wrapped_is_refused(wrapped: Any) -> None:
    loader = wrapped(a_loader(), torch.device("cpu"), True)
    assert type(loader) is wrapped
    with pytest.raises(InvalidValueError, match=r"made before ray\.train\.torch was imported"):
        next(iter(loader))


def test_a_loader_that_is_made_fits_the_wrapper(wrapped: Any) -> None:
    loader = a_loader()
    fitted = getattr(sys.modules[ours.WRAPPER_MODULES[0]], ours.WRAPPER)
    assert fitted is not wrapped
    assert fitted(loader, torch.device("cpu"), True) is loader
    foreign = fitted(torch.utils.data.DataLoader(IDS, 4), torch.device("cpu"), True)
    assert isinstance(foreign, wrapped)
    assert sum(len(batch) for batch in foreign) == 40


def test_a_loader_on_another_device_is_refused() -> None:
    loader = a_loader(device="meta")
    with pytest.raises(InvalidValueError, match="device='meta' must be 'cpu'"):
        ours.placed(loader, torch.device("cpu"))


def test_a_wrapper_that_cannot_be_moved_is_refused() -> None:
    from feedline.trainers.torchtitan import Endless

    loader = Endless(a_loader())
    assert ours.placed(loader, torch.device("cpu")) is loader
    with pytest.raises(InvalidValueError, match="cannot be moved to device='meta'"):
        ours.placed(loader, torch.device("meta"))


def test_outside_of_workers_a_process_is_alone() -> None:
    assert any(adapter is ours for adapter in adapters_in_use())
    assert ours.find(None) is None
    assert (FoundPeers().rank, FoundPeers().world_size) == (0, 1)
    with pytest.raises(InvalidValueError, match="rank=2 must be in"):
        RayPeers(2, 2)


def test_loaders_and_clocks_resume_from_a_folder(tmp_path: Path) -> None:
    loader, other = a_loader(), a_loader(seed=9)
    clock = StepScheduler(dataloader=loader, num_epochs=1, preemption_signal=None)
    batches = iter(clock)
    seen = [*next(batches)[0].tolist(), *next(batches)[0].tolist()]
    save_state(tmp_path, clock=clock, other=other)
    resumed = a_loader(batch_size=7)
    again = StepScheduler(dataloader=resumed, num_epochs=1, preemption_signal=None)
    assert load_state(tmp_path, clock=again, other=a_loader(seed=9)) is True
    assert again.step == 2
    rest = [one for group in again for batch in group for one in batch.tolist()]
    assert sorted(seen + rest) == list(range(40))


def test_batches_whose_gradients_are_not_applied_come_again(tmp_path: Path) -> None:
    loader = a_loader()
    batches = iter(loader)
    applied = [*next(batches).tolist(), *next(batches).tolist()]
    next(batches)
    save_state(tmp_path, num_unapplied=1, loader=loader)
    resumed = a_loader()
    load_state(tmp_path, loader=resumed)
    assert sorted(applied + ids_of(resumed)) == list(range(40))


def test_a_state_of_the_last_batch_begins_the_next_epoch(tmp_path: Path) -> None:
    loader = a_loader()
    ids_of(loader)
    save_state(tmp_path, loader=loader)
    resumed = a_loader(batch_size=3)
    load_state(tmp_path, loader=resumed)
    assert resumed.next_epoch == 1
    assert sorted(ids_of(resumed)) == list(range(40))


def test_a_checkpoint_without_states_is_refused(tmp_path: Path) -> None:
    checkpoint = ray.train.Checkpoint.from_directory(str(tmp_path))
    with pytest.raises(MissingDataError, match=r"has no feedline\.json"):
        load_state(checkpoint, loader=a_loader())


def test_other_names_than_those_that_were_saved_are_refused(tmp_path: Path) -> None:
    save_state(tmp_path, train=a_loader())
    with pytest.raises(InvalidValueError, match=r"\['loader'\] must be those of the checkpoint"):
        load_state(tmp_path, loader=a_loader())
    with pytest.raises(InvalidValueError, match="parts is empty"):
        load_state(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1, "states": 3}'])
def test_a_damaged_file_of_states_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / ours.STATES).write_text(text)
    with pytest.raises(CursorFormatError, match="must be what save_state has written"):
        load_state(tmp_path, loader=a_loader())


def test_states_of_a_later_version_are_refused(tmp_path: Path) -> None:
    (tmp_path / ours.STATES).write_text('{"version": 2, "states": {}}')
    with pytest.raises(CursorFormatError, match="version=2 must be 1"):
        load_state(tmp_path, loader=a_loader())


def test_loaders_of_others_and_states_of_each_rank_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="must be one of Feedline's loaders or clocks"):
        save_state(tmp_path, loader=torch.utils.data.DataLoader(IDS))
    peers = RayPeers(0, 2)
    loader = IterableLoader(Counting(10), batch_size=2, peers=peers)
    with pytest.raises(InvalidValueError, match="has a state for each of the 2 ranks"):
        save_state(tmp_path, loader=loader)
    assert not any(tmp_path.iterdir())


def test_what_feedline_relies_on_is_there() -> None:
    modules = [name for name in ours.WRAPPER_MODULES if name in sys.modules]
    assert modules == list(ours.WRAPPER_MODULES[: 1 + ray_jobs.IS_V2]), VERSION
    for name in modules:
        assert hasattr(sys.modules[name], ours.WRAPPER), f"{VERSION}: {name}"
    assert hasattr(sys.modules[ours.SESSION], "get_session"), VERSION
    assert ours._is_v2() == ray_jobs.IS_V2, VERSION


def test_runs_are_told_apart(found: list[dict[str, Any]]) -> None:
    for one in found:
        job, *names = json.loads(one["run"])
        assert job, VERSION
        needed = names[:2] if ray_jobs.IS_V2 else names
        assert all(needed), f"{VERSION}: {dict(zip(ours.STORAGE_NAMES, names, strict=True))}"
