"""Gradients that are accumulated over batches, on several ranks, resumed on others."""

from __future__ import annotations

from pathlib import Path

from known_trainers import Trainer
from trainer_runner import tell
from trainer_stories import Run, Story


def test_steps_of_several_batches_are_exact_on_other_ranks() -> None:
    known = Trainer.of(Path(__file__).parent)
    trainer = Trainer(known.folder, {**known.about, "variables": {"FEEDLINE_GROUP_SIZE": "3"}})
    # The rest of 144 samples is six batches on three ranks, and then 18 on one.
    runs = (Run(2, 0, 6), Run(3, 0, 3), Run(1, 0, None))
    assert str(tell(Story(240, "twice", runs), trainer)) == "exact"
