"""The Trainer of transformers with Feedline's loaders: resume without replay, on any ranks.

Needs the extra `feedline[transformers]`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

try:
    import transformers
    from transformers.trainer_callback import ExportableState
    from transformers.trainer_utils import get_last_checkpoint
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ModuleNotFoundError(
        "feedline.trainers.transformers needs transformers, which is not installed; install "
        "feedline[transformers]",
        name="transformers",
    ) from None

from feedline.errors import CursorFormatError, DesyncError, InvalidValueError
from feedline.trainers.transformers_loaders import (
    check_options,
    evaluation_loader,
    is_iterable_dataset,
    is_loader,
    training_loader,
)
from feedline.trainers.transformers_passes import EvaluationLoader, TrainingLoader
from feedline.words import several

__all__ = ["RELIED_ON", "FeedlineState", "Trainer"]

#: What of transformers' Trainer is not documented, or may change, and is used here.
RELIED_ON = (
    *("set_initial_training_values", "evaluation_loop", "get_train_dataloader"),
    *("get_eval_dataloader", "get_test_dataloader", "num_examples"),
    *("_remove_unused_columns", "_get_collator_with_removed_columns"),
    *("_set_signature_columns_if_needed", "_inner_training_loop"),
)
# The parts of the training loop, which newer releases have; older ones have it in one piece.
_IN_PARTS = ("_init_training_state", "_run_epoch")
_OLDEST = (4, 52)
#: What a class beside this one must not override: it would be ignored.
_OURS = (
    *("get_train_dataloader", "get_eval_dataloader", "get_test_dataloader"),
    *("_get_train_sampler", "_get_eval_sampler", "_get_dataloader"),
)


def check_release(trainer: type = transformers.Trainer, version: str | None = None) -> None:
    """Raise if the installed transformers lacks what this module relies on; name the release.

    Args:
        trainer: The Trainer of transformers.
        version: The release; by default the installed one.
    """
    version = transformers.__version__ if version is None else version
    lacks = [name for name in RELIED_ON if not hasattr(trainer, name)]
    parts = [name for name in _IN_PARTS if hasattr(trainer, name)]
    if parts and len(parts) < len(_IN_PARTS):
        lacks += sorted(set(_IN_PARTS) - set(parts))
    number = tuple(int(part) for part in version.split(".")[:2])
    if number < _OLDEST:
        raise ImportError(
            f"transformers {version} must be 4.52 or later: earlier releases leave batches out "
            "at the end of an epoch with gradient accumulation; install feedline[transformers]"
        )
    if lacks:
        raise ImportError(
            f"the Trainer of transformers {version} has no {', '.join(lacks)}, which "
            "feedline.trainers.transformers relies on; use transformers 5.22, or a later Feedline"
        )


check_release()


class FeedlineState(transformers.TrainerCallback, ExportableState):
    """Puts the loader's state into the Trainer's checkpoints, and keeps `state.epoch` right.

    `Trainer` adds it by itself. The state stands in `trainer_state.json`, beside the number of
    steps that it belongs to.
    """

    def __init__(self) -> None:
        self.loader: TrainingLoader | None = None

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint contains: the state after the last optimizer step."""
        saved = None if self.loader is None else self.loader.record()
        return {"args": {}, "attributes": {"saved": saved}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Note the loader that the training uses."""
        self.loader = given["train_dataloader"]

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Count the step, and correct the Trainer's part of the epoch after a resume."""
        if self.loader is not None:
            state.epoch = self.loader.end_step()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Raise if the Trainer ends an epoch with batches left, though nobody stops it."""
        if self.loader is None or control.should_training_stop or control.should_epoch_stop:
            return
        if left := self.loader.num_unused():
            raise DesyncError(
                f"transformers {transformers.__version__} ended epoch {self.loader.epoch} with "
                f"{several(left, 'batch', 'batches')} left, which must be 0; report this, with "
                "the release and the TrainingArguments"
            )


class Trainer(transformers.Trainer):
    """transformers' Trainer, with Feedline's loaders and all of their promises.

    It takes the arguments of transformers' own. Training resumes at the next batch without replay,
    on any number of processes and workers, with any batch size; every sample comes once in an
    epoch; `max_steps` and `state.epoch` are right after a resume on other ranks; evaluation and
    prediction count each sample once, in the order of the dataset. Checkpoints are the Trainer's
    own, and contain the loader's state.

    `train_dataset` and `eval_dataset` may also be a store, or one of Feedline's loaders. For
    another Trainer, such as Seq2SeqTrainer, put this class first:
    `class Mine(feedline.trainers.transformers.Trainer, Seq2SeqTrainer): ...`.

    Args:
        *args: Those of transformers' Trainer.
        **kwargs: Those of transformers' Trainer.

    Examples:
        >>> import tempfile, torch
        >>> class Line(torch.nn.Linear):
        ...     def forward(self, x, labels):
        ...         return {"loss": (super().forward(x) - labels).square().mean()}
        >>> data = [{"x": [index / 40], "labels": [index / 20]} for index in range(40)]
        >>> options = {"num_train_epochs": 2, "save_strategy": "no", "report_to": []}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     args = transformers.TrainingArguments(folder, use_cpu=True, **options)
        ...     args.disable_tqdm = True
        ...     trainer = Trainer(model=Line(1, 1), args=args, train_dataset=data)
        ...     num_steps, *_ = trainer.train()  # doctest: +ELLIPSIS
        {...}
        >>> num_steps
        10
    """

    gather_function: Any
    _feeding: TrainingLoader

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _check_bases(type(self))
        check_options(self)
        # First, so that other callbacks see the right epoch at the end of a step.
        self.callback_handler.callbacks.insert(0, FeedlineState())
        self._resumed: dict[str, Any] | None = None
        self._evaluated: dict[Any, EvaluationLoader] = {}

    # Loaders.

    def get_train_dataloader(self) -> TrainingLoader:
        """Return the loader of the training, at the place where the run begins."""
        if self.train_dataset is None:
            raise InvalidValueError("train_dataset=None must be given to train; pass the data")
        self._feeding = training_loader(self)
        if self._resumed is not None:
            self._feeding.resume(**self._resumed)
        return self._feeding

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the loader of an evaluation; each sample comes once.

        Args:
            eval_dataset: The data, or its name in the Trainer's `eval_dataset`.
        """
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(data, str):
            data = self.eval_dataset[data]
        if is_iterable_dataset(data):
            return super().get_eval_dataloader(eval_dataset)
        if data is None:
            raise InvalidValueError("eval_dataset=None must be given to evaluate; pass the data")
        name = eval_dataset if isinstance(eval_dataset, str) else "eval"
        known = self._evaluated.get(name)
        if known is not None and known.data is data and self.args.dataloader_persistent_workers:
            return known
        self._evaluated[name] = evaluation_loader(self, data)
        return self._evaluated[name]

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return the loader of a prediction; each sample comes once.

        Args:
            test_dataset: The data.
        """
        if is_iterable_dataset(test_dataset):
            return super().get_test_dataloader(test_dataset)
        return evaluation_loader(self, test_dataset)

    def num_examples(self, dataloader: Any) -> int:
        """Return the number of samples in an epoch.

        Args:
            dataloader: The loader.
        """
        if isinstance(dataloader, TrainingLoader | EvaluationLoader):
            return dataloader.num_samples
        return int(super().num_examples(dataloader))

    # Training.

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train, from the start or from a checkpoint, on any number of processes.

        Args:
            resume_from_checkpoint: The folder of a checkpoint, or True for the latest one.
            *args: As in transformers' Trainer.
            **kwargs: As in transformers' Trainer.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise InvalidValueError(
                    f"output_dir={self.args.output_dir!r} must contain a checkpoint to resume "
                    "from; pass resume_from_checkpoint=False to start a new run"
                )
        self._resumed = None
        if resume_from_checkpoint:
            self._resumed = _record_in(str(resume_from_checkpoint))
        with self._without_replay():
            return super().train(resume_from_checkpoint or None, *args, **kwargs)

    @contextmanager
    def _without_replay(self) -> Iterator[None]:
        """Keep the Trainer from skipping batches itself: the loader is at its place."""
        before, self.args.ignore_data_skip = self.args.ignore_data_skip, True
        try:
            yield
        finally:
            self.args.ignore_data_skip = before
            self._resumed = None

    def set_initial_training_values(self, args: Any, dataloader: Any, *more: Any) -> Any:
        """Return the numbers of epochs and steps that the Trainer goes by, from the loader.

        Args:
            args: The TrainingArguments.
            dataloader: The loader of the training.
            *more: As in transformers' Trainer.
        """
        if not isinstance(dataloader, TrainingLoader):
            raise InvalidValueError(
                f"get_train_dataloader returned {type(dataloader).__name__}, but must not be "
                "overridden; pass one of Feedline's loaders as train_dataset"
            )
        values = list(super().set_initial_training_values(args, dataloader, *more))
        num_done = 0 if self._resumed is None else self._resumed["num_steps"]
        num_epochs, max_steps = dataloader.num_epochs_and_steps(
            num_done, args.gradient_accumulation_steps, args.num_train_epochs, args.max_steps
        )
        values[0], values[-1] = num_epochs, max_steps
        if not hasattr(super(), "_init_training_state") and num_done:
            # These releases use this number to find the epoch of a resume, and for nothing else:
            # the steps so far, divided by it.
            values[1] = num_done / (dataloader.next_epoch + 0.5)
        return tuple(values)

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        super()._init_training_state(*args, **kwargs)
        return (0 if self._resumed is None else self._feeding.next_epoch), 0

    def _run_epoch(self, **given: Any) -> None:
        # These releases take the number of batches of an epoch once, for the whole run.
        loader, group = given["train_dataloader"], self.args.gradient_accumulation_steps
        loader.set_epoch(given["epoch"])
        given["steps_in_epoch"] = len(loader)
        given["num_update_steps_per_epoch"] = math.ceil(len(loader) / group)
        super()._run_epoch(**given)

    # Evaluation.

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate or predict; repeated samples, which only fill up ranks, do not count.

        Args:
            dataloader: The loader.
            *args: As in transformers' Trainer.
            **kwargs: As in transformers' Trainer.
        """
        if is_loader(dataloader) and not isinstance(dataloader, EvaluationLoader):
            dataloader = evaluation_loader(self, dataloader)
        if not isinstance(dataloader, EvaluationLoader):
            return super().evaluation_loop(dataloader, *args, **kwargs)
        before, self.gather_function = self.gather_function, dataloader.gather
        try:
            output = super().evaluation_loop(dataloader, *args, **kwargs)
        finally:
            self.gather_function = before
        return output._replace(num_samples=dataloader.num_counted)


def _record_in(folder: str) -> dict[str, Any]:
    """Return what a checkpoint says about the loader, or raise."""
    path = os.path.join(folder, "trainer_state.json")
    if not os.path.isfile(path):
        raise CursorFormatError(
            f"resume_from_checkpoint={folder!r} must be a folder with a trainer_state.json; use a "
            "checkpoint of the Trainer"
        )
    state = transformers.TrainerState.load_from_json(path)
    kept = (state.stateful_callbacks or {}).get(FeedlineState.__name__) or {}
    record = kept.get("attributes", {}).get("saved")
    if record is None:
        raise CursorFormatError(
            f"{path} contains no state of Feedline's: another Trainer has written it, so nobody "
            "knows which samples it has seen; load the model from it, and start a new run"
        )
    return {"record": record, "num_steps": state.global_step, "epoch": state.epoch or 0.0}


def _check_bases(kind: type) -> None:
    """Raise if a class between this one and transformers' Trainer chooses the data itself."""
    others = kind.__mro__[kind.__mro__.index(Trainer) + 1 :]
    for name in _OURS:
        owner = next((other for other in others if name in vars(other)), transformers.Trainer)
        if owner is not transformers.Trainer:
            raise InvalidValueError(
                f"{owner.__name__}.{name} would be ignored: it chooses the data, and so does "
                "Feedline; use a Trainer that does not override it"
            )
