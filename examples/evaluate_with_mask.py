"""Evaluation on several processes that counts every sample once, though they do not divide.

Run it with 3 processes. The numbers are those of one process, exactly:

    torchrun --standalone --nproc-per-node 3 examples/evaluate_with_mask.py

100 samples do not divide over 3 ranks. In a loop with collectives all ranks need as many batches,
so the first samples are repeated as padding. `with_mask=True` says which samples are real.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from feedline.torch import DataLoader, DistributedSampler

NUM_SAMPLES, NUM_CLASSES, BATCH_SIZE = 100, 3, 8


def make_dataset() -> TensorDataset:
    """Return points and their classes, the same in every process."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(NUM_CLASSES, (NUM_SAMPLES,), generator=generator)
    noise = torch.randn(NUM_SAMPLES, NUM_CLASSES, generator=generator)
    return TensorDataset(nn.functional.one_hot(labels, NUM_CLASSES) + 0.7 * noise, labels)


def make_model() -> nn.Module:
    """Return a model that finds most classes, the same in every process."""
    torch.manual_seed(3)
    model = nn.Linear(NUM_CLASSES, NUM_CLASSES)
    with torch.no_grad():
        model.weight.copy_(torch.eye(NUM_CLASSES))
    return model


def confusion(labels: Tensor, guesses: Tensor) -> Tensor:
    """Return how many samples of each class were taken for each class."""
    pairs = labels * NUM_CLASSES + guesses
    return torch.bincount(pairs, minlength=NUM_CLASSES**2).reshape(NUM_CLASSES, NUM_CLASSES)


@torch.no_grad()
def evaluate(model: nn.Module, dataset: TensorDataset) -> tuple[Tensor, Tensor]:
    """Return the confusion of all ranks together: of the samples, and with padding."""
    sampler = DistributedSampler(dataset, shuffle=False, drop_last=False)
    loader: DataLoader[Any] = DataLoader(dataset, BATCH_SIZE, sampler=sampler, with_mask=True)
    counts = torch.zeros(2, NUM_CLASSES, NUM_CLASSES, dtype=torch.int64)
    for (points, labels), is_real in loader:
        guesses = model(points).argmax(dim=1)
        counts[0] += confusion(labels[is_real], guesses[is_real])
        counts[1] += confusion(labels, guesses)  # what a loop without the mask would count
    num_samples = [0] * dist.get_world_size()
    dist.all_gather_object(num_samples, int(counts[0].sum()))
    if dist.get_rank() == 0:
        print(f"every rank has {len(loader)} batches, and of the samples {num_samples}")
    dist.all_reduce(counts)
    return counts[0], counts[1]


@torch.no_grad()
def evaluate_alone(model: nn.Module, dataset: TensorDataset) -> Tensor:
    """Return the confusion as one process finds it, without Feedline."""
    points, labels = dataset.tensors
    return confusion(labels, model(points).argmax(dim=1))


def accuracy(counts: Tensor) -> float:
    """Return the share of samples whose class was found."""
    return int(counts.diagonal().sum()) / int(counts.sum())


def main() -> None:
    """Evaluate on all processes, and compare with one."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dataset, model = make_dataset(), make_model()
    masked, padded = evaluate(model, dataset)
    alone = evaluate_alone(model, dataset)
    if dist.get_rank() == 0:
        names = ("one process", f"{dist.get_world_size()} ranks with mask", "without mask")
        for name, counts in zip(names, (alone, masked, padded), strict=True):
            print(f"{name}: accuracy {accuracy(counts):.6f} of {int(counts.sum())} samples")
        if not torch.equal(masked, alone):
            raise SystemExit("the ranks together did not count every sample once")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
