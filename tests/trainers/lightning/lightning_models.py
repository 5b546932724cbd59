"""A model that remembers what its steps receive, and a trainer that says nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import IterableDataset

from feedline.torch import DataLoader
from feedline.trainers.lightning import FeedlineCallback, log_mean

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

NUM_SAMPLES = 96


class Model(LightningModule):
    """Remembers the samples of its training and its validation, by epoch."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.trained: dict[int, list[list[int]]] = {}
        self.num_validations = 0
        self.seen: list[int] = []
        self.fails_at = fails_at
        self.num_steps = 0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.num_steps == self.fails_at:
            raise ArithmeticError("it fails")
        self.num_steps += 1
        batch = batch[0] if isinstance(batch, list | tuple) else batch
        self.trained.setdefault(self.current_epoch, []).append(batch.tolist())
        return self.layer(batch[:, None].float() / 1000).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if isinstance(batch, list | tuple):
            values, is_real = batch
            self.seen += values[is_real].tolist()
            log_mean(self, "mean", values, is_real)
        else:
            self.seen += batch.tolist()

    test_step = validation_step

    def on_validation_end(self) -> None:
        self.num_validations += 1

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return batch

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def ids(self, epoch: int) -> list[int]:
        """The samples of an epoch that it was trained on."""
        return [one for batch in self.trained.get(epoch, ()) for one in batch]


class Count(IterableDataset[int]):
    """Counts, and knows where it is."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        while self.at < NUM_SAMPLES:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def quiet_trainer(callbacks: Any = (), **options: Any) -> Trainer:
    """A trainer on this process alone, unless the options say otherwise."""
    defaults = {
        **{"accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False},
        **{"enable_progress_bar": False, "enable_model_summary": False},
        **{"num_sanity_val_steps": 0},
    }
    return Trainer(callbacks=list(callbacks), **{**defaults, **options})


IDS = torch.arange(NUM_SAMPLES)
EVERY = list(range(NUM_SAMPLES))
#: Batch sizes with which a run of batches of 8 resumes.
SIZES = (3, 8, 16)


def loader_of(batch_size: int = 8, **options: Any) -> DataLoader[Any]:
    return DataLoader(IDS, batch_size=batch_size, shuffle=True, seed=4, **options)


def fit(
    loader: Any, *callbacks: Callback, ckpt: Path | None = None, model: Any = None, **options: Any
) -> tuple[Model, Trainer]:
    """Train with the callback; by default for two epochs."""
    model = Model() if model is None else model
    options = {"max_epochs": 2, **options}
    trainer = quiet_trainer([*callbacks, FeedlineCallback()], **options)
    trainer.fit(model, loader, ckpt_path=ckpt)
    return model, trainer


class SaveAfter(Callback):
    """Saves a checkpoint after a number of batches, and stops."""

    def __init__(self, path: Path, num_batches: int) -> None:
        self.path = path
        self.num_batches = num_batches

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.num_batches -= 1
        if not self.num_batches:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


def assert_exact(first: Model, second: Model, num_epochs: int = 2) -> None:
    """Every sample once in each epoch, and no epoch more."""
    for epoch in range(num_epochs):
        assert sorted(first.ids(epoch) + second.ids(epoch)) == EVERY, f"epoch {epoch}"
    assert set(first.trained) | set(second.trained) == set(range(num_epochs))


class SaveOnError(Callback):
    """Saves a checkpoint when training fails."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_exception(self, trainer: Trainer, *_: Any) -> None:
        trainer.save_checkpoint(self.path)
