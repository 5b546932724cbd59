"""Feedline computes which sample every process of a training run sees at every step.

`open` and `pack` return a store, `DataLoader` yields its batches, and plans decide the order of the
samples. `feedline.torch` and `feedline.jax` are for these frameworks.
"""

from typing import TYPE_CHECKING

from feedline.lazy import moved

if TYPE_CHECKING:
    from feedline.feed.data_loader import DataLoader
    from feedline.packing import pack, verify
    from feedline.plan import (
        Bucket,
        BucketPlan,
        Concatenated,
        Cursor,
        EqualChunks,
        Mixture,
        Phase,
        SamplePlan,
        Sequential,
        Shuffled,
        Subset,
        UnequalChunks,
        Weighted,
        WindowPlan,
    )
    from feedline.steps import StepScheduler
    from feedline.store import Store, open

__version__ = "0.1.0"

__all__ = [
    "Bucket",
    "BucketPlan",
    "Concatenated",
    "Cursor",
    "DataLoader",
    "EqualChunks",
    "Mixture",
    "Phase",
    "SamplePlan",
    "Sequential",
    "Shuffled",
    "StepScheduler",
    "Store",
    "Subset",
    "UnequalChunks",
    "Weighted",
    "WindowPlan",
    "open",
    "pack",
    "verify",
]

# Imported when they are first used, so that `import feedline` costs next to nothing.
_ROOMS = {
    "DataLoader": "feedline.feed.data_loader",
    "StepScheduler": "feedline.steps",
    "Store": "feedline.store",
    "open": "feedline.store",
    "pack": "feedline.packing",
    "verify": "feedline.packing",
}
__getattr__ = moved(__name__, {name: _ROOMS.get(name, "feedline.plan") for name in __all__})


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
