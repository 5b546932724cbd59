"""Loaders in accelerate: passed on, placed, saved and loaded; what cannot be exact is refused."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate
import numpy as np
import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from accelerate import checkpointing as their_checkpoints
from accelerate.data_loader import prepare_data_loader
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import DataLoader as TorchLoader

import feedline
from feedline.errors import FeedlineError, InvalidValueError, MissingDataError
from feedline.plan import SamplePlan, Sequential
from feedline.torch import BatchPlanSampler, DataLoader, SampleSampler, StepScheduler
from feedline.torch.in_accelerate import DIVIDERS
from feedline.trainers.accelerate import PaddingGathered, Placed, gather_for_metrics
from forked import forked_ranks
from iterable_data import Counting
from processes import finish

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    """Forget the shared state of accelerate."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def an_accelerator(num_steps: int = 1, **config: Any) -> Accelerator:
    return Accelerator(
        cpu=True,
        gradient_accumulation_steps=num_steps,
        dataloader_config=DataLoaderConfiguration(**config),
    )


def a_loader(num_samples: int = 20, **options: Any) -> DataLoader[Any]:
    options = {"batch_size": 4, "shuffle": True, "seed": 3, **options}
    return DataLoader(torch.arange(num_samples), **options)


def ids_of(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def on_ranks(num_ranks: int, *arguments: object) -> dict[str, Any]:
    """Return what the job of several ranks says."""
    job = forked_ranks(
        HERE / "ranks_job.py", num_ranks, *map(str, arguments), preload=["accelerate"]
    )
    with job as ranks:
        told: dict[str, Any] = json.loads(finish(ranks).strip().splitlines()[-1])
    return told


def test_what_we_rely_on_is_there() -> None:
    asked = inspect.getsource(Accelerator.prepare_data_loader)
    saved = inspect.getsource(their_checkpoints.save_accelerator_state)
    loaded = inspect.getsource(their_checkpoints.load_accelerator_state)
    skipped = inspect.getsource(accelerate.data_loader.skip_first_batches)
    kwargs = accelerate.data_loader._PYTORCH_DATALOADER_KWARGS
    there = {
        "prepare_data_loader asks for _is_accelerate_prepared": "_is_accelerate_prepared" in asked,
        "prepare_data_loader has device_placement": "device_placement" in asked,
        "save_state saves loaders with use_stateful_dataloader": "use_stateful_dataloader" in saved,
        "save_state writes dl_state_dict.bin": "dl_state_dict.bin" in saved,
        "load_state loads loaders with use_stateful_dataloader": "use_stateful_dataloader"
        in loaded,
        "load_state reads dl_state_dict.bin": "dl_state_dict.bin" in loaded,
        "skip_first_batches copies arguments": "_PYTORCH_DATALOADER_KWARGS" in skipped,
        "multiprocessing_context is one of them": "multiprocessing_context" in kwargs,
        "gather_for_metrics asks for end_of_dataloader": "gradient_state.end_of_dataloader"
        in inspect.getsource(Accelerator.gather_for_metrics),
        "GradientState takes loaders": hasattr(GradientState, "_add_dataloader")
        and hasattr(GradientState, "_remove_dataloader"),
        "an accelerator has its loaders and step": {"_dataloaders", "step"}
        <= vars(an_accelerator()).keys(),
        "it divides batches in classes of these names": all(
            hasattr(accelerate.data_loader, name) for name in DIVIDERS
        ),
        "it has a hook before load_state": hasattr(Accelerator, "register_load_state_pre_hook"),
    }
    missing = [name for name, is_there in there.items() if not is_there]
    assert not missing, f"accelerate {accelerate.__version__} is otherwise: {missing}"


def test_prepare_returns_the_loader_itself() -> None:
    accelerator, loader = an_accelerator(), a_loader()
    model = torch.nn.Linear(1, 1)
    _, prepared = accelerator.prepare(model, loader)
    assert prepared is loader
    assert ids_of(prepared) == ids_of(a_loader())
    assert accelerator.prepare_data_loader(loader) is loader
    assert accelerator._dataloaders == [loader]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"dispatch_batches": True}, "dispatch_batches=True must be False"),
        ({"split_batches": True}, "batch_size // accelerator.num_processes"),
        ({"even_batches": False}, "tail='pad' may repeat samples"),
        ({"data_seed": 7}, "pass seed=7 to the loader"),
    ],
)
def test_settings_that_would_have_no_effect_are_refused(config: dict[str, Any], says: str) -> None:
    if not set(config) <= set(inspect.signature(DataLoaderConfiguration).parameters):
        pytest.skip(f"accelerate {accelerate.__version__} has no {config}")
    with pytest.raises(InvalidValueError, match=says.replace("(", r"\(")):
        an_accelerator(**config).prepare(a_loader())
    # The same on several ranks, whose error comes before any batch.
    assert says in on_ranks(2, "refused", json.dumps(config))["refused"]


