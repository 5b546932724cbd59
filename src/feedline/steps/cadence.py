"""Checkpoint, validation, logging and garbage collection intervals."""

from __future__ import annotations

from dataclasses import dataclass

from feedline.errors import check_integer


@dataclass(frozen=True, kw_only=True)
class Cadence:
    """Intervals in steps; `None` means never.

    Steps count from zero. With an interval of 10, checkpoints and validations are due when 10 steps
    are done, at steps 9, 19, …; logging and garbage collection at steps 0, 10, ….

    Args:
        ckpt_every_steps: The checkpoint interval.
        val_every_steps: The validation interval.
        log_remote_every_steps: The interval of remote logging.
        gc_every_steps: The interval of garbage collection.

    Examples:
        >>> cadence = Cadence(ckpt_every_steps=10)
        >>> [step for step in range(30) if cadence.is_checkpoint_due(step)]
        [9, 19, 29]
    """

    ckpt_every_steps: int
    val_every_steps: int | None = None
    log_remote_every_steps: int = 1
    gc_every_steps: int | None = None

    def __post_init__(self) -> None:
        for name in ("ckpt_every_steps", "log_remote_every_steps"):
            check_integer(name, getattr(self, name), 1)
        for name in ("val_every_steps", "gc_every_steps"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, remedy="or use None for never")

    def is_checkpoint_due(self, step: int) -> bool:
        """Return whether a checkpoint is due at a step."""
        return (step + 1) % self.ckpt_every_steps == 0

    def is_validation_due(self, step: int) -> bool:
        """Return whether a validation is due at a step."""
        return self.val_every_steps is not None and (step + 1) % self.val_every_steps == 0

    def is_logging_due(self, step: int) -> bool:
        """Return whether remote logging is due at a step."""
        return step % self.log_remote_every_steps == 0

    def is_collection_due(self, step: int) -> bool:
        """Return whether garbage collection is due at a step."""
        return self.gc_every_steps is not None and step % self.gc_every_steps == 0
