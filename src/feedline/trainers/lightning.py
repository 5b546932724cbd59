"""Lightning: a callback that makes resuming exact, on any number of processes.

Lightning saves and loads the states of loaders, but it reads their lengths once, before that, and
counts epochs and batches by itself. The callback puts the loader first: after a checkpoint is
loaded, it is the loader that says which epoch it is and how many batches are left.

Needs the extra `feedline[lightning]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

try:
    import lightning
    from lightning.pytorch import Callback
    from lightning.pytorch.utilities import CombinedLoader
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "lightning":
        raise
    raise ModuleNotFoundError(
        "feedline.trainers.lightning needs lightning, which is not installed; install "
        "feedline[lightning]",
        name="lightning",
    ) from None

from feedline.errors import DesyncError, InvalidValueError, PlanMismatchError, check_flag
from feedline.feed import LoaderWrapper, PlannedLoader
from feedline.trainers.lightning_loops import (
    align,
    begin_anew,
    begin_epoch,
    check_between_steps,
    has_ours,
    is_closed,
    is_ours,
    limited,
    num_left,
    resume_epoch,
    set_length,
    state_of,
    stateful,
    tell_epoch,
)
from feedline.words import several

#: What is used of Lightning that it does not document, by the object that has it.
PRIVATE = {
    "trainer.fit_loop": (
        *("_combined_loader", "_data_fetcher", "_restarting", "epoch_progress", "max_batches"),
        "epoch_loop",
    ),
    "trainer.fit_loop.epoch_loop": ("_restarting", "batch_progress", "val_loop"),
    "trainer.fit_loop.epoch_loop.batch_progress": ("current", "total", "is_last_batch"),
    "trainer": ("limit_train_batches", "val_check_interval"),
}
#: In checkpoints whose states of loaders count the batches that the model was trained on.
COUNTED = "feedline_counted"


class FeedlineCallback(Callback):
    """Makes a `Trainer` resume Feedline's loaders exactly, on any number of processes.

    Add it to the callbacks of the `Trainer`; it finds the loaders itself. It also refuses an
    evaluation that would count padding.

    Args:
        allow_padding: Let `validate`, `test` and `predict` count samples that are repeated so that
            all ranks have equally many. By default that is an error, unless the loader has
            `with_mask=True`.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(accelerator="cpu", logger=False, callbacks=[FeedlineCallback()])
    """

    def __init__(self, *, allow_padding: bool = False) -> None:
        self._allow_padding = check_flag("allow_padding", allow_padding)
        # The states of a checkpoint that was loaded, until training begins.
        self._saved: _Saved | None = None
        # The batches of this epoch that earlier runs have trained on; 0 unless it was resumed.
        self._num_before = 0
        self._is_resumed = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Check that Lightning is as this callback knows it."""
        check_private(trainer)
        self._saved = None

    # The state.

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Let the states of loaders count the batches that the model was trained on."""
        combined = trainer.fit_loop._combined_loader
        if combined is None or not any(map(is_ours, combined.flattened)):
            return
        count = trainer.fit_loop.epoch_loop.batch_progress.current.processed - self._num_before
        states = [state_of(one, count) for one in stateful(combined)]
        if self._saved is not None and self._saved.states:
            # Another callback saves before the states of the last checkpoint are loaded.
            states = self._saved.states
        checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] = states
        checkpoint[COUNTED] = True

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Take the states of loaders, and let Lightning count epochs as the loader does."""
        if trainer.state.fn != "fit" or "loops" not in checkpoint:
            return
        loops = checkpoint["loops"]["fit_loop"]
        states = loops["state_dict"].get("combined_loader", [])
        if not has_ours(states):
            # Lightning resumes the loaders of others as ever.
            done = loops["epoch_loop.batch_progress"]["current"]["processed"]
            self._saved = _Saved([], 0 if is_closed(loops) else done)
            return
        if not checkpoint.get(COUNTED):
            check_between_steps(loops)
        del loops["state_dict"]["combined_loader"]
        counts_batches = hasattr(trainer.fit_loop, "update_restart_stage")
        self._saved = _Saved(states, align(loops, states, counts_batches))

    # Training.

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Load the states, and tell Lightning how many batches are left."""
        self._num_before, self._is_resumed = 0, False
        saved, self._saved = self._saved, None
        fit_loop = trainer.fit_loop
        loaders = stateful(fit_loop._combined_loader)
        if not any(map(is_ours, loaders)):
            return
        _check_ranks(trainer, loaders)
        fetcher = fit_loop._data_fetcher
        if hasattr(fetcher, "iterator_wrapper"):
            raise InvalidValueError(
                "training_step(dataloader_iter) takes batches itself, so Lightning cannot count "
                "them, and a resumed run would lose some; use training_step(batch, batch_idx)"
            )
        if saved is None:
            begin_anew(fit_loop, loaders)
            return
        saved.load(loaders)
        left = num_left(trainer, saved.num_done)
        if saved.num_done and left:
            self._num_before, self._is_resumed = saved.num_done, True
            resume_epoch(fit_loop, loaders)
        else:
            begin_epoch(fit_loop, loaders, skips=bool(saved.num_done))
            iter(fetcher)
        if self._is_resumed and left < math.inf:
            fetcher.length = saved.num_done + left
            set_length(trainer, fetcher.length)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Take the number of batches from the loader, in each epoch anew."""
        combined = trainer.fit_loop._combined_loader
        if self._is_resumed or not any(map(is_ours, combined.flattened)):
            return
        self._num_before = 0
        # Lightning tells it to samplers only, and the last epoch may have been limited.
        tell_epoch(trainer.fit_loop, combined.flattened)
        combined.limits = [limited(one, trainer.limit_train_batches) for one in combined.flattened]
        set_length(trainer, num_left(trainer, 0))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Let the next epoch be a whole one."""
        self._is_resumed = False

    # Evaluation.

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse to count padding."""
        self._check(trainer, trainer.val_dataloaders)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse to count padding."""
        self._check(trainer, trainer.test_dataloaders)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse to predict padding."""
        self._check(trainer, trainer.predict_dataloaders)

    def _check(self, trainer: Any, loaders: Any) -> None:
        loaders = CombinedLoader(loaders).flattened
        _check_ranks(trainer, loaders)
        for loader in [] if self._allow_padding else loaders:
            while isinstance(loader, LoaderWrapper):
                loader = loader.loader
            if not isinstance(loader, PlannedLoader) or getattr(loader, "with_mask", False):
                continue
            num_padded = loader.position.next_segment().num_padded
            if num_padded:
                raise InvalidValueError(
                    f"{several(num_padded, 'sample')} must come twice, so that all "
                    f"{loader.peers.world_size} ranks have equally many, and would count twice; "
                    "use with_mask=True and log_mean, or FeedlineCallback(allow_padding=True)"
                )


