"""The loaders of transformers' Trainer, from its data and options; what cannot be exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.data import IterableDataset
from transformers import DataCollatorWithPadding, default_data_collator
from transformers.trainer_utils import seed_worker

from feedline.errors import InvalidValueError
from feedline.feed import PlannedLoader
from feedline.feed.wrapper import LoaderWrapper
from feedline.plan import Sequential, Shuffled
from feedline.store import is_store
from feedline.torch import BucketBatchSampler, DataLoader, FeedDataset
from feedline.trainers.transformers_passes import EvaluationLoader, TrainingLoader, innermost

# Lengths are divided into this many buckets, if there are samples enough for each.
_MAX_BUCKETS, _SAMPLES_IN_BUCKET = 10, 100


def is_loader(data: Any) -> bool:
    """Return whether this is one of Feedline's loaders, or a wrapper of one."""
    return isinstance(data, PlannedLoader | LoaderWrapper)


def is_iterable_dataset(data: Any) -> bool:
    """Return whether the Trainer evaluates this in its own way."""
    if isinstance(data, FeedDataset):
        raise InvalidValueError(
            f"{type(data).__name__} must be in a loader: it divides its samples over the ranks, "
            "and the Trainer would do so again; pass feedline.torch.DataLoader(dataset)"
        )
    return isinstance(data, IterableDataset)


def check_options(trainer: Any) -> None:
    """Raise if the options of a Trainer cannot be kept exactly."""
    args, data = trainer.args, trainer.train_dataset
    config = getattr(args, "accelerator_config", None)
    for name in ("dispatch_batches", "split_batches"):
        if getattr(config, name, None):
            raise InvalidValueError(
                f"accelerator_config.{name}=True must be False: each rank reads its own batches, "
                "and nobody divides them again; omit it"
            )
    refused = {
        "include_tokens_per_second": "it reads all data before the training; use "
        "include_num_input_tokens_seen",
        "use_legacy_prediction_loop": "it counts repeated samples; omit it",
        "eval_use_gather_object": "objects are not divided into samples; return tensors",
    }
    for name, reason in refused.items():
        if getattr(args, name, False):
            raise InvalidValueError(f"{name}=True must be False: {reason}")
    if getattr(args, "dataloader_in_order", True) is False:
        raise InvalidValueError(
            "dataloader_in_order=False must be True: batches that arrive in any order cannot be "
            "counted; omit it"
        )
    if _strategy(args) == "batch_rebalance":
        raise InvalidValueError(
            "train_sampling_strategy='batch_rebalance' must be 'random', 'sequential' or "
            "'group_by_length'; for batches of as many tokens, pass a DataLoader with a "
            "BucketBatchSampler(lengths, token_budget=...) as train_dataset"
        )
    for size in ("get_tp_size", "get_cp_size", "get_sp_size"):
        shared = getattr(trainer, size, lambda: 1)()
        if shared > 1 and not is_loader(data):
            raise InvalidValueError(
                f"{size.split('_')[1]}_size={shared} must be 1: these ranks need the same data; "
                "pass a DataLoader with process_group= as train_dataset"
            )
    if is_loader(data):
        _check_given(trainer, data)
    elif isinstance(data, IterableDataset) or (data is not None and not hasattr(data, "__len__")):
        raise InvalidValueError(
            f"train_dataset={type(data).__name__} must have samples by number, with __len__ and "
            "__getitem__: a stream cannot resume exactly on other ranks; use a map-style dataset, "
            "a store, or one of Feedline's loaders"
        )


def _check_given(trainer: Any, loader: Any) -> None:
    """Raise if a loader that the user made does not fit the Trainer's options."""
    inner = innermost(loader)
    if not isinstance(inner, PlannedLoader):
        raise InvalidValueError(
            f"train_dataset={type(inner).__name__} must be a loader over samples by number: the "
            "state of a stream differs from rank to rank, and the Trainer saves one"
        )
    size, wanted = loader.batch_size, trainer.args.train_batch_size
    if size is not None and size != wanted:
        raise InvalidValueError(
            f"the loader has batch_size={size}, but it must be {wanted}, the Trainer's; set "
            f"per_device_train_batch_size={size}"
        )
    if trainer.args.auto_find_batch_size:
        raise InvalidValueError(
            "auto_find_batch_size=True must be False with a loader, whose batch size is set; pass "
            "the dataset instead"
        )
    if _strategy(trainer.args) == "group_by_length":
        raise InvalidValueError(
            "group_by_length must not be set with a loader, which has its order already; pass a "
            "DataLoader with batch_sampler=BucketBatchSampler(...), or the dataset"
        )


