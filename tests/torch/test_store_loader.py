"""`feedline.torch.DataLoader` over stores, and over datasets in the order of any plan."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import feedline
from feedline.errors import InvalidValueError, PlanMismatchError, StoreError
from feedline.store import Column, Store
from feedline.torch import DataLoader, DistributedSampler
from feedline.torch.shared_pass import SharedPass
from loader_data import Ids

NUM_SAMPLES = 100


@pytest.fixture
def store(tmp_path: Path) -> feedline.Store:
    columns = {
        "x": np.arange(NUM_SAMPLES),
        "image": np.arange(NUM_SAMPLES * 6, dtype=np.uint8).reshape(-1, 2, 3),
        "flag": np.arange(NUM_SAMPLES) % 2 == 0,
        "deep/name": np.arange(NUM_SAMPLES, dtype=np.uint16),
    }
    feedline.pack(columns, tmp_path / "data", chunk_samples=16)
    return feedline.open(tmp_path / "data")


def ids(batches: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in batches]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_dicts_of_tensors_for_any_columns(
    store: feedline.Store, num_workers: int
) -> None:
    expected = {name: torch.from_numpy(array) for name, array in store[:].items()}
    for batch in DataLoader(store, batch_size=7, shuffle=True, num_workers=num_workers):
        assert list(batch) == ["x", "image", "flag", "deep/name"]
        for name, values in batch.items():
            assert values.dtype == expected[name].dtype
            assert torch.equal(values, expected[name][batch["x"]])


def test_bfloat16_stays_bfloat16(tmp_path: Path) -> None:
    values = torch.arange(20, dtype=torch.bfloat16)
    torch.save({"x": values}, tmp_path / "data.pt")
    (batch,) = DataLoader(feedline.open(tmp_path / "data.pt"), batch_size=20)
    assert batch["x"].dtype == torch.bfloat16
    assert torch.equal(batch["x"], values)


def test_a_windowed_shuffle_takes_samples_from_few_chunks_at_a_time(store: feedline.Store) -> None:
    for window in ("2 chunks", 30):
        found = ids(DataLoader(store, 8, shuffle=True, window=window))
        assert sorted(chain.from_iterable(found)) == list(range(NUM_SAMPLES))
        # Two chunks, or three or four where one window ends and the next one begins.
        chunks = [len({i // 16 for i in batch}) for batch in found]
        assert max(chunks) <= 4
        assert np.mean(chunks) < 2.5
    anywhere = ids(DataLoader(store, 8, shuffle=True))
    assert np.mean([len({i // 16 for i in batch}) for batch in anywhere]) > 3.5


def keep_even(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return batch["x"][::2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_a_transform_returns_is_the_batch_and_is_never_overwritten(
    store: feedline.Store, num_workers: int
) -> None:
    options: Any = {"shuffle": True, "num_workers": num_workers}
    plain = [torch.tensor(batch)[::2] for batch in ids(DataLoader(store, 4, **options))]
    kept = list(DataLoader(store, 4, transform=keep_even, **options))
    assert all(torch.equal(a, b) for a, b in zip(kept, plain, strict=True))


class FailsOnce:
    """A transform that fails at one batch, the first time."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, batch: Any) -> Any:
        self.left -= 1
        if self.left == -1:
            raise RuntimeError("bad batch")
        return batch


@pytest.mark.parametrize("make", [DataLoader, feedline.DataLoader])
def test_a_batch_whose_transform_fails_is_not_counted_until_the_loop_goes_on(
    make: Any, store: feedline.Store
) -> None:
    whole = ids(make(store, 10, shuffle=True))
    loader = make(store, 10, shuffle=True, transform=FailsOnce(3))
    batches = iter(loader)
    assert ids(islice(batches, 3)) == whole[:3]
    with pytest.raises(RuntimeError, match="bad batch"):
        next(batches)
    resumed = make(store, 10, shuffle=True)
    resumed.load_state_dict(loader.state_dict())
    assert ids(resumed) == whole[3:]
    # Whoever catches the error and goes on has passed over that batch.
    assert ids(batches) == whole[4:]
    assert loader.state_dict() == make_finished(make, store)


def make_finished(make: Any, store: feedline.Store) -> Any:
    """The state after a whole epoch."""
    loader = make(store, 10, shuffle=True)
    list(loader)
    return loader.state_dict()