def log_mean(module: Any, name: str, values: Any, is_real: Any, **options: Any) -> None:
    """Log the mean of values over the real samples of an epoch, of all ranks.

    Args:
        module: The `LightningModule`.
        name: The name of the metric.
        values: A tensor with a value for each sample of the batch.
        is_real: The mask that a loader with `with_mask=True` yields.
        options: More arguments of `LightningModule.log`.
    """
    num_real = int(is_real.sum())
    mean = values[is_real].float().sum() / max(num_real, 1)
    options = {"on_step": False, "on_epoch": True, "sync_dist": True, **options}
    # Lightning divides the sum of the ranks' batch sizes by their number, as integers.
    module.log(name, mean, batch_size=num_real * module.trainer.world_size, **options)


def check_private(trainer: Any) -> None:
    """Raise if this release of Lightning lacks what the callback uses."""
    for path, names in PRIVATE.items():
        owner = trainer
        for part in path.split(".")[1:]:
            owner = getattr(owner, part)
        for name in names:
            if not hasattr(owner, name):
                raise InvalidValueError(
                    f"lightning {lightning.__version__} has no {path}.{name}, which Feedline's "
                    "callback uses; use a release that feedline[lightning] allows"
                )


@dataclass(frozen=True)
class _Saved:
    """The states of loaders in a checkpoint, and the batches done of an epoch that was cut."""

    states: list[Any]
    num_done: int

    def load(self, loaders: list[Any]) -> None:
        """Load each state into its loader."""
        if not self.states and self.num_done:
            raise PlanMismatchError(
                f"the checkpoint was saved after {several(self.num_done, 'batch', 'batches')} of "
                "an epoch without the state of a loader, so nobody knows which samples are left; "
                "use a checkpoint from the end of an epoch, or one of a run with Feedline's loader",
                {"num_loaders": (0, len(loaders))},
            )
        if self.states and len(self.states) != len(loaders):
            raise PlanMismatchError(
                f"the checkpoint has the states of {several(len(self.states), 'loader')}, but now "
                f"there are {len(loaders)}; use the same loaders as when it was saved",
                {"num_loaders": (len(self.states), len(loaders))},
            )
        for loader, state in zip(loaders, self.states, strict=False):
            if isinstance(state, Mapping) and "ranks" in state:
                ranks = state["ranks"]
                state = ranks[min(loader.peers.rank, len(ranks) - 1)]
            loader.load_state_dict(state)


def _check_ranks(trainer: Any, loaders: list[Any]) -> None:
    """Raise if a loader has found other ranks than those that Lightning divides data over."""
    told = trainer.distributed_sampler_kwargs or {"num_replicas": 1, "rank": 0}
    for loader in filter(is_ours, loaders):
        peers = loader.peers
        found = {"num_replicas": peers.world_size, "rank": peers.rank}
        if found != dict(told) and not getattr(peers, "is_known", False):
            raise DesyncError(
                f"the loader is for rank {peers.rank} of {peers.world_size}, but Lightning divides "
                f"the data over {several(told['num_replicas'], 'rank')}, and this is rank "
                f"{told['rank']}; pass num_replicas={told['num_replicas']} and "
                f"rank={told['rank']} to it",
                {name: (found[name], told[name]) for name in found},
            )