@pytest.mark.parametrize("tail", ["drop", "exact"])
def test_uneven_batches_are_no_matter_where_nothing_is_padded(tail: str) -> None:
    loader = an_accelerator(even_batches=False).prepare(a_loader(tail=tail))
    assert len(ids_of(loader)) == 5


def test_an_older_accelerate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerate, "__version__", "0.33.0")
    with pytest.raises(InvalidValueError, match=r"accelerate 0\.33\.0 must be at least 0\.34"):
        an_accelerator().prepare(a_loader())


def test_a_loader_of_other_ranks_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="num_replicas=2 of the loader must be 1"):
        an_accelerator().prepare(a_loader(num_replicas=2, rank=0))


@pytest.mark.parametrize("module", [accelerate, None], ids=["function", "method"])
@pytest.mark.parametrize("data", ["samples", "store"])
def test_skipping_batches_is_refused(module: Any, data: str, tmp_path: Path) -> None:
    accelerator, loader = an_accelerator(), a_loader()
    if data == "store":
        feedline.pack({"x": np.arange(20)}, tmp_path / "data")
        loader = DataLoader(feedline.open(tmp_path / "data"), batch_size=4)
    loader = accelerator.prepare(loader)
    skip = accelerator.skip_first_batches if module is None else skip_first_batches
    with pytest.raises(InvalidValueError, match="load_state"):
        skip(loader, 2)


@pytest.mark.parametrize("kind", ["samples", "batches", "dataset"])
def test_samples_that_are_divided_already_are_not_divided_again(kind: str, tmp_path: Path) -> None:
    """By accelerate, in torch's own loader."""
    feedline.pack({"x": np.arange(20)}, tmp_path / "data")
    an_accelerator()

    def prepared(num_replicas: int) -> Any:
        ranks = {"num_replicas": num_replicas, "rank": 0}
        ids, plan = torch.arange(20), SamplePlan(order=Sequential(num_samples=20))
        if kind == "samples":
            loader = TorchLoader(ids, 4, sampler=SampleSampler(plan, **ranks))
        elif kind == "batches":
            sampler = BatchPlanSampler(plan, batch_size=4, **ranks)
            loader = TorchLoader(ids, batch_sampler=sampler)
        else:
            ours = DataLoader(feedline.open(tmp_path / "data"), batch_size=4, **ranks)
            loader = TorchLoader(ours.dataset, batch_size=None)
        # Batches of such a dataset cannot be divided; they are sent from the first process.
        return prepare_data_loader(
            loader,
            num_processes=2,
            process_index=0,
            put_on_device=True,
            even_batches=kind != "batches",
            dispatch_batches=kind == "dataset",
        )

    with pytest.raises(InvalidValueError, match=r"divides the batches .* once more"):
        list(prepared(2))
    assert list(prepared(1))