def training_loader(trainer: Any) -> TrainingLoader:
    """Return the loader of a training, at the start of the first epoch."""
    args, data = trainer.args, trainer.train_dataset
    if not args.auto_find_batch_size:
        # transformers 4 would keep the batch size of the checkpoint that it resumes from.
        trainer._train_batch_size = args.train_batch_size
    if is_loader(data):
        loader = data
        if innermost(data).position.is_loaded:
            raise InvalidValueError(
                f"the loader is at a loaded state, in epoch {data.epoch}, but must be fresh: the "
                "Trainer loads the state of its checkpoint; use resume_from_checkpoint"
            )
        # Also if an earlier training has used it.
        data.set_epoch(data.epoch + 1)
        data.set_epoch(0)
    else:
        data = _prepared(trainer, data, "Training")
        seed = args.seed if args.data_seed is None else args.data_seed
        order: dict[str, Any]
        if _strategy(args) == "group_by_length":
            lengths = _lengths(trainer, data)
            num_buckets = max(1, min(_MAX_BUCKETS, len(lengths) // _SAMPLES_IN_BUCKET))
            sampler = BucketBatchSampler(
                lengths,
                batch_size=trainer._train_batch_size,
                num_buckets=num_buckets,
                tail="drop" if args.dataloader_drop_last else "even",
                seed=seed,
            )
            order = {"batch_sampler": sampler}
        else:
            kind = partial(Shuffled, seed=seed)
            order = {
                "sampler": (Sequential if _strategy(args) == "sequential" else kind)(
                    num_samples=len(data)
                ),
                "batch_size": trainer._train_batch_size,
                "tail": "drop" if args.dataloader_drop_last else "even",
            }
        init = partial(
            seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index
        )
        loader = DataLoader(
            data, **order, worker_init_fn=init, **_options(trainer, data, "Training")
        )
    _check_ranks(trainer, loader)
    inner = innermost(loader)
    # A log counts the Trainer's steps.
    inner.log_step = lambda: trainer.state.global_step
    return TrainingLoader(loader)


def evaluation_loader(trainer: Any, data: Any) -> EvaluationLoader:
    """Return the loader of an evaluation: in order, each sample once, none dropped."""
    given = data
    if not is_loader(data):
        data = _prepared(trainer, data, "Evaluation")
        data = DataLoader(
            data,
            sampler=Sequential(num_samples=len(data)),
            batch_size=trainer.args.eval_batch_size,
            **_options(trainer, data, "Evaluation"),
        )
    _check_ranks(trainer, data)
    return EvaluationLoader(data, trainer, given)


def _check_ranks(trainer: Any, loader: Any) -> None:
    sizes = (getattr(trainer, f"get_{name}_size", lambda: 1)() for name in ("tp", "cp", "sp"))
    wanted = trainer.args.world_size // math.prod(sizes)
    found = loader.peers.world_size
    if found != wanted:
        raise InvalidValueError(
            f"the loader divides its data over num_replicas={found}, but it must be {wanted}, the "
            "Trainer's ranks with data of their own; omit num_replicas, rank and peers"
        )


def _strategy(args: Any) -> str:
    """Return the order of the samples that the options ask for."""
    if getattr(args, "group_by_length", False):
        return "group_by_length"
    strategy = getattr(args, "train_sampling_strategy", "random")
    return str(getattr(strategy, "value", strategy))


def _prepared(trainer: Any, data: Any, description: str) -> Any:
    """Return a dataset without the columns that the model does not take, as the Trainer does."""
    is_table = hasattr(data, "column_names") and hasattr(data, "remove_columns")
    return trainer._remove_unused_columns(data, description=description) if is_table else data


def _options(trainer: Any, data: Any, description: str) -> dict[str, Any]:
    """Return the options of a loader that TrainingArguments give."""
    args = trainer.args
    context = getattr(args, "dataloader_multiprocessing_context", None)
    options = {
        "num_workers": args.dataloader_num_workers,
        "pin_memory": args.dataloader_pin_memory and torch.cuda.is_available(),
        "persistent_workers": args.dataloader_persistent_workers,
        "prefetch_factor": args.dataloader_prefetch_factor,
        "multiprocessing_context": context,
    }
    if is_store(data):
        return options | {"transform": _store_transform(trainer)}
    is_table = hasattr(data, "column_names") and hasattr(data, "remove_columns")
    collator = trainer.data_collator
    if not is_table:
        collator = trainer._get_collator_with_removed_columns(collator, description=description)
    return options | {"collate_fn": collator}


def _store_transform(trainer: Any) -> Callable[[Any], Any]:
    """Return what makes the model's arguments of a batch of a store."""
    collator = trainer.data_collator
    if collator is not default_data_collator and not isinstance(collator, DataCollatorWithPadding):
        raise InvalidValueError(
            f"data_collator={collator!r:.80} must be omitted with a store, whose batches are made "
            "whole; pass DataLoader(store, transform=...) instead of the store"
        )
    kept = None
    if trainer.args.remove_unused_columns:
        trainer._set_signature_columns_if_needed()
        kept = frozenset(trainer._signature_columns)
    return partial(_arguments, kept=kept)


def _arguments(batch: dict[str, Any], kept: frozenset[str] | None) -> dict[str, Any]:
    found = {name: v for name, v in batch.items() if kept is None or name in kept}
    for name in ("label", "label_ids"):
        if name in found and "labels" not in found:
            found["labels"] = found.pop(name)
    return found


def _lengths(trainer: Any, data: Any) -> Any:
    """Return the length of each sample, from a column or from the samples themselves."""
    name = getattr(trainer.args, "length_column_name", "length")
    columns = getattr(trainer.train_dataset, "column_names", None) or ()
    if name in columns:
        return trainer.train_dataset[name]
    processing = getattr(trainer, "processing_class", None)
    names = getattr(processing, "model_input_names", None) or ["input_ids"]
    try:
        return [len(data[number][names[0]]) for number in range(len(data))]
    except (KeyError, TypeError, IndexError) as error:
        raise InvalidValueError(
            f"group_by_length needs the length of each sample, but a sample has no {names[0]!r} "
            f"({error!r}); name a column with length_column_name, or pass a DataLoader with "
            "batch_sampler=BucketBatchSampler(lengths, ...) as train_dataset"
        ) from error
