"""The job of transformers' Trainer: a tiny model, and the Trainer's own checkpoints."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import TrainerCallback, TrainingArguments

from feedline.errors import FeedlineError
from feedline.trainers.transformers import Trainer  # feedline
from trainer_job import Settings, StepLog, run_job


class Ids(Dataset[dict[str, torch.Tensor]]):
    """Samples that hold their number."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"ids": torch.tensor(index), "labels": torch.tensor(index / self.num_samples)}


class Model(torch.nn.Module):
    """A line through the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of a batch."""
        guessed = self.line(ids.float()[:, None] / 10_000)[:, 0]
        return {"loss": torch.nn.functional.mse_loss(guessed, labels)}


class Arguments(TrainingArguments):
    """Arguments for several ranks without a GPU."""

    @property
    def device(self) -> torch.device:
        """The device; transformers 4 loads checkpoints to `cpu:0`, which torch does not know."""
        return torch.device(super().device.type)


class LoggedTrainer(Trainer):
    """Logs what its training step receives."""

    log_of_steps: StepLog
    place = (-1, 0)

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Log the batch, and train on it."""
        loader = self.callback_handler.train_dataloader
        epoch, number = self.place
        self.place = (epoch, number + 1) if epoch == loader.epoch else (loader.epoch, 0)
        marks = loader.delivered.is_real if self.args.gradient_accumulation_steps == 1 else None
        self.log_of_steps.write(*self.place, inputs["ids"].tolist(), marks)
        return super().training_step(model, inputs, *args, **kwargs)


class Stop(TrainerCallback):
    """Ends the run after some steps, with a checkpoint."""

    def __init__(self, settings: Settings, log: StepLog) -> None:
        self.settings, self.log = settings, log

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Ask the Trainer for a checkpoint, and to stop."""
        if self.log.num_batches == self.settings.stop_after:
            control.should_save = control.should_training_stop = True


def main(settings: Settings) -> None:
    """Train, from the checkpoint if there is one."""
    args = Arguments(
        output_dir=str(settings.folder),
        num_train_epochs=settings.num_epochs,
        per_device_train_batch_size=settings.batch_size,
        dataloader_num_workers=settings.num_workers,
        gradient_accumulation_steps=int(os.environ.get("FEEDLINE_GROUP_SIZE", "1")),
        seed=settings.seed,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        logging_strategy="no",
    )
    log = StepLog(settings)
    trainer = LoggedTrainer(
        model=Model(),
        args=args,
        train_dataset=Ids(settings.num_samples),
        callbacks=[Stop(settings, log)],
    )
    trainer.log_of_steps = log
    trainer.train(resume_from_checkpoint=settings.resume)
    if settings.stop_after is None:
        state = trainer.state
        assert state.global_step == state.max_steps, (state.global_step, state.max_steps)
        assert state.epoch == settings.num_epochs, state.epoch
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    run_job(main, (FeedlineError,))