def test_batches_are_placed_as_accelerate_is_told() -> None:
    accelerator = an_accelerator()
    placed, left = accelerator.prepare(a_loader(), a_loader(), device_placement=[True, False])
    assert placed.around == Placed(torch.device("cpu"), non_blocking=False)
    assert left.around == Placed(None, non_blocking=False)
    off = Accelerator(cpu=True, device_placement=False).prepare(a_loader())
    assert off.around.device is None
    placed.around = Placed(torch.device("meta"), non_blocking=False)
    assert {batch.device.type for batch in placed} == {"meta"}
    assert {batch.device.type for batch in left} == {"cpu"}


def test_copies_of_a_prepared_loader_are_placed_too() -> None:
    loader = an_accelerator().prepare(a_loader())
    next(iter(loader))
    for other in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert other.around == loader.around
        assert len(ids_of(other)) == 4


def syncs_of(accelerator: Accelerator, loader: Any) -> list[bool]:
    """Return after which batches the optimizer steps."""
    model = torch.nn.Linear(1, 1)
    found = []
    for _ in loader:
        with accelerator.accumulate(model):
            found.append(accelerator.sync_gradients)
    return found


def test_gradients_are_due_on_the_last_batch_of_every_epoch() -> None:
    accelerator = an_accelerator(2)
    loader = accelerator.prepare(a_loader())
    for _ in range(2):
        assert syncs_of(accelerator, loader) == [False, True, False, True, True]
    assert accelerator.gradient_state.in_dataloader is False


def test_gradients_are_due_on_the_last_batch_of_a_resumed_epoch(tmp_path: Path) -> None:
    accelerator = an_accelerator(2)
    loader = accelerator.prepare(a_loader())
    for number, _ in enumerate(loader):
        if number == 1:
            accelerator.save_state(str(tmp_path))
            break
    other = an_accelerator(2)
    # Three batches of four samples are left, or six of two.
    for batch_size, due in ((4, [False, True, True]), (2, [False, True] * 3)):
        resumed = other.prepare(a_loader(batch_size=batch_size))
        other._dataloaders = [resumed]
        other.load_state(str(tmp_path))
        assert syncs_of(other, resumed) == due


def test_an_evaluation_inside_of_an_epoch_does_not_move_its_end() -> None:
    accelerator = an_accelerator(4)
    train, evaluation = accelerator.prepare(a_loader(), a_loader(12))
    found = []
    for number, _ in enumerate(train):
        for _ in evaluation:
            if number % 2:
                break
        with accelerator.accumulate(torch.nn.Linear(1, 1)):
            found.append(accelerator.sync_gradients)
    assert found == [False, False, False, True, True]


def test_a_pass_that_is_left_does_not_stay(tmp_path: Path) -> None:
    accelerator = an_accelerator()
    loader = accelerator.prepare(a_loader())
    for _ in loader:
        break
    assert accelerator.gradient_state.in_dataloader is False
    assert accelerator.gradient_state.end_of_dataloader is False


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_checkpoint_has_the_states_of_all_loaders(tmp_path: Path, num_workers: int) -> None:
    accelerator = an_accelerator()
    options: list[dict[str, Any]] = [{"num_workers": num_workers}, {"seed": 8, "batch_size": 3}]
    first, second = accelerator.prepare(*(a_loader(**one) for one in options))
    running = [iter(first), iter(second)]
    for batches, number in zip(running, (2, 3), strict=True):
        for _ in range(number):
            next(batches)
    accelerator.save_state(str(tmp_path))
    rest = [ids_of(batches) for batches in running]
    other = an_accelerator()
    loaders = other.prepare(*(a_loader(**one) for one in options))
    other.load_state(str(tmp_path))
    assert [ids_of(loader) for loader in loaders] == rest
    assert [loader.next_epoch for loader in loaders] == [1, 1]


def test_a_checkpoint_without_the_state_of_a_loader_is_refused(tmp_path: Path) -> None:
    an_accelerator().save_state(str(tmp_path / "none"))
    accelerator = an_accelerator()
    accelerator.prepare(a_loader())
    accelerator.save_state(str(tmp_path / "one"))
    with pytest.raises(MissingDataError, match=r"has no dl_state_dict\.bin"):
        accelerator.load_state(str(tmp_path / "none"))
    accelerator.prepare(a_loader())
    with pytest.raises(MissingDataError, match=r"has no dl_state_dict_1\.bin"):
        accelerator.load_state(str(tmp_path / "one"))


