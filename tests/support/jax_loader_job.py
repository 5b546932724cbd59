"""Loaders over several meshes in one of several JAX processes.

Arguments: one JSON object with `folder`, `port`, `rank` and `world_size`. Each process has two
devices, and writes down what each loader gave it, or why it was refused.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from feedline.errors import FeedlineError
from feedline.jax import DataLoader

NUM_SAMPLES, BATCH_SIZE = 61, 4


class Tokens:
    """Samples that know their ids, and have eight tokens each."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, "tokens": np.arange(8) + 8 * index}


def mesh(names: str, *shape: int, shift: int = 0) -> Mesh:
    """Return a mesh of all devices, with one letter for each axis."""
    devices = np.roll(np.array(jax.devices()), shift)
    return Mesh(devices.reshape(shape), tuple(names))


def shardings(num_devices: int) -> dict[str, Callable[[], Any]]:
    """Return what the loaders are given, by the name of the case."""
    half, spec = num_devices // 2, PartitionSpec
    return {
        "auto": lambda: "auto",
        "inside": lambda: NamedSharding(mesh("dm", half, 2), spec("d")),
        "across": lambda: NamedSharding(mesh("dm", 2, half), spec("d")),
        "all-share": lambda: NamedSharding(mesh("m", num_devices), spec()),
        "sequence": lambda: NamedSharding(mesh("ds", 2, half), spec("d", "s")),
        "interleaved": lambda: NamedSharding(
            Mesh(np.array(jax.devices()).reshape(half, 2).T.reshape(-1), ("d",)), spec("d")
        ),
        "overlapping": lambda: NamedSharding(mesh("dm", half, 2, shift=1), spec("d")),
        "alone": lambda: None,
    }


def told_of(sharding: Any, seed: int = 5, log: Any = None) -> dict[str, Any]:
    """Return what a loader gives this process in an epoch, and what is in the global arrays."""
    loader = DataLoader(
        *(Tokens(), BATCH_SIZE),
        shuffle=True,
        seed=seed,
        sharding=sharding,
        with_mask=True,
        log=log,
    )
    told: dict[str, Any] = {"ids": [], "is_real": [], "rows": [], "tokens": [], "marks": []}
    for batch, is_real in loader:
        delivered = loader.delivered
        assert delivered is not None
        assert delivered.ids is not None
        told["ids"].append(delivered.ids.tolist())
        marks = delivered.is_real
        told["is_real"].append([True] * BATCH_SIZE if marks is None else marks.tolist())
        if sharding is None:
            assert batch["id"].tolist() == delivered.ids.tolist()
            continue
        told["rows"].append(whole(batch["id"]).tolist())
        told["tokens"].append(whole(batch["tokens"])[:, -1].tolist())
        told["marks"].append(whole(is_real).tolist())
    loader.close()
    told |= {"state": loader.state_dict(), "ranks": [loader.peers.rank, loader.peers.world_size]}
    return told


def whole(array: Any) -> np.ndarray[Any, Any]:
    """Return all of a global array."""
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def main(job: dict[str, Any]) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator_address=f"127.0.0.1:{job['port']}",
        num_processes=job["world_size"],
        process_id=job["rank"],
    )
    told: dict[str, Any] = {}
    for name, make in shardings(len(jax.devices())).items():
        try:
            told[name] = told_of(make())
        except FeedlineError as error:
            told[name] = {"refused": f"{type(error).__name__}: {error}"}
    for name in ("auto", "across"):
        try:
            make = shardings(len(jax.devices()))[name]
            told[f"logged, {name}"] = told_of(make(), log=Path(job["folder"], name))
        except FeedlineError as error:
            told[f"logged, {name}"] = {"refused": f"{type(error).__name__}: {error}"}
    for name in ("auto", "all-share"):
        try:
            told_of(shardings(len(jax.devices()))[name](), seed=job["rank"])
        except FeedlineError as error:
            told[f"desync, {name}"] = {"refused": f"{type(error).__name__}: {error}"}
    Path(job["folder"], f"rank{job['rank']}.json").write_text(json.dumps(told))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
