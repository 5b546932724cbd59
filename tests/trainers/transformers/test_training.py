"""Training in transformers' Trainer resumes exactly, with the right numbers of steps."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_transformers import Ids, Noting, Stop, arguments, trained
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback

import feedline
from feedline.errors import PlanMismatchError
from feedline.runs import audit_logs
from feedline.torch import BucketBatchSampler, DataLoader
from feedline.trainers.transformers import RELIED_ON, Trainer, check_release


def once(num_samples: int) -> list[int]:
    return list(range(num_samples))


def ids_of(trainers: list[Noting], epoch: int) -> list[int]:
    return sorted(one for trainer in trainers for one in trainer.seen(epoch))


def steps_of(trainers: list[Noting]) -> list[int]:
    """The number of batches in each step, over all runs."""
    return list(Counter(step for one in trainers for _, step, _ in one.batches).values())


@pytest.mark.parametrize("name", RELIED_ON)
def test_what_we_rely_on_exists(name: str) -> None:
    assert hasattr(transformers.Trainer, name), f"transformers {transformers.__version__}: {name}"


def test_a_release_without_it_is_named() -> None:
    with pytest.raises(ImportError, match=r"transformers 9\.8\.7 has no set_initial_training"):
        check_release(type("Other", (), {}), "9.8.7")
    with pytest.raises(ImportError, match=r"transformers 4\.51\.3 must be 4\.52 or later"):
        check_release(transformers.Trainer, "4.51.3")
    halved = type("Halved", (transformers.Trainer,), {"_run_epoch": None})
    if not hasattr(transformers.Trainer, "_init_training_state"):
        with pytest.raises(ImportError, match="has no _init_training_state"):
            check_release(halved)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resumed_run_is_the_run_that_was_not_stopped(tmp_path: Path, num_workers: int) -> None:
    whole = trained(tmp_path / "whole", Ids(37), dataloader_num_workers=num_workers)
    first = trained(tmp_path / "cut", Ids(37), stop=6, dataloader_num_workers=num_workers)
    data = Ids(37)
    second = trained(tmp_path / "cut", data, resume=True, dataloader_num_workers=num_workers)
    assert first.batches + second.batches == whole.batches
    assert first.note.epochs + second.note.epochs == whole.note.epochs
    assert second.state.max_steps == whole.state.max_steps == whole.state.global_step == 20
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, second.model.state_dict()[name])
    if not num_workers:
        assert data.num_reads == 2 * 37 - 6 * 4, "it was replayed"


def test_every_stop_resumes_with_other_batches_and_groups(tmp_path: Path) -> None:
    for stop in range(1, 8):
        first = trained(tmp_path / f"{stop}", Ids(37), stop=stop, gradient_accumulation_steps=3)
        options: dict[str, Any] = {
            "gradient_accumulation_steps": 2,
            "per_device_train_batch_size": 5,
        }
        second = trained(tmp_path / f"{stop}", Ids(37), resume=True, **options)
        assert [ids_of([first, second], epoch) for epoch in (0, 1)] == [once(37)] * 2
        assert second.state.global_step == second.state.max_steps
        epochs = first.note.epochs + second.note.epochs
        assert epochs == sorted(set(epochs))
        assert epochs[-1] == 2.0


def test_a_short_last_group_of_batches_is_a_step(tmp_path: Path) -> None:
    trainer = trained(tmp_path, Ids(37), gradient_accumulation_steps=4)
    assert steps_of([trainer]) == [4, 4, 2, 4, 4, 2]
    first = trained(tmp_path / "cut", Ids(37), stop=1, gradient_accumulation_steps=4)
    second = trained(tmp_path / "cut", Ids(37), resume=True, gradient_accumulation_steps=4)
    assert steps_of([first, second]) == [4, 4, 2, 4, 4, 2]


def test_a_stop_within_a_group_loses_nothing(tmp_path: Path) -> None:
    class StopWithin(TrainerCallback):
        def on_substep_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if state.global_step == 1:
                control.should_save = control.should_training_stop = True

    options = {"gradient_accumulation_steps": 3}
    first = trained(tmp_path, Ids(37), callbacks=(StopWithin(),), **options)
    assert first.state.global_step == 1
    assert len(first.batches) == 4
    second = trained(tmp_path, Ids(37), resume=True, **options)
    # The fourth batch was in no step, so it comes again.
    assert first.batches[3:] == second.batches[:1]
    first.batches.pop()
    assert [ids_of([first, second], epoch) for epoch in (0, 1)] == [once(37)] * 2
    assert second.state.global_step == second.state.max_steps == 8


def test_checkpoints_at_the_end_of_epochs_resume_with_the_next(tmp_path: Path) -> None:
    first = trained(tmp_path, Ids(37), save_strategy="epoch", num_train_epochs=1)
    second = trained(tmp_path, Ids(37), resume=True, num_train_epochs=3)
    assert [ids_of([first], 0), ids_of([second], 1), ids_of([second], 2)] == [once(37)] * 3
    assert not second.seen(0)
    third = trained(tmp_path, Ids(37), resume=True, num_train_epochs=1)
    assert not third.batches


def test_max_steps_ends_within_an_epoch_and_later_elsewhere(tmp_path: Path) -> None:
    first = trained(tmp_path, Ids(37), max_steps=13, save_strategy="steps", save_steps=13)
    assert first.state.global_step == 13
    second = trained(tmp_path, Ids(37), resume=True, max_steps=27, per_device_train_batch_size=8)
    assert second.state.global_step == 27
    assert [ids_of([first, second], epoch) for epoch in (0, 1, 2)] == [once(37)] * 3
    finished = trained(tmp_path / "none", Ids(37), max_steps=3, save_strategy="steps", save_steps=3)
    assert finished.state.global_step == 3
    assert not trained(tmp_path / "none", Ids(37), resume=True, max_steps=3).batches


@pytest.mark.parametrize("stop", [4, 11, 13])
def test_part_of_an_epoch_is_as_many_steps_when_resumed(tmp_path: Path, stop: int) -> None:
    whole = trained(tmp_path / "whole", Ids(37), num_train_epochs=1.5)
    assert whole.state.global_step == 15
    first = trained(tmp_path / "cut", Ids(37), num_train_epochs=1.5, stop=stop)
    second = trained(tmp_path / "cut", Ids(37), num_train_epochs=1.5, resume=True)
    assert first.batches + second.batches == whole.batches


def test_a_rest_that_makes_no_batch_does_not_end_the_run(tmp_path: Path) -> None:
    options = {"dataloader_drop_last": True}
    first = trained(tmp_path, Ids(37), stop=8, **options)
    second = trained(tmp_path, Ids(37), resume=True, per_device_train_batch_size=8, **options)
    assert not second.seen(0)
    assert len(second.seen(1)) == 32
    assert first.seen(0) == sorted(set(first.seen(0)))


def test_a_skip_of_all_that_is_left_is_no_epoch_more(tmp_path: Path) -> None:
    first, second = (DataLoader(Ids(37), batch_size=4, shuffle=True, seed=5) for _ in range(2))
    assert trained(tmp_path, first, stop=7).state.global_step == 7
    second.skip_batches(3, on_load=True)
    trainer = trained(tmp_path, second, resume=True)
    assert {epoch for epoch, _, _ in trainer.batches} == {1}
    assert trainer.seen(1) == once(37)
    assert trainer.state.global_step == 7 + 10


def test_an_epoch_that_is_stopped_early_is_followed_by_the_next(tmp_path: Path) -> None:
    class StopEpoch(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            control.should_epoch_stop = state.global_step == 3

    trainer = trained(tmp_path, Ids(37), callbacks=(StopEpoch(),))
    assert (len(trainer.seen(0)), trainer.seen(1)) == (12, once(37))


def test_callbacks_restored_from_a_checkpoint_do_not_lose_the_state(tmp_path: Path) -> None:
    first = trained(tmp_path, Ids(37), stop=3)
    options = {"restore_callback_states_from_checkpoint": True}
    second = trained(tmp_path, Ids(37), resume=True, stop=7, **options)
    third = trained(tmp_path, Ids(37), resume=True, **options)
    assert [ids_of([first, second, third], epoch) for epoch in (0, 1)] == [once(37)] * 2


def test_training_again_starts_anew(tmp_path: Path) -> None:
    loader = DataLoader(Ids(37), batch_size=4, shuffle=True, seed=5)
    for data in (Ids(37), loader):
        trainer = trained(tmp_path, data)
        before, trainer.batches = trainer.batches, []
        trainer.train()
        assert trainer.batches == before


def test_a_loader_and_a_store_are_data_too(tmp_path: Path) -> None:
    columns = {"ids": np.arange(37), "label": np.arange(37, dtype=np.float32), "more": np.ones(37)}
    feedline.pack(columns, tmp_path / "store", chunk_samples=10)
    store = feedline.open(tmp_path / "store")
    kept = {"transform": lambda batch: {"ids": batch["ids"], "labels": batch["label"]}}
    for number, make in enumerate(
        (
            lambda: store,
            lambda: DataLoader(store, batch_size=4, shuffle=True, seed=3, **kept),
            lambda: DataLoader(Ids(37), batch_size=4, sampler=feedline.Subset(range(0, 37, 2))),
        )
    ):
        folder = tmp_path / f"{number}"
        first = trained(folder, make(), stop=4)
        second = trained(folder, make(), resume=True)
        wanted = list(range(0, 37, 2)) if number == 2 else once(37)
        assert [ids_of([first, second], epoch) for epoch in (0, 1)] == [wanted] * 2


def test_other_data_is_not_resumed_into(tmp_path: Path) -> None:
    trained(tmp_path, Ids(37), stop=4)
    with pytest.raises(PlanMismatchError, match="num_samples"):
        trained(tmp_path, Ids(38), resume=True)
    with pytest.raises(PlanMismatchError, match="seed"):
        trained(tmp_path, Ids(37), resume=True, data_seed=6)


def test_the_state_is_in_the_checkpoint_of_the_trainer(tmp_path: Path) -> None:
    trained(tmp_path, Ids(37), stop=4)
    path = tmp_path / "checkpoint-4" / "trainer_state.json"
    saved = json.loads(path.read_text())["stateful_callbacks"]["FeedlineState"]
    loader = DataLoader(Ids(37), batch_size=4, sampler=feedline.Shuffled(num_samples=37, seed=5))
    loader.load_state_dict(saved["attributes"]["saved"]["loader"])
    assert loader.num_batches_left() == 6


def test_a_batch_size_that_is_found_by_failing_starts_anew(tmp_path: Path) -> None:
    class Small(Noting):
        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if len(inputs["ids"]) > 4:
                raise RuntimeError("CUDA out of memory. Tried to allocate 1 GiB")
            return super().training_step(model, inputs, *args, **kwargs)

    options = {"auto_find_batch_size": True, "per_device_train_batch_size": 8}
    trainer = trained(tmp_path, Ids(37), kind=Small, **options)
    assert [trainer.seen(epoch) for epoch in (0, 1)] == [once(37)] * 2
    assert max(len(ids) for _, _, ids in trainer.batches) <= 4


def test_an_audit_finds_every_sample_of_a_logged_run(tmp_path: Path) -> None:
    def make() -> Any:
        return DataLoader(Ids(40), batch_size=4, shuffle=True, seed=5, log=tmp_path / "logs")

    for stop, resume in ((7, False), (None, True)):
        loader = make()
        trained(tmp_path / "run", loader, stop=stop, resume=resume)
        loader.close()
    result = audit_logs([tmp_path / "logs"])
    assert result.ok, result


# Buckets.


class Texts(Ids):
    """Samples of many lengths."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        length = 2 + (index * 7) % 61
        sample = super().__getitem__(index)
        return {**sample, "input_ids": [index] * length}


