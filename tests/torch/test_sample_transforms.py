"""Samples are transformed alike by any number of workers, and those that fail are counted."""

from __future__ import annotations

import logging
import os
import signal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feedline
from feedline.errors import InvalidValueError, SampleError, WorkerError
from feedline.runs import audit_logs
from feedline.store import FolderStore
from feedline.torch import DataLoader, to_device
from loader_data import Ids
from sample_data import jpeg_bytes, make_samples, photo, write_samples

BAD = (7, 31)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FolderStore:
    return make_samples(tmp_path_factory.mktemp("data"), 60, bad=BAD)


def augment(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {
        "id": sample["id"],
        "file": sample["file"] + rng.integers(0, 2**40, size=3),
        "tokens": sample["tokens"],
        "text": sample["text"],
        "nested": {"half": rng.random()},
    }


def double(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "double": 2 * batch["id"]}


OPTIONS: dict[str, Any] = {
    "batch_size": 7,
    "shuffle": True,
    "seed": 3,
    "decode": {"file": "npy"},
    "sample_transform": augment,
    "on_error": "skip",
    "with_mask": True,
}


def received(loader: DataLoader[Any], stop: int | None = None) -> list[Any]:
    """Return batches as plain values, each with its mask and its record."""
    found = []
    for batch, is_real in islice(loader, stop):
        record = loader.delivered
        assert record is not None
        assert record.ids is not None
        assert record.ids.tolist() == batch["id"].tolist()
        assert record.is_real is None or record.is_real.tolist() == is_real.tolist()
        found.append((plain(batch), is_real.tolist()))
    return found


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, torch.Tensor) and value.is_nested:
        return [part.tolist() for part in value.unbind()]
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"transform": double, "lists": "padded"}, marks=pytest.mark.slow),
        {"transform": double, "lists": "padded", "device": "cpu"},
        pytest.param({"device": "cpu", "lists": "nested"}, marks=pytest.mark.slow),
        {"sample_transform": None},
    ],
    ids=["plain", "transform", "transform on a device", "device", "decoded only"],
)
def test_batches_do_not_depend_on_workers(options: dict[str, Any], store: FolderStore) -> None:
    given = OPTIONS | options
    with DataLoader(store, **given) as loader:
        expected = [received(loader) for _ in range(2)]
        assert loader.num_skipped == 4
        assert expected[0] != expected[1]
    for num_workers in (1, 3):
        with DataLoader(store, num_workers=num_workers, persistent_workers=True, **given) as loader:
            assert [received(loader) for _ in range(2)] == expected
            assert loader.num_skipped == 4


def test_the_numpy_loader_delivers_the_same(store: FolderStore) -> None:
    with DataLoader(store, **OPTIONS) as loader, feedline.DataLoader(store, **OPTIONS) as other:
        for (batch, is_real), (arrays, marks) in zip(loader, other, strict=True):
            assert batch["file"].numpy().tolist() == arrays["file"].tolist()
            assert plain(batch["tokens"]) == arrays["tokens"].tolist()
            assert batch["text"] == arrays["text"]
            assert is_real.tolist() == marks.tolist()
            assert batch["nested"]["half"].dtype == torch.float64


