"""A training loop of JAX over a mesh of all processes, with Orbax checkpoints.

Nothing is imported at the top but what workers need too: they are spawned, and import this file.
"""

from __future__ import annotations

import os
from typing import Any

from trainer_job import Settings, StepLog, run_job


class Samples:
    """A map-style dataset whose samples know their ids."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, "x": [index / 7, 1.0]}


def main(settings: Settings) -> None:
    """Train, from the checkpoint if there is one."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import orbax.checkpoint as ocp
    from jax.sharding import NamedSharding, PartitionSpec

    from feedline.jax import DataLoader  # feedline
    from feedline.trainers.orbax import LoaderRestore, LoaderSave  # feedline

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        num_processes=int(os.environ["WORLD_SIZE"]),
        process_id=int(os.environ["RANK"]),
    )
    loader = DataLoader(  # feedline
        Samples(settings.num_samples),
        settings.batch_size,
        shuffle=settings.shuffle,
        seed=settings.seed,
        num_workers=settings.num_workers,
        with_mask=True,
    )
    sharding = loader.sharding
    assert sharding is not None
    everywhere = NamedSharding(sharding.mesh, PartitionSpec())

    @jax.jit
    def step(weights: Any, batch: Any, is_real: Any) -> Any:
        """Add up what all processes were given: each of them has the same sums."""
        rows = jnp.where(is_real[:, None], batch["x"], 0.0)
        return weights + rows.sum(axis=0)

    weights = jax.device_put(np.zeros(2, np.float32), everywhere)
    options = ocp.CheckpointManagerOptions(max_to_keep=1, create=True)
    log = StepLog(settings)
    with ocp.CheckpointManager(settings.folder / "orbax", options=options) as manager:
        if settings.resume:
            target = jax.ShapeDtypeStruct(weights.shape, weights.dtype, sharding=everywhere)
            args = ocp.args.Composite(
                model=ocp.args.StandardRestore({"weights": target}),
                data=LoaderRestore(loader),  # feedline
            )
            weights = manager.restore(manager.latest_step(), args=args)["model"]["weights"]
        while loader.epoch < settings.num_epochs - 1 or loader.num_batches_left():
            for number, (batch, is_real) in enumerate(loader):
                weights = step(weights, batch, is_real)
                ids, marks = local_rows(batch["id"]), local_rows(is_real)
                delivered = loader.delivered
                assert delivered is not None
                assert ids == delivered.ids.tolist()
                assert delivered.is_real is None or marks == delivered.is_real.tolist()
                log.write(loader.epoch, number, ids, marks)
                if log.num_batches == settings.stop_after:
                    args = ocp.args.Composite(
                        model=ocp.args.StandardSave({"weights": weights}),
                        data=LoaderSave(loader),  # feedline
                    )
                    manager.save(settings.run, args=args)
                    break
            else:
                if loader.epoch == settings.num_epochs - 1:
                    break
                continue
            break
    if settings.stop_after is None:
        check_sums(settings, np.asarray(weights.addressable_data(0)).tolist())
    loader.close()
    jax.distributed.shutdown()


def local_rows(array: Any) -> list[Any]:
    """Return the rows of a global array that this process holds."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return [one for shard in shards for one in shard.data.tolist()]


def check_sums(settings: Settings, sums: list[float]) -> None:
    """Raise unless the model has seen every sample once in every epoch, over all runs."""
    n = settings.num_samples
    expected = [settings.num_epochs * n * (n - 1) / 2 / 7, float(settings.num_epochs * n)]
    for found, wanted in zip(sums, expected, strict=True):
        assert abs(found - wanted) <= 1e-3 * wanted, (sums, expected)


if __name__ == "__main__":
    run_job(main)
