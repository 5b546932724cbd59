"""What could lose samples when a run resumes is refused, and says what to do instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning_models import (
    EVERY,
    IDS,
    Model,
    SaveAfter,
    SaveOnError,
    fit,
    loader_of,
    quiet_trainer,
)
from torch.utils.data import DataLoader as TorchLoader

from feedline.errors import InvalidValueError, PlanMismatchError
from feedline.torch import DataLoader
from feedline.trainers import lightning as ours
from feedline.trainers.lightning import check_private


def test_without_the_callback_a_resume_in_mid_epoch_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    quiet_trainer([SaveAfter(path, 10)], max_epochs=2).fit(Model(), loader_of())
    with pytest.raises(InvalidValueError, match="FeedlineCallback"):
        quiet_trainer(max_epochs=2).fit(Model(), loader_of(), ckpt_path=path)
    # The checkpoint itself is sound.
    second, _ = fit(loader_of(16), ckpt=path)
    assert len(second.ids(0)) == 16


@pytest.mark.parametrize("num_trained", [0, 5, 11])
def test_a_batch_that_failed_without_the_callback_is_not_lost(
    tmp_path: Path, num_trained: int
) -> None:
    path = tmp_path / "a.ckpt"
    with pytest.raises(ArithmeticError):
        quiet_trainer([SaveOnError(path)]).fit(Model(fails_at=num_trained), loader_of())
    with pytest.raises(PlanMismatchError, match=f"within the step of batch {num_trained}"):
        fit(loader_of(), ckpt=path)


@pytest.mark.parametrize("num_batches", [12, 24])
def test_without_the_callback_the_end_of_an_epoch_is_exact_or_refused(
    tmp_path: Path, num_batches: int
) -> None:
    path = tmp_path / "a.ckpt"
    for is_saved_later in (False, True):
        stop = SaveAfter(path, num_batches)
        trainer = quiet_trainer([stop], max_epochs=3)
        trainer.fit(Model(), loader_of())
        if is_saved_later:
            trainer.save_checkpoint(path)
        model = Model()
        try:
            quiet_trainer(max_epochs=3).fit(model, loader_of(16), ckpt_path=path)
        except InvalidValueError:
            assert not model.trained
        else:
            assert set(model.trained) == set(range(num_batches // 12, 3))
            assert all(sorted(model.ids(epoch)) == EVERY for epoch in model.trained)


def test_a_checkpoint_of_another_loader_is_refused_in_mid_epoch(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    fit(TorchLoader(IDS, batch_size=8), SaveAfter(path, 10))
    with pytest.raises(PlanMismatchError, match="10 batches of an epoch without the state"):
        fit(loader_of(), ckpt=path)
    fit(TorchLoader(IDS, batch_size=8), max_epochs=1)[1].save_checkpoint(path)
    second, _ = fit(loader_of(), ckpt=path)
    assert set(second.trained) == {1}
    assert sorted(second.ids(1)) == EVERY


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    fit(loader_of(), SaveAfter(path, 10))
    with pytest.raises(PlanMismatchError, match="seed"):
        fit(DataLoader(IDS, batch_size=8, shuffle=True, seed=5), ckpt=path)


def test_a_training_step_that_takes_batches_itself_is_refused() -> None:
    class Takes(Model):
        def training_step(self, dataloader_iter: Any) -> torch.Tensor:  # type: ignore[override]
            batch, _, _ = next(dataloader_iter)
            return self.layer(batch[:, None].float()).mean()

    with pytest.raises(InvalidValueError, match="dataloader_iter"):
        fit(loader_of(), model=Takes())


def test_private_names_of_lightning_are_there() -> None:
    model, trainer = fit(loader_of(), max_epochs=1)
    check_private(trainer)
    names = ("limits", "flattened", "_mode")
    combined = trainer.fit_loop._combined_loader
    missing = [name for name in names if not hasattr(combined, name)]
    missing += [name for name in ("val_check_batch",) if not hasattr(trainer, name)]
    assert not missing, f"lightning {lightning.__version__} has no {missing}"
    assert sorted(model.ids(0)) == EVERY


def test_a_release_without_them_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ours.PRIVATE, "trainer.fit_loop", ("_no_such_name",))
    with pytest.raises(InvalidValueError, match=f"lightning {lightning.__version__} has no "):
        fit(loader_of())
