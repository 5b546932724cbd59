"""Every name and default that the systems document which Feedline takes the place of.

How these behave is tested beside each of them; here it is their names, so that code which was
written for them runs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.utils.data
from torch.distributed.checkpoint.stateful import Stateful

import feedline.chunks as chunks
import feedline.steps as steps
import feedline.torch as ours
from bucket_data import BucketData
from feedline.steps import _calculate_max_steps, _calculate_num_epochs
from lazy_data import documented_config, write_folder

NEEDED = inspect.Parameter.empty
SIZES = [12, 8, 20]


# What is made of each class, small and real.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("seeds") / "data", SIZES)


def make_buckets() -> ours.SequentialBucketSampler:
    return ours.SequentialBucketSampler(BucketData([40, 25, 13]), num_replicas=1, rank=0)


def make_chunks() -> chunks.DistributedSampler:
    inner = chunks.RandomSampler(chunk_size=256, preload_nchunks=4, batch_size=32)
    return chunks.DistributedSampler(inner, dist_info=lambda: (0, 2))


def make_clock(kind: type[steps.StepScheduler]) -> steps.StepScheduler:
    return kind(
        global_batch_size=4, local_batch_size=2, dp_size=1, dataloader=range(7), max_steps=9
    )


MAKERS: dict[str, Callable[[Path], Any]] = {
    "buckets": lambda folder: make_buckets(),
    "distributed": lambda folder: ours.DistributedSampler(range(10)),
    "mixture": lambda folder: ours.MixtureSampler([0, 6, 10], [2, 1]),
    "folder": lambda folder: ours.SequifierDatasetFromFolderLazy(
        str(folder), documented_config(sampling_strategy="oversampling")
    ),
    "chunks": lambda folder: make_chunks(),
    "clock": lambda folder: make_clock(steps.StepScheduler),
    "torch clock": lambda folder: make_clock(ours.StepScheduler),
    "clock config": lambda folder: steps.StepSchedulerConfig(),
}

# Constructors and functions: parameters in the documented order, with the documented defaults.

SIGNATURES: list[Any] = [
    (
        ours.SequentialBucketSampler,
        {
            "dataset": NEEDED,
            "base_batch_size": 32,
            "base_resolution": (512, 512),
            "drop_last": True,
            "shuffle_buckets": True,
            "shuffle_within_bucket": True,
            "dynamic_batch_size": False,
            "seed": 42,
            "num_replicas": None,
            "rank": None,
        },
    ),
    (
        ours.DistributedSampler,
        {
            "dataset": NEEDED,
            "num_replicas": None,
            "rank": None,
            "shuffle": True,
            "seed": 0,
            "drop_last": True,
        },
    ),
    (
        ours.MixtureSampler,
        {
            "cumulative_sizes": NEEDED,
            "weights": NEEDED,
            "num_replicas": None,
            "rank": None,
            "shuffle": True,
            "seed": 0,
            "drop_last": True,
            "temperature": 1.0,
        },
    ),
    (
        ours.SequifierDatasetFromFolderLazy,
        {"data_path": NEEDED, "config": NEEDED, "shuffle": True},
    ),
    (
        chunks.DistributedSampler,
        {"sampler": NEEDED, "dist_info": NEEDED, "enforce_equal_batches": True},
    ),
    (
        steps.StepScheduler,
        {
            # The document wants these four; here the loader says what is left out.
            **{"global_batch_size": None, "local_batch_size": None, "dp_size": None},
            "dataloader": None,
            "ckpt_every_steps": None,
            "save_checkpoint_every_epoch": True,
            "val_every_steps": None,
            "log_remote_every_steps": 1,
            "loss_average_window_steps": 50,
            "gc_every_steps": None,
            "start_step": 0,
            "start_epoch": 0,
            "num_epochs": None,
            "max_steps": None,
        },
    ),
    (
        steps.StepSchedulerConfig,
        {
            "global_batch_size": 32,
            "num_epochs": 10,
            "max_steps": None,
            "ckpt_every_steps": 100,
            "save_checkpoint_every_epoch": True,
            "val_every_steps": None,
            "log_remote_every_steps": 1,
            "loss_average_window_steps": 50,
            "gc_every_steps": None,
            "start_step": 0,
            "start_epoch": 0,
        },
    ),
    (
        _calculate_max_steps,
        {"num_epochs": NEEDED, "epoch_len": NEEDED, "default_max_steps": 9223372036854775807},
    ),
    (
        _calculate_num_epochs,
        {"max_steps": NEEDED, "epoch_len": NEEDED, "default_num_epochs": 10},
    ),
]

METHODS: list[Any] = [
    ("buckets", "__iter__", {}),
    ("buckets", "__len__", {}),
    ("buckets", "_calculate_total_batches", {}),
    ("buckets", "_get_batch_size", {"resolution": NEEDED}),
    ("buckets", "get_batch_info", {"batch_idx": NEEDED}),
    ("buckets", "load_state_dict", {"state_dict": NEEDED}),
    ("buckets", "set_epoch", {"epoch": NEEDED}),
    ("buckets", "state_dict", {}),
    ("distributed", "set_epoch", {"epoch": NEEDED}),
    ("distributed", "set_skip", {"skip": NEEDED}),
    ("distributed", "state_dict", {}),
    ("distributed", "load_state_dict", {"state": NEEDED}),
    ("mixture", "set_epoch", {"epoch": NEEDED}),
    ("mixture", "set_skip", {"skip": NEEDED}),
    ("mixture", "state_dict", {}),
    ("mixture", "update_weights", {"weights": NEEDED, "temperature": 1.0}),
    ("mixture", "load_state_dict", {"state": NEEDED}),
    ("folder", "__iter__", {}),
    ("folder", "__len__", {}),
    ("folder", "set_epoch", {"epoch": NEEDED}),
    ("folder", "_calculate_total_batches", {"target_samples": NEEDED}),
    ("folder", "_get_target_samples", {}),
    ("chunks", "n_iters", {"n_obs": NEEDED}),
    ("chunks", "sample", {"n_obs": NEEDED}),
    ("chunks", "_sample", {"n_obs": NEEDED}),
    ("chunks", "validate", {"n_obs": NEEDED}),
    ("clock", "__iter__", {}),
    ("clock", "load_state_dict", {"s": NEEDED}),
    ("clock", "set_epoch", {"epoch": NEEDED}),
    ("clock", "state_dict", {}),
    (
        "clock config",
        "build",
        {"dataloader": NEEDED, "dp_group_size": NEEDED, "local_batch_size": NEEDED},
    ),
]

# Attributes: what a fresh object says.


def is_generator(value: Any) -> bool:
    return isinstance(value, np.random.Generator)


def is_handler(value: Any) -> bool:
    return isinstance(value, steps.DistributedSignalHandler)


def yields_three(value: Any) -> bool:
    return list(value) == [0, 1, 2]


ATTRIBUTES: list[Any] = [
    ("buckets", "_batches_to_skip", 0),
    ("buckets", "_batches_yielded", 0),
    ("buckets", "_total_batches", 1),  # of buckets of 40, 25 and 13, in batches of 32
    (
        "buckets",
        "bucket_groups",
        lambda value: value.keys() == BucketData(SIZES).bucket_groups.keys(),
    ),
    ("buckets", "bucket_keys", BucketData(SIZES).sorted_bucket_keys),
    (
        "buckets",
        "calculator",
        lambda value: value.get_dynamic_batch_size((64, 64), 3, (64, 128)) == 6,
    ),
    ("buckets", "epoch", 0),
    ("folder", "data_dir", lambda value: Path(value).joinpath("metadata.json").exists()),
    ("folder", "config", lambda value: value.training_spec.batch_size == 4),
    ("folder", "batch_size", 4),
    ("folder", "shuffle", True),
    ("folder", "epoch", 0),
    ("folder", "batch_files_info", lambda value: [file["samples"] for file in value] == SIZES),
    ("folder", "total_samples", 40),
    ("folder", "sampling_strategy", "oversampling"),
    ("folder", "target_samples", 40),
    ("folder", "total_batches", 10),
    ("chunks", "batch_size", 32),
    ("chunks", "mask", slice(0, None)),
    ("chunks", "rng", is_generator),
    ("chunks", "shuffle", True),
    *(
        (clock, name, value)
        for clock in ("clock", "torch clock")
        for name, value in {
            "epoch_len": 4,
            "epochs": yields_three,  # 9 steps take three epochs of 4
            "grad_acc_steps": 2,
            "is_ckpt_step": False,
            "is_gc_step": False,
            "is_last_batch": False,
            "is_last_step": False,
            "is_remote_logging_step": False,
            "is_val_step": False,
            "sig_handler": is_handler,
            "sigterm_received": False,
        }.items()
    ),
]

STATES: list[Any] = [
    ("distributed", {"epoch": 0, "seed": 0, "num_replicas": 1, "rank": 0}),
    ("mixture", {"epoch": 0, "seed": 0, "num_replicas": 1, "rank": 0}),
    ("buckets", {"epoch": 0}),
    ("clock", {"step": 0, "epoch": 0}),
    ("torch clock", {"step": 0, "epoch": 0}),
]

BASES: list[Any] = [
    ("buckets", torch.utils.data.Sampler),
    ("distributed", torch.utils.data.Sampler),
    ("mixture", torch.utils.data.Sampler),
    ("folder", torch.utils.data.IterableDataset),
    ("chunks", chunks.Sampler),
    ("clock", Stateful),
    ("torch clock", Stateful),
]


def check_parameters(function: Callable[..., Any], documented: dict[str, Any]) -> None:
    """Raise unless documented parameters come first, and nothing else has to be given."""
    parameters = list(inspect.signature(function).parameters.values())
    first, others = parameters[: len(documented)], parameters[len(documented) :]
    assert {parameter.name: parameter.default for parameter in first} == documented
    assert [parameter.name for parameter in first] == list(documented)
    for parameter in others:
        is_open = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        assert is_open or parameter.default is not NEEDED, parameter


@pytest.mark.parametrize(
    ("function", "documented"), SIGNATURES, ids=[case[0].__name__ for case in SIGNATURES]
)
def test_parameters_have_the_documented_names_order_and_defaults(
    function: Callable[..., Any], documented: dict[str, Any]
) -> None:
    check_parameters(function, documented)


@pytest.mark.parametrize(("kind", "name", "documented"), METHODS)
def test_methods_take_the_documented_parameters(
    kind: str, name: str, documented: dict[str, Any], folder: Path
) -> None:
    check_parameters(getattr(MAKERS[kind](folder), name), documented)


@pytest.mark.parametrize(("kind", "name", "expected"), ATTRIBUTES)
def test_a_fresh_object_has_the_documented_attributes(
    kind: str, name: str, expected: Any, folder: Path
) -> None:
    value = getattr(MAKERS[kind](folder), name)
    assert expected(value) if callable(expected) else value == expected


@pytest.mark.parametrize(("kind", "documented"), STATES)
def test_states_have_the_documented_keys_and_load_with_these_alone(
    kind: str, documented: dict[str, Any], folder: Path
) -> None:
    state = MAKERS[kind](folder).state_dict()
    assert {key: state[key] for key in documented} == documented
    later = MAKERS[kind](folder)
    later.load_state_dict({**documented, "epoch": 2})
    assert later.epoch == later.state_dict()["epoch"] == 2


@pytest.mark.parametrize(("kind", "base"), BASES)
def test_objects_are_of_the_documented_kind(kind: str, base: type, folder: Path) -> None:
    assert isinstance(MAKERS[kind](folder), base)


@pytest.mark.parametrize(
    "owner",
    [
        steps.StepScheduler,
        ours.SequentialBucketSampler,
    ],
)
def test_modules_have_the_documented_logger(owner: type) -> None:
    assert vars(sys.modules[owner.__module__])["logger"].name == owner.__module__


# What a signature cannot show.


def test_the_clock_of_torch_takes_all_documented_arguments_by_place_and_by_name() -> None:
    documented = dict(SIGNATURES)[steps.StepScheduler]
    given = dict(
        zip(documented, (8, 4, 1, range(10), 3, False, 4, 5, 6, 7, 8, 9, 10, 11), strict=True)
    )
    for clock in (ours.StepScheduler(*given.values()), ours.StepScheduler(**given)):
        with clock:
            assert (clock.dp_size, clock.grad_acc_steps, clock.epoch_len) == (1, 2, 5)
            assert clock.save_checkpoint_every_epoch is False
            assert (clock.ckpt_every_steps, clock.val_every_steps) == (3, 4)
            assert (clock.log_remote_every_steps, clock.gc_every_steps) == (5, 7)
            assert (clock.step, clock.epoch, clock.num_epochs, clock.max_steps) == (8, 9, 10, 11)


def test_the_clock_s_configuration_is_a_dataclass_and_builds_what_it_says() -> None:
    assert is_dataclass(steps.StepSchedulerConfig)
    documented = dict(SIGNATURES)[steps.StepSchedulerConfig]
    names = [field.name for field in fields(steps.StepSchedulerConfig)]
    later = ["preemption_signal", "validate_on_checkpoint"]
    assert names == [*documented, *later], "which releases after the document added"
    with steps.StepSchedulerConfig().build(range(8), dp_group_size=1, local_batch_size=8) as clock:
        assert isinstance(clock, steps.StepScheduler)
        assert (clock.grad_acc_steps, clock.epoch_len, clock.max_steps) == (4, 2, 20)
        assert (clock.ckpt_every_steps, clock.num_epochs) == (100, 10)


def test_ranks_of_a_chunk_sampler_are_given_by_name_only() -> None:
    parameters = inspect.signature(chunks.DistributedSampler).parameters
    for name in ("dist_info", "enforce_equal_batches"):
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY


def test_a_chunk_sampler_yields_load_requests() -> None:
    sampler = make_chunks()
    sampler.validate(4096)
    requests = list(sampler.sample(4096))
    assert all(request.keys() == chunks.LoadRequest.__annotations__.keys() for request in requests)
    assert sum(len(request["splits"]) for request in requests) == sampler.n_iters(4096) == 64
    with pytest.raises(ValueError, match="is too large to divide"):
        sampler.validate(10)


def test_a_folder_without_metadata_is_a_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"metadata\.json"):
        ours.SequifierDatasetFromFolderLazy(str(tmp_path), documented_config())


def test_info_on_a_batch_is_a_dict() -> None:
    assert isinstance(make_buckets().get_batch_info(batch_idx=0), dict)
