"""The results of an audit, for each run, epoch and source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SourceAudit:
    """One source in one epoch: its first index, its expected number of samples, and what happened
    to them."""

    name: str
    first: int
    num_expected: int
    num_once: int
    num_missing: int
    num_repeated: int


@dataclass(frozen=True, kw_only=True)
class EpochAudit:
    """One epoch, over all ranks and runs.

    Before the end of an epoch, missing samples are `num_to_come`. After it, they were dropped by
    the tail policy, or lost. `lost`, `repeated` and `unknown` list the first 20.
    """

    epoch: int
    is_finished: bool
    num_expected: int
    num_once: int
    num_to_come: int
    num_dropped: int
    num_padded: int
    num_lost: int
    lost: tuple[int, ...]
    num_repeated: int
    repeated: tuple[int, ...]
    num_unknown: int
    unknown: tuple[int, ...]
    sources: tuple[SourceAudit, ...]

    @property
    def ok(self) -> bool:
        """Whether no sample was lost, repeated or unknown."""
        return not (self.num_lost or self.num_repeated or self.num_unknown)


@dataclass(frozen=True, kw_only=True)
class RunAudit:
    """One run: what counts of it, and what was discarded because the next run resumed from a
    checkpoint before it."""

    name: str
    world_size: int
    first_step: int | None
    end_step: int | None
    num_batches: tuple[int, ...]
    num_samples: int
    num_discarded_batches: int
    num_discarded_samples: int
    missing_ranks: tuple[int, ...]
    parted_step: int | None

    @property
    def ok(self) -> bool:
        """Whether the logs of all ranks exist, and agree in every step."""
        return not self.missing_ranks and self.parted_step is None


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """What an audit found."""

    num_logs: int
    runs: tuple[RunAudit, ...]
    epochs: tuple[EpochAudit, ...]

    @property
    def ok(self) -> bool:
        """Whether the audit passes."""
        return all(run.ok for run in self.runs) and all(epoch.ok for epoch in self.epochs)

    @property
    def is_finished(self) -> bool:
        """Whether the last epoch has ended."""
        return all(epoch.is_finished for epoch in self.epochs)
