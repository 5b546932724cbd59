"""A training in Hugging Face's accelerate that resumes on another number of processes.

    torchrun --standalone --nproc-per-node 2 examples/trainer_accelerate.py --stop-after 14
    torchrun --standalone --nproc-per-node 3 examples/trainer_accelerate.py --resume

Needs `pip install "feedline[accelerate]"`. The first run saves a checkpoint of accelerate in the
middle of the first epoch. The second one resumes on 3 processes, and checks that every sample of
both epochs was used once.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from feedline.torch import DataLoader
from feedline.trainers.accelerate import gather_for_metrics

NUM_SAMPLES = 1000
NUM_EPOCHS = 2


def main() -> None:
    """Train, save or resume, and account for every sample."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("checkpoint"))
    parser.add_argument("--stop-after", type=int)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    points = torch.stack([torch.arange(NUM_SAMPLES), torch.randn(NUM_SAMPLES)], dim=1)
    loader: Any = DataLoader(points, batch_size=16, shuffle=True, seed=7)
    model: Any = torch.nn.Linear(1, 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    seen: list[list[int]] = [[] for _ in range(NUM_EPOCHS)]
    if options.resume:
        accelerator.load_state(str(options.folder))
        seen = json.loads((options.folder / "seen.json").read_text())

    num_batches = 0
    for epoch in range(loader.next_epoch, NUM_EPOCHS):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch[:, 1:]).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            # Only to account for them: a training does not need it.
            seen[epoch] += gather_for_metrics(accelerator, loader, batch[:, 0].long()).tolist()
            num_batches += 1
            if num_batches == options.stop_after:
                accelerator.save_state(str(options.folder))
                if accelerator.is_main_process:
                    (options.folder / "seen.json").write_text(json.dumps(seen))
                accelerator.print(f"epoch {epoch}: stopped after {len(seen[epoch])} samples")
                accelerator.end_training()
                return
        assert Counter(seen[epoch]) == Counter(range(NUM_SAMPLES))
        accelerator.print(f"epoch {epoch}: {len(seen[epoch]):,} samples, each exactly once")
    accelerator.end_training()


if __name__ == "__main__":
    main()
