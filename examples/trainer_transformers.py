"""Train with transformers' Trainer, stop in mid-epoch, and resume on another number of processes.

    torchrun --standalone --nproc-per-node 2 examples/trainer_transformers.py --stop-after 7
    torchrun --standalone --nproc-per-node 1 examples/trainer_transformers.py

Every sample comes once in each of the two epochs, and nothing is replayed. The model is a tiny
GPT-2 made from its config, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from feedline.trainers.transformers import Trainer


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Texts that count on from their number."""

    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(index, index + 12) % 32
        return {"input_ids": tokens, "labels": tokens}


class StopAfter(TrainerCallback):
    """Saves a checkpoint after some steps of this run, and stops."""

    def __init__(self, num_steps: int | None) -> None:
        self.num_left = num_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Count a step."""
        if self.num_left is not None:
            self.num_left -= 1
            control.should_save = control.should_training_stop = self.num_left == 0


def main() -> None:
    """Train, from the latest checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="run")
    parser.add_argument("--stop-after", type=int)
    options = parser.parse_args()
    sizes = {"n_layer": 1, "n_head": 1, "n_embd": 16, "vocab_size": 32, "n_positions": 12}
    args = TrainingArguments(
        output_dir=options.folder,
        num_train_epochs=2,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        learning_rate=0.01,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)),
        args=args,
        train_dataset=Counting(),
        eval_dataset=Counting(),
        callbacks=[StopAfter(options.stop_after)],
    )
    has_run = Path(options.folder).is_dir()
    checkpoint = get_last_checkpoint(options.folder) if has_run else None
    trainer.train(resume_from_checkpoint=checkpoint)
    loss = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        state = trainer.state
        print(f"step {state.global_step} of {state.max_steps}, epoch {state.epoch:.2f}: {loss:.3f}")
        assert options.stop_after or (state.global_step, state.epoch) == (state.max_steps, 2.0)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
