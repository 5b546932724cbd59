"""The results of an audit, for each run, epoch and source."""

from __future__ import annotations

from dataclasses import dataclass

from feedline.words import one_line, several


@one_line
@dataclass(frozen=True, kw_only=True)
class SourceAudit:
    """One source in one epoch: its first index, how many samples it should have given, and what
    became of them.

    Args:
        name: The name of the source.
        first: Its first index.
        num_expected: How many of its samples were due.
        num_once: How many came once.
        num_missing: How many did not come.
        num_repeated: How many came more than once.
    """

    name: str
    first: int
    num_expected: int
    num_once: int
    num_missing: int
    num_repeated: int


@one_line
@dataclass(frozen=True, kw_only=True)
class EpochAudit:
    """One epoch, over all ranks and runs.

    Of an epoch that has not ended, what is missing is `num_to_come`. After the end it was dropped,
    as the tail policy says, or lost. `lost`, `repeated`, `unknown` and `skipped` list the first 20.

    Args:
        epoch: The number of the epoch.
        is_finished: Whether it has ended.
        num_expected: How many samples were due.
        num_once: How many came once.
        num_to_come: How many are still to come.
        num_dropped: How many the tail policy left out.
        num_padded: How many entries were padding.
        num_lost: How many never came.
        lost: The first of them.
        num_repeated: How many came more often than they should.
        repeated: The first of them.
        num_unknown: How many ids belong to no sample.
        unknown: The first of them.
        sources: The same for each source.
        num_skipped: How many could not be decoded or transformed, so that another sample was
            delivered in their place.
        skipped: The first of them.
        num_in_skipped_batches: How many were in batches that the run was told to skip.
        in_skipped_batches: The first of them.
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
    num_skipped: int = 0
    skipped: tuple[int, ...] = ()
    num_in_skipped_batches: int = 0
    in_skipped_batches: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no sample was lost, repeated or unknown."""
        return not (self.num_lost or self.num_repeated or self.num_unknown)


@one_line
@dataclass(frozen=True, kw_only=True)
class RunAudit:
    """One run: what counts of it, and what was discarded because the next run resumed from a
    checkpoint before it.

    Args:
        name: The name of the run.
        world_size: The number of ranks.
        first_step: Its first step that counts.
        end_step: One more than its last step that counts.
        num_batches: How many batches each rank had.
        num_samples: How many samples count.
        num_discarded_batches: How many batches were discarded.
        num_discarded_samples: How many samples were discarded.
        missing_ranks: The ranks that left no log; of very many, the first.
        parted_step: The first step in which ranks did not do the same, if any.
    """

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


@dataclass(frozen=True, kw_only=True, repr=False)
class AuditResult:
    """What an audit found.

    Args:
        num_logs: The number of logs that were read.
        runs: What was found about each run.
        epochs: What was found about each epoch.
    """

    num_logs: int
    runs: tuple[RunAudit, ...]
    epochs: tuple[EpochAudit, ...]

    def __repr__(self) -> str:
        found = "all is well" if self.ok else "samples are missing or repeated, or ranks differ"
        counts = f"{several(self.num_logs, 'log')} of {several(len(self.runs), 'run')}"
        return f"<AuditResult: {found}; {counts}, {several(len(self.epochs), 'epoch')}>"

    @property
    def ok(self) -> bool:
        """Whether the audit passes."""
        return all(run.ok for run in self.runs) and all(epoch.ok for epoch in self.epochs)

    @property
    def is_finished(self) -> bool:
        """Whether the last epoch has ended."""
        return all(epoch.is_finished for epoch in self.epochs)
