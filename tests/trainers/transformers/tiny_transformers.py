"""A tiny model, samples that hold their number, and a Trainer that notes what it trains on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import TrainerCallback, TrainingArguments

from feedline.trainers.transformers import Trainer


class Ids(Dataset[dict[str, torch.Tensor]]):
    """Samples that hold their number; counts how often one is read."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples, self.num_reads = num_samples, 0

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.num_reads += 1
        return {"ids": torch.tensor(index), "labels": torch.tensor(index / self.num_samples)}


class Model(torch.nn.Module):
    """Guesses the label of a sample; its loss is the mean over the batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line = torch.nn.Linear(1, 1)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss, and the number of each sample as its logits."""
        guessed = self.line(ids.float()[:, None] / 100)[:, 0]
        loss = torch.nn.functional.mse_loss(guessed, labels)
        return {"loss": loss, "logits": ids.float()[:, None]}


class Noting(Trainer):
    """Notes the samples and the steps of its training."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: The samples of each batch, with the epoch and the step that they are for.
        self.batches: list[tuple[int, int, list[int]]] = []
        super().__init__(*args, **kwargs)

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Note a batch, and train on it."""
        epoch = self.callback_handler.train_dataloader.epoch
        self.batches.append((epoch, self.state.global_step, inputs["ids"].tolist()))
        return super().training_step(model, inputs, *args, **kwargs)

    def seen(self, epoch: int) -> list[int]:
        """Return the samples of an epoch, sorted."""
        return sorted(one for at, _, ids in self.batches if at == epoch for one in ids)


class Stop(TrainerCallback):
    """Saves and stops at a step; notes `state.epoch` at each."""

    def __init__(self, at: int | None) -> None:
        self.at, self.epochs = at, []

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Note the epoch, and stop if it is time."""
        self.epochs.append(state.epoch)
        if state.global_step == self.at:
            control.should_save = control.should_training_stop = True


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    """Return arguments for a training on the CPU that says nothing."""
    given = {
        **{"output_dir": str(folder), "use_cpu": True, "report_to": [], "disable_tqdm": True},
        **{"save_strategy": "no", "num_train_epochs": 2, "per_device_train_batch_size": 4},
        **{"per_device_eval_batch_size": 4, "seed": 5, "learning_rate": 0.01},
    }
    return TrainingArguments(**{**given, **options})


def trained(
    folder: Path,
    data: Any,
    *,
    stop: int | None = None,
    resume: bool = False,
    kind: type[Noting] = Noting,
    callbacks: tuple[TrainerCallback, ...] = (),
    more: dict[str, Any] | None = None,
    **options: Any,
) -> Noting:
    """Train, and return the Trainer; `trainer.stop.epochs` are the epochs at each step."""
    note = Stop(stop)
    trainer = kind(
        model=Model(),
        args=arguments(folder, **options),
        train_dataset=data,
        callbacks=[note, *callbacks],
        **(more or {}),
    )
    trainer.note = note
    trainer.train(resume_from_checkpoint=resume)
    return trainer
