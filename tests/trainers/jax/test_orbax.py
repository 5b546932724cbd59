"""The state of a loader in Orbax checkpoints, in one process; the stories have several."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from feedline.errors import CursorFormatError, InvalidValueError, PlanMismatchError
from feedline.jax import DataLoader, StepScheduler
from feedline.trainers.orbax import LoaderHandler, LoaderRestore, LoaderSave
from processes import environment

ROOT = Path(__file__).resolve().parents[3]
#: All that Feedline uses of them; nothing of it is private.
USED = {
    "jax": [
        *("Array", "device_put", "devices", "make_array_from_process_local_data"),
        *("process_count", "process_index", "distributed.is_initialized"),
        *("dtypes.canonicalize_dtype", "tree_util.tree_flatten_with_path", "tree_util.keystr"),
        *("sharding.NamedSharding", "sharding.Mesh", "sharding.PartitionSpec"),
        *("experimental.multihost_utils.process_allgather",),
    ],
    "orbax.checkpoint": [
        *("AsyncCheckpointHandler", "JsonCheckpointHandler", "args.CheckpointArgs"),
        *("args.JsonSave", "args.register_with_handler"),
    ],
}


def make_loader(batch_size: int = 8, seed: int = 5) -> DataLoader:
    return DataLoader(range(100), batch_size, shuffle=True, seed=seed)


def ids_of(loader: DataLoader, num_batches: int | None = None) -> list[int]:
    return [i for batch in islice(loader, num_batches) for i in batch.tolist()]


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package, names in USED.items() for name in names]
)
def test_what_feedline_uses_is_there(package: str, name: str) -> None:
    found: Any = importlib.import_module(package)
    if name.startswith("experimental."):
        importlib.import_module("jax.experimental.multihost_utils")
    distribution = package.replace("orbax.checkpoint", "orbax-checkpoint")
    for part in name.split("."):
        assert hasattr(found, part), (
            f"{distribution} {version(distribution)} has no {package}.{name}"
        )
        found = getattr(found, part)


def test_torch_is_neither_installed_nor_needed() -> None:
    assert importlib.util.find_spec("torch") is None
    assert "torch" not in sys.modules
    assert len(ids_of(make_loader())) == 104


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_a_checkpoint_resumes_at_the_next_batch(is_async: bool, tmp_path: Path) -> None:
    loader, params = make_loader(), {"w": jax.numpy.arange(3.0)}
    running = iter(loader)
    before = [i for batch in islice(running, 3) for i in batch.tolist()]
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=is_async)
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        args = {"params": ocp.args.StandardSave(params), "data": LoaderSave(loader)}
        manager.save(3, args=ocp.args.Composite(**args))
        # What is delivered while the checkpoint is written does not change it.
        after = next(running).tolist()
    resumed = make_loader()
    with ocp.CheckpointManager(tmp_path) as manager:
        args = {"params": ocp.args.StandardRestore(params), "data": LoaderRestore(resumed)}
        restored = manager.restore(manager.latest_step(), args=ocp.args.Composite(**args))
    assert restored["params"]["w"].tolist() == [0, 1, 2]
    assert restored["data"] == resumed.state_dict()
    rest = ids_of(resumed)
    assert rest[:8] == after
    assert sorted({*before, *rest}) == list(range(100))
    assert len(before) + len(rest) == 104


def test_the_state_can_be_read_without_a_loader(tmp_path: Path) -> None:
    loader = make_loader()
    ids_of(loader, 2)
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(0, args=ocp.args.Composite(data=LoaderSave(loader)))
    with ocp.CheckpointManager(tmp_path) as manager:
        restored = manager.restore(0, args=ocp.args.Composite(data=LoaderRestore()))
    assert restored["data"] == loader.state_dict()


def test_a_plain_checkpointer_saves_and_restores(tmp_path: Path) -> None:
    loader, resumed = make_loader(), make_loader(batch_size=4)
    ids_of(loader, 2)
    with ocp.Checkpointer(LoaderHandler()) as checkpointer:
        checkpointer.save(tmp_path / "data", args=LoaderSave(loader))
        checkpointer.restore(tmp_path / "data", args=LoaderRestore(resumed))
    assert resumed.state_dict() == loader.state_dict()


def test_a_clock_is_saved_with_the_loader_that_it_has(tmp_path: Path) -> None:
    with StepScheduler(dataloader=make_loader(), num_epochs=2) as clock:
        for _ in islice(clock, 4):
            pass
        with ocp.CheckpointManager(tmp_path) as manager:
            manager.save(clock.step, args=ocp.args.Composite(data=LoaderSave(clock)))
        expected = clock.state_dict()
    with StepScheduler(dataloader=make_loader(), num_epochs=2) as resumed:
        with ocp.CheckpointManager(tmp_path) as manager:
            latest = manager.latest_step()
            manager.restore(latest, args=ocp.args.Composite(data=LoaderRestore(resumed)))
        assert resumed.state_dict() == expected


def test_the_state_of_other_data_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    loader, other = make_loader(), make_loader(seed=6)
    ids_of(loader, 2)
    before = other.state_dict()
    with ocp.Checkpointer(LoaderHandler()) as checkpointer:
        checkpointer.save(tmp_path / "data", args=LoaderSave(loader))
        with pytest.raises(PlanMismatchError, match="seed"):
            checkpointer.restore(tmp_path / "data", args=LoaderRestore(other))
    assert other.state_dict() == before


def test_an_item_that_is_no_state_of_a_loader_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(CursorFormatError, match="is not the state of a loader"):
        LoaderHandler().restore(tmp_path / "data", args=LoaderRestore(make_loader()))


@pytest.mark.parametrize("make", [LoaderSave, LoaderRestore])
def test_what_is_no_loader_is_refused(make: Any) -> None:
    with pytest.raises(InvalidValueError, match="must have state_dict and load_state_dict"):
        make(np.arange(3))


def test_the_tests_of_the_room_pass_with_this_release(tmp_path: Path) -> None:
    """Without torch, over meshes of four devices, and in four real processes."""
    for chosen, more in (
        ("tests/jax", {"FEEDLINE_JAX_ALONE": "1"}),
        ("tests/jax/test_processes.py", {}),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", chosen],
            cwd=ROOT,
            env={
                **{name: v for name, v in environment().items() if not name.startswith("PYTEST_")},
                **{"JAX_PLATFORMS": "cpu", "TMPDIR": str(tmp_path), **more},
                "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
            },
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        counted = re.search(r"(\d+) passed", done.stdout)
        assert counted is not None
        assert int(counted[1]) >= 20
