"""Streaming datasets of Hugging Face resume exactly, or are refused; `make test-iterables`."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

datasets = pytest.importorskip("datasets", reason="see make test-iterables")
split_by_node = pytest.importorskip("datasets.distributed").split_dataset_by_node

import hypothesis.strategies as st  # noqa: E402
from hypothesis import given, settings  # noqa: E402

import feedline  # noqa: E402
from feedline.errors import InvalidValueError  # noqa: E402
from feedline.feed import IterableArrays  # noqa: E402
from feedline.torch import DataLoader, IterableLoader  # noqa: E402
from thread_peers import ThreadPeers, on_ranks  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def generate(shards: list[int]) -> Any:
    for shard in shards:
        for number in range(9 + shard % 3):
            yield {"id": 100 * shard + number, "text": f"{shard}-{number}"}


def streamed(num_shards: int = 6) -> Any:
    options = {"gen_kwargs": {"shards": list(range(num_shards))}}
    return datasets.IterableDataset.from_generator(generate, **options)


def tables(num_shards: int = 4) -> Any:
    data = {"id": list(range(50)), "x": [[i, i + 1] for i in range(50)]}
    return datasets.Dataset.from_dict(data).to_iterable_dataset(num_shards=num_shards)


def add_one(batch: Any) -> Any:
    return {"y": [number + 1 for number in batch["id"]]}


def twice(batch: Any) -> Any:
    return {"id": [number for number in batch["id"] for _ in range(2)]}


PIPES: dict[str, Callable[[], Any]] = {
    "generator": streamed,
    "tables": tables,
    "map": lambda: streamed().map(lambda sample: {"y": sample["id"] + 1}),
    "batched map": lambda: streamed().map(add_one, batched=True, batch_size=4),
    "map that adds samples": lambda: streamed().map(
        twice, batched=True, batch_size=4, remove_columns=["id", "text"]
    ),
    "filter": lambda: tables().filter(lambda sample: sample["id"] % 3 != 0),
    "skip and take": lambda: streamed().skip(5).take(30),
    "shuffled shards": lambda: streamed().shuffle(3, buffer_size=1, max_buffer_input_shards=1),
    "interleaved": lambda: datasets.interleave_datasets(
        [streamed(), streamed(4)], probabilities=[0.3, 0.7], seed=1
    ),
    "concatenated": lambda: datasets.concatenate_datasets([streamed(), streamed(4)]),
    "tensors": lambda: tables().map(add_one, batched=True, batch_size=7).with_format("torch"),
    "repeated": lambda: tables().repeat(2),
    "batches": lambda: streamed().batch(4),
}
each_pipe = pytest.mark.parametrize("make", [pytest.param(f, id=name) for name, f in PIPES.items()])


def as_listed(samples: list[Any]) -> str:
    return repr(samples)


def loader_of(dataset: Any, **options: Any) -> Any:
    loader = DataLoader(dataset, batch_size=3, collate_fn=as_listed, **options)
    assert isinstance(loader, IterableLoader)
    return loader


def saved(loader: Any) -> Any:
    return json.loads(json.dumps(loader.state_dict()))


@each_pipe
@settings(max_examples=8, deadline=None)
@given(draw=st.data())
def test_a_run_that_is_killed_often_sees_each_batch_once(make: Any, draw: st.DataObject) -> None:
    epoch = draw.draw(st.integers(0, 1))
    loader = loader_of(make())
    loader.set_epoch(epoch)
    state = saved(loader)
    whole = list(loader)
    seen: list[str] = []
    for _ in range(3):
        loader = loader_of(make())
        loader.load_state_dict(state)
        running = iter(loader)
        seen += islice(running, draw.draw(st.integers(0, 5)))
        if len(seen) == len(whole):
            break
        state = saved(loader)
        list(islice(running, draw.draw(st.integers(0, 3))))
    if len(seen) < len(whole):
        loader = loader_of(make())
        loader.load_state_dict(state)
        seen += loader
    assert seen == whole


@each_pipe
def test_workers_resume_where_the_loop_was(make: Any) -> None:
    loader = loader_of(make(), num_workers=2, prefetch_factor=4)
    whole, states = [], []
    for batch in loader:
        whole.append(batch)
        states.append(saved(loader))
    for number in (1, len(whole) // 2):
        resumed = loader_of(make(), num_workers=2)
        resumed.load_state_dict(states[number - 1])
        assert list(resumed) == whole[number:]


def test_files_resume_without_reading_what_comes_before(tmp_path: Path) -> None:
    paths = []
    for number in range(4):
        paths.append(str(tmp_path / f"{number}.jsonl"))
        lines = [json.dumps({"id": 100 * number + i}) for i in range(20)]
        Path(paths[-1]).write_text("\n".join(lines))

    def make() -> Any:
        cache = str(tmp_path / "cache")
        return datasets.load_dataset(
            "json", data_files=paths, split="train", streaming=True, cache_dir=cache
        )

    loader = loader_of(make())
    whole = list(loader)
    loader.set_epoch(1)
    loader.set_epoch(0)
    list(islice(loader, 20))
    state = saved(loader)
    Path(paths[0]).write_text(json.dumps({"id": -1}) + "\n")
    resumed = loader_of(make())
    resumed.load_state_dict(state)
    assert list(resumed) == whole[20:]


def test_arrays_resume_too() -> None:
    loader = feedline.DataLoader(tables(), batch_size=4)
    assert isinstance(loader, IterableArrays)
    running = iter(loader)
    assert [next(running)["x"].tolist() for _ in range(2)][1][0] == [4, 5]
    resumed = feedline.DataLoader(tables(), batch_size=5)
    resumed.load_state_dict(saved(loader))
    assert [i for batch in resumed for i in batch["id"].tolist()] == list(range(8, 50))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_shuffle_buffer_that_a_state_does_not_hold_is_refused(num_workers: int) -> None:
    with pytest.raises(InvalidValueError, match=r"buffer_size=9, and its state does not hold"):
        DataLoader(streamed().shuffle(1, buffer_size=9), num_workers=num_workers)


def test_shards_that_are_read_together_are_refused_with_workers() -> None:
    """A state of one of several workers does not load then, which a run would see too late."""
    data = streamed().shuffle(1, buffer_size=1)
    with pytest.raises(InvalidValueError, match=r"reads 10 shards at a time.*of 2 workers"):
        DataLoader(data, num_workers=2)
    loader = loader_of(data, num_workers=1)
    whole = list(loader)
    loader.load_state_dict({**saved(loader), **first_state(data)})
    assert list(loader) == whole[1:]


def first_state(data: Any) -> Any:
    loader = loader_of(data)
    running = iter(loader)
    next(running)
    return saved(loader)


def test_a_batched_map_of_tables_is_refused() -> None:
    data = tables().with_format("arrow").map(lambda table: table, batched=True)
    with pytest.raises(InvalidValueError, match="the format 'arrow' and a batched map"):
        DataLoader(data)


def test_a_dataset_that_is_not_split_by_rank_is_refused() -> None:
    def work(peers: ThreadPeers) -> Any:
        return next(iter(loader_of(streamed(), peers=peers)))

    for error in on_ranks(2, work):
        assert "each of the 2 ranks would get all samples" in str(error)
    split = split_by_node(streamed(), rank=1, world_size=3)
    with pytest.raises(InvalidValueError, match="split for rank 1 of 3, but this is rank 0 of 1"):
        next(iter(loader_of(split)))


@pytest.mark.parametrize("num_shards", [6, 5], ids=["shards are divided", "samples are divided"])
def test_ranks_cover_every_sample_once_across_a_resume(num_shards: int) -> None:
    def work(peers: ThreadPeers, state: Any = None, count: int | None = None) -> Any:
        data = split_by_node(
            streamed(num_shards).select_columns("id"), rank=peers.rank, world_size=3
        )
        loader = DataLoader(data, batch_size=1, peers=peers)
        if state is not None:
            loader.load_state_dict(state)
        running = iter(loader)
        seen = [int(batch["id"]) for batch in islice(running, count)]
        return seen, loader.gather_state_dict()

    first = on_ranks(3, lambda peers: work(peers, count=7))
    rest = on_ranks(3, lambda peers: work(peers, state=first[0][1]))
    seen = [i for part in (*first, *rest) for i in part[0]]
    whole = [sample["id"] for sample in streamed(num_shards)]
    assert len(seen) == len(set(seen))
    assert set(seen) <= set(whole)
    # The longer ranks leave a rest, equally many batches being more.
    shares = [whole_of(num_shards, rank) for rank in range(3)]
    assert len(seen) == 3 * min(shares)


def whole_of(num_shards: int, rank: int) -> int:
    split = split_by_node(streamed(num_shards), rank, 3)
    return sum(1 for _ in split)