def test_a_state_that_no_prepared_loader_takes_is_told(tmp_path: Path) -> None:
    accelerator = an_accelerator()
    accelerator.prepare(a_loader(), a_loader(30))
    accelerator.save_state(str(tmp_path))
    other = an_accelerator()
    other.prepare(a_loader())
    with pytest.warns(RuntimeWarning, match="states of more loaders than the 1 that are prepared"):
        other.load_state(str(tmp_path))


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    accelerator = an_accelerator()
    accelerator.prepare(a_loader())
    accelerator.save_state(str(tmp_path))
    other = an_accelerator()
    other.prepare(a_loader(24))
    with pytest.raises(FeedlineError, match="24"):
        other.load_state(str(tmp_path))


def test_a_clock_is_saved_as_other_objects_are(tmp_path: Path) -> None:
    def a_clock(accelerator: Accelerator) -> StepScheduler:
        clock = StepScheduler(4, dataloader=a_loader(), num_epochs=2)
        accelerator.register_for_checkpointing(clock)
        return clock

    accelerator = an_accelerator()
    clock = a_clock(accelerator)
    for _ in clock.epochs:
        for _ in clock:
            if clock.step == 2:
                break
        break
    accelerator.save_state(str(tmp_path))
    other = an_accelerator()
    resumed = a_clock(other)
    other.load_state(str(tmp_path))
    assert resumed.state_dict() == clock.state_dict()
    # Steps count from 0, so three of ten were taken.
    assert sum(1 for _ in resumed.epochs for _ in resumed) == 7


def test_an_iterable_dataset_is_passed_on_in_one_process(tmp_path: Path) -> None:
    accelerator = an_accelerator(2)
    loader = accelerator.prepare(DataLoader(Counting(10), batch_size=2))
    assert syncs_of(accelerator, loader) == [False, True, False, True, True]
    accelerator.save_state(str(tmp_path))
    other = an_accelerator()
    resumed = other.prepare(DataLoader(Counting(10), batch_size=2))
    other.load_state(str(tmp_path))
    assert resumed.next_epoch == 1


def test_an_iterable_dataset_is_refused_on_several_ranks() -> None:
    assert "num_processes=2 must be 1 for an iterable" in on_ranks(2, "iterable")["refused"]


def test_only_real_samples_are_gathered_for_metrics() -> None:
    told = on_ranks(3, "metrics", 10)
    assert told["ours"] == told["objects"] == list(range(10))
    # accelerate itself gathers the first batches, and is stopped before it counts padding.
    assert told["theirs"] < 10
    assert "must be its real samples, 4" in told["refused"]


def test_accelerate_gathers_for_metrics_where_nothing_is_padded() -> None:
    told = on_ranks(2, "metrics", 12)
    assert told == {"ours": [*range(12)], "objects": [*range(12)], "theirs": 12, "refused": ""}


def test_ranks_with_unequal_batches_are_gathered_for_metrics(tmp_path: Path) -> None:
    told = on_ranks(3, "unequal", tmp_path / "data")
    assert told["ours"] == list(range(10))
    assert sorted(told["sizes"]) == [3, 3, 4]


def test_gathering_needs_a_row_for_each_sample() -> None:
    accelerator = an_accelerator()
    loader = accelerator.prepare(a_loader())
    with pytest.raises(InvalidValueError, match="no batch has been delivered yet"):
        gather_for_metrics(accelerator, loader, torch.ones(4))
    for batch in loader:
        for wrong in (torch.tensor(1.0), torch.ones(3)):
            with pytest.raises(InvalidValueError, match="must be 4, the samples of the batch"):
                gather_for_metrics(accelerator, loader, (batch, wrong))


def test_padding_that_accelerate_would_count_is_no_exception() -> None:
    assert not issubclass(PaddingGathered, Exception)
