"""Our samplers in annbatch's loader, and annbatch's samplers in ours, on one store.

annbatch needs Python 3.12; `make test-annbatch` runs this file where there is one, beside 0.1.6 and
beside the newest release.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

annbatch = pytest.importorskip(
    "annbatch", reason="annbatch needs Python 3.12; see make test-annbatch"
)
ad = pytest.importorskip("anndata")

import hypothesis.strategies as st  # noqa: E402
import pandas as pd  # noqa: E402
import scipy.sparse as sp  # noqa: E402
import zarr  # noqa: E402
from annbatch import samplers as theirs  # noqa: E402
from hypothesis import given, settings  # noqa: E402

from feedline.chunks import (  # noqa: E402
    ClassSampler,
    DistributedSampler,
    LoadRequest,
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from feedline.feed import ChunkLoader  # noqa: E402
from feedline.store import open_anndata  # noqa: E402

NUM_ROWS, NUM_COLUMNS = 1003, 40
LABELS = np.repeat(["a", "b", "c"], [400, 300, 303])
IS_OLD = version("annbatch") == "0.1.6"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An AnnData group whose row i has the value i + 1 in column i % 40, and others."""
    rng = np.random.default_rng(0)
    dense = rng.random((NUM_ROWS, NUM_COLUMNS)) * (rng.random((NUM_ROWS, NUM_COLUMNS)) < 0.1)
    dense[:, 0] = np.arange(NUM_ROWS) + 1
    path = tmp_path_factory.mktemp("annbatch") / "cells.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=3)
    matrix = sp.csr_matrix(dense.astype(np.float32))
    chunks = {"chunks": (500,), "shards": (1500,)}
    obs = pd.DataFrame({"label": pd.Categorical(LABELS)}, index=[str(i) for i in range(NUM_ROWS)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ad.io.write_elem(group, "X", matrix, dataset_kwargs=chunks)
        ad.io.write_elem(group, "obs", obs)
    return path


@pytest.fixture(scope="module")
def parts(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same rows in two groups."""
    found = []
    matrix = ad.io.read_elem(zarr.open_group(folder, mode="r")["X"])
    for number, rows in enumerate((slice(0, 437), slice(437, None))):
        found.append(tmp_path_factory.mktemp("parts") / f"{number}.zarr")
        group = zarr.open_group(found[-1], mode="w", zarr_format=3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ad.io.write_elem(group, "X", matrix[rows])
    return found


def their_loader(folder: Path | list[Path], sampler: Any) -> Any:
    folders = folder if isinstance(folder, list) else [folder]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = annbatch.Loader(batch_sampler=sampler, preload_to_gpu=False)
        groups = [zarr.open_group(path, mode="r") for path in folders]
        loader.add_datasets([ad.io.sparse_dataset(group["X"]) for group in groups])
    return loader


def rows_of(batch: Any) -> list[int]:
    """The rows of a batch of either loader, read off the values."""
    matrix = batch["X"] if isinstance(batch, dict) else batch.X
    dense = matrix.toarray() if hasattr(matrix, "toarray") else np.asarray(matrix.todense())
    return [int(value) - 1 for value in dense[:, 0]]


OURS: list[Callable[[], Any]] = [
    lambda: SequentialSampler(16, 4, 32),
    lambda: RandomSampler(16, 4, 32, rng=3),
    lambda: RandomSampler(16, 4, 32, rng=3, drop_last=True),
    lambda: RandomSampler(10, 6, 12, rng=3, mask=slice(100, 700)),
    lambda: RandomSampler(16, 4, 32, rng=3, replacement=True, num_samples=500),
    lambda: ClassSampler(16, 4, 32, classes=LABELS, num_samples=640),
    lambda: DistributedSampler(RandomSampler(16, 4, 32), dist_info=lambda: (1, 3)),
    lambda: DistributedSampler(
        RandomSampler(16, 4, 32), dist_info=lambda: (1, 3), shards="windows"
    ),
]


@pytest.mark.parametrize("make", OURS)
def test_our_samplers_give_the_same_batches_in_both_loaders(
    folder: Path, make: Callable[[], Any]
) -> None:
    ours = [rows_of(batch) for batch in ChunkLoader(open_anndata(folder), make())]
    loader = their_loader(folder, make())
    assert [rows_of(batch) for batch in loader] == ours
    assert len(loader) == len(ours)


def test_every_row_comes_once_in_annbatchs_loader(folder: Path) -> None:
    loader = their_loader(folder, RandomSampler(16, 4, 32, rng=1))
    epochs = [[row for batch in loader for row in rows_of(batch)] for _ in range(2)]
    assert all(sorted(rows) == list(range(NUM_ROWS)) for rows in epochs)
    assert epochs[0] != epochs[1]


def test_a_foreign_loader_says_what_it_delivered_and_another_goes_on(folder: Path) -> None:
    sampler = RandomSampler(16, 4, 32, rng=1)
    seen: list[int] = []
    for number, batch in enumerate(their_loader(folder, sampler)):
        seen += rows_of(batch)
        if number == 4:
            state = sampler.state_dict(num_batches=5)
            break
    resumed = RandomSampler(16, 4, 32, rng=1)
    resumed.load_state_dict(state)
    seen += [row for batch in their_loader(folder, resumed) for row in rows_of(batch)]
    assert sorted(seen) == list(range(NUM_ROWS))


@pytest.mark.parametrize(
    "make",
    [
        lambda: theirs.SequentialSampler(16, 4, 32),
        lambda: theirs.RandomSampler(16, 4, 32, rng=np.random.default_rng(2)),
        lambda: theirs.RandomSampler(
            16, 4, 32, rng=np.random.default_rng(2), replacement=True, num_samples=500
        ),
        pytest.param(
            lambda: theirs.ClassSampler(
                *(16, 4, 32),
                classes=pd.Categorical(LABELS),
                num_samples=640,
                rng=np.random.default_rng(2),
            ),
            marks=pytest.mark.skipif(IS_OLD, reason="0.1.6 has no ClassSampler"),
        ),
        lambda: theirs.DistributedSampler(
            theirs.RandomSampler(16, 4, 32, rng=np.random.default_rng(2)), dist_info=lambda: (1, 3)
        ),
    ],
)
def test_annbatchs_samplers_give_the_same_batches_in_both_loaders(
    folder: Path, make: Callable[[], Any]
) -> None:
    loader = ChunkLoader(open_anndata(folder), make())
    ours = [rows_of(batch) for batch in loader]
    assert ours == [rows_of(batch) for batch in their_loader(folder, make())]
    assert len(loader) == len(ours)


def test_our_wrapper_shares_out_annbatchs_sampler(folder: Path) -> None:
    inner = theirs.RandomSampler(16, 4, 32, rng=np.random.default_rng(2))
    rows = []
    for rank in range(3):
        sampler = DistributedSampler(inner, dist_info=lambda rank=rank: (rank, 3))  # type: ignore[misc]
        rows.append([r for b in ChunkLoader(open_anndata(folder), sampler) for r in rows_of(b)])
    assert sorted(row for of_rank in rows for row in of_rank) == list(
        range(NUM_ROWS // 3 // 32 * 32 * 3)
    )


@pytest.mark.parametrize("make", OURS)
def test_rows_of_several_datasets_come_in_the_order_of_the_sampler(
    parts: list[Path], folder: Path, make: Callable[[], Any]
) -> None:
    # Releases differ in the order in which rows of several datasets lie in memory.
    loader = their_loader(parts, make())
    assert [rows_of(batch) for batch in loader] == [
        rows_of(batch) for batch in ChunkLoader(open_anndata(folder), make())
    ]


@pytest.mark.parametrize("has_mask", [False, True])
def test_annbatchs_wrapper_shares_out_our_sampler(folder: Path, has_mask: bool) -> None:
    rows = []
    for rank in range(3):
        inner = RandomSampler(16, 4, 32, rng=5, mask=slice(0, 900) if has_mask else None)
        sampler = theirs.DistributedSampler(inner, dist_info=lambda rank=rank: (rank, 3))
        loader = their_loader(folder, sampler)
        assert len(loader) == 10
        rows.append([row for batch in loader for row in rows_of(batch)])
        assert len(loader) == 10
    # Both releases ignore the mask of what they wrap.
    assert [sorted(of_rank) for of_rank in rows] == [
        list(range(rank * 320, rank * 320 + 320)) for rank in range(3)
    ]


class OfTheirs(annbatch.abc.Sampler):  # type: ignore[misc]
    """A sampler as a user of this release writes it: its own names, and no splits."""

    batch_size, shuffle = 32, False

    def validate(self, n_obs: int) -> None:
        pass

    def _sample(self, n_obs: int) -> Iterator[dict[str, Any]]:
        stop = self.mask.stop or n_obs
        for start in range(self.mask.start or 0, stop, 64):
            yield {"chunks" if IS_OLD else "requests": [slice(start, min(start + 64, stop))]}


class OfOurs(Sampler):
    """The same, after the import has changed."""

    batch_size, shuffle = 32, False
    validate, _sample = OfTheirs.validate, OfTheirs._sample


def _num_batches(self: Any, n_obs: int) -> int:
    return -(-((self.mask.stop or n_obs) - (self.mask.start or 0)) // 32)


Named = {
    kind: type(kind.__name__, (kind,), {"n_iters" if IS_OLD else "n_batches": _num_batches})
    for kind in (OfTheirs, OfOurs)
}


@pytest.mark.parametrize("kind", Named)
def test_a_sampler_of_the_user_works_in_both_loaders_from_either_base(
    folder: Path, kind: Any
) -> None:
    expected = [list(range(first, min(first + 32, 1003))) for first in range(0, 1003, 32)]
    for loader in (
        their_loader(folder, Named[kind]()),
        ChunkLoader(open_anndata(folder), Named[kind]()),
        ChunkLoader(open_anndata(folder), Named[kind](), num_ahead=3),
    ):
        assert [rows_of(batch) for batch in loader] == expected
        assert len(loader) == 32
    divided = DistributedSampler(Named[kind](), dist_info=lambda: (1, 3))
    for loader in (their_loader(folder, divided), ChunkLoader(open_anndata(folder), divided)):
        assert [row for batch in loader for row in rows_of(batch)] == list(range(320, 640))
        assert len(loader) == 10


def test_requests_are_those_of_this_release(folder: Path) -> None:
    theirs_first: Any = next(theirs.SequentialSampler(16, 4, 32).sample(NUM_ROWS))
    ours_first: LoadRequest = next(SequentialSampler(16, 4, 32).sample(NUM_ROWS))
    for key, value in theirs_first.items():
        assert key in ours_first
        mine: Any = ours_first[key]
        if key == "splits":
            assert [split.tolist() for split in mine] == [split.tolist() for split in value]
        else:
            assert list(mine) == list(value)


def outcome(make: Callable[[], Any], n_obs: int) -> Any:
    """The number of batches and the rows of each, or the kind of error."""
    try:
        sampler = make()
        count = sampler.n_iters if IS_OLD else sampler.n_batches
        found = []
        for request in sampler.sample(n_obs):
            wanted = request["chunks" if IS_OLD else "requests"]
            rows = np.concatenate([np.arange(part.start, part.stop) for part in wanted])
            found += [rows[split].tolist() for split in request["splits"]]
        return count(n_obs), found
    except ValueError:
        return "an error"


@settings(max_examples=150, deadline=None)
@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 12)),
    n_obs=st.integers(1, 120),
    edges=st.none() | st.tuples(st.integers(0, 120), st.none() | st.integers(0, 125)),
    drop_last=st.booleans(),
    ranks=st.integers(0, 3),
    enforce=st.booleans(),
)
def test_sequential_batches_are_annbatchs(
    size: tuple[int, int, int],
    n_obs: int,
    edges: tuple[int, int | None] | None,
    drop_last: bool,
    ranks: int,
    enforce: bool,
) -> None:
    def make(library: Any, distributed: Any) -> Any:
        mask = None if edges is None or ranks else slice(*edges)
        sampler = library(*size, drop_last=drop_last, mask=mask)
        if not ranks:
            return sampler
        options = {"dist_info": lambda: (ranks - 1, ranks), "enforce_equal_batches": enforce}
        return distributed(sampler, **options)

    ours = outcome(lambda: make(SequentialSampler, DistributedSampler), n_obs)
    expected = outcome(lambda: make(theirs.SequentialSampler, theirs.DistributedSampler), n_obs)
    per_rank = n_obs // max(ranks, 1) // size[2] * size[2] if enforce else n_obs // max(ranks, 1)
    if expected == (0, []) or (ranks and not per_rank):
        # Where annbatch yields nothing, or 0.1.6 gives every rank all rows.
        expected = "an error"
    assert ours == expected


@pytest.mark.skipif(IS_OLD, reason="0.1.6 has no ClassSampler")
@settings(max_examples=150, deadline=None)
@given(
    runs=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 12)), min_size=1, max_size=6),
    chunk_size=st.integers(1, 5),
    edges=st.none() | st.tuples(st.integers(0, 70), st.none() | st.integers(0, 75)),
    weights=st.none() | st.lists(st.sampled_from([0, 1, 2, -1]), min_size=3, max_size=3),
    is_set_later=st.booleans(),
)
def test_masks_of_classes_are_taken_and_refused_as_annbatch_does(
    runs: list[tuple[str, int]],
    chunk_size: int,
    edges: tuple[int, int | None] | None,
    weights: list[float] | None,
    is_set_later: bool,
) -> None:
    labels = pd.Categorical([label for label, length in runs for _ in range(length)])
    if weights is not None:
        weights = weights[: len(labels.categories)]
    mask = None if edges is None else slice(*edges)

    def is_taken(library: Any) -> bool:
        first = None if is_set_later else mask
        options = {"classes": labels, "num_samples": 40, "class_weights": weights, "mask": first}
        try:
            sampler = library(chunk_size, 2, chunk_size, **options)
            if is_set_later and mask is not None:
                sampler.mask = mask
        except ValueError:
            return False
        assert sum(len(rows) for rows in outcome(lambda: sampler, len(labels))[1]) == 40
        return True

    assert is_taken(ClassSampler) == is_taken(theirs.ClassSampler)


def test_our_samplers_work_in_torchs_workers_of_annbatchs_loader(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    for make in (
        lambda: SequentialSampler(16, 4, 32),
        lambda: RandomSampler(16, 4, 32, rng=1),
        lambda: RandomSampler(16, 4, 32, rng=1, drop_last=True),
    ):
        loader = torch.utils.data.DataLoader(
            their_loader(folder, make()), batch_size=None, num_workers=2
        )
        rows = [row for batch in loader for row in rows_of(batch)]
        assert len(rows) == len(set(rows))
