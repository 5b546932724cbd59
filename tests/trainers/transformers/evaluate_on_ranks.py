"""Evaluates on several ranks, and prints what each of them gets; the argument is a folder."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.append(str(Path(__file__).parent))

from tiny_transformers import Ids, Model, arguments

import feedline
from feedline.errors import FeedlineError
from feedline.torch import DataLoader
from feedline.trainers.transformers import Trainer

KEPT: list[Any] = []


def metrics(prediction: Any) -> dict[str, Any]:
    """Return the samples that were evaluated, as one text."""
    ids, labels = prediction.predictions[:, 0], prediction.label_ids
    return {"ids": str([int(one) for one in ids]), "num_labels": len(labels)}


def metrics_by_batch(prediction: Any, compute_result: bool) -> dict[str, Any]:
    """Collect the samples, and return them after the last batch."""
    KEPT.extend(int(one) for one in np.asarray(prediction.predictions)[:, 0])
    if not compute_result:
        return {}
    found, KEPT[:] = str(list(KEPT)), []
    return {"ids": found}


def main(folder: Path) -> None:
    """Evaluate, predict, and write what came out to a file of this rank."""
    found: dict[str, Any] = {}
    several = {"few": Ids(1), "some": Ids(10), "many": Ids(26)}
    trainer = Trainer(
        model=Model(), args=arguments(folder), eval_dataset=several, compute_metrics=metrics
    )
    found["several"] = trainer.evaluate()
    found["again"] = trainer.evaluate()
    output = trainer.predict(Ids(26))
    found["predicted"] = [int(one) for one in output.predictions[:, 0]]
    trainer.compute_metrics = None
    found["loss_only"] = trainer.evaluate(Ids(26))
    by_batch = Trainer(
        model=Model(),
        args=arguments(folder, batch_eval_metrics=True),
        eval_dataset=Ids(26),
        compute_metrics=metrics_by_batch,
    )
    found["by_batch"] = by_batch.evaluate()
    subset = DataLoader(Ids(26), batch_size=9, sampler=feedline.Subset(range(1, 26, 2)))
    trainer.compute_metrics = metrics
    found["subset"] = trainer.evaluate(subset)
    padded = DataLoader(Ids(22), batch_size=4, tail="pad")
    try:
        trainer.evaluate(padded)
    except FeedlineError as error:
        found["padded"] = str(error)
    rank = os.environ.get("RANK", "0")
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
