"""Each sample is transformed the same way on any ranks, threads and batch sizes, and after any
resume; one that fails is named, or skipped and counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline
from examples import few_examples
from feedline.errors import InvalidValueError, SampleError
from feedline.feed import sample_rng
from feedline.plan import Plan
from feedline.runs import ConsumptionLog, audit_logs, read_log
from feedline.runs.audit import find_logs
from feedline.store import FolderStore, Lists
from sample_data import make_samples, write_samples

NUM_SAMPLES = 60
BAD = (7, 31)
MIXTURE = feedline.Mixture(sizes=(6, 54), weights=(1, 1), seed=5)
PLANS: dict[str, Plan] = {
    "shuffled": feedline.SamplePlan(
        order=feedline.Shuffled(num_samples=NUM_SAMPLES, seed=5), tail="even"
    ),
    "padded": feedline.SamplePlan(
        order=feedline.Shuffled(num_samples=NUM_SAMPLES, seed=5), tail="pad"
    ),
    "mixture": feedline.SamplePlan(order=MIXTURE, tail="even"),
    "weighted": feedline.SamplePlan(
        order=feedline.Weighted(np.arange(1.0, NUM_SAMPLES + 1), seed=5), tail="even"
    ),
    "windows": feedline.WindowPlan(
        chunks=feedline.UnequalChunks([8] * 7 + [4]), preload=2, tail="even", seed=5
    ),
    "buckets": feedline.BucketPlan.from_groups(
        {"a": range(20), "b": range(20, 60)}, tail="even", mode="interleaved", seed=5
    ),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FolderStore:
    return make_samples(tmp_path_factory.mktemp("data"), NUM_SAMPLES)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> FolderStore:
    return make_samples(tmp_path_factory.mktemp("data"), NUM_SAMPLES, bad=BAD)


def draw(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return the id of a sample, and two numbers of its generator."""
    return {"id": sample["id"], "drawn": rng.integers(2**62, size=2)}


def expected(plan: Plan, epoch: int) -> list[tuple[int, ...]]:
    """Return what `draw` makes of an epoch, by definition."""
    segment = plan.segment(world_size=1, batch_size=1, epoch=epoch)
    numbers = range(segment.num_batches)
    indices, _ = segment.picked(0, numbers)
    entries = zip(indices.tolist(), *(p.tolist() for p in segment.draws(0, numbers)), strict=True)
    return sorted(
        (index, *_two(5, epoch=epoch, index=index, source=source, draw=number))
        for index, source, number in entries
    )


def _two(seed: int, **names: int) -> list[int]:
    numbers: list[int] = sample_rng(seed, **names).integers(2**62, size=2).tolist()
    return numbers


def drawn_by(batches: Iterator[Any]) -> Iterator[tuple[int, ...]]:
    """Yield what the real samples of some batches have drawn."""
    for batch, is_real in batches:
        rows = zip(batch["id"].tolist(), batch["drawn"].tolist(), is_real.tolist(), strict=True)
        yield from ((index, *numbers) for index, numbers, is_real in rows if is_real)


@pytest.mark.parametrize("name", PLANS)
@few_examples(1 / 6)
@given(data=st.data())
def test_what_a_draw_gets_depends_on_nothing_else(
    name: str, store: FolderStore, data: st.DataObject
) -> None:
    plan, epoch = PLANS[name], data.draw(st.integers(0, 2))
    found: list[tuple[int, ...]] = []
    state: dict[str, Any] | None = None
    is_last = False
    while not is_last:
        world_size = data.draw(st.integers(1, 3))
        options = {
            "batch_size": data.draw(st.integers(1, 9)),
            "num_threads": data.draw(st.sampled_from([0, 1, 3])),
        }
        stop = data.draw(st.one_of(st.none(), st.integers(1, 4)))
        is_last = stop is None
        states = []
        for rank in range(world_size):
            loader = feedline.DataLoader(
                store,
                sampler=plan,
                sample_transform=draw,
                with_mask=True,
                num_replicas=world_size,
                rank=rank,
                **options,
            )
            if state is None:
                loader.set_epoch(epoch)
            else:
                loader.load_state_dict(state)
            batches = iter(loader)
            found += drawn_by(islice(batches, stop))
            states.append(loader.state_dict())
        assert all(other == states[0] for other in states)
        state = states[0]
        is_last = is_last or len(found) >= len(expected(plan, epoch))
    assert sorted(found) == expected(plan, epoch)


