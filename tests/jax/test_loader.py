"""JAX's loader in one process with four devices; the contract suite has its epochs and states."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import feedline
from chunk_data import safetensors_bytes
from feedline.errors import InvalidValueError, SampleError
from feedline.feed import Alone, Loader
from feedline.jax import DataLoader
from feedline.plan import BucketPlan, SamplePlan, Shuffled, Subset
from feedline.runs import audit_logs
from loader_data import FailsOnce, Ids, Listing, WholeBatches

NUM_SAMPLES = 61


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = np.arange(NUM_SAMPLES)
    columns = {"x": rows, "pair": np.stack([rows, rows / 2], 1).astype(np.float32)}
    columns["text"] = [f"sample {i}" for i in rows]  # type: ignore[assignment]
    path = tmp_path_factory.mktemp("jax") / "data"
    feedline.pack(columns, path, chunk_samples=13)
    return path


@pytest.fixture
def store(folder: Path) -> Any:
    return feedline.open(folder, columns=["x", "pair"])


def test_batches_are_arrays_over_all_devices(store: Any) -> None:
    with DataLoader(store, 8) as loader:
        assert isinstance(loader, Loader)
        batches = list(loader)
    assert len(batches) == len(loader) == 8
    for batch in batches:
        assert set(batch) == {"x", "pair"}
        assert all(array.sharding == loader.sharding for array in batch.values())
        assert len(batch["x"].addressable_shards) == 4
        assert batch["pair"].shape == (8, 2)
    # Kept to the end: no memory is used again while a batch has it.
    seen = np.concatenate([np.asarray(batch["x"]) for batch in batches])
    assert seen[:NUM_SAMPLES].tolist() == list(range(NUM_SAMPLES))
    pairs = np.concatenate([np.asarray(batch["pair"]) for batch in batches])
    assert pairs[:, 0].tolist() == seen.tolist()


@pytest.mark.parametrize("num_ahead", [0, 1, 5])
def test_batches_are_read_ahead_and_not_counted(num_ahead: int) -> None:
    fetched = []

    class Noting(Ids):
        def __getitem__(self, index: int) -> int:
            fetched.append(index)
            return index

    loader = DataLoader(Noting(40), 4, num_ahead=num_ahead, num_threads=0)
    running = iter(loader)
    assert next(running).tolist() == [0, 1, 2, 3]
    assert len(fetched) == 4 * (1 + num_ahead)
    history = json.loads(loader.state_dict()["cursor"])["history"]
    assert history == [[1, 4, 1]]
    assert loader.delivered is not None
    assert loader.delivered.ids is not None
    assert loader.delivered.ids.tolist() == [0, 1, 2, 3]


def test_all_batches_have_one_shape_and_a_mask_of_what_is_real() -> None:
    loader = DataLoader(Ids(10), 4, with_mask=True)
    shapes, real = set(), []
    for batch, is_real in loader:
        shapes.add((batch.shape, is_real.shape))
        assert is_real.sharding == loader.sharding
        real += np.asarray(batch)[np.asarray(is_real)].tolist()
    assert shapes == {((4,), (4,))}
    assert real == list(range(10))


def test_a_jitted_step_is_compiled_once_for_an_epoch() -> None:
    num_traces = 0

    @jax.jit
    def step(batch: Any, is_real: Any) -> Any:
        nonlocal num_traces
        num_traces += 1
        return (batch * is_real).sum()

    loader = DataLoader(Ids(NUM_SAMPLES), 8, shuffle=True, with_mask=True)
    sums = [int(step(*batch)) for _ in range(2) for batch in loader]
    assert num_traces == 1
    assert sum(sums) == NUM_SAMPLES * (NUM_SAMPLES - 1)


def test_a_sharding_may_be_given_and_is_checked_at_once() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    loader = DataLoader(Ids(12), 6, sharding=sharding)
    (first, *_) = loader
    assert first.sharding == sharding
    assert [shard.data.shape for shard in first.addressable_shards] == [(3,)] * 4
    with pytest.raises(InvalidValueError, match="batch_size=5 must be a multiple of 2"):
        DataLoader(Ids(12), 5, sharding=sharding)


def test_a_batch_that_does_not_divide_over_the_devices_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="batch_size=6 must be a multiple of 4"):
        next(iter(DataLoader(Ids(12), 6)))


@pytest.mark.parametrize("ranks", [{"num_replicas": 2, "rank": 0}, {"peers": Alone()}])
def test_ranks_beside_a_sharding_are_refused(ranks: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError, match="cannot be used with a sharding"):
        DataLoader(Ids(8), 4, **ranks)
    assert len(DataLoader(Ids(8), 4, sharding=None, **ranks)) >= 1


def test_a_tail_of_batches_that_differ_is_refused_beside_a_sharding() -> None:
    plan = SamplePlan(order=Shuffled(num_samples=8), tail="even")
    for options in ({"tail": "even"}, {"sampler": plan}):
        with pytest.raises(InvalidValueError, match="tail='even' must be 'pad', 'drop' or 'exact'"):
            DataLoader(Ids(8), 4, **options)
        assert len(DataLoader(Ids(8), 4, sharding=None, **options)) == 2


def test_plans_and_orders_are_taken(store: Any) -> None:
    chosen = DataLoader(store, 4, sampler=Subset(range(3, 11)))
    assert [i for batch in chosen for i in batch["x"].tolist()] == list(range(3, 11))
    groups = {0: range(0, 40), 1: range(40, NUM_SAMPLES)}
    buckets = BucketPlan.from_groups(groups, tail="pad", seed=5)
    loader = DataLoader(Ids(NUM_SAMPLES), 4, sampler=buckets, with_mask=True)
    real = [i for b, m in loader for i in np.asarray(b)[np.asarray(m)].tolist()]
    assert sorted(real) == list(range(NUM_SAMPLES))


def test_texts_are_refused_at_once_and_the_error_says_which_columns_to_take(folder: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"column 'text' is text.*columns=\['x', 'pair'\]"):
        DataLoader(feedline.open(folder), 4)
    loader = DataLoader(
        feedline.open(folder),
        4,
        transform=lambda batch: {"n": np.array([len(t) for t in batch["text"]])},
    )
    assert next(iter(loader))["n"].tolist() == [8, 8, 8, 8]


def test_bfloat16_comes_as_such(tmp_path: Path) -> None:
    import ml_dtypes

    values = (np.arange(16) / 4).astype(ml_dtypes.bfloat16)
    header = {"x": {"dtype": "BF16", "shape": [16], "data_offsets": [0, 32]}}
    content = safetensors_bytes(header, values.view(np.uint16).tobytes())
    (tmp_path / "b.safetensors").write_bytes(content)
    (batch,) = DataLoader(feedline.open(tmp_path / "b.safetensors"), 16)
    assert batch["x"].dtype == jax.numpy.bfloat16
    assert batch["x"].astype(float).tolist() == (np.arange(16) / 4).tolist()


def test_a_transform_of_samples_depends_on_the_seed_and_the_sample_alone(store: Any) -> None:
    def noted(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"x": sample["x"], "drawn": rng.random(dtype=np.float32)}

    drawn = []
    for num_threads, batch_size in [(0, 4), (3, 8)]:
        options = {"shuffle": True, "seed": 3, "num_threads": num_threads, "with_mask": True}
        loader = DataLoader(store, batch_size, sample_transform=noted, **options)
        found = {}
        for batch, is_real in loader:
            for x, value, mark in zip(
                batch["x"].tolist(), batch["drawn"].tolist(), is_real.tolist(), strict=True
            ):
                if mark:
                    found[x] = value
        drawn.append(found)
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0].values())) == NUM_SAMPLES


def test_samples_that_are_skipped_count_when_they_are_delivered(store: Any) -> None:
    def failing(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        if sample["x"] % 4 == 1:
            raise ValueError("odd one")
        return {"x": sample["x"]}

    options = {"sample_transform": failing, "with_mask": True}
    loader = DataLoader(store, 8, on_error="skip", num_ahead=3, **options)
    running = iter(loader)
    _, is_real = next(running)
    assert loader.num_skipped == 2
    assert is_real.tolist() == [True, False, True, True, True, False, True, True]
    assert loader.delivered is not None
    assert loader.delivered.num_real == 6
    with pytest.raises(SampleError, match="sample 1: sample_transform failed"):
        next(iter(DataLoader(store, 8, **options)))


@pytest.mark.parametrize("options", [{"num_threads": 0}, {"num_threads": 2}])
def test_an_error_comes_in_its_turn_and_the_loop_may_continue(options: dict[str, Any]) -> None:
    loader = DataLoader(FailsOnce(24, bad=9), 4, num_ahead=3, **options)
    running = iter(loader)
    assert [b.tolist()[0] for b in islice(running, 2)] == [0, 4]
    with pytest.raises(RuntimeError, match="sample 9 cannot be read"):
        next(running)
    assert json.loads(loader.state_dict()["cursor"])["history"] == [[1, 4, 2]]
    assert next(running).tolist() == [12, 13, 14, 15]
    assert json.loads(loader.state_dict()["cursor"])["history"] == [[1, 4, 4]]
    assert [b.tolist()[0] for b in running] == [16, 20]
    assert loader.num_batches_left() == 6
    assert next(iter(loader)).shape == (4,)
    assert loader.epoch == 1


def test_a_failing_transform_of_a_store_is_skipped_too(store: Any) -> None:
    def transform(batch: dict[str, Any]) -> Any:
        if 9 in batch["x"]:
            raise RuntimeError("not this one")
        return batch["x"]

    running = iter(loader := DataLoader(store, 4, transform=transform))
    assert len(list(islice(running, 2))) == 2
    with pytest.raises(RuntimeError, match="not this one"):
        next(running)
    assert next(running).tolist() == [12, 13, 14, 15]
    assert json.loads(loader.state_dict()["cursor"])["history"] == [[1, 4, 4]]


def test_a_transform_that_drops_rows_is_refused(store: Any) -> None:
    loader = DataLoader(store, 4, transform=lambda batch: batch["x"][:2])
    with pytest.raises(InvalidValueError, match="must have 4 rows"):
        next(iter(loader))


def test_whole_batches_are_fetched_at_once_where_the_dataset_can() -> None:
    data = WholeBatches(np.arange(24, dtype=np.float32).reshape(12, 2))
    loader = DataLoader(data, 4, num_threads=0)
    assert [batch.shape for batch in loader] == [(4, 2)] * 3
    assert data.num_calls == 3


def test_a_collate_function_makes_the_batch() -> None:
    loader = DataLoader(Ids(8), 4, collate_fn=lambda found: {"sum": np.cumsum(found)})
    assert [batch["sum"].tolist() for batch in loader] == [[0, 1, 3, 6], [4, 9, 15, 22]]


def test_a_state_of_the_numpy_loader_of_the_same_store_loads(store: Any) -> None:
    numpy_loader = feedline.DataLoader(store, 4, shuffle=True, seed=3, tail="pad")
    numbers = [next(it)["x"].tolist() for it in [iter(numpy_loader)] for _ in range(3)]
    loader = DataLoader(store, 4, shuffle=True, seed=3)
    loader.load_state_dict(numpy_loader.state_dict())
    numbers += [batch["x"].tolist() for batch in loader]
    assert sorted({i for batch in numbers for i in batch}) == list(range(NUM_SAMPLES))


def test_a_log_has_what_was_delivered_and_passes_the_audit(tmp_path: Path) -> None:
    with DataLoader(Ids(NUM_SAMPLES), 8, shuffle=True, log=tmp_path / "logs") as loader:
        for _ in loader:
            pass
    assert audit_logs([tmp_path / "logs"]).ok


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        (3, "must be a store"),
        ("data", r"open it with feedline.open\('data'\)"),
        ({"x": [1, 2]}, "pack the columns"),
        (iter([1, 2]), "is iterable"),
        ((i for i in range(3)), "is iterable"),
    ],
)
def test_data_that_has_no_samples_by_number_is_refused(dataset: Any, says: str) -> None:
    with pytest.raises(InvalidValueError, match=says):
        DataLoader(dataset, 4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"window": 4}, "window=4 cannot be used, it needs a store"),
        ({"decode": {"x": "jpeg"}}, "it needs a store"),
        ({"on_error": "skip"}, "on_error='skip' cannot be used, it needs a store"),
        ({"memory_budget": 10**6}, "it needs a store"),
        ({"num_ahead": -1}, "num_ahead=-1 must be"),
        ({"num_workers": 5000}, "num_workers=5000 must be in"),
        ({"batch_size": 0}, "batch_size=0 must be"),
        ({"sharding": "data"}, "sharding='data' must be"),
    ],
)
def test_wrong_arguments_are_refused_at_once(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValueError, match=says):
        DataLoader(Ids(8), **{"batch_size": 4, **options})


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"collate_fn": list}])
def test_what_needs_a_map_style_dataset_is_refused_for_a_store(
    options: dict[str, Any], store: Any
) -> None:
    with pytest.raises(InvalidValueError, match="it needs a map-style dataset"):
        DataLoader(store, 4, **options)


def test_nothing_is_asked_of_jax_when_a_loader_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("jax.distributed.initialize may come later")

    for name in ("devices", "process_count", "process_index", "local_devices"):
        monkeypatch.setattr(jax, name, refuse)
    loader = DataLoader(Listing(8, "abc"), 4)
    assert "ranks are found at first use" in repr(loader)


def test_a_dataset_that_has_grown_is_refused_at_the_next_pass() -> None:
    data = [np.arange(3)] * 8
    loader = DataLoader(data, 4)
    assert len(list(loader)) == 2
    data.append(data[0])
    with pytest.raises(InvalidValueError, match=r"has 9 samples, but had 8 when the loader"):
        list(loader)
