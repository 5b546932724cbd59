"""Evaluation in transformers' Trainer counts every sample once, on any number of ranks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_transformers import Ids, Model, arguments, trained
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from feedline.trainers.transformers import Trainer
from forked import Forked
from processes import environment, finish, kill_job

HERE = Path(__file__).parent
PRELOAD = ("transformers.trainer", "accelerate", "feedline.torch")


def exact_loss(num_samples: int) -> float:
    ids = torch.arange(num_samples)
    with torch.no_grad():
        return float(Model()(ids, ids / num_samples)["loss"])


def on_ranks(num_ranks: int, folder: Path) -> list[dict[str, Any]]:
    """What each of several ranks finds in an evaluation."""
    job = Forked(
        [HERE / "evaluate_on_ranks.py", folder],
        server="torch",
        preload=PRELOAD,
        num_ranks=num_ranks,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        finish(job)
    finally:
        kill_job(job)
        job.close()
    paths = [folder / f"rank{rank}.json" for rank in range(num_ranks)]
    return [json.loads(path.read_text()) for path in paths]


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_every_sample_counts_once_in_order(tmp_path: Path, num_ranks: int) -> None:
    every = on_ranks(num_ranks, tmp_path)
    for found in every:
        for name, num_samples in (("few", 1), ("some", 10), ("many", 26)):
            for key in ("several", "again"):
                values = found[key]
                assert json.loads(values[f"eval_{name}_ids"]) == list(range(num_samples))
                assert values[f"eval_{name}_num_labels"] == num_samples
                loss = exact_loss(num_samples)
                assert values[f"eval_{name}_loss"] == pytest.approx(loss, rel=1e-5)
        assert found["predicted"] == list(range(26))
        assert found["loss_only"]["eval_loss"] == pytest.approx(exact_loss(26), rel=1e-5)
        assert json.loads(found["by_batch"]["eval_ids"]) == list(range(26))
        assert json.loads(found["subset"]["eval_ids"]) == list(range(1, 26, 2))
        assert found["subset"]["eval_num_labels"] == 13
        if num_ranks > 1:
            # 22 samples are padded to 24, and the loss of a batch cannot leave one out.
            assert found["padded"].startswith("rank 1 has a batch with 3 real samples of 4")


@pytest.mark.parametrize("is_persistent", [False, True])
def test_evaluation_does_not_move_the_training(tmp_path: Path, is_persistent: bool) -> None:
    options: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 3}
    if is_persistent:
        options |= {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    plain = trained(tmp_path, Ids(37))
    evaluated = trained(tmp_path, Ids(37), more={"eval_dataset": Ids(11)}, **options)
    assert evaluated.batches == plain.batches
    logs = [log for log in evaluated.state.log_history if "eval_loss" in log]
    assert len(logs) >= 6
    assert {log["eval_loss"] > 0 for log in logs} == {True}
    for loader in (evaluated._feeding, *evaluated._evaluated.values()):
        loader.close()


def test_another_trainer_of_transformers_gets_it_too(tmp_path: Path) -> None:
    class Mine(Trainer, Seq2SeqTrainer):
        """Both."""

    args = Seq2SeqTrainingArguments(**_given(tmp_path))
    trainer = Mine(model=Model(), args=args, train_dataset=Ids(37), eval_dataset=Ids(11))
    trainer.train()
    assert trainer.state.global_step == 10
    assert trainer.evaluate()["eval_loss"] > 0


def _given(folder: Path) -> dict[str, Any]:
    kept = ("output_dir", "use_cpu", "report_to", "disable_tqdm", "save_strategy")
    args = arguments(folder, num_train_epochs=1)
    given = {name: getattr(args, name) for name in kept}
    return {**given, "num_train_epochs": 1, "per_device_train_batch_size": 4}