def test_a_sample_that_a_mixture_draws_again_gets_other_numbers(store: FolderStore) -> None:
    loader = feedline.DataLoader(
        store, batch_size=6, sampler=PLANS["mixture"], sample_transform=draw, with_mask=True
    )
    first = list(drawn_by(iter(loader)))
    of_sample = [numbers for index, *numbers in first if index == 3]
    assert len(of_sample) == 5
    assert len({number for numbers in of_sample for number in numbers}) == 10
    # The next epoch is another one.
    assert not set(first) & set(drawn_by(iter(loader)))


def test_the_seed_of_the_loader_decides_without_a_shuffle(store: FolderStore) -> None:
    def drawn(seed: int | None) -> list[Any]:
        loader = feedline.DataLoader(
            store, batch_size=30, seed=seed, sample_transform=draw, with_mask=True
        )
        return list(drawn_by(iter(loader)))

    assert drawn(None) == drawn(0) != drawn(1)
    assert drawn(1)[4] == (4, *_two(1, epoch=0, index=4))


def test_a_sample_has_the_values_of_the_store(store: FolderStore) -> None:
    seen: list[dict[str, Any]] = []

    def keep(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        seen.append(sample)
        return sample

    (batch,) = feedline.DataLoader(store, batch_size=60, sample_transform=keep, num_threads=0)
    for index in (0, 11, 59):
        one, other = seen[index], store[index]
        assert one.keys() == other.keys()
        for column in one:
            np.testing.assert_array_equal(one[column], other[column])
            assert type(one[column]) is type(other[column])
    (plain,) = feedline.DataLoader(store, batch_size=60)
    assert batch.keys() == plain.keys()
    assert isinstance(batch["tokens"], Lists)
    assert batch["tokens"].tolist() == plain["tokens"].tolist()
    assert batch["text"] == plain["text"]
    assert batch["file"] == plain["file"]
    np.testing.assert_array_equal(batch["x"], plain["x"])


def test_decoding_transform_and_batch_transform_follow_each_other(store: FolderStore) -> None:
    def sample_transform(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"id": sample["id"], "sum": sample["file"].sum()}

    loader = feedline.DataLoader(
        store,
        batch_size=10,
        decode={"file": "npy"},
        sample_transform=sample_transform,
        transform=lambda batch: {**batch, "sum": batch["sum"] + 1},
    )
    for batch in loader:
        assert batch["sum"].tolist() == (3 * batch["id"] + 1).tolist()


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_an_error_comes_at_its_batch_and_the_others_come_too(
    num_threads: int, damaged: FolderStore
) -> None:
    loader = feedline.DataLoader(
        damaged, batch_size=10, decode={"file": "npy"}, num_threads=num_threads
    )
    batches = iter(loader)
    numbers, errors = [], []
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            break
        except SampleError as error:
            errors.append(str(error))
            if len(errors) == 1:
                # Nothing was delivered, so a resumed run begins with this batch.
                assert loader.delivered is None
            continue
        assert loader.delivered is not None
        assert batch["id"].tolist() == loader.delivered.ids.tolist()
        numbers.append(loader.delivered.number)
    assert numbers == [1, 2, 4, 5]
    assert "chunk-000000, row 7: sample 7: column 'file' cannot be decoded as npy" in errors[0]
    assert "chunk-000003, row 7: sample 31: column 'file' cannot be decoded as npy" in errors[1]
    assert "on_error='skip'" in errors[0]


def test_an_error_of_the_transform_names_the_sample(store: FolderStore) -> None:
    def fail(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"x": 1 // (sample["id"] - 33)} if sample["id"] != 33 else {"x": 1 // 0}

    loader = feedline.DataLoader(store, batch_size=10, sample_transform=fail)
    with pytest.raises(
        SampleError,
        match=r"chunk-000004, row 1: sample 33: sample_transform failed \(ZeroDivisionError: ",
    ) as caught:
        list(loader)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    resumed = feedline.DataLoader(store, batch_size=10)
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed))["id"].tolist() == list(range(30, 40))


