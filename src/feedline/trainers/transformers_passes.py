"""Feedline's loaders in the loops of transformers' Trainer: what they count and gather."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from accelerate.utils import recursively_apply

from feedline.errors import InvalidValueError
from feedline.feed.wrapper import LoaderWrapper


class TrainingLoader(LoaderWrapper):
    """A loader in the Trainer's training loop, which counts what the optimizer has used.

    Its length is that of the next pass: the Trainer asks for it before each epoch.

    Args:
        loader: The loader.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        # Batches of this pass, of them delivered, and of these not yet in an optimizer step.
        self._num_batches = self._num_delivered = self._num_unstepped = 0
        # The part of the epoch that was over when this pass began, and when the next one does.
        self._part = self._next_part = 0.0
        self._is_resumed = False

    @property
    def dataset(self) -> Any:
        """The data."""
        return self.loader.dataset  # type: ignore[attr-defined]

    @property
    def next_epoch(self) -> int:
        """The epoch of the next pass."""
        return self.loader.epoch

    @property
    def num_samples(self) -> int:
        """The number of samples in an epoch."""
        return num_samples_in(self.loader)

    def resume(self, record: Mapping[str, Any], num_steps: int, epoch: float) -> None:
        """Go to the place that a checkpoint says.

        Args:
            record: What `record` returned.
            num_steps: The number of optimizer steps.
            epoch: The epochs that are over, as the Trainer counts them.
        """
        self.loader.load_state_dict(record["loader"])
        # A skip that waited for the state may leave nothing of the epoch.
        next_epoch = max(record["next_epoch"], self.loader.next_epoch)  # type: ignore[attr-defined]
        self.loader.set_epoch(next_epoch)
        if self.loader.num_batches_left() == 0:
            # Too small for a batch on these ranks; the Trainer would take it for the end.
            self.loader.set_epoch(self.loader.epoch + 1)
        self._next_part = max(0.0, epoch - self.loader.epoch)
        self._is_resumed = self._next_part > 0

    def num_epochs_and_steps(
        self, num_done: int, group_size: int, num_epochs: float, max_steps: int
    ) -> tuple[int, int]:
        """Return the epoch that the run ends before, and the number of its last step.

        Args:
            num_done: The number of steps before this run.
            group_size: The number of batches in a step.
            num_epochs: The number of epochs to train for, if `max_steps` is not above 0.
            max_steps: The number of steps to train for.
        """
        whole, left = (math.ceil(n / group_size) for n in (len(self.loader), len(self)))
        epoch = self.loader.epoch
        if max_steps > 0:
            more = max_steps - num_done - left
            ends = epoch + (max_steps > num_done) + max(0, math.ceil(more / whole))
            return ends, max_steps
        ends = math.ceil(num_epochs)
        if epoch >= ends:
            return ends, num_done
        # A last epoch that is not whole ends after its part of the steps.
        last = math.ceil(round(whole * (num_epochs - (ends - 1)), 6))
        if epoch < ends - 1:
            return ends, num_done + left + (ends - 2 - epoch) * whole + last
        if num_epochs == ends:
            return ends, num_done + left
        over = (len(self.loader) - len(self)) / group_size
        more = max(0, math.ceil(last - over))
        return ends if more else epoch, num_done + more

    def __len__(self) -> int:
        return self.loader.num_batches_left()

    def __iter__(self) -> Iterator[Any]:
        self._num_batches = len(self)
        self._num_delivered = self._num_unstepped = 0
        self._part, self._next_part = self._next_part, 0.0
        is_resumed, self._is_resumed = self._is_resumed, False
        # torch draws a seed for each pass. Where the Trainer has restored the state of its random
        # generator from within a pass, the seed of that pass is drawn already.
        with torch.random.fork_rng(devices=[], enabled=is_resumed):
            batches = iter(self.loader)
        return self._counted(batches)

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self._num_delivered += 1
            self._num_unstepped += 1
            yield batch

    def end_step(self) -> float:
        """Count an optimizer step with all batches so far; return the epochs that are over."""
        self._num_unstepped = 0
        part = self._num_delivered / self._num_batches
        return self.loader.epoch + self._part + (1 - self._part) * part

    def num_unused(self) -> int:
        """Return how many batches of this pass no optimizer step has used."""
        return self._num_batches - self._num_delivered + self._num_unstepped

    def record(self) -> dict[str, Any]:
        """Return the state after the last optimizer step, and the epoch that follows it."""
        has_ended = self._num_batches > 0 and self.num_unused() == 0
        state = self.loader.state_before(self._num_unstepped)
        return {"loader": state, "next_epoch": state["epoch"] + has_ended}


