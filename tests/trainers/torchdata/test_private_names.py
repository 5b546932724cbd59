"""What Feedline reads of torchdata exists; a release that renames it is named here."""

from __future__ import annotations

import inspect
from importlib.metadata import version

import pytest
import torch
import torchdata.stateful_dataloader.stateful_dataloader as theirs

from feedline.torch import BatchPlanSampler, DistributedSampler, stateful_loader
from feedline.trainers import torchdata as ours

VERSION = f"torchdata {version('torchdata')}"
IDS = torch.arange(12)

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


def sampler() -> DistributedSampler:
    return DistributedSampler(IDS, num_replicas=1, rank=0)


def test_the_module_and_its_iterators_have_the_names_that_are_looked_for() -> None:
    assert theirs.__name__ == stateful_loader._MODULE, VERSION
    kind = getattr(theirs, stateful_loader.ITERATOR, None)
    assert kind is not None, f"{VERSION} has no {stateful_loader.ITERATOR}"
    kinds = kind.__subclasses__()
    assert len(kinds) == 2, f"{VERSION} has {kinds}"
    for one in kinds:
        parameters = list(inspect.signature(one.__init__).parameters)
        assert parameters == ["self", "loader", stateful_loader.STATE], f"{VERSION}: {one}"
    assert hasattr(theirs, "BatchSampler"), VERSION


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_iterator_has_what_is_read_of_it(num_workers: int) -> None:
    loader = theirs.StatefulDataLoader(IDS, 4, sampler=sampler(), num_workers=num_workers)
    batches = iter(loader)
    next(batches)
    assert isinstance(getattr(batches, stateful_loader.INDEX_SAMPLER), theirs.BatchSampler), VERSION
    assert batches._num_workers == num_workers, VERSION


def test_a_loader_is_found_among_the_callers_of_its_sampler() -> None:
    found = []

    class Asking(BatchPlanSampler):
        def __iter__(self):  # type: ignore[no-untyped-def]
            found.append(stateful_loader.find_caller())
            return super().__iter__()

        def load_state_dict(self, state):  # type: ignore[no-untyped-def]
            found.append(stateful_loader.find_caller())
            super().load_state_dict(state)

    def made() -> theirs.StatefulDataLoader:
        batches = Asking(sampler().plan, batch_size=4, num_replicas=1, rank=0)
        return theirs.StatefulDataLoader(IDS, batch_sampler=batches)

    loader = made()
    next(iter(loader))
    (caller,) = found
    assert caller.loader is loader, VERSION
    assert caller.state is None
    resumed, state = made(), loader.state_dict()
    resumed.load_state_dict(state)
    iter(resumed)
    assert all(caller.state is state for caller in found[1:]), VERSION
    assert len(found) >= 3
    assert stateful_loader.find_caller() is None


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_has_the_keys_that_are_read(num_workers: int) -> None:
    loader = theirs.StatefulDataLoader(IDS, 4, sampler=sampler(), num_workers=num_workers)
    next(iter(loader))
    state = loader.state_dict()
    assert stateful_loader.FINISHED in state, VERSION
    main = state
    if num_workers:
        assert state[stateful_loader.STEPS_SINCE] == 0, VERSION
        main = state[stateful_loader.SNAPSHOT][stateful_loader.MAIN_SNAPSHOT]
        assert main[stateful_loader.NUM_WORKERS] == num_workers, VERSION
        (worker,) = state[stateful_loader.SNAPSHOT][ours.WORKER_SNAPSHOTS].values()
        assert ours.DATASET_STATE in worker, VERSION
    else:
        assert ours.DATASET_STATE in main, VERSION
    assert ours.INDEX_SAMPLER_STATE in main, VERSION
    own = main[ours.SAMPLER_ITER_STATE][ours.SAMPLER_STATE]
    assert own[stateful_loader.SIZES] == [1, 1, 4], VERSION
