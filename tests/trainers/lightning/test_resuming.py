"""Training that stops anywhere resumes with the next sample, with any sizes; else it is refused.

A batch size that changes does to Lightning's counts what a number of processes does; the stories of
`job.py` change that one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from lightning_models import (
    EVERY,
    IDS,
    NUM_SAMPLES,
    SIZES,
    Count,
    Model,
    SaveAfter,
    SaveOnError,
    assert_exact,
    fit,
    loader_of,
    quiet_trainer,
)
from torch.utils.data import DataLoader as TorchLoader

from feedline.errors import InvalidValueError
from feedline.torch import DataLoader, to_device
from feedline.trainers.lightning import FeedlineCallback


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_batches", [1, 10, 12, 13])
def test_a_checkpoint_of_any_step_resumes(tmp_path: Path, num_batches: int, size: int) -> None:
    path = tmp_path / "a.ckpt"
    first, _ = fit(loader_of(), SaveAfter(path, num_batches))
    assert_exact(first, fit(loader_of(size), ckpt=path)[0])


@pytest.mark.parametrize("size", SIZES)
def test_max_steps_in_mid_epoch_does_not_end_the_epoch(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.ckpt"
    first, trainer = fit(loader_of(), max_steps=17)
    trainer.save_checkpoint(path)
    assert_exact(first, fit(loader_of(size), ckpt=path, max_steps=1000)[0])
    assert_exact(first, fit(loader_of(size), ckpt=path)[0])


@pytest.mark.parametrize("num_trained", [5, 11])
@pytest.mark.parametrize("size", SIZES)
def test_the_checkpoint_of_an_error_begins_with_the_batch_that_failed(
    tmp_path: Path, size: int, num_trained: int
) -> None:
    path = tmp_path / "a.ckpt"
    first = Model(fails_at=num_trained)
    with pytest.raises(ArithmeticError):
        fit(loader_of(), SaveOnError(path), model=first)
    assert len(first.ids(0)) == 8 * num_trained
    assert_exact(first, fit(loader_of(size), ckpt=path)[0])


@pytest.mark.parametrize("when", ["train", "validation"])
@pytest.mark.parametrize("size", SIZES)
def test_checkpoints_of_lightning_resume(tmp_path: Path, size: int, when: str) -> None:
    """Those of the end of an epoch, before and after its validation."""
    options = {"save_on_train_epoch_end": when == "train", "save_top_k": -1}
    keep = ModelCheckpoint(tmp_path, filename="{epoch}", **options)
    validation = TorchLoader(IDS, batch_size=32)
    first = Model()
    trainer = quiet_trainer([keep, FeedlineCallback()], max_epochs=1, enable_checkpointing=True)
    trainer.fit(first, loader_of(), validation)
    second, _ = fit(loader_of(size), ckpt=tmp_path / "epoch=0.ckpt")
    assert sorted(second.ids(1)) == EVERY
    assert set(second.trained) == {1}


@pytest.mark.parametrize("size", SIZES)
def test_resuming_twice_in_one_epoch_with_accumulated_gradients(tmp_path: Path, size: int) -> None:
    paths = [tmp_path / "a.ckpt", tmp_path / "b.ckpt"]
    options = {"accumulate_grad_batches": 2}
    first, _ = fit(loader_of(), SaveAfter(paths[0], 4), **options)
    second, _ = fit(loader_of(4), SaveAfter(paths[1], 6), ckpt=paths[0], **options)
    third, _ = fit(loader_of(size), ckpt=paths[1], **options)
    first.trained = {0: first.trained[0] + second.trained[0]}
    assert_exact(first, third)


@pytest.mark.parametrize("size", SIZES)
def test_a_resumed_epoch_is_validated_at_its_end(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.ckpt"
    fit(loader_of(), SaveAfter(path, 10))
    model = Model()
    trainer = quiet_trainer([FeedlineCallback()], max_epochs=2)
    trainer.fit(model, loader_of(size), TorchLoader(IDS, batch_size=32), ckpt_path=path)
    assert model.num_validations == 2
    assert len(model.seen) == 2 * NUM_SAMPLES


def test_a_limit_of_batches_holds_over_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    first, _ = fit(loader_of(), SaveAfter(path, 4), limit_train_batches=6)
    second, _ = fit(loader_of(4), ckpt=path, limit_train_batches=6)
    assert [len(batch) for batch in first.trained[0] + second.trained[0]] == [8] * 4 + [4] * 2
    assert len(second.trained[1]) == 6
    assert len({*first.ids(0), *second.ids(0)}) == 40
    # The epoch ends where the limit is, though the loader has more.
    fit(loader_of(), SaveAfter(path, 6), limit_train_batches=6)
    last, _ = fit(loader_of(4), ckpt=path, limit_train_batches=6)
    assert set(last.trained) == {1}


def test_a_fraction_of_an_epoch_holds_over_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    first, _ = fit(loader_of(), SaveAfter(path, 4), limit_train_batches=0.5)
    second, _ = fit(loader_of(4), ckpt=path, limit_train_batches=0.5)
    assert len({*first.ids(0), *second.ids(0)}) == NUM_SAMPLES // 2
    assert len(second.ids(1)) == NUM_SAMPLES // 2


def test_a_rest_without_a_batch_ends_its_epoch(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    first, _ = fit(loader_of(drop_last=True), SaveAfter(path, 11))
    second, _ = fit(loader_of(32, drop_last=True), ckpt=path)
    assert len(first.ids(0)) == 88
    assert set(second.trained) == {1}
    assert sorted(second.ids(1)) == EVERY
    fit(loader_of(drop_last=True), SaveAfter(path, 23))
    assert not fit(loader_of(32, drop_last=True), ckpt=path)[0].trained


def test_a_skip_of_all_that_is_left_ends_the_epoch(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    fit(loader_of(), SaveAfter(path, 10))
    loader = loader_of()
    loader.skip_batches(2, on_load=True)
    second, _ = fit(loader, ckpt=path)
    assert set(second.trained) == {1}
    assert sorted(second.ids(1)) == EVERY


@pytest.mark.parametrize("size", SIZES)
def test_a_loader_on_a_device_resumes(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.ckpt"
    first, _ = fit(to_device(loader_of(), "cpu"), SaveAfter(path, 10))
    assert_exact(first, fit(to_device(loader_of(size), "cpu"), ckpt=path)[0])


def test_workers_are_as_good_as_none(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    workers = {"num_workers": 2, "persistent_workers": True}
    first, _ = fit(loader_of(**workers), SaveAfter(path, 10))
    assert_exact(first, fit(loader_of(16, **workers), ckpt=path)[0])


def test_loaders_made_anew_in_each_epoch_resume(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"

    class Hooked(Model):
        def train_dataloader(self) -> Any:
            return loader_of()

    options: dict[str, Any] = {"reload_dataloaders_every_n_epochs": 1}
    first, _ = fit(None, SaveAfter(path, 10), model=Hooked(), **options)
    assert_exact(first, fit(None, model=Hooked(), ckpt=path, **options)[0])


def test_a_schedule_that_asks_for_the_number_of_steps_resumes(tmp_path: Path) -> None:
    """Lightning makes the loader earlier then, before it reads the checkpoint."""
    path = tmp_path / "a.ckpt"

    class Scheduled(Model):
        def configure_optimizers(self) -> Any:
            assert self.trainer.estimated_stepping_batches
            return super().configure_optimizers()

    first, _ = fit(loader_of(), SaveAfter(path, 10), model=Scheduled())
    assert_exact(first, fit(loader_of(16), model=Scheduled(), ckpt=path)[0])


def test_a_run_that_has_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    _, done = fit(loader_of())
    done.save_checkpoint(path)
    model, trainer = fit(loader_of(), ckpt=path)
    assert not model.trained
    trainer.fit_loop.epoch_progress.reset()
    trainer.fit(model, loader_of())
    assert sorted(model.ids(0)) == sorted(model.ids(1)) == EVERY


@pytest.mark.parametrize("num_steps", [5, 12, 30])
def test_a_loader_that_another_run_has_used_begins_anew(num_steps: int) -> None:
    loader = loader_of()
    fit(loader, max_steps=num_steps)
    again, _ = fit(loader)
    assert again.trained == fit(loader_of())[0].trained


def test_a_loader_with_a_loaded_state_of_a_later_epoch_is_not_begun_anew() -> None:
    loader = loader_of()
    loader.set_epoch(1)
    next(iter(loader))
    loaded = loader_of()
    loaded.load_state_dict(loader.state_dict())
    with pytest.raises(InvalidValueError, match="has moved the loader"):
        fit(loaded)


class Pairs(Model):
    """Trains on the samples of the longer of two loaders."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        assert batch[1] is not None
        return super().training_step(batch[0], batch_idx)


