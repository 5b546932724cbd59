"""A checkpoint of torchdata's own loader that resumes on other ranks and workers, in Feedline's.

    python examples/trainer_torchdata.py

Two ranks train with torchdata's `StatefulDataLoader` and one of Feedline's samplers, with two
workers. The checkpoint then resumes on three ranks without workers, and every sample comes once.
The ranks are played by one process; with torchrun they find their numbers themselves.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from pathlib import Path

import torch
from torchdata.stateful_dataloader import StatefulDataLoader as TheirLoader

from feedline.torch import DistributedSampler
from feedline.trainers.torchdata import StatefulDataLoader

NUM_SAMPLES, SEED = 1000, 7
DATASET = torch.arange(NUM_SAMPLES)


def sampler_of(rank: int, world_size: int) -> DistributedSampler:
    """Return the sampler of a rank."""
    return DistributedSampler(
        DATASET, num_replicas=world_size, rank=rank, seed=SEED, drop_last=False
    )


def train_with_theirs(checkpoint: Path) -> Counter[int]:
    """Train on two ranks for 30 steps with torchdata's loader, and save its state."""
    seen: Counter[int] = Counter()
    for rank in range(2):
        loader = TheirLoader(DATASET, 8, sampler=sampler_of(rank, 2), num_workers=2)
        batches = iter(loader)
        for _ in range(30):
            seen.update(next(batches).tolist())
    torch.save(loader.state_dict(), checkpoint)
    return seen


def resume_with_ours(checkpoint: Path) -> Counter[int]:
    """Finish the epoch on three ranks, without workers and with larger batches."""
    seen: Counter[int] = Counter()
    state = torch.load(checkpoint, weights_only=True)
    for rank in range(3):
        loader = StatefulDataLoader(DATASET, 12, sampler=sampler_of(rank, 3))
        loader.load_state_dict(state)
        for batch in loader:
            assert loader.delivered is not None
            marks = loader.delivered.is_real  # False where a sample is padding
            seen.update((batch if marks is None else batch[torch.from_numpy(marks)]).tolist())
    return seen


def main() -> None:
    """Stop, resume, and account for every sample."""
    warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # in torchdata
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint.pt"
        first = train_with_theirs(checkpoint)
        print(f"torchdata's loader, 2 ranks with 2 workers: {first.total()} samples")
        rest = resume_with_ours(checkpoint)
    print(f"Feedline's, 3 ranks without workers: {rest.total()} samples")
    if first + rest != Counter(range(NUM_SAMPLES)):
        raise SystemExit("samples were lost or repeated")
    print(f"all {NUM_SAMPLES} samples were used exactly once")


if __name__ == "__main__":
    main()