def by_length() -> dict[str, Any]:
    """How a release is told to group by length."""
    is_new = hasattr(transformers.TrainingArguments, "train_sampling_strategy")
    return {"train_sampling_strategy": "group_by_length"} if is_new else {"group_by_length": True}


def test_group_by_length_makes_our_buckets(tmp_path: Path) -> None:
    first = trained(tmp_path, Texts(300), stop=20, **by_length())
    options: dict[str, Any] = {"per_device_train_batch_size": 7, **by_length()}
    second = trained(tmp_path, Texts(300), resume=True, **options)
    assert [ids_of([first, second], epoch) for epoch in (0, 1)] == [once(300)] * 2
    spread = [
        max(lengths) - min(lengths)
        for _, _, ids in first.batches + second.batches
        if (lengths := [2 + (one * 7) % 61 for one in ids])
    ]
    # In three buckets of a third of all lengths each.
    assert max(spread) <= 61 // 3 + 1


def test_a_token_budget_goes_in_as_a_loader(tmp_path: Path) -> None:
    def make() -> Any:
        lengths = [2 + (index * 7) % 61 for index in range(300)]
        sampler = BucketBatchSampler(lengths, token_budget=200, num_buckets=4, seed=1)
        return DataLoader(Ids(300), batch_sampler=sampler)

    first = trained(tmp_path, make(), stop=20)
    second = trained(tmp_path, make(), resume=True)
    assert [ids_of([first, second], epoch) for epoch in (0, 1)] == [once(300)] * 2
    assert second.state.global_step == second.state.max_steps