@pytest.mark.parametrize("data", ["store", "dataset"])
def test_any_plan_may_be_the_sampler(data: str, store: feedline.Store) -> None:
    chosen: Any = store if data == "store" else Ids(NUM_SAMPLES)

    def seen(sampler: Any) -> list[int]:
        batches = list(DataLoader(chosen, 8, sampler=sampler))
        return [int(i) for b in batches for i in (b["x"] if data == "store" else b)]

    plans = feedline
    half = plans.Subset(range(50, 100), order=plans.Shuffled(num_samples=50))
    assert sorted(seen(half)) == list(range(50, 100))
    both = plans.Concatenated(
        [plans.Sequential(num_samples=60), plans.Shuffled(num_samples=40, seed=3)]
    )
    assert seen(both)[:60] == list(range(60))
    mixture = plans.Mixture(sizes=[60, 40], weights=[1, 3])
    assert sum(i >= 60 for i in seen(mixture)) == 75
    chunks = plans.EqualChunks(num_samples=NUM_SAMPLES, chunk_size=16)
    windows = plans.WindowPlan(chunks=chunks, preload=2, tail="even")
    assert sorted(seen(windows)) == list(range(NUM_SAMPLES))
    drawn = plans.Weighted(np.arange(NUM_SAMPLES) < 10, num_samples=200)
    assert len(seen(drawn)) == 200
    assert set(seen(drawn)) <= set(range(10))
    once = plans.Weighted(1 + np.arange(NUM_SAMPLES), replacement=False)
    assert sorted(seen(once)) == list(range(NUM_SAMPLES))


def test_the_same_draws_come_on_any_number_of_ranks() -> None:
    order = feedline.Weighted(1 + np.arange(NUM_SAMPLES) % 5, num_samples=96, seed=4)

    def steps(world_size: int) -> list[list[int]]:
        ranks = [
            DataLoader(
                Ids(NUM_SAMPLES), 12 // world_size, sampler=order, num_replicas=world_size, rank=r
            )
            for r in range(world_size)
        ]
        return [sorted(torch.cat(batches).tolist()) for batches in zip(*ranks, strict=True)]

    assert steps(1) == steps(2) == steps(3) == steps(4)


@pytest.mark.parametrize("data", ["store", "dataset"])
@pytest.mark.parametrize("num_samples", [60, 101])
def test_a_plan_for_another_number_of_samples_is_refused(
    data: str, num_samples: int, store: feedline.Store
) -> None:
    order = feedline.Shuffled(num_samples=num_samples)
    chosen: Any = store if data == "store" else Ids(NUM_SAMPLES)
    with pytest.raises(InvalidValueError, match=f"for {num_samples} samples but the data has 100"):
        DataLoader(chosen, 8, sampler=order)


def test_a_state_of_other_data_or_another_order_is_refused(
    store: feedline.Store, tmp_path: Path
) -> None:
    loader = DataLoader(store, 8, shuffle=True)
    list(islice(iter(loader), 3))
    state = loader.state_dict()
    feedline.pack({"x": np.arange(NUM_SAMPLES) + 1}, tmp_path / "other", chunk_samples=16)
    others = [
        DataLoader(feedline.open(tmp_path / "other"), 8, shuffle=True),
        DataLoader(store, 8, shuffle=True, seed=1),
        DataLoader(store, 8, shuffle=True, window="2 chunks"),
        DataLoader(store, 8),
        DataLoader(store, 8, shuffle=True, drop_last=True),
    ]
    for other in others:
        with pytest.raises(PlanMismatchError):
            other.load_state_dict(state)


PLAN = feedline.SamplePlan(order=feedline.Shuffled(num_samples=NUM_SAMPLES))
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "window without shuffle": ({"window": 10}, "needs shuffle=True"),
    "window of nothing": ({"shuffle": True, "window": 0}, "window=0 must be"),
    "window in words": ({"shuffle": True, "window": "many"}, "window='many' must be a number"),
    "window and plan": ({"sampler": PLAN, "window": 5}, "window=5 cannot be used"),
    "shuffle and plan": ({"sampler": PLAN, "shuffle": True}, "shuffle=True cannot be used"),
    "seed and plan": ({"sampler": PLAN, "seed": 5}, "seed=5 cannot be used"),
    "tail and plan": ({"sampler": PLAN, "tail": "pad"}, "tail='pad' cannot be used"),
    "drop_last and plan": ({"sampler": PLAN, "drop_last": True}, "drop_last=True cannot be used"),
    "drop_last and tail": ({"drop_last": True, "tail": "pad"}, "drop_last=True means tail='drop'"),
    "tail": ({"tail": "most"}, "tail='most' must be one of"),
    "no batches": ({"batch_size": None}, "batch_size=None must be an integer"),
    "empty batches": ({"batch_size": 0}, "batch_size=0 must be"),
    "order out of order": ({"in_order": False}, "in_order=False must be True"),
    "generator": ({"generator": torch.Generator()}, "generator cannot be used"),
    "twice": ({"transform": keep_even, "collate_fn": keep_even}, "use one of them"),
    "too many workers": ({"num_workers": 10**30}, "num_workers=.* must be"),
    "workers in words": ({"num_workers": "2"}, "num_workers='2' must be"),
    "no function": ({"transform": 0}, "transform=0 must be a function"),
    "shuffle in words": ({"shuffle": "no"}, "shuffle='no' must be True or False"),
    "no log": ({"log": 1}, "log=1 must be a folder or a recorder"),
    "no peers": ({"peers": 1}, "peers=1 must be 'auto' or Peers"),
    "small budget": ({"memory_budget": 10}, "memory_budget=10 must be at least"),
}


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_arguments_that_do_not_fit_are_refused(
    options: dict[str, Any], message: str, store: feedline.Store
) -> None:
    with pytest.raises(InvalidValueError, match=message):
        next(iter(DataLoader(store, **{"batch_size": 8, **options})))


