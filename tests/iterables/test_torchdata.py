"""What torchdata's own loader resumes, ours does too, at the same batch; `make test-iterables`."""

from __future__ import annotations

import copy
import json
from itertools import islice
from typing import Any

import pytest

torchdata = pytest.importorskip("torchdata", reason="see make test-iterables")

from torchdata.nodes import Batcher, IterableWrapper, Loader  # noqa: E402
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402
from torchdata.stateful_dataloader.stateful import Stateful  # noqa: E402

from feedline.torch import DataLoader, IterableLoader  # noqa: E402
from iterable_data import Counting, Shuffling, Unequal  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
KINDS = [Counting(45), Unequal(24), Shuffling(45)]


def ids(batch: Any) -> list[int]:
    return list((batch["id"] if isinstance(batch, dict) else batch).tolist())


@pytest.mark.parametrize("data", KINDS, ids=["dataset", "unequal workers", "iterator"])
@pytest.mark.parametrize("num_workers", [0, 3])
def test_both_loaders_yield_and_resume_the_same_batches(data: Any, num_workers: int) -> None:
    assert isinstance(data, Stateful) or isinstance(iter(data), Stateful)
    options = {"batch_size": 3, "num_workers": num_workers}
    theirs = StatefulDataLoader(copy.deepcopy(data), **options)
    running = iter(theirs)
    list(islice(running, 5))
    state = theirs.state_dict()
    del running
    resumed_theirs = StatefulDataLoader(copy.deepcopy(data), **options)
    resumed_theirs.load_state_dict(state)
    loader = DataLoader(data, **options)
    assert isinstance(loader, IterableLoader)
    whole = [ids(batch) for batch in loader]
    loader.set_epoch(1)
    loader.set_epoch(0)
    assert [ids(batch) for batch in islice(loader, 5)] == whole[:5]
    resumed = DataLoader(data, **options)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    found = [ids(batch) for batch in resumed]
    assert found == whole[5:]
    # With the others, torchdata repeats samples of a worker that has ended, and may save a state
    # that its worker has changed since.
    if type(data) is Counting or (type(data) is Shuffling and not num_workers):
        assert found == [ids(batch) for batch in resumed_theirs]


def test_nodes_resume_too() -> None:
    def make() -> Any:
        return Loader(Batcher(IterableWrapper(range(50)), batch_size=4))

    loader = DataLoader(make(), batch_size=None)
    whole = [list(batch) for batch in loader]
    assert len(whole) == 12
    loader.set_epoch(1)
    loader.set_epoch(0)
    assert [list(batch) for batch in islice(loader, 3)] == whole[:3]
    resumed = DataLoader(make(), batch_size=None)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert [list(batch) for batch in resumed] == whole[3:]