def test_a_transform_gets_tensors_on_the_device(store: FolderStore) -> None:
    seen = []

    def look(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append((batch["file"].device, batch["tokens"].shape, batch["text"][0]))
        return batch

    given = OPTIONS | {"transform": look, "device": "meta", "lists": "padded", "with_mask": False}
    loader = DataLoader(store, **given)
    (batch,) = islice(loader, 1)
    assert batch["file"].device == seen[0][0] == torch.device("meta")
    assert len(seen[0][1]) == 2
    assert seen[0][2].startswith("text ")


def test_a_state_counts_what_the_loop_received_with_any_workers(store: FolderStore) -> None:
    with DataLoader(store, **OPTIONS) as loader:
        expected = received(loader)
    found: list[Any] = []
    state: dict[str, Any] | None = None
    for num_workers, stop in ((2, 2), (0, 1), (1, 3), (0, None)):
        with DataLoader(store, num_workers=num_workers, **OPTIONS) as loader:
            if state is not None:
                loader.load_state_dict(state)
            found += received(loader, stop)
            state = loader.state_dict()
    assert found == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_comes_at_its_batch_and_the_others_come_too(
    num_workers: int, store: FolderStore
) -> None:
    options = OPTIONS | {"on_error": "raise", "shuffle": False, "batch_size": 10}
    with DataLoader(store, num_workers=num_workers, **options) as loader:
        batches = iter(loader)
        numbers, errors = [], []
        while True:
            try:
                batch, _ = next(batches)
            except StopIteration:
                break
            except SampleError as error:
                errors.append(str(error))
                continue
            assert loader.delivered is not None
            assert loader.delivered.ids is not None
            assert batch["id"].tolist() == loader.delivered.ids.tolist()
            numbers.append(loader.delivered.number)
        assert numbers == [1, 2, 4, 5]
        assert "row 7: sample 7: column 'file' cannot be decoded as npy" in errors[0]
        assert "row 7: sample 31: column 'file' cannot be decoded as npy" in errors[1]


def test_a_run_resumes_after_a_worker_was_killed(store: FolderStore) -> None:
    options = OPTIONS | {"batch_size": 2, "sample_transform": with_worker}
    with DataLoader(store, **options) as loader:
        expected = [without_worker(one) for one in received(loader)]
    loader = DataLoader(store, num_workers=2, **options)
    found = []

    def receive_until_killed() -> None:
        for batch, is_real in loader:
            found.append((plain(batch), is_real.tolist()))
            if len(found) == 5:
                os.kill(int(batch["worker"][0]), signal.SIGKILL)

    with pytest.raises(WorkerError):
        receive_until_killed()
    assert len(found) < len(expected)
    with DataLoader(store, num_workers=1, **options) as resumed:
        resumed.load_state_dict(loader.state_dict())
        assert [without_worker(one) for one in found + received(resumed)] == expected


def with_worker(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**augment(sample, rng), "worker": os.getpid()}


def without_worker(one: Any) -> Any:
    batch, is_real = one
    return {name: value for name, value in batch.items() if name != "worker"}, is_real


def test_logs_of_workers_say_what_was_skipped(
    store: FolderStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "feedline"),
        DataLoader(store, num_workers=2, log=tmp_path, **OPTIONS) as loader,
    ):
        for _ in range(2):
            received(loader)
    assert sorted(record.message.split(" is")[0] for record in caplog.records) == [
        "sample 31",
        "sample 7",
    ]
    result = audit_logs([tmp_path])
    assert result.ok
    assert [(e.num_once, e.num_skipped, e.skipped) for e in result.epochs] == [(58, 2, BAD)] * 2


def test_what_is_moved_ahead_is_not_yet_skipped(store: FolderStore) -> None:
    options = OPTIONS | {"shuffle": False, "batch_size": 8, "with_mask": False}
    loader = to_device(DataLoader(store, **options), "cpu")
    for batch in loader:
        assert loader.delivered is not None
        assert loader.delivered.ids is not None
        assert loader.delivered.ids.tolist() == batch["id"].tolist()


def test_images_of_several_sizes_come_as_a_list_of_tensors(tmp_path: Path) -> None:
    images = [jpeg_bytes(photo(8 + n % 2, 9, n)) for n in range(6)]
    store = write_samples(tmp_path, {"id": np.arange(6), "image": images})

    def crop(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        row = rng.integers(sample["image"].shape[0] - 4)
        # Mirrored: torch takes no array whose steps go backwards.
        return {"all": sample["image"][:, ::-1], "part": sample["image"][row : row + 4]}

    loader = DataLoader(store, batch_size=6, decode={"image": "jpeg"}, sample_transform=crop)
    (batch,) = loader
    assert [image.shape[0] for image in batch["all"]] == [8, 9, 8, 9, 8, 9]
    assert batch["part"].shape == (6, 4, 9, 3)
    assert batch["part"].dtype == torch.uint8


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"decode": {"x": "npy"}}, "decode={'x': 'npy'} cannot be used, it needs a store"),
        ({"sample_transform": augment}, "sample_transform=.* cannot be used, it needs a store"),
        ({"on_error": "skip"}, "on_error='skip' cannot be used, it needs a store"),
    ],
)
def test_a_dataset_of_the_users_own_has_no_columns(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidValueError, match=text):
        DataLoader(Ids(9), **options)


def test_slabs_on_the_device_are_refused(store: FolderStore) -> None:
    with pytest.raises(InvalidValueError, match=r"device_budget=\d+ needs whole slabs"):
        DataLoader(store, device="cpu", device_budget=2**20, decode={"file": "npy"})