def test_a_model_of_transformers_trains_and_resumes(tmp_path: Path) -> None:
    class Tokens(Ids):
        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            tokens = torch.arange(index, index + 8) % 32
            return {"input_ids": tokens, "labels": tokens}

    def model() -> GPT2LMHeadModel:
        torch.manual_seed(0)
        sizes = {"n_layer": 1, "n_head": 1, "n_embd": 8, "vocab_size": 32, "n_positions": 16}
        return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))

    def run(folder: Path, stop: int | None, *, resume: bool) -> Trainer:
        options = {"gradient_accumulation_steps": 2, "eval_strategy": "epoch"}
        trainer = Trainer(
            model=model(),
            args=arguments(folder, **options),
            train_dataset=Tokens(37),
            eval_dataset=Tokens(11),
            callbacks=[Stop(stop)],
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = run(tmp_path / "whole", None, resume=False)
    run(tmp_path / "cut", 3, resume=False)
    second = run(tmp_path / "cut", None, resume=True)
    assert second.state.global_step == whole.state.global_step == 10
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, second.model.state_dict()[name]), name
    evaluated = [log["eval_loss"] for log in second.state.log_history if "eval_loss" in log]
    assert evaluated == [log["eval_loss"] for log in whole.state.log_history if "eval_loss" in log]


@pytest.mark.parametrize("has_lengths", [False, True])
def test_a_dataset_of_hugging_face_trains_and_resumes(tmp_path: Path, has_lengths: bool) -> None:
    datasets = pytest.importorskip("datasets")
    texts = [[index] * (1 + index % 50) for index in range(300)]
    columns = {"ids": list(range(300)), "labels": [0.5] * 300, "texts": texts}
    columns["length"] = [len(text) for text in texts]
    data = datasets.Dataset.from_dict(columns)
    options = by_length() if has_lengths else {}
    first = trained(tmp_path, data, stop=20, **options)
    second = trained(tmp_path, data, resume=True, dataloader_num_workers=2, **options)
    assert [ids_of([first, second], epoch) for epoch in (0, 1)] == [once(300)] * 2
    if has_lengths:
        lengths = [[1 + one % 50 for one in ids] for _, _, ids in first.batches]
        assert max(max(some) - min(some) for some in lengths) <= 50 // 3 + 1
