"""Feedline's loaders in Hugging Face's accelerate; see `docs/trainers/accelerate.md`.

Needs the extra `feedline[accelerate]`. `Accelerator.prepare` passes loaders of `feedline.torch` on:
they divide the data among the ranks themselves.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import accelerate
import torch
from accelerate import Accelerator
from accelerate.state import GradientState
from accelerate.utils import gather_object, recursively_apply, send_to_device

from feedline.errors import InvalidValueError, MissingDataError
from feedline.feed import Pass, PlannedLoader
from feedline.torch.in_trainers import InTrainers

__all__ = ["PaddingGathered", "gather_for_metrics"]

#: The first version whose checkpoints have the states of loaders.
OLDEST = (0, 34)

# Those that have loaders of Feedline, and what is to be done when they load a checkpoint.
_resumptions: weakref.WeakKeyDictionary[Accelerator, Resumption] = weakref.WeakKeyDictionary()


class PaddingGathered(BaseException):
    """`Accelerator.gather_for_metrics` would return padding as samples.

    accelerate cuts off what it has padded itself. Use `feedline.trainers.accelerate.
    gather_for_metrics` instead. Not an `Exception`: accelerate catches these there, and returns the
    padding.
    """


def gather_for_metrics(
    accelerator: Accelerator, loader: Any, data: Any, use_gather_object: bool = False
) -> Any:
    """Return what all ranks have for the latest batch, for its real samples only.

    It takes the place of `accelerator.gather_for_metrics`. All ranks must call it together.

    Args:
        accelerator: The accelerator.
        loader: The loader that the batch is from.
        data: A tensor with a row for each sample, or a tuple, list or dict of these. With
            `use_gather_object`, a list with an object for each sample.
        use_gather_object: Gather any objects, which are pickled.

    Examples:
        >>> from feedline.torch import DataLoader
        >>> accelerator = Accelerator(cpu=True)
        >>> loader = accelerator.prepare(DataLoader([1.0, 2.0, 3.0], batch_size=2))
        >>> [gather_for_metrics(accelerator, loader, batch).tolist() for batch in loader]
        [[1.0, 2.0], [3.0]]
    """
    delivered = loader.delivered
    if delivered is None:
        raise InvalidValueError("no batch has been delivered yet; gather inside of the loop")
    if delivered.ids is None:
        return gather_object(data) if use_gather_object else accelerator.gather(data)
    num_samples, marks = len(delivered.ids), delivered.is_real
    is_real = torch.ones(num_samples, dtype=torch.bool)
    if marks is not None:
        is_real = torch.from_numpy(marks)
    if use_gather_object:
        _check_rows(len(data), num_samples)
        return gather_object([one for one, keep in zip(data, is_real, strict=True) if keep])

    def checked(tensor: torch.Tensor) -> torch.Tensor:
        _check_rows(len(tensor) if tensor.ndim else None, num_samples)
        return tensor

    rows = recursively_apply(checked, data, error_on_other_type=True)
    # Ranks may have one sample more than others.
    gathered = accelerator.gather(accelerator.pad_across_processes(rows, dim=0))
    told = is_real.to(device=accelerator.device, dtype=torch.uint8)
    told = accelerator.gather(accelerator.pad_across_processes(told, dim=0, pad_index=0)).bool()
    return recursively_apply(lambda tensor: tensor[told.to(tensor.device)], gathered)


def _check_rows(num_rows: int | None, num_samples: int) -> None:
    if num_rows != num_samples:
        raise InvalidValueError(
            f"num_rows={num_rows} must be {num_samples}, the samples of the batch; pass a row for "
            "each sample, such as losses with reduction='none'"
        )


def admit(loader: Any, asker: Mapping[str, Any]) -> None:
    """Fit a loader into the accelerator that asks whether it is prepared, if one does.

    Args:
        loader: The loader.
        asker: The variables of the function that asks.
    """
    accelerator = asker.get("self")
    if not isinstance(accelerator, Accelerator):
        return
    _check_version()
    _check_settings(accelerator, loader)
    _check_ranks(accelerator, loader)
    is_placed = asker.get("device_placement")
    if is_placed is None:
        is_placed = accelerator.device_placement
    loader.around = Placed(accelerator.device if is_placed else None, accelerator.non_blocking)
    if accelerator not in _resumptions:
        _resumptions[accelerator] = Resumption(weakref.ref(accelerator))
        accelerator.register_load_state_pre_hook(_resumptions[accelerator])


def _check_version() -> None:
    found = tuple(int(part) for part in accelerate.__version__.split(".")[:2])
    if found < OLDEST:
        raise InvalidValueError(
            f"accelerate {accelerate.__version__} must be at least {'.'.join(map(str, OLDEST))}, "
            "whose checkpoints have the states of loaders; upgrade accelerate"
        )


def _check_settings(accelerator: Accelerator, loader: Any) -> None:
    """Refuse settings that change how batches are made, which accelerate would not do here."""
    if accelerator.dispatch_batches:
        raise InvalidValueError(
            "dispatch_batches=True must be False or None: Feedline's loader reads the batches of "
            "each rank on that rank; leave it out"
        )
    if accelerator.split_batches:
        raise InvalidValueError(
            "split_batches=True must be False: the batch size of Feedline's loader is that of one "
            "rank; leave it out, and pass batch_size // accelerator.num_processes to the loader"
        )
    seed = getattr(accelerator.dataloader_config, "data_seed", None)
    if seed is not None:
        raise InvalidValueError(
            f"data_seed={seed} must be None, since it has no effect; pass seed={seed} to the loader"
        )
    is_planned = isinstance(loader, PlannedLoader)
    tail = loader.position.plan.tail if is_planned else "drop"
    if not accelerator.even_batches and tail not in ("drop", "exact"):
        raise InvalidValueError(
            "even_batches=False must be True: all ranks of Feedline's loader have equally many "
            f"batches, and tail={tail!r} may repeat samples for that; leave it out and evaluate "
            "with feedline.trainers.accelerate.gather_for_metrics, or use tail='drop' or 'exact'"
        )
    if not is_planned and accelerator.num_processes > 1:
        raise InvalidValueError(
            f"num_processes={accelerator.num_processes} must be 1 for an iterable dataset: its "
            "state differs from rank to rank, and accelerate saves one for all; pack the dataset "
            "with feedline.pack, or keep the loader out of prepare() and save its "
            "gather_state_dict() yourself"
        )


def _check_ranks(accelerator: Accelerator, loader: Any) -> None:
    """Refuse a loader that does not divide the data as the accelerator divides the training."""
    # Ranks that share a model, by tensor or context parallelism, must get the same data.
    parallelism = getattr(accelerator, "parallelism_config", None)
    num_ranks = accelerator.num_processes
    for name in ("tp_size", "cp_size", "sp_size"):
        num_ranks //= int(getattr(parallelism, name, 1) or 1)
    found = loader.peers.world_size
    if found != num_ranks:
        raise InvalidValueError(
            f"num_replicas={found} of the loader must be {num_ranks}, the data-parallel ranks of "
            f"{accelerator.num_processes} processes; pass num_replicas and rank, or the "
            "process_group of the ranks that get different data"
        )


@dataclass(frozen=True)
class Placed:
    """Does for each pass what accelerate's own loaders do.

    Args:
        device: Where batches are moved to; None leaves them where they are.
        non_blocking: Whether a copy from pinned memory may still run when a batch is delivered.
    """

    device: torch.device | None
    non_blocking: bool

    def __call__(self, loader: Any, batches: Iterator[Any]) -> Iterator[Any]:
        for resumption in list(_resumptions.values()):
            resumption.end(loader)
        return PlacedBatches(batches, self, InPass(loader))


class PlacedBatches(Iterator[Any]):
    """The batches of a pass, on the device; accelerate knows of it until it ends or is dropped.

    Args:
        batches: The batches of the loader.
        placed: Where to.
        running: What accelerate asks of the pass.
    """

    def __init__(self, batches: Iterator[Any], placed: Placed, running: InPass) -> None:
        self._batches = batches
        self._placed = placed
        self._running: InPass | None = running
        self._state = GradientState()
        self._state._add_dataloader(running)

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._leave()
            raise
        device, non_blocking = self._placed.device, self._placed.non_blocking
        if device is None:
            return batch
        return send_to_device(batch, device, non_blocking=non_blocking)

    def _leave(self) -> None:
        running, self._running = self._running, None
        # Who resets the state of accelerate has removed all.
        if running is not None and self._state.initialized:
            self._state._remove_dataloader(running)

    def __del__(self) -> None:
        self._leave()


class InPass:
    """What accelerate asks of the loader whose batches are being used.

    Args:
        loader: The loader, in a pass that has just begun.
    """

    #: accelerate cuts the last batch to this many samples, if it is not 0.
    remainder = 0

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        is_planned = isinstance(loader, PlannedLoader)
        self._running: Pass | None = loader.position.current if is_planned else None

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the latest batch is the last one of the epoch, so that gradients are due."""
        if self._running is None:
            return bool(self._loader.is_last)
        # The caller is a property of accelerate's; what matters is who asks for that.
        if sys._getframe(2).f_code.co_name == "gather_for_metrics":
            self._refuse_padding(self._running)
        return self._running.has_ended

    def _refuse_padding(self, running: Pass) -> None:
        delivered = self._loader.delivered
        num_rows = running.segment.world_size * len(delivered.ids)
        if delivered.num_real_of_all_ranks != num_rows:
            raise PaddingGathered(
                f"num_rows={num_rows} of this batch on all ranks must be its real samples, "
                f"{delivered.num_real_of_all_ranks}; use gather_for_metrics of "
                "feedline.trainers.accelerate, which leaves out padding"
            )