@pytest.mark.parametrize("mode", ["max_size_cycle", "min_size"])
def test_the_loader_that_ends_the_epoch_is_exact(tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "a.ckpt"
    num_others = 24 if mode == "max_size_cycle" else 960

    def loaders(batch_size: int) -> CombinedLoader:
        other = DataLoader(torch.arange(num_others), batch_size=batch_size, shuffle=True)
        return CombinedLoader([loader_of(batch_size), other], mode)

    for num_batches in (10, 12, 13):
        first, _ = fit(loaders(8), SaveAfter(path, num_batches), model=Pairs())
        assert_exact(first, fit(loaders(4), model=Pairs(), ckpt=path)[0])
    first, trainer = fit(loaders(8), model=Pairs(), max_steps=10)
    trainer.save_checkpoint(path)
    assert_exact(first, fit(loaders(4), model=Pairs(), ckpt=path)[0])


@pytest.mark.parametrize("mode", ["max_size_cycle", "max_size"])
@pytest.mark.parametrize("num_batches", [3, 8])
def test_a_loader_that_has_ended_before_the_others_does_not_end_the_run(
    tmp_path: Path, mode: Any, num_batches: int
) -> None:
    class Others(Model):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.seen += [] if batch[1] is None else batch[1].tolist()
            return super().training_step(batch[0], batch_idx)

    def loaders() -> CombinedLoader:
        return CombinedLoader([loader_of(), DataLoader(torch.arange(24), batch_size=8)], mode)

    paths = [tmp_path / "a.ckpt", tmp_path / "b.ckpt"]
    first, _ = fit(loaders(), SaveAfter(paths[0], num_batches), model=Others())
    second, _ = fit(loaders(), SaveAfter(paths[1], 1), model=Others(), ckpt=paths[0])
    third, _ = fit(loaders(), model=Others(), ckpt=paths[1])
    first.trained = {0: first.trained[0] + second.trained[0]}
    assert_exact(first, third)
    if mode == "max_size":
        assert sorted(first.seen + second.seen + third.seen) == sorted([*range(24)] * 2)


@pytest.mark.parametrize("is_saved_later", [False, True])
def test_what_lightning_fetches_ahead_of_an_iterable_is_not_lost(
    tmp_path: Path, is_saved_later: bool
) -> None:
    path = tmp_path / "a.ckpt"
    first, trainer = fit(DataLoader(Count(), batch_size=8), SaveAfter(path, 10))
    if is_saved_later:
        trainer.save_checkpoint(path)
    assert_exact(first, fit(DataLoader(Count(), batch_size=8), ckpt=path)[0])


class Foreign:
    """A loader of others that has a state."""

    def __init__(self) -> None:
        self.at = 0

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Any:
        while self.at < 12:
            self.at += 1
            yield IDS[8 * self.at - 8 : 8 * self.at]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_loaders_of_others_train_and_resume_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    model, _ = fit(TorchLoader(IDS, batch_size=8))
    assert model.ids(0) == model.ids(1) == EVERY
    first, _ = fit(Foreign(), SaveAfter(path, 10))
    second, _ = fit(Foreign(), ckpt=path)
    assert first.ids(0) + second.ids(0) == EVERY
