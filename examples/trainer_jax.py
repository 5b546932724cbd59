"""A training with JAX over several processes, with Orbax checkpoints, that is resized twice.

Run it with 2 processes, then with 3, then with 1 until the end:

    python examples/trainer_jax.py --processes 2 --folder out --stop-after 14
    python examples/trainer_jax.py --processes 3 --folder out --stop-after 9
    python examples/trainer_jax.py --processes 1 --folder out

The processes are on the CPU of this machine, and find each other by an address, as those of a
cluster do. Each of them reads its own part of every batch, and gets the whole as global arrays.
What they received is audited after every run.
`--stop-after` sends SIGTERM to one of them after so many steps; all save and stop after that step.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec

import feedline
from feedline.jax import DataLoader, StepScheduler
from feedline.runs import audit_logs
from feedline.trainers.orbax import LoaderRestore, LoaderSave

NUM_SAMPLES, NUM_EPOCHS, BATCH_SIZE, LEARNING_RATE = 1000, 2, 16, 0.1


def make_data(path: Path) -> None:
    """Write points, and a value for each."""
    points = np.random.default_rng(1).normal(size=(NUM_SAMPLES, 4)).astype(np.float32)
    values = points @ np.array([1, -2, 3, 0.5], np.float32)
    feedline.pack({"point": points, "value": values}, path, chunk_samples=100)


@jax.jit
def step(weights: Any, batch: Any, is_real: Any) -> tuple[Any, Any]:
    """Return new weights and the loss; padding does not count."""

    def loss_of(weights: Any) -> Any:
        errors = jnp.where(is_real, batch["point"] @ weights - batch["value"], 0)
        return (errors**2).sum() / is_real.sum()

    loss, gradient = jax.value_and_grad(loss_of)(weights)
    return weights - LEARNING_RATE * gradient, loss


def train(folder: Path, stop_after: int | None) -> None:
    """Train until the end, or until a signal comes."""
    store = feedline.open(folder / "data")
    # Ranks are the processes of JAX; a global batch has 16 rows of each.
    loader = DataLoader(
        store, BATCH_SIZE, shuffle=True, seed=7, with_mask=True, log=folder / "logs"
    )
    clock = StepScheduler(dataloader=loader, num_epochs=NUM_EPOCHS)
    assert loader.sharding is not None
    everywhere = NamedSharding(loader.sharding.mesh, PartitionSpec())
    model = {"weights": jax.device_put(np.zeros(4, np.float32), everywhere)}
    with clock, ocp.CheckpointManager((folder / "checkpoints").absolute()) as manager:
        if (latest := manager.latest_step()) is not None:
            target = jax.tree.map(ocp.utils.to_shape_dtype_struct, model)
            parts = {"model": ocp.args.StandardRestore(target), "data": LoaderRestore(clock)}
            model = manager.restore(latest, args=ocp.args.Composite(**parts))["model"]
        first, loss = clock.step, jnp.inf
        for _ in clock.epochs:
            for ((batch, is_real),) in clock:
                model["weights"], loss = step(model["weights"], batch, is_real)
                if clock.step + 1 - first == stop_after and jax.process_index() == 0:
                    signal.raise_signal(signal.SIGTERM)
                if clock.is_ckpt_step:
                    parts = {"model": ocp.args.StandardSave(model), "data": LoaderSave(clock)}
                    manager.save(clock.step, args=ocp.args.Composite(**parts))
    if jax.process_index() == 0:
        steps = f"steps {first} to {clock.step}, loss {loss:.4f}"
        print(f"process_count={jax.process_count()}: {steps}")
    assert stop_after is not None or loss < 0.01, "it has learned"


def main() -> None:
    """Start the processes, or be one of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, required=True, help="for data and checkpoints")
    parser.add_argument("--stop-after", type=int, help="stop after so many steps of this run")
    parser.add_argument("--address", help="where the processes find each other")
    parser.add_argument("--process", type=int, help="which of the processes this is")
    options = parser.parse_args()
    if options.process is not None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(options.address, options.processes, options.process)
        train(options.folder, options.stop_after)
        jax.distributed.shutdown()
        return
    if not (options.folder / "data").exists():
        make_data(options.folder / "data")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, *sys.argv, "--address", address, "--process"]
    started = [
        subprocess.Popen([*command, str(number)], env={**os.environ, "JAX_PLATFORMS": "cpu"})
        for number in range(options.processes)
    ]
    codes = [process.wait() for process in started]
    if any(codes):
        sys.exit("a process failed")
    result = audit_logs([options.folder / "logs"])
    for epoch in result.epochs:
        print(f"epoch {epoch.epoch}: {epoch.num_once} samples once, {epoch.num_to_come} to come")
    if not result.ok:
        sys.exit("the audit found samples that were lost or repeated")


if __name__ == "__main__":
    main()