def _state_path(folder: str, number: int) -> Path:
    """Return where accelerate saves the state of a loader."""
    return Path(folder) / (f"dl_state_dict_{number}.bin" if number else "dl_state_dict.bin")


@dataclass
class Resumption:
    """What accelerate leaves out when it loads a checkpoint; it calls this before it does.

    Args:
        accelerator: The accelerator that loads.
        is_begun: Whether it has loaded, and no pass has begun since.
    """

    accelerator: weakref.ref[Accelerator]
    is_begun: bool = False

    def __call__(self, models: Any, folder: str) -> None:
        """Refuse a checkpoint without the state of a loader, which would begin anew."""
        loaders = self._loaders()
        for number, loader in enumerate(loaders):
            path = _state_path(folder, number)
            if isinstance(loader, InTrainers) and not path.exists():
                raise MissingDataError(
                    f"{folder} has no {path.name}, the state of loader {number}; prepare the "
                    "loader before save_state, and the same loaders in the same order before "
                    "load_state"
                )
        if _state_path(folder, len(loaders)).exists():
            warnings.warn(
                f"{folder} has states of more loaders than the {len(loaders)} that are prepared; "
                "one that is prepared after load_state begins with its first epoch: prepare all "
                "of them before",
                RuntimeWarning,
                stacklevel=3,
            )
        self.is_begun = True

    def _loaders(self) -> list[Any]:
        accelerator = self.accelerator()
        return [] if accelerator is None else list(accelerator._dataloaders)

    def end(self, loader: Any) -> None:
        """Let the ranks agree on where they are in the accumulation of gradients.

        The checkpoint has a number for each rank of the run that wrote it. Ranks beyond these would
        begin with 0, wait for gradients in other steps than the others, and hang.
        """
        accelerator = self.accelerator()
        if (
            not self.is_begun
            or accelerator is None
            or not any(loader is x for x in self._loaders())
        ):
            return
        self.is_begun = False
        steps = accelerator.gather(torch.tensor([accelerator.step], device=accelerator.device))
        accelerator.step = int(steps.max())
