"""Everything that has a state, under a name, as `tests/states` knows it.

`scripts/make_state_fixtures.py` saved states of these and wrote down what came after them;
`tests/test_saved_states.py` loads them. So what a case builds must never change: add another one.
Every sample is its own number, which is read from the data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bucket_data import BucketData
from feedline import chunks
from feedline.feed import ChunkLoader, Feed
from feedline.plan import (
    BucketPlan,
    FileSharesPlan,
    Mixture,
    Phase,
    Plan,
    SamplePlan,
    Sequential,
    Shuffled,
    UnequalChunks,
    WindowPlan,
)
from feedline.steps import StepScheduler
from feedline.store import FolderStore, MemoryMatrix, pack
from feedline.torch import (
    BucketBatchSampler,
    DataLoader,
    DistributedSampler,
    FolderConfig,
    LazyFolderDataset,
    MixtureDataset,
    MixtureSampler,
    SequentialBucketSampler,
)
from feedline.torch import ChunkLoader as TensorChunkLoader
from feedline.torch import StepScheduler as TorchStepScheduler
from lazy_data import write_folder
from loader_data import Ids
from saved_places import (
    FEW_PLACES,
    PLACES,
    Case,
    ChunkSamplerWalk,
    PlanWalk,
    SamplerWalk,
    Saved,
    Sizes,
    Stage,
    StepWalk,
    Walk,
)

__all__ = [
    "CASES",
    "OF_CHANGED_ORDERS",
    "STATES",
    "file_of",
    "make_data",
    "read_saved",
    "saved_names",
]

STATES = Path(__file__).resolve().parent.parent / "states"

NUM_SAMPLES = 43
FILES = [5, 11, 9, 16, 2]
# As many samples in the even files as in the odd ones.
EQUAL_FILES = [8, 12, 13, 9]
PARTS = [0, 24, 36, 43]
LENGTHS = [1 + (7 * i * i + 3 * i) % 19 for i in range(NUM_SAMPLES)]
CLASSES = np.repeat(["b", "a", "c", "a"], [12, 11, 12, 8])
MASK = slice(3, 40)

SOME_PLACES = {name: PLACES[name] for name in ("mid-epoch", "after a resize", "in epoch 1")}
SAME_RANKS = (Sizes(2, 3), Sizes(2, 2), Sizes(2, 4))
# A class is drawn for as many rows as chunks and batches have in common, here always 12.
CLASS_SIZES = (Sizes(2, 3), Sizes(3, 3), Sizes(1, 6))
ONE_RANK_CLASS_SIZES = (Sizes(1, 3), Sizes(1, 6), Sizes(1, 12))
ONE_RANK = (Sizes(1, 3), Sizes(1, 2), Sizes(1, 4))


def make_data(folder: Path) -> Path:
    """Write the data of all cases into a folder, and return it."""
    write_folder(folder / "unequal", FILES, "npy")
    write_folder(folder / "equal", EQUAL_FILES, "npy")
    pack({"x": np.arange(NUM_SAMPLES)}, folder / "packed", chunk_samples=9)
    return folder


def file_of(case: str) -> Path:
    """Return where the states of a case are."""
    return STATES / f"{case.replace(' ', '-')}.json"


def saved_names() -> list[tuple[str, str]]:
    """Return the case and the place of every state that was saved."""
    files = sorted(STATES.glob("*.json"))
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return [(content["case"], place) for content in found for place in content["places"]]


def read_saved(case: str, place: str) -> tuple[Saved, list[dict[str, Any]]]:
    """Return a state, and what came after it for each of the sizes it was loaded with."""
    entry = json.loads(file_of(case).read_text(encoding="utf-8"))["places"][place]
    return Saved(entry["state"], entry["epoch"], Sizes(*entry["saved_on"])), entry["loads"]


# Loaders of torch.


def _marked(ids: Iterable[int], is_real: Iterable[bool]) -> list[int]:
    """Padding as negative numbers: -1 for 0, -2 for 1."""
    return [one if real else ~one for one, real in zip(ids, is_real, strict=True)]


def _loaded(loader: Any) -> Walk:
    return Walk(loader, lambda batch: batch.tolist())


def _distributed(sizes: Sizes, rank: int, **options: Any) -> DistributedSampler:
    return DistributedSampler(range(NUM_SAMPLES), sizes.world_size, rank, seed=5, **options)


def _samples(num_workers: int = 0, **options: Any) -> Callable[[Path, Sizes, int], Walk]:
    def build(_: Path, sizes: Sizes, rank: int) -> Walk:
        sampler = _distributed(sizes, rank, **options)
        return _loaded(
            DataLoader(
                Ids(NUM_SAMPLES),
                batch_size=sizes.batch_size,
                sampler=sampler,
                num_workers=num_workers,
            )
        )

    return build


def _own_sampler(**options: Any) -> Callable[[Path, Sizes, int], Walk]:
    def build(_: Path, sizes: Sizes, rank: int) -> Walk:
        data = Ids(NUM_SAMPLES)
        return _loaded(DataLoader(data, batch_size=sizes.batch_size, **options))

    return build


def _masked(_: Path, sizes: Sizes, rank: int) -> Walk:
    loader: Any = DataLoader(
        Ids(NUM_SAMPLES),
        batch_size=sizes.batch_size,
        sampler=_distributed(sizes, rank, drop_last=False),
        with_mask=True,
    )
    return Walk(loader, lambda pair: _marked(pair[0].tolist(), pair[1].tolist()))


def _sampler(**options: Any) -> Callable[[Path, Sizes, int], Walk]:
    return lambda _, sizes, rank: SamplerWalk(_distributed(sizes, rank, **options), int)


def _mixture(sizes: Sizes, rank: int, **options: Any) -> MixtureSampler:
    return MixtureSampler(PARTS, [1, 2, 4], sizes.world_size, rank, seed=5, **options)


def _mixture_sampler(**options: Any) -> Callable[[Path, Sizes, int], Walk]:
    return lambda _, sizes, rank: SamplerWalk(_mixture(sizes, rank, **options), int)


def _mixture_loader(**options: Any) -> Callable[[Path, Sizes, int], Walk]:
    def build(_: Path, sizes: Sizes, rank: int) -> Walk:
        parts = [range(low, high) for low, high in pairwise(PARTS)]
        sampler = _mixture(sizes, rank, **options)
        return _loaded(
            DataLoader(MixtureDataset(parts), batch_size=sizes.batch_size, sampler=sampler)
        )

    return build


def _resolutions(sizes: Sizes, rank: int, **options: Any) -> SequentialBucketSampler:
    return SequentialBucketSampler(
        BucketData([20, 14, 9]),
        sizes.batch_size,
        (64, 64),
        seed=5,
        num_replicas=sizes.world_size,
        rank=rank,
        **options,
    )


def _lengths(sizes: Sizes, rank: int, by: str = "samples", **options: Any) -> BucketBatchSampler:
    # Budgets of tokens that hold the longest sample.
    size = {"batch_size": sizes.batch_size}
    if by == "tokens":
        size = {"token_budget": 16 + 8 * sizes.batch_size}
    return BucketBatchSampler(
        LENGTHS, seed=5, num_replicas=sizes.world_size, rank=rank, **size, **options
    )


def _buckets(make: Callable[..., Any], **options: Any) -> Callable[[Path, Sizes, int], Walk]:
    """A sampler of batches alone."""
    return lambda _, sizes, rank: SamplerWalk(make(sizes, rank, **options), list)


def _bucket_loader(make: Callable[..., Any], **options: Any) -> Callable[[Path, Sizes, int], Walk]:
    """The same in a loader."""
    return lambda _, sizes, rank: _loaded(
        DataLoader(Ids(NUM_SAMPLES), batch_sampler=make(sizes, rank, **options))
    )


def _folder_dataset(
    path: Path, sizes: Sizes, rank: int, shuffle: bool = True, **options: Any
) -> LazyFolderDataset:
    config = FolderConfig(batch_size=sizes.batch_size, seed=5, **options)
    return LazyFolderDataset(
        path, config, shuffle, num_replicas=sizes.world_size, rank=rank, desync_guard=False
    )


def _last_items(batch: Any) -> list[int]:
    ids: list[int] = batch[0]["item"][:, -1].tolist()
    return ids


def _folder(
    name: str = "unequal", num_workers: int = 0, **options: Any
) -> Callable[[Path, Sizes, int], Walk]:
    def build(data: Path, sizes: Sizes, rank: int) -> Walk:
        dataset = _folder_dataset(data / name, sizes, rank, **options)
        return Walk(DataLoader(dataset, num_workers=num_workers), _last_items)

    return build


def _folder_alone(data: Path, sizes: Sizes, rank: int) -> Walk:
    return SamplerWalk(_folder_dataset(data / "unequal", sizes, rank), _last_items)


# Feeds.


def _feed(
    plan: Plan, name: str = "unequal", column: str = "sequences/item"
) -> Callable[[Path, Sizes, int], Walk]:
    def ids_of(batch: Any) -> list[int]:
        values = batch.arrays[column]
        return _marked((values[:, -1] if values.ndim == 2 else values).tolist(), batch.is_real)

    def build(data: Path, sizes: Sizes, rank: int) -> Walk:
        return Walk(Feed(FolderStore(data / name), plan, rank=rank, **sizes._asdict()), ids_of)

    return build


def _sample_plan(tail: str, **options: Any) -> Plan:
    return SamplePlan(order=Shuffled(num_samples=NUM_SAMPLES, seed=5), tail=tail, **options)


def _window_plan(tail: str, **options: Any) -> Plan:
    return WindowPlan(chunks=UnequalChunks(FILES), tail=tail, seed=5, **options)


def _bucket_plan(mode: str) -> Plan:
    groups = {"low": range(25), "high": range(25, NUM_SAMPLES)}
    return BucketPlan.from_groups(groups, mode=mode, tail="even", seed=5)


def _mixture_plan() -> Plan:
    phases = [Phase(weights=(4, 1, 1), position=15), Phase(weights=(1, 1, 9), epoch=1, position=9)]
    sizes = np.diff(PARTS).tolist()
    return SamplePlan(
        order=Mixture(sizes=sizes, weights=(1, 2, 4), phases=phases, seed=5), tail="even"
    )


def _plan(plan: Plan) -> Callable[[Path, Sizes, int], Walk]:
    return lambda _, sizes, rank: PlanWalk(plan, sizes, rank)


# Chunk samplers and their loaders.

MakeSampler = Callable[[Sizes, int], Any]


def _sequential(**options: Any) -> MakeSampler:
    return lambda sizes, _: chunks.SequentialSampler(4, 3, sizes.batch_size, **options)


def _random(**options: Any) -> MakeSampler:
    return lambda sizes, _: chunks.RandomSampler(4, 3, sizes.batch_size, rng=5, **options)


def _classes(**options: Any) -> MakeSampler:
    return lambda sizes, _: chunks.ClassSampler(
        4, 3, sizes.batch_size, classes=CLASSES, num_samples=60, rng=5, **options
    )


def _shared(make: MakeSampler, shards: str, **options: Any) -> MakeSampler:
    def shared(sizes: Sizes, rank: int) -> Any:
        place = (rank, sizes.world_size)
        return chunks.DistributedSampler(
            make(sizes, rank), dist_info=lambda: place, shards=shards, **options
        )

    return shared


def _requests(make: MakeSampler) -> Callable[[Path, Sizes, int], Walk]:
    return lambda _, sizes, rank: ChunkSamplerWalk(make(sizes, rank), NUM_SAMPLES)


def _matrix(make: MakeSampler) -> Callable[[Path, Sizes, int], Walk]:
    def build(_: Path, sizes: Sizes, rank: int) -> Walk:
        store = MemoryMatrix(np.arange(NUM_SAMPLES)[:, None])
        return Walk(ChunkLoader(store, make(sizes, rank)), _first_column)

    return build


def _tensors(make: MakeSampler, num_workers: int = 0) -> Callable[[Path, Sizes, int], Walk]:
    def build(_: Path, sizes: Sizes, rank: int) -> Walk:
        store = MemoryMatrix(np.arange(NUM_SAMPLES)[:, None])
        loader = TensorChunkLoader(store, make(sizes, rank), num_workers=num_workers)
        return Walk(loader, _first_column)

    return build


def _first_column(batch: Any) -> list[int]:
    ids: list[int] = batch.X[:, 0].tolist()
    return ids


# Clocks.


class _OneOf:
    """The processes of a run, of which only this one is there."""

    def __init__(self, sizes: Sizes, rank: int) -> None:
        self.rank = rank
        self.world_size = sizes.world_size

    def maximum(self, value: int) -> int:
        return value

    def gather(self, value: Any, timeout: float) -> list[Any]:
        return [value] * self.world_size


def _steps(
    build: Callable[[Path, Sizes, int], Walk], scheduler: Any = StepScheduler
) -> Callable[[Path, Sizes, int], Walk]:
    """Steps of two batches of what another case builds."""

    def build_steps(data: Path, sizes: Sizes, rank: int) -> Walk:
        inner = build(data, sizes, rank)
        clock = scheduler(
            2 * sizes.world_size * sizes.batch_size,
            sizes.batch_size,
            sizes.world_size,
            inner.thing,
            num_epochs=6,
            preemption_signal=None,
            peers=_OneOf(sizes, rank),
        )
        return StepWalk(clock, inner.ids_of)

    return build_steps


def _listed(_: Path, sizes: Sizes, rank: int) -> Walk:
    first, size = 100 * rank, sizes.batch_size
    return Walk([list(range(first + k, first + k + size)) for k in range(0, 7 * size, size)], list)


_CHANGED = ("update_weights", [5, 1, 1])
_CHANGED_AGAIN = ("update_weights", [1, 1, 1])
MIXTURE_PLACES = {
    **PLACES,
    "fresh with other weights": (Stage(take=0, calls=(_CHANGED,)),),
    "weights changed before a pass": (Stage(calls=(_CHANGED,)),),
    "weights changed in a pass": (Stage(calls_after=(_CHANGED,)),),
    "weights changed in a pass, then a resize": (Stage(calls_after=(_CHANGED,)), Stage(1)),
    "weights changed twice": (
        Stage(calls_after=(_CHANGED,)),
        Stage(1, calls_after=(_CHANGED_AGAIN,)),
        Stage(2),
    ),
    "weights changed at the end": (Stage(take="all", calls_after=(_CHANGED,)),),
    "weights changed in epoch 1": (Stage(num_epochs=1, calls_after=(_CHANGED,)), Stage(2)),
}
SKIPPED = {"after a skip": (Stage(take=0, calls=(("set_skip", 4),)),)}
SKIPPED_IN_EPOCH_1 = {
    "after a skip in epoch 1": (Stage(take=2, calls=(("set_epoch", 1), ("set_skip", 4))),)
}
# A list cannot go on with other sizes.
SAME_SIZES_PLACES = {
    name: stages for name, stages in PLACES.items() if not any(stage.which for stage in stages)
}

_OF_EPOCH = {"of another system": {"epoch": 1, "seed": 5, "num_replicas": 2, "rank": 0}}
_OF_WEIGHTS = {
    "of another system": {"epoch": 1, "seed": 5, "weights": [3.0, 1.0, 1.0], "temperature": 2.0}
}
_OF_BATCHES = {"of another system": {"epoch": 1, "batches_yielded": 3, "seed": 5}}
_OF_STEPS = {"of another system": {"step": 9, "epoch": 2}}


def _sample_case(build: Callable[[Path, Sizes, int], Walk], **options: Any) -> Case:
    """A sampler that yields one sample at a time."""
    places = options.pop("places", FEW_PLACES)
    return Case(build, take=5, places=places | SKIPPED | SKIPPED_IN_EPOCH_1, **options)


def _step_case(build: Callable[[Path, Sizes, int], Walk], **options: Any) -> Case:
    return Case(build, take=1, foreign=_OF_STEPS, **options)


CASES: dict[str, Case] = {
    # Samplers of samples, and loaders around them.
    "sampler": _sample_case(_sampler(), places=PLACES, foreign=_OF_EPOCH),
    "sampler pad": _sample_case(_sampler(drop_last=False)),
    "sampler torch order": _sample_case(_sampler(order="torch")),
    "loader": Case(_samples(), places=PLACES, foreign=_OF_EPOCH),
    "loader pad": Case(_samples(drop_last=False), places=PLACES),
    "loader in order": Case(_samples(shuffle=False)),
    "loader torch order": Case(_samples(order="torch", drop_last=False)),
    "loader with mask": Case(_masked),
    "loader 2 workers": Case(_samples(num_workers=2, drop_last=False), places=SOME_PLACES),
    "loader own sampler": Case(_own_sampler(shuffle=True, seed=5), ONE_RANK, places=PLACES),
    "loader own sampler drop": Case(_own_sampler(shuffle=True, seed=5, drop_last=True), ONE_RANK),
    "loader own sampler in order": Case(_own_sampler(), ONE_RANK),
    # Mixtures.
    "mixture sampler": _sample_case(_mixture_sampler(), places=MIXTURE_PLACES, foreign=_OF_WEIGHTS),
    "mixture sampler torch order": _sample_case(
        _mixture_sampler(order="torch"),
        sizes=SAME_RANKS,
        places=MIXTURE_PLACES,
        foreign=_OF_WEIGHTS,
    ),
    "mixture loader": Case(_mixture_loader(temperature=2.0)),
    "mixture loader phases": Case(
        _mixture_loader(
            phases=[(3, [1, 1, 0]), (9, [0, 1, 3]), (13, [2, 1, 1])],
            global_batch_size=6,
            drop_last=False,
        )
    ),
    "mixture loader torch order": Case(_mixture_loader(order="torch", drop_last=False), SAME_RANKS),
    # Buckets.
    "resolutions": Case(_buckets(_resolutions), places=PLACES, foreign=_OF_BATCHES),
    "resolutions keep last": Case(_buckets(_resolutions, drop_last=False)),
    "resolutions dynamic": Case(_bucket_loader(_resolutions, dynamic_batch_size=True)),
    "resolutions torch order": Case(_buckets(_resolutions, order="torch"), foreign=_OF_BATCHES),
    "resolutions loader torch order": Case(
        _bucket_loader(_resolutions, order="torch", drop_last=False)
    ),
    "resolutions loader": Case(_bucket_loader(_resolutions, drop_last=False), places=PLACES),
    "lengths sequential": Case(_buckets(_lengths, edges=[5, 12, 19], mode="sequential")),
    "lengths interleaved": Case(_buckets(_lengths, num_buckets=3), places=PLACES),
    "lengths tokens sequential": Case(
        _bucket_loader(_lengths, by="tokens", edges=[5, 12, 19], mode="sequential")
    ),
    "lengths tokens interleaved": Case(
        _bucket_loader(_lengths, by="tokens", num_buckets=3, tail="pad")
    ),
    "lengths loader drop": Case(_bucket_loader(_lengths, num_buckets=2, tail="drop")),
    # Folders.
    "folder balanced": Case(_folder(), places=PLACES),
    "folder balanced preload": Case(_folder(preload=2, seq_length=3)),
    "folder balanced in order": Case(_folder(shuffle=False)),
    "folder balanced 2 workers": Case(_folder(num_workers=2), places=SOME_PLACES),
    "folder exact": Case(_folder("equal", sampling_strategy="exact"), SAME_RANKS),
    "folder oversampling": Case(
        _folder(sampling_strategy="oversampling"), SAME_RANKS, places=PLACES
    ),
    "folder undersampling": Case(_folder(sampling_strategy="undersampling"), SAME_RANKS),
    "folder alone": Case(_folder_alone),
    # Feeds.
    "feed samples": Case(_feed(_sample_plan("even")), places=PLACES),
    "feed samples pad": Case(_feed(_sample_plan("pad"))),
    "feed packed": Case(_feed(_sample_plan("drop"), "packed", "x")),
    "feed in order": Case(
        _feed(SamplePlan(order=Sequential(num_samples=NUM_SAMPLES), tail="even"))
    ),
    "feed windows": Case(_feed(_window_plan("even", preload=2)), places=PLACES),
    "feed windows pad": Case(_feed(_window_plan("pad"))),
    "feed buckets sequential": Case(_feed(_bucket_plan("sequential"))),
    "feed buckets interleaved": Case(_feed(_bucket_plan("interleaved"))),
    "feed mixture": Case(_feed(_mixture_plan())),
    "feed files": Case(
        _feed(FileSharesPlan(sizes=FILES, strategy="oversampling", seed=5)), SAME_RANKS
    ),
    # Plans, with cursors as text.
    "plan samples": Case(_plan(_sample_plan("even"))),
    "plan windows": Case(_plan(_window_plan("drop", preload=2))),
    "plan buckets": Case(_plan(_bucket_plan("interleaved"))),
    "plan mixture": Case(_plan(_mixture_plan())),
    # Chunk samplers.
    "requests sequential": Case(_requests(_sequential()), ONE_RANK, take=1),
    "requests random": Case(_requests(_random()), ONE_RANK, take=1, places=PLACES),
    "requests random mask": Case(_requests(_random(mask=MASK, drop_last=True)), ONE_RANK, take=1),
    "requests random replacement": Case(
        _requests(_random(replacement=True, num_samples=50)), ONE_RANK, take=1
    ),
    "requests random some": Case(_requests(_random(num_samples=31)), ONE_RANK, take=1),
    "requests classes": Case(_requests(_classes()), ONE_RANK_CLASS_SIZES, take=1),
    "requests windows": Case(_requests(_shared(_random(), "windows")), take=1, places=PLACES),
    "requests windows mask": Case(
        _requests(_shared(_random(mask=MASK, drop_last=True), "windows")), take=1
    ),
    "requests windows classes": Case(
        _requests(_shared(_classes(), "windows")), CLASS_SIZES, take=1
    ),
    "requests contiguous": Case(
        _requests(_shared(_random(), "contiguous")), (Sizes(2, 3),) * 3, take=1
    ),
    "requests contiguous unequal": Case(
        _requests(_shared(_random(mask=MASK), "contiguous", enforce_equal_batches=False)),
        SAME_RANKS,
        take=1,
    ),
    # Loaders around them.
    "matrix sequential": Case(_matrix(_sequential(mask=MASK)), ONE_RANK),
    "matrix random": Case(_matrix(_random()), ONE_RANK, places=PLACES),
    "matrix random mask": Case(_matrix(_random(mask=MASK)), ONE_RANK),
    "matrix random replacement": Case(_matrix(_random(replacement=True)), ONE_RANK),
    "matrix classes": Case(
        _matrix(_classes(class_weights=[1, 0, 2.5], mask=MASK)), ONE_RANK_CLASS_SIZES
    ),
    "matrix windows": Case(_matrix(_shared(_random(), "windows")), places=PLACES),
    "matrix windows drop": Case(_matrix(_shared(_random(drop_last=True), "windows"))),
    "matrix contiguous": Case(
        _matrix(_shared(_sequential(), "contiguous", enforce_equal_batches=False)), SAME_RANKS
    ),
    "tensors random": Case(_tensors(_random()), ONE_RANK),
    "tensors windows": Case(_tensors(_shared(_random(), "windows")), places=PLACES),
    "tensors windows 2 workers": Case(
        _tensors(_shared(_random(), "windows"), num_workers=2), places=SOME_PLACES
    ),
    # Clocks.
    "steps list": _step_case(_steps(_listed), sizes=(Sizes(2, 3),), places=SAME_SIZES_PLACES),
    "steps loader": _step_case(_steps(_samples(drop_last=False)), places=PLACES),
    "steps folder": _step_case(_steps(_folder())),
    "steps feed": _step_case(_steps(_feed(_window_plan("even", preload=2)))),
    "steps matrix": _step_case(_steps(_matrix(_shared(_random(), "windows")))),
    "steps torch list": _step_case(
        _steps(_listed, TorchStepScheduler), sizes=(Sizes(2, 3),), places=SAME_SIZES_PLACES
    ),
    "steps torch loader": _step_case(_steps(_samples(), TorchStepScheduler), places=PLACES),
    "steps torch lengths": _step_case(
        _steps(_bucket_loader(_lengths, num_buckets=3), TorchStepScheduler)
    ),
    "steps torch mixture": _step_case(_steps(_mixture_loader(), TorchStepScheduler)),
    "steps torch tensors": _step_case(
        _steps(_tensors(_shared(_random(), "windows")), TorchStepScheduler)
    ),
}

#: Cases whose orders have another version than when their states were saved.
OF_CHANGED_ORDERS = frozenset(
    (
        "feed buckets interleaved",
        "feed files",
        "feed mixture",
        "feed windows",
        "feed windows pad",
        "folder alone",
        "folder balanced",
        "folder balanced 2 workers",
        "folder balanced preload",
        "folder exact",
        "folder oversampling",
        "folder undersampling",
        "lengths interleaved",
        "lengths loader drop",
        "lengths tokens interleaved",
        "matrix classes",
        "matrix random",
        "matrix random mask",
        "matrix random replacement",
        "matrix windows",
        "matrix windows drop",
        "mixture loader",
        "mixture loader phases",
        "mixture sampler",
        "plan buckets",
        "plan mixture",
        "plan windows",
        "requests classes",
        "requests contiguous",
        "requests contiguous unequal",
        "requests random",
        "requests random mask",
        "requests random replacement",
        "requests random some",
        "requests windows",
        "requests windows classes",
        "requests windows mask",
        "steps feed",
        "steps folder",
        "steps matrix",
        "steps torch lengths",
        "steps torch mixture",
        "steps torch tensors",
        "tensors random",
        "tensors windows",
        "tensors windows 2 workers",
    )
)
