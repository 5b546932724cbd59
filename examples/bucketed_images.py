"""Images of several resolutions: batches of one shape, as large as the pixels allow, on any ranks.

Run it with one process, which plays all ranks in turn:

    python examples/bucketed_images.py

All ranks are in the same bucket at the same step, so none waits for another that has larger images.
The run stops on 2 ranks in the middle of a bucket and resumes on 3; every image comes once.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from feedline.torch import (
    BucketCalculator,
    DataLoader,
    MultiresolutionDataset,
    SequentialBucketSampler,
)

NUM_IMAGES = 300
BASE_BATCH_SIZE, BASE_RESOLUTION = 4, (64, 64)  # 4 images of 64 x 64, or as many pixels
STOP = 6


def make_images(folder: Path) -> None:
    """Write small and large images of many sizes, cropped to buckets, and the list of them."""
    rng = np.random.default_rng(1)
    calculators = [BucketCalculator(max_pixels=side**2, quantization=16) for side in (32, 64)]
    items = []
    for number in range(NUM_IMAGES):
        width, height = rng.integers(100, 400, 2)
        wide, high = calculators[number % 2].get_bucket_for_image(int(width), int(height))
        np.save(folder / f"{number}.npy", rng.random((3, high, wide), dtype=np.float32))
        items.append({"bucket_resolution": [wide, high], "number": number})
    (folder / "images.json").write_text(json.dumps(items))
    (folder / "metadata.json").write_text(json.dumps({"shards": ["images.json"]}))


class Images(MultiresolutionDataset):
    """Images by number; each comes with its number, so that it can be counted."""

    def load_item(self, item: dict[str, Any]) -> tuple[int, Tensor]:
        """Read an image."""
        number = int(item["number"])
        return number, torch.from_numpy(np.load(self.cache_dir / f"{number}.npy"))


def make_loader(folder: Path, rank: int, world_size: int) -> DataLoader[Any]:
    """Return the loader of one rank. In a real run torch.distributed knows both numbers."""
    dataset = Images(folder)
    sampler = SequentialBucketSampler(
        dataset,
        base_batch_size=BASE_BATCH_SIZE,
        base_resolution=BASE_RESOLUTION,
        dynamic_batch_size=True,
        drop_last=False,
        seed=7,
        num_replicas=world_size,
        rank=rank,
    )
    return DataLoader(dataset, batch_sampler=sampler, with_mask=True)


def consume(step: int, batches: Any, model: nn.Module) -> list[int]:
    """Use the batches of all ranks in a step; return the numbers of their images."""
    shapes = {tuple(images.shape) for (_, images), _ in batches}
    if len(shapes) != 1:
        raise SystemExit(f"step {step}: ranks have batches of different shapes, {shapes}")
    num_images, _, height, width = shapes.pop()
    if num_images * width * height > BASE_BATCH_SIZE * BASE_RESOLUTION[0] * BASE_RESOLUTION[1]:
        raise SystemExit(f"step {step}: {num_images} images of {width} x {height} are too many")
    print(f"step {step}: {len(batches)} ranks x {num_images} images of {width} x {height}")
    used: list[int] = []
    for (numbers, images), is_real in batches:
        losses = model(images).mean(dim=1)
        (losses * is_real).sum().backward()  # padding, which fills up a bucket, does not count
        used += numbers[is_real].tolist()
    return used


def train(
    folder: Path, world_size: int, seen: Counter[int], *, step: int = 0, stop: int | None = None
) -> None:
    """Train on so many ranks, from the checkpoint in the folder if there is one."""
    # It takes images of any size, as long as those of a batch have the same.
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    loaders = [make_loader(folder, rank, world_size) for rank in range(world_size)]
    checkpoint = folder / "checkpoint.json"
    if checkpoint.exists():
        for loader in loaders:
            loader.load_state_dict(json.loads(checkpoint.read_text()))
    for batches in zip(*loaders, strict=True):  # strict: all ranks have as many
        seen.update(consume(step, batches, model))
        step += 1
        if step == stop:
            # The state is the same on every rank, so that of rank 0 is enough.
            checkpoint.write_text(json.dumps(loaders[0].state_dict()))
            print(f"stopped after {len(seen)} images")
            return


def main() -> None:
    """Go through all images once, on 2 ranks and then on 3."""
    torch.set_num_threads(1)
    seen: Counter[int] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_images(folder)
        train(folder, 2, seen, stop=STOP)
        train(folder, 3, seen, step=STOP)
    if len(seen) != NUM_IMAGES or set(seen.values()) != {1}:
        raise SystemExit("images were lost or repeated")
    print(f"all {NUM_IMAGES} images were used exactly once")


if __name__ == "__main__":
    main()
