"""Check that Feedline reads datasets of Hugging Face `datasets` that are in memory.

This runs with the library, numpy and Feedline only.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, concatenate_datasets, load_from_disk
from write import FEATURES, rows, sample_of

import feedline
from feedline.errors import FeedlineError, InvalidValueError, PlanMismatchError, StoreError


def made() -> Dataset:
    """Return the dataset of the fixture, in memory."""
    return Dataset.from_list(rows(), features=FEATURES)


def same(found: Any, value: Any) -> bool:
    return bool(np.array_equal(found, value)) if np.ndim(value) else bool(found == value)


def check_samples(dataset: Dataset) -> None:
    """Assert that a store has the samples of a dataset, in its order."""
    store = feedline.open(dataset)
    assert len(store) == len(dataset)
    for copy in (store, pickle.loads(pickle.dumps(store))):
        samples = list(copy)
        numbers = np.random.default_rng(0).integers(0, len(dataset), 40)
        mixed = copy[numbers]
        for number, row in enumerate(dataset.with_format(None)):
            expected = sample_of(row)
            when = expected.pop("when")
            assert str(samples[number]["when"]).startswith(when)
            for name, value in expected.items():
                if value is None:
                    assert samples[number][f"{name}/is_missing"]
                else:
                    assert same(samples[number][name], value), (number, name)
                    assert same(copy[number][name], value), (number, name)
        for place, number in enumerate(numbers.tolist()):
            for name, value in samples[number].items():
                assert same(mixed[name][place], value), (place, name)
    assert copy.fingerprint == store.fingerprint


def check_kinds_of_datasets(folder: str) -> None:
    """Assert that datasets have their samples, however they were made."""
    base = made()
    base.save_to_disk(folder, num_shards=3)
    for dataset in (
        base,
        load_from_disk(folder),
        base.shuffle(seed=3),
        load_from_disk(folder).shuffle(seed=3).select(range(5, 25)),
        base.select(range(7, 31)),
        base.select([9, 9, 3, 50]),
        base.filter(lambda row: row["id"] % 3 == 0),
        concatenate_datasets([base, base.select(range(10))]),
        concatenate_datasets([base.shuffle(seed=1), base.shuffle(seed=2)]),
        base.sort("score"),
        base.with_format("numpy"),
        base.flatten_indices(),
    ):
        check_samples(dataset)


def check_columns() -> None:
    """Assert that columns can be chosen, and that formats choose them."""
    base = made()
    assert list(feedline.open(base, columns=["text", "id"])[3]) == ["text", "id"]
    assert feedline.open(base).select(["id"])[3] == {"id": 3}
    shown = base.with_format("numpy", columns=["id", "tokens"])
    assert list(feedline.open(shown).columns) == ["id", "tokens"]
    assert feedline.open(base, lists=["tokens"]).columns["tokens"].has_lists
    words = Dataset.from_dict({"id": [1, 2], "words": [["a"], ["b", "c"]]})
    check_refused(lambda: feedline.open(words).columns, StoreError, "join the texts")
    assert feedline.open(words, columns=["id"])[1] == {"id": 2}
    check_refused(lambda: feedline.open(base, columns=["odd"]), InvalidValueError, "'odd'")
    check_refused(
        lambda: feedline.open(base, columns=["id/is_missing"]).columns, InvalidValueError, "id/is"
    )


def check_loaders() -> None:
    """Assert that loaders deliver every sample once, resume, and refuse other datasets."""
    dataset = made().shuffle(seed=9)
    seen: list[int] = []
    first = feedline.DataLoader(feedline.open(dataset), batch_size=7, shuffle=True)
    for _, batch in zip(range(3), first, strict=False):
        seen += batch["id"].tolist()
    second = feedline.DataLoader(made().shuffle(seed=9), batch_size=5, shuffle=True)
    second.load_state_dict(first.state_dict())
    seen += [number for batch in second for number in batch["id"].tolist()]
    assert sorted(seen) == list(range(60))
    changed = made().map(lambda row: {"score": -1.0}, load_from_cache_file=False).shuffle(seed=9)
    for other in (made(), made().shuffle(seed=8), changed):
        loader = feedline.DataLoader(feedline.open(other), batch_size=7, shuffle=True)
        load = partial(loader.load_state_dict, first.state_dict())
        check_refused(load, PlanMismatchError, "")


def check_refusals() -> None:
    """Assert that what is no dataset of samples by number is refused with what to do."""
    base = made()
    both = DatasetDict({"train": base, "test": base.select(range(5))})
    check_refused(lambda: feedline.open(both), InvalidValueError, "split=...: train, test")
    check_refused(lambda: feedline.open(both, split="x"), InvalidValueError, "no split 'x'")
    assert len(feedline.open(both, split="test")) == 5
    check_refused(lambda: feedline.open(base, split="test"), InvalidValueError, "one split")
    check_refused(
        lambda: feedline.open(base.to_iterable_dataset()), InvalidValueError, "streaming=False"
    )
    odd = base.with_transform(lambda rows: rows)
    check_refused(lambda: feedline.open(odd), InvalidValueError, "transform of its own")
    check_refused(lambda: feedline.open(base.select([])), StoreError, "0 samples")
    check_refused(lambda: feedline.open(base, window=3), InvalidValueError, "window=3")


def check_refused(call: Callable[[], Any], kind: type[FeedlineError], text: str) -> None:
    """Assert that a call raises an error with a text."""
    caught: FeedlineError | None = None
    try:
        call()
    except kind as error:
        caught = error
    assert caught is not None, f"nothing was refused: {text}"
    assert text in str(caught)


def main() -> None:
    """Run all checks."""
    with tempfile.TemporaryDirectory() as folder:
        check_kinds_of_datasets(folder)
    check_columns()
    check_loaders()
    check_refusals()
    print("all checks passed")


if __name__ == "__main__":
    main()