@pytest.mark.parametrize("name", ["window", "transform", "num_threads", "memory_budget"])
def test_what_only_a_store_takes_is_refused_elsewhere(name: str) -> None:
    value: Any = keep_even if name == "transform" else 8
    with pytest.raises(InvalidValueError, match=f"{name}=.* cannot be used"):
        DataLoader(Ids(NUM_SAMPLES), **{name: value})


def test_a_store_under_one_of_our_samplers_is_a_map_style_dataset(store: feedline.Store) -> None:
    sampler = DistributedSampler(store, num_replicas=2, rank=1, shuffle=False)  # type: ignore[arg-type]
    batches = list(DataLoader(store, 25, sampler=sampler))
    assert ids(batches) == [list(range(1, 51, 2)), list(range(51, 100, 2))]


def test_more_workers_than_can_be_told_apart_are_refused() -> None:
    begin = SharedPass().begin_in_worker
    assert begin(PLAN, 1, 8, 1, 255).num_batches == 12
    with pytest.raises(InvalidValueError, match="worker=256 must be below 256"):
        begin(PLAN, 1, 8, 1, 256)


def test_an_empty_tail_is_not_the_default() -> None:
    with pytest.raises(InvalidValueError, match="tail='' must be one of"):
        DataLoader(Ids(NUM_SAMPLES), 8, tail="")


class Unreadable(Store):
    """Ten chunks of four samples, of which one cannot be read."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    num_samples = 40
    columns: ClassVar = {"x": Column("x", "int64")}
    fingerprint = "unreadable"

    @property
    def chunk_sizes(self) -> NDArray[np.int64]:
        return np.full(10, 4)

    def read(self, chunk: int, rows: Any, out: Any = None) -> dict[str, Any]:
        if chunk == 3:
            raise self._error("chunk 3: cannot be read")
        out = {"x": np.empty(len(rows), np.int64)} if out is None else out
        out["x"][:] = 4 * chunk + np.asarray(rows)
        return out

    def describe_row(self, chunk: int, row: int) -> str:
        return f"chunk {chunk}, row {row}"


@pytest.mark.parametrize("error", [StoreError, RuntimeError])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_after_a_batch_that_cannot_be_read_come_those_behind_it(
    num_workers: int, error: type[Exception]
) -> None:
    loader = DataLoader(Unreadable(error), batch_size=4, num_workers=num_workers)
    batches = iter(loader)
    seen, states = [], []
    for number in range(10):
        if number == 3:
            with pytest.raises(error, match="chunk 3"):
                next(batches)
            continue
        seen.append(next(batches)["x"].tolist())
        states.append(loader.state_dict())
    assert seen == [list(range(4 * n, 4 * n + 4)) for n in range(10) if n != 3]
    assert next(batches, None) is None
    resumed = DataLoader(Unreadable(error), batch_size=4)
    resumed.load_state_dict(states[5])
    assert [batch["x"].tolist() for batch in resumed] == seen[6:]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_mask_of_padded_lists_does_not_take_the_place_of_a_column(
    num_workers: int, tmp_path: Path
) -> None:
    columns = {"x": [[1, 2], [3], []], "x/mask": np.array([7, 8, 9])}
    feedline.pack(columns, tmp_path / "data")
    loader = DataLoader(feedline.open(tmp_path / "data"), lists="padded", num_workers=num_workers)
    with pytest.raises(InvalidValueError, match="'x/mask', but that is a column too"):
        list(loader)


@pytest.mark.parametrize("type_name", ["uint16", "uint32", "uint64", "bool"])
def test_lists_of_any_type_are_padded(type_name: str, tmp_path: Path) -> None:
    largest = np.array(-1).astype(type_name)
    lists = [np.array([largest, 1], type_name), np.array([], type_name), np.array([1], type_name)]
    feedline.pack({"x": lists}, tmp_path / "data")
    (batch,) = DataLoader(feedline.open(tmp_path / "data"), 3, lists="padded")
    assert batch["x"].dtype == getattr(torch, type_name)
    assert batch["x"].tolist() == [[largest.item(), 1], [0, 0], [1, 0]]
    assert batch["x/mask"].tolist() == [[True, True], [False, False], [True, False]]


def test_a_transform_may_return_integers_above_int64(store: feedline.Store) -> None:
    loader = DataLoader(store, 2, sample_transform=lambda sample, rng: {"x": 2**63})
    batch = next(iter(loader))
    assert batch["x"].dtype == torch.uint64
    assert batch["x"].tolist() == [2**63] * 2
