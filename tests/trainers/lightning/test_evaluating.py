"""`fit`, `validate`, `test` and `predict` with Lightning's defaults, and what they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning_models import Count, Model, quiet_trainer
from torch.utils.data import DistributedSampler as TorchSampler

import feedline
from feedline.errors import DesyncError, InvalidValueError
from feedline.torch import BatchPlanSampler, DataLoader, SampleSampler, to_device
from feedline.trainers.lightning import FeedlineCallback
from forked import forked_ranks

HERE = Path(__file__).parent
IDS = torch.arange(21)
STAGES = ("fit", "validate", "test", "predict")


def test_two_processes_get_every_sample_once_with_the_defaults() -> None:
    with forked_ranks(HERE / "evaluate_job.py", 2, preload=["lightning.pytorch"]) as job:
        output, _ = job.communicate(timeout=240)
    assert job.returncode == 0, output
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    # Releases before 2.3 do not predict with a batch sampler.
    is_old = tuple(map(int, lightning.__version__.split(".")[:2])) < (2, 3)
    assert len(found) == (18 if is_old else 20)
    for name, ranks in found.items():
        stage = name.split()[0]
        if stage == "mean":
            assert ranks == [20.0, 20.0], name
        elif stage == "fit":
            # One sample comes twice: 41 do not divide evenly.
            assert sorted({*ranks[0], *ranks[1]}) == list(range(41)), name
            assert len(ranks[0]) == len(ranks[1]) == 21, name
        else:
            assert sorted(ranks[0] + ranks[1]) == list(range(41)), name


class Writing(Model):
    """Writes what each rank was trained on."""

    folder: Path

    def on_train_end(self) -> None:
        (self.folder / f"{self.global_rank}.json").write_text(json.dumps(self.ids(0)))


def test_processes_that_lightning_spawns_divide_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The processes leave an empty folder there.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    model = Writing()
    model.folder = tmp_path
    trainer = quiet_trainer([FeedlineCallback()], strategy="ddp_spawn", devices=2, max_epochs=1)
    trainer.fit(model, DataLoader(IDS, batch_size=4, shuffle=True, tail="drop"))
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [len(ids) for ids in ranks] == [10, 10]
    assert len({*ranks[0], *ranks[1]}) == 20


def test_samplers_are_distributed_samplers_to_torch() -> None:
    loader = DataLoader(IDS, batch_size=4)
    assert isinstance(loader.sampler, SampleSampler)
    assert isinstance(loader.sampler, TorchSampler)


class Writer(BasePredictionWriter):
    """Keeps the indices that Lightning says a batch has."""

    def __init__(self) -> None:
        super().__init__("batch")
        self.indices: list[int] = []
        self.values: list[int] = []

    def write_on_batch_end(
        self, trainer: Any, pl_module: Any, prediction: Any, batch_indices: Any, *_: Any
    ) -> None:
        self.indices += batch_indices
        self.values += prediction.tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_predict_knows_the_indices_of_each_batch(num_workers: int) -> None:
    writer = Writer()
    loader = DataLoader(IDS, batch_size=4, shuffle=True, seed=3, num_workers=num_workers)
    quiet_trainer([writer]).predict(Model(), loader, return_predictions=False)
    assert writer.indices == writer.values
    assert sorted(writer.indices) == list(range(21))


def test_predict_keeps_all_that_the_loader_was_given(tmp_path: Path) -> None:
    feedline.pack({"x": IDS.numpy()}, tmp_path / "store")
    store = feedline.open(tmp_path / "store")

    def doubled(batch: dict[str, Any]) -> Any:
        return batch["x"] * 2

    loader = DataLoader(store, batch_size=4, transform=doubled, with_mask=True)
    found = quiet_trainer().predict(Model(), loader)
    assert torch.cat([values for values, _ in found or []]).tolist() == (IDS * 2).tolist()

    class Hooked(Model):
        def predict_dataloader(self) -> Any:
            return DataLoader(store, batch_size=4, transform=doubled, shuffle=True, seed=2)

    found = quiet_trainer().predict(Hooked())
    assert sorted(torch.cat(list(found or [])).tolist()) == (IDS * 2).tolist()


def test_predict_keeps_samples_that_are_not_batched() -> None:
    found = quiet_trainer().predict(Model(), DataLoader(IDS, batch_size=None))
    assert [int(one) for one in found or []] == IDS.tolist()


def test_predict_reads_iterables() -> None:
    class Hooked(Model):
        def predict_dataloader(self) -> Any:
            return DataLoader(Count(), batch_size=4)

    for model, loader in ((Model(), DataLoader(Count(), batch_size=4)), (Hooked(), None)):
        found = quiet_trainer([FeedlineCallback()]).predict(model, loader)
        assert torch.cat(list(found or [])).tolist() == list(range(96))


def test_loaders_on_a_device_are_evaluated() -> None:
    model = Model()
    quiet_trainer([FeedlineCallback()]).validate(
        model, to_device(DataLoader(IDS, batch_size=4), "cpu"), verbose=False
    )
    assert model.seen == IDS.tolist()


@pytest.mark.parametrize("stage", STAGES[1:])
def test_an_evaluation_that_would_count_padding_is_refused(stage: str) -> None:
    def loader(**options: Any) -> DataLoader[Any]:
        return DataLoader(IDS, batch_size=4, num_replicas=2, rank=1, **options)

    def run(loader: Any, callback: FeedlineCallback) -> None:
        getattr(quiet_trainer([callback]), stage)(Model(), loader)

    with pytest.raises(InvalidValueError, match=r"1 sample must come twice.*with_mask=True"):
        run(loader(), FeedlineCallback())
    run(loader(with_mask=True), FeedlineCallback())
    run(loader(), FeedlineCallback(allow_padding=True))
    run(loader(tail="drop"), FeedlineCallback())


def test_predictions_that_come_twice_are_told_of() -> None:
    loader = DataLoader(IDS, batch_size=4, num_replicas=2, rank=1)
    with pytest.warns(RuntimeWarning, match="1 prediction more than samples"):
        quiet_trainer().predict(Model(), loader)


def test_a_loader_for_other_ranks_than_lightnings_is_refused() -> None:
    class Others:
        rank, world_size = 1, 2

        def maximum(self, value: int) -> int:
            return value

        def gather(self, value: Any, timeout: float) -> list[Any]:
            return [value] * 2

    loader = DataLoader(IDS, batch_size=4, peers=Others())
    with pytest.raises(DesyncError, match=r"rank 1 of 2, but Lightning divides .* over 1 rank,"):
        quiet_trainer([FeedlineCallback()], max_epochs=1).fit(Model(), loader)


def test_overfitting_is_refused_rather_than_resampled() -> None:
    with pytest.raises(InvalidValueError, match="must be a plan or one of Feedline's samplers"):
        quiet_trainer(overfit_batches=2, max_epochs=1).fit(Model(), DataLoader(IDS, batch_size=4))


def test_a_batch_sampler_trains() -> None:
    plan = feedline.SamplePlan(order=feedline.Shuffled(num_samples=21, seed=1), tail="even")
    loader = DataLoader(IDS, batch_sampler=BatchPlanSampler(plan, batch_size=4))
    model = Model()
    quiet_trainer(max_epochs=2).fit(model, loader)
    assert sorted(model.ids(0)) == sorted(model.ids(1)) == IDS.tolist()
    assert model.ids(0) != model.ids(1)


def test_import_of_torch_does_not_import_lightning() -> None:
    code = "import sys, feedline.torch; sys.exit('lightning' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