def test_a_text_that_is_damaged_fails_alone(tmp_path: Path) -> None:
    write_samples(tmp_path, {"id": np.arange(4), "text": ["a", "bb", "ccc", "d"]})
    values = tmp_path / "chunk-000000" / "text" / "values.npy"
    data = np.load(values)
    data[1] = 0xFF
    np.save(values, data)
    store = feedline.open(tmp_path)
    loader = feedline.DataLoader(
        store, batch_size=4, sample_transform=lambda sample, rng: sample, on_error="skip"
    )
    (batch,) = loader
    assert batch["text"] == ["a", "a", "ccc", "d"]
    assert loader.num_skipped == 1


@pytest.mark.parametrize("num_threads", [0, 1, 3])
@pytest.mark.parametrize("transforms", [False, True])
def test_a_skipped_sample_is_replaced_and_marked(
    num_threads: int, transforms: bool, damaged: FolderStore, caplog: pytest.LogCaptureFixture
) -> None:
    loader = feedline.DataLoader(
        damaged,
        batch_size=8,
        decode={"file": "npy"},
        sample_transform=(lambda sample, rng: sample) if transforms else None,
        on_error="skip",
        with_mask=True,
        num_threads=num_threads,
    )
    with caplog.at_level(logging.WARNING, "feedline"):
        for epoch in range(2):
            for number, (batch, is_real) in enumerate(loader):
                ids = np.arange(8 * number, min(60, 8 * number + 8))
                marks = ~np.isin(ids, BAD)
                ids[~marks] = 8 * number
                assert batch["id"].tolist() == ids.tolist()
                assert batch["file"].tolist() == [[index] * 3 for index in ids]
                assert batch["text"] == [f"text {index}" for index in ids]
                assert [len(t) for t in batch["tokens"]] == (ids % 4).tolist()
                assert batch["x"].tolist() == [[2.0 * index, 2.0 * index + 1] for index in ids]
                assert is_real.tolist() == marks.tolist()
                record = loader.delivered
                assert record is not None
                assert record.ids is not None
                assert record.ids.tolist() == ids.tolist()
                assert record.num_real == record.num_real_of_all_ranks == marks.sum()
                assert marks.all() or record.is_real.tolist() == marks.tolist()
            assert loader.num_skipped == 2 * (epoch + 1)
    # Each is named once.
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "sample 7 is skipped",
        "sample 31 is skipped",
    ]
    assert "cannot be decoded as npy" in caplog.text


def test_a_batch_of_which_all_samples_fail_is_an_error(tmp_path: Path) -> None:
    store = make_samples(tmp_path, 12, bad=(4, 5, 6, 7))
    loader = feedline.DataLoader(store, batch_size=4, decode={"file": "npy"}, on_error="skip")
    batches = iter(loader)
    next(batches)
    with pytest.raises(SampleError, match=r"all 4 samples of a batch failed.*sample 4"):
        next(batches)
    assert next(batches)["id"].tolist() == [8, 9, 10, 11]


def test_padding_does_not_stand_in_for_a_real_sample_if_another_can(tmp_path: Path) -> None:
    store = make_samples(tmp_path, 6, bad=(4,))
    loader = feedline.DataLoader(
        store, batch_size=4, tail="pad", decode={"file": "npy"}, on_error="skip", with_mask=True
    )
    _, (batch, is_real) = loader
    assert batch["id"].tolist() == [5, 5, 0, 1]
    assert is_real.tolist() == [False, True, False, False]


