"""What cannot be exact in transformers' Trainer is refused, with what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tiny_transformers import Ids, Model, Noting, Stop, arguments, trained
from torch.utils.data import IterableDataset, SequentialSampler

import feedline
from feedline.errors import CursorFormatError, DesyncError, InvalidValueError
from feedline.torch import DataLoader
from feedline.trainers.transformers import Trainer


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(Ids(8)[index] for index in range(8))


def has(option: str) -> bool:
    return option in transformers.TrainingArguments.__dataclass_fields__


def made(folder: Path, data: Any = None, **options: Any) -> Trainer:
    data = Ids(37) if data is None else data
    return Trainer(model=Model(), args=arguments(folder, **options), train_dataset=data)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches=True must be False"),
        ({"accelerator_config": {"split_batches": True}}, "split_batches=True must be False"),
        ({"include_tokens_per_second": True}, "use include_num_input_tokens_seen"),
        ({"use_legacy_prediction_loop": True}, "use_legacy_prediction_loop=True must be False"),
        ({"eval_use_gather_object": True}, "objects are not divided into samples"),
        ({"dataloader_in_order": False}, "dataloader_in_order=False must be True"),
        ({"train_sampling_strategy": "batch_rebalance"}, "BucketBatchSampler"),
    ],
)
def test_options_are_refused_at_once(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    if not all(map(has, options)):
        pytest.skip(f"transformers {transformers.__version__} has no {', '.join(options)}")
    with pytest.raises(InvalidValueError, match=says):
        made(tmp_path, **options)


@pytest.mark.parametrize(
    ("loader", "options", "says"),
    [
        ({"batch_size": 6}, {}, "set per_device_train_batch_size=6"),
        ({"batch_size": 4}, {"auto_find_batch_size": True}, "auto_find_batch_size=True must be"),
        (
            {"batch_size": 4},
            {"train_sampling_strategy": "group_by_length"},
            "group_by_length must not be set with a loader",
        ),
        ({"batch_size": 4}, {"group_by_length": True}, "must not be set with a loader"),
    ],
)
def test_loaders_that_do_not_fit_are_refused_at_once(
    tmp_path: Path, loader: dict[str, Any], options: dict[str, Any], says: str
) -> None:
    if not all(map(has, options)):
        pytest.skip(f"transformers {transformers.__version__} has no {', '.join(options)}")
    with pytest.raises(InvalidValueError, match=says):
        made(tmp_path, DataLoader(Ids(37), **loader), **options)


def test_a_stream_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="train_dataset=Stream must have samples by number"):
        made(tmp_path, Stream(), max_steps=3)


def test_a_dataset_that_divides_its_samples_is_refused_outside_of_a_loader(tmp_path: Path) -> None:
    feedline.pack({"ids": np.arange(20)}, tmp_path / "data", chunk_samples=10)
    data = DataLoader(feedline.open(tmp_path / "data"), batch_size=4).dataset
    with pytest.raises(InvalidValueError, match="FeedDataset must be in a loader"):
        made(tmp_path).evaluate(data)


def test_a_loader_for_other_ranks_is_refused(tmp_path: Path) -> None:
    trainer = made(tmp_path, DataLoader(Ids(37), batch_size=4, num_replicas=2, rank=0))
    with pytest.raises(InvalidValueError, match="num_replicas=2, but it must be 1"):
        trainer.train()


def test_a_loader_at_a_loaded_state_is_refused(tmp_path: Path) -> None:
    loader = DataLoader(Ids(37), batch_size=4)
    next(iter(loader))
    resumed = DataLoader(Ids(37), batch_size=4)
    resumed.load_state_dict(loader.state_dict())
    trainer = made(tmp_path, resumed)
    with pytest.raises(InvalidValueError, match="use resume_from_checkpoint"):
        trainer.train()


def test_a_loader_of_a_method_that_is_overridden_is_refused(tmp_path: Path) -> None:
    class Mine(Noting):
        def get_train_dataloader(self) -> Any:
            return DataLoader(Ids(37), batch_size=4)

    with pytest.raises(InvalidValueError, match="pass one of Feedline's loaders as train_dataset"):
        trained(tmp_path, Ids(37), kind=Mine)


def test_a_trainer_that_chooses_its_data_is_refused_at_once(tmp_path: Path) -> None:
    class Choosing(transformers.Trainer):
        def _get_train_sampler(self, *args: Any) -> Any:
            return SequentialSampler(Ids(8))

    class Both(Trainer, Choosing):
        pass

    with pytest.raises(InvalidValueError, match=r"Choosing\._get_train_sampler would be ignored"):
        Both(model=Model(), args=arguments(tmp_path), train_dataset=Ids(8))


def test_checkpoints_of_others_are_refused(tmp_path: Path) -> None:
    other = transformers.Trainer(
        model=Model(), args=arguments(tmp_path), train_dataset=Ids(37), callbacks=[Stop(3)]
    )
    other.train()
    with pytest.raises(CursorFormatError, match="another Trainer has written it"):
        made(tmp_path).train(resume_from_checkpoint=True)
    with pytest.raises(CursorFormatError, match=r"must be a folder with a trainer_state\.json"):
        made(tmp_path).train(resume_from_checkpoint=str(tmp_path))
    with pytest.raises(InvalidValueError, match="must contain a checkpoint to resume from"):
        made(tmp_path / "empty").train(resume_from_checkpoint=True)


def test_lengths_that_nobody_knows_are_refused(tmp_path: Path) -> None:
    name = "train_sampling_strategy" if has("train_sampling_strategy") else "group_by_length"
    value: Any = "group_by_length" if name == "train_sampling_strategy" else True
    with pytest.raises(InvalidValueError, match="a sample has no 'input_ids'"):
        made(tmp_path, **{name: value}).train()


def test_an_epoch_that_ends_with_batches_left_is_an_error(tmp_path: Path) -> None:
    class Short(Noting):
        """A Trainer of a release that goes by other numbers."""

        def get_batch_samples(self, *args: Any) -> Any:
            batches, num_items = super().get_batch_samples(*args)
            return (batches if self.state.global_step < 5 else []), num_items

    with pytest.raises(DesyncError, match=rf"transformers {transformers.__version__} ended epoch"):
        trained(tmp_path, Ids(37), kind=Short)


def test_an_output_without_a_row_for_each_sample_is_refused(tmp_path: Path) -> None:
    class Summing(Model):
        def forward(self, ids: Any, labels: Any) -> Any:
            found = super().forward(ids, labels)
            return {**found, "logits": found["logits"].sum(dim=0)}

    trainer = Trainer(
        model=Summing(), args=arguments(tmp_path), compute_metrics=lambda prediction: {}
    )
    with pytest.raises(InvalidValueError, match="must have 4 rows, one for each sample"):
        trainer.evaluate(Ids(10))
