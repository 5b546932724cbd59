"""Runs that advance, skip, save, are killed, come back on other ranks, and account for all.

A killed run forgets what it consumed after its last checkpoint; the run that loads the checkpoint
consumes that again. So what counts is what was consumed up to the checkpoint that the next run
loaded, and at the end of each epoch that must be every sample, less what the tail policy drops.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import assume, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from feedline.errors import EmptyEpochError
from feedline.plan import Cursor, Mixture, Plan, SamplePlan, Segment
from plan_kinds import (
    all_indices,
    bucket_plans,
    fits,
    mixture_plans,
    sample_plans,
    weighted_plans,
    window_plans,
)

STEPS = settings(stateful_step_count=40)

# Small ones, so that an epoch is long enough for several resizes. A token budget must be at least
# the longest length, which is 9.
world_sizes = st.integers(1, 4)
batch_sizes = st.sampled_from([1, 1, 2, 3, 9])


class Run(RuleBasedStateMachine):
    """A training run that a scheduler treats badly."""

    plans: st.SearchStrategy[Plan]
    #: How far ahead of the run the batches may be that it is told to skip.
    most_ahead = 3

    @initialize(data=st.data(), world_size=world_sizes, batch_size=batch_sizes)
    def start(self, data: st.DataObject, world_size: int, batch_size: int) -> None:
        self.original = data.draw(self.plans)
        self.committed: Counter[int] = Counter()
        self.since: Counter[int] = Counter()
        self.begin(self.original, 0, world_size, batch_size)
        self.saved = self.segment.cursor(0).to_json()

    def begin(self, plan: Plan, epoch: int, world_size: int, batch_size: int) -> None:
        """Start an epoch, on one rank if there is too little data for more."""
        if not fits(plan, batch_size):
            batch_size = 9
        try:
            self.segment = plan.segment(world_size=world_size, batch_size=batch_size, epoch=epoch)
        except EmptyEpochError:
            smallest = next(size for size in (1, 9) if fits(plan, size))
            try:
                self.segment = plan.segment(world_size=1, batch_size=smallest, epoch=epoch)
            except EmptyEpochError:
                assume(False)
        self.done = 0

    def go_on(self, segment: Segment) -> None:
        self.segment = segment
        self.done = segment.num_done

    @property
    def is_finished(self) -> bool:
        return self.done == self.segment.num_batches

    @property
    def consumed(self) -> Counter[int]:
        """What was consumed in the current epoch, if nobody kills the run any more."""
        same_epoch = Cursor.from_json(self.saved).epoch == self.segment.epoch
        return self.committed + self.since if same_epoch else self.since.copy()

    @precondition(lambda self: not self.is_finished)
    @rule(num_batches=st.integers(1, 4))
    def advance(self, num_batches: int) -> None:
        stop = min(self.done + num_batches, self.segment.num_batches)
        for rank in range(self.segment.world_size):
            for batch in self.segment.block(rank, self.done, stop):
                self.since.update(batch.indices[batch.is_real].tolist())
        self.done = stop

    @precondition(lambda self: not self.is_finished)
    @rule(num_batches=st.integers(1, 3), after=st.integers(0, 3))
    def skip(self, num_batches: int, after: int) -> None:
        """Leave out batches that follow; nobody gets them, so they count as if they had come."""
        num_batches = min(num_batches, self.segment.num_batches - self.done)
        left = self.segment.num_batches - self.done - num_batches
        start = self.done + min(after, self.most_ahead, left)
        for rank in range(self.segment.world_size):
            block = self.segment.block(rank, start, start + num_batches)
            self.since.update(block.real_indices.tolist())
        self.segment = self.segment.skipping(self.done, start, start + num_batches)

    @rule()
    def save(self) -> None:
        self.committed = self.consumed
        self.since = Counter()
        self.saved = self.segment.cursor(self.done).to_json()

    @rule(world_size=world_sizes, batch_size=batch_sizes)
    def kill_and_load_on_other_ranks(self, world_size: int, batch_size: int) -> None:
        if not fits(self.original, batch_size):
            batch_size = 9
        self.since = Counter()
        cursor = Cursor.from_json(self.saved)
        self.go_on(self.original.resume(cursor, world_size=world_size, batch_size=batch_size))

    @rule(num_batches=st.integers(1, 8), world_size=world_sizes, batch_size=batch_sizes)
    def advance_and_move_to_other_ranks(
        self, num_batches: int, world_size: int, batch_size: int
    ) -> None:
        self.advance(num_batches)
        self.save()
        self.kill_and_load_on_other_ranks(world_size, batch_size)

    @rule()
    def kill_and_load_on_the_same_ranks(self) -> None:
        cursor = Cursor.from_json(self.saved)
        last = cursor.history[-1] if cursor.history else self.segment
        self.kill_and_load_on_other_ranks(last.world_size, last.batch_size)

    @precondition(lambda self: self.is_finished)
    @rule(world_size=world_sizes, batch_size=batch_sizes)
    def begin_the_next_epoch(self, world_size: int, batch_size: int) -> None:
        self.save()
        self.begin(self.segment.plan, self.segment.epoch + 1, world_size, batch_size)

    @invariant()
    def nothing_came_too_often_and_at_the_end_nothing_is_missing(self) -> None:
        if not hasattr(self, "segment"):
            return
        due = all_indices(self.segment.plan, self.segment.epoch)
        assert not self.consumed - due
        if self.is_finished:
            assert (due - self.consumed).total() == self.segment.num_dropped

    def teardown(self) -> None:
        if hasattr(self, "segment"):
            self.advance(self.segment.num_batches)
            self.nothing_came_too_often_and_at_the_end_nothing_is_missing()


class SampleRun(Run):
    plans = sample_plans()


class BucketRun(Run):
    plans = bucket_plans()


class WindowRun(Run):
    plans = window_plans()


class WeightedRun(Run):
    plans = weighted_plans()


class MixtureRun(Run):
    plans = mixture_plans()
    # What is consumed or skipped is a prefix only if nothing is skipped ahead.
    most_ahead = 0

    @property
    def mixture(self) -> Mixture:
        plan = self.segment.plan
        assert isinstance(plan, SamplePlan)
        assert isinstance(plan.order, Mixture)
        return plan.order

    @property
    def position(self) -> int:
        """What is consumed is a prefix of the order, so its size is the next position."""
        return self.consumed.total()

    @precondition(lambda self: self.position < self.mixture.num_positions(self.segment.epoch))
    @rule(data=st.data())
    def change_the_weights(self, data: st.DataObject) -> None:
        num_sources = len(self.mixture.sizes)
        weights = data.draw(
            st.lists(st.integers(0, 5), min_size=num_sources, max_size=num_sources).filter(any)
        )
        changed = self.mixture.changed(
            weights, epoch=self.segment.epoch, position=self.position, temperature=1.0
        )
        cursor = self.segment.cursor(self.done)
        plan = replace(self.segment.plan, order=changed)
        self.go_on(
            plan.resume(
                replace(cursor, changes=plan.changes),
                world_size=self.segment.world_size,
                batch_size=self.segment.batch_size,
            )
        )
        assert self.mixture.changes[-1].weights == tuple(map(float, weights))

    @rule()
    def saving_and_loading_into_the_plan_as_first_written_keeps_the_changes(self) -> None:
        changes = self.mixture.changes
        self.save()
        self.kill_and_load_on_the_same_ranks()
        assert self.mixture.changes == changes

    @invariant()
    def what_was_consumed_is_a_prefix_of_the_order(self) -> None:
        if hasattr(self, "segment"):
            prefix = self.mixture.indices(self.segment.epoch, range(self.position))
            assert Counter(prefix.tolist()) == self.consumed


def test_a_run_over_samples_accounts_for_everything_whatever_happens_to_it() -> None:
    run_state_machine_as_test(SampleRun, settings=STEPS)


@pytest.mark.slow
def test_a_run_over_a_mixture_accounts_for_everything_whatever_happens_to_it() -> None:
    run_state_machine_as_test(MixtureRun, settings=STEPS)


def test_a_run_over_buckets_accounts_for_everything_whatever_happens_to_it() -> None:
    run_state_machine_as_test(BucketRun, settings=STEPS)


def test_a_run_over_windows_accounts_for_everything_whatever_happens_to_it() -> None:
    run_state_machine_as_test(WindowRun, settings=STEPS)


def test_a_run_over_draws_by_weight_accounts_for_everything_whatever_happens_to_it() -> None:
    run_state_machine_as_test(WeightedRun, settings=STEPS)