def test_the_samples_of_other_ranks_are_unknown_if_they_may_skip_some(store: FolderStore) -> None:
    options: dict[str, Any] = {"batch_size": 6, "num_replicas": 2, "rank": 0}
    for on_error, expected_number in (("raise", 12), ("skip", None)):
        loader = feedline.DataLoader(store, decode={"file": "npy"}, on_error=on_error, **options)
        next(iter(loader))
        assert loader.delivered is not None
        assert loader.delivered.num_real_of_all_ranks == expected_number


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_audit_reports_what_was_skipped(
    world_size: int, damaged: FolderStore, tmp_path: Path
) -> None:
    for rank in range(world_size):
        log = feedline_log(tmp_path, rank, world_size)
        loader = feedline.DataLoader(
            damaged,
            batch_size=8,
            shuffle=True,
            decode={"file": "npy"},
            on_error="skip",
            num_replicas=world_size,
            rank=rank,
            log=log,
        )
        list(loader)
        loader.close()
        log.close()
    result = audit_logs([tmp_path])
    (epoch,) = result.epochs
    assert result.ok
    assert (epoch.num_skipped, epoch.skipped) == (2, BAD)
    assert (epoch.num_once, epoch.num_lost, epoch.num_repeated) == (58, 0, 0)
    assert epoch.num_padded == 0
    assert epoch.sources[0].num_once == 58


def feedline_log(folder: Path, rank: int, world_size: int, run: str = "") -> ConsumptionLog:
    info = {"num_samples": NUM_SAMPLES, "tail": "even", "batch_size": 8}
    name = f"{run}-rank{rank}.log"
    return ConsumptionLog(folder / name, rank=rank, world_size=world_size, run=run, info=info)


def test_what_was_skipped_after_the_checkpoint_is_not_counted_twice(
    damaged: FolderStore, tmp_path: Path
) -> None:
    """A run is killed after batches that the next one repeats."""
    options: dict[str, Any] = {"batch_size": 8, "decode": {"file": "npy"}, "on_error": "skip"}
    states = []
    with feedline_log(tmp_path, 0, 1, "a") as log:
        first = feedline.DataLoader(damaged, log=log, **options)
        for _ in islice(first, 6):
            states.append(first.state_dict())
    # Samples 7 and 31 are in batches 0 and 3; the checkpoint is before the second.
    with feedline_log(tmp_path, 0, 1, "b") as log:
        second = feedline.DataLoader(damaged, log=log, **options)
        second.load_state_dict(states[1])
        list(second)
        second.close()
    (epoch,) = audit_logs([tmp_path]).epochs
    assert (epoch.num_skipped, epoch.skipped) == (2, BAD)
    assert epoch.num_once == 58
    assert epoch.ok


def test_the_log_names_what_was_skipped_before_its_batch(
    damaged: FolderStore, tmp_path: Path
) -> None:
    with feedline.DataLoader(
        damaged, batch_size=8, decode={"file": "npy"}, on_error="skip", log=tmp_path
    ) as loader:
        list(loader)
    (path,) = find_logs([tmp_path])
    entries = read_log(path).entries
    places = [n for n, entry in enumerate(entries) if getattr(entry, "name", "") == "skipped"]
    assert [entries[n].fields["ids"] for n in places] == [[7], [31]]  # type: ignore[union-attr]
    after = entries[places[1] + 1]
    assert (after.batch, after.is_real.tolist()) == (3, [True] * 7 + [False])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_error": "skip"}, "on_error='skip' needs decode or sample_transform"),
        ({"on_error": "ignore"}, "on_error='ignore' must be one of 'raise', 'skip'"),
        ({"sample_transform": 7}, "sample_transform=7 must be a function"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    options: dict[str, Any], text: str, store: FolderStore
) -> None:
    with pytest.raises(InvalidValueError, match=text):
        feedline.DataLoader(store, **options)


def test_what_cannot_be_a_batch_is_not_skipped(store: FolderStore) -> None:
    transform: Callable[..., Any] = lambda sample, rng: {"x": None}  # noqa: E731
    loader = feedline.DataLoader(store, batch_size=4, sample_transform=transform, on_error="skip")
    with pytest.raises(InvalidValueError, match="sample 0: 'x' = None cannot be part of a batch"):
        next(iter(loader))
