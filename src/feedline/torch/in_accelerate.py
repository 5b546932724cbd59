"""Feedline's samplers and datasets in torch's own DataLoader that accelerate has prepared.

accelerate divides the batches of such a loader among its processes, also those of a sampler that
has divided the samples already, so most of them would be lost. accelerate is not imported here.
"""

from __future__ import annotations

import sys
from types import FrameType

from feedline.errors import InvalidValueError
from feedline.words import several

_MODULE = "accelerate.data_loader"
#: What divides batches among processes.
DIVIDERS = ("BatchSamplerShard", "IterableDatasetShard", "DataLoaderDispatcher")


def check_undivided(owner: object, num_replicas: int) -> None:
    """Raise if accelerate divides what was divided over the ranks already.

    Args:
        owner: The sampler or the dataset that begins a pass.
        num_replicas: The number of ranks that it divides samples over.
    """
    module = sys.modules.get(_MODULE)
    if module is None or num_replicas == 1:
        return
    kinds = tuple(getattr(module, name) for name in DIVIDERS)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), kinds):
            name = type(owner).__name__
            raise InvalidValueError(
                f"{name} has divided the samples over {several(num_replicas, 'rank')}, and "
                "accelerate divides the batches of torch's DataLoader once more, so most samples "
                "would be lost; use feedline.torch.DataLoader, which accelerate leaves as it is"
            )
        frame = frame.f_back