class EvaluationLoader(LoaderWrapper):
    """A loader in the Trainer's evaluation loop, which gathers real samples only.

    Args:
        loader: The loader.
        trainer: The Trainer.
        data: What the loader was made for.
    """

    #: What accelerate asks of a loader: how many samples its last batch repeats; -1 is unknown.
    remainder = -1

    def __init__(self, loader: Any, trainer: Any, data: Any) -> None:
        super().__init__(loader)
        self.data = data
        self.batch_size_of_losses: int = trainer.args.eval_batch_size
        self._accelerator = trainer.accelerator
        #: Whether this is the last batch; accelerate asks for it.
        self.end_of_dataloader = False
        #: The real samples so far, on all ranks.
        self.num_counted = 0
        self._num_rows = self._num_real = 0
        self._counts: list[int] = []

    @property
    def dataset(self) -> Any:
        """The data."""
        return self.loader.dataset  # type: ignore[attr-defined]

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return num_samples_in(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self.num_counted, self.end_of_dataloader = 0, False
        num_batches = self.loader.num_batches_left()
        state = self._accelerator.gradient_state
        state._add_dataloader(self)
        try:
            for number, batch in enumerate(self.loader, start=1):
                self.end_of_dataloader = number == num_batches
                self._count()
                yield batch
        finally:
            state._remove_dataloader(self)

    def _count(self) -> None:
        delivered = self.loader.delivered
        assert delivered is not None
        assert delivered.ids is not None
        self._num_rows, self._num_real = len(delivered.ids), delivered.num_real or 0
        sizes = torch.tensor([[self._num_real, self._num_rows]], device=self._accelerator.device)
        every = self._accelerator.gather(sizes).tolist()
        for rank, (real, rows) in enumerate(every):
            # On all ranks alike, so that none waits for another.
            if 0 < real < rows:
                raise InvalidValueError(
                    f"rank {rank} has a batch with {real} real samples of {rows}, but they must "
                    "all be real: the loss of a batch cannot leave some out; pass the dataset, or "
                    "DataLoader(dataset, sampler=feedline.Sequential(num_samples=len(dataset)))"
                )
        self._counts = [real for real, _ in every]
        self.num_counted += sum(self._counts)

    def gather(self, data: Any) -> Any:
        """Return the rows of real samples of all ranks, in the order of the data.

        Args:
            data: Tensors whose rows are the samples of this rank's batch; in tuples and so on.
        """
        return recursively_apply(self._gathered, data, error_on_other_type=True)

    def _gathered(self, rows: torch.Tensor) -> torch.Tensor:
        is_loss = rows.ndim == 1 and len(rows) == self.batch_size_of_losses != self._num_rows
        if is_loss:
            # The Trainer repeats the loss of a batch as if each batch were full.
            rows = rows[:1].expand(self._num_real)
        elif rows.ndim == 0 or len(rows) != self._num_rows:
            raise InvalidValueError(
                f"an output of the shape {tuple(rows.shape)} must have {self._num_rows} rows, one "
                "for each sample; leave it out with ignore_keys, or change it in "
                "preprocess_logits_for_metrics"
            )
        rows, most = rows[: self._num_real], max(self._counts)
        if len(rows) < most:
            rows = torch.cat([rows, rows.new_zeros(most - len(rows), *rows.shape[1:])])
        every = self._accelerator.gather(rows.contiguous())
        # Row j of rank r is sample j * world_size + r of this step.
        every = every.reshape(len(self._counts), most, *rows.shape[1:]).transpose(0, 1)
        counts = torch.tensor(self._counts, device=every.device)
        real = torch.arange(most, device=every.device)[:, None] < counts
        found: torch.Tensor = every[real]
        return found


def innermost(loader: Any) -> Any:
    """Return the loader in wrappers."""
    while isinstance(loader, LoaderWrapper):
        loader = loader.loader
    return loader


def num_samples_in(loader: Any) -> int:
    """Return the number of samples in an epoch."""
    position = innermost(loader).position
    return int(position.plan.begin(loader.epoch).num_left)
