"""What becomes of each sample before its batch is made: decoders, and a transform with a seed."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.errors import (
    InvalidValueError,
    SampleError,
    StoreError,
    check_callable,
    check_choice,
)
from feedline.feed.decoders import LISTED, Decoder, decoder_named
from feedline.feed.gathering import chunking_of
from feedline.feed.sample_rng import SampleKeys
from feedline.feed.skips import Skipped, Skips
from feedline.feed.stacking import stack_samples
from feedline.plan import Block, Plan, Segment
from feedline.plan.seeds import Seed, check_seed
from feedline.store import Lists, Store
from feedline.store.columns import Arrays, as_numbers

Sample = dict[str, Any]
SampleTransform = Callable[[Sample, np.random.Generator], Any]
_MOST_CHARACTERS = 400


class Prepared(NamedTuple):
    """A batch of prepared samples.

    Args:
        columns: The batch.
        skips: What was skipped; None where an error is raised instead.
    """

    columns: Any
    skips: Skips


class _Failed(NamedTuple):
    """What went wrong with a sample, and at which step."""

    slot: int
    error: Exception
    step: str


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Decoders and the transform of samples, and what to do when they fail.

    Args:
        store: Where the samples are.
        decode: The decoder of each column that has one, by name or as a function.
        sample_transform: Makes a sample of a sample and a random generator.
        on_error: `"raise"` or `"skip"`.
        seed: The seed of the generators.
    """

    store: Store
    decode: Mapping[str, str | Decoder] = field(default_factory=dict)
    sample_transform: SampleTransform | None = None
    on_error: str = "raise"
    seed: Seed = 0

    def __post_init__(self) -> None:
        columns = self.store.columns
        for name, decoder in self.decode.items():
            if name not in columns or columns[name].kind != "bytes":
                found = f"is {columns[name]}" if name in columns else "does not exist"
                bytes_columns = [
                    column.name for column in columns.values() if column.kind == "bytes"
                ]
                listed = ", ".join(map(repr, bytes_columns)) or "none"
                raise InvalidValueError(
                    f"decode: column {name!r:.80} {found} but must be a column of bytes; there "
                    f"is {listed:.200}"
                )
            decoder_named(name, decoder)

    @property
    def untouched(self) -> tuple[str, ...]:
        """The columns that are delivered as they were read."""
        if self.sample_transform is not None:
            return ()
        return tuple(name for name in self.store.columns if name not in self.decode)

    def prepare(self, arrays: Arrays, segment: Segment, rank: int, block: Block) -> Prepared:
        """Return a batch of prepared samples, or raise an error that names one that failed.

        Args:
            arrays: The samples as read, column by column.
            segment: What is left of the epoch.
            rank: The rank whose batch it is.
            block: The batch.
        """
        ids = block.indices.tolist()
        made: list[Any] = [None] * len(ids)
        failed: list[_Failed] = []
        for slot, sample in enumerate(self._prepared(arrays, segment, rank, block)):
            if isinstance(sample, _Failed):
                if self.on_error == "raise":
                    raise self._error(sample, ids) from sample.error
                failed.append(sample)
            else:
                made[slot] = sample
        rows = None
        skips: Skips = None
        if self.on_error == "skip":
            rows, skips = self._replaced(failed, block)
        if rows is not None:
            made, ids = [made[row] for row in rows], [ids[row] for row in rows]
        columns = stack_samples(made, ids, self._lists)
        if self.sample_transform is None:
            columns = self._with_untouched(columns, arrays, rows)
        return Prepared(columns, skips)

    def _prepared(self, arrays: Arrays, segment: Segment, rank: int, block: Block) -> Iterator[Any]:
        """Yield each sample, or what went wrong with it."""
        columns = self.store.columns
        names = tuple(self.decode) if self.sample_transform is None else tuple(columns)
        # Texts are decoded one by one, so that one that is damaged fails alone.
        plain = {name: arrays[name] for name in names if columns[name].kind in ("array", "list")}
        values = {**arrays, **as_numbers(columns, plain)}
        decoders = {name: decoder_named(name, value) for name, value in self.decode.items()}
        transform = self._transform_of(segment, rank, block)
        for slot in range(len(block.indices)):
            step = ""
            try:
                sample: Sample = {}
                for name in names:
                    step = f"column {name!r:.80} cannot be read"
                    sample[name] = values[name][slot]
                    if name in decoders:
                        step = f"column {name!r:.80} cannot be decoded{self._as(name)}"
                        _put(sample, name, decoders[name](sample[name]), columns)
                step = "sample_transform failed"
                yield sample if transform is None else transform(sample, slot)
            except MemoryError:
                raise
            except Exception as error:
                yield _Failed(slot, error, step)

    def _transform_of(
        self, segment: Segment, rank: int, block: Block
    ) -> Callable[[Sample, int], Any] | None:
        """Return the transform of the sample in a slot, which gets a generator of its own."""
        function = self.sample_transform
        if function is None:
            return None
        draws = segment.draws(rank, range(block.first, block.first + len(block)))
        sources, numbers = draws.sources.tolist(), draws.numbers.tolist()
        indices = block.indices.tolist()
        keys = SampleKeys(self.seed, segment.epoch)

        def transform(sample: Sample, slot: int) -> Any:
            return function(sample, keys.generator(sources[slot], indices[slot], numbers[slot]))

        return transform

    def _as(self, name: str) -> str:
        decoder = self.decode[name]
        return f" as {decoder}" if isinstance(decoder, str) else ""

    @property
    def _lists(self) -> frozenset[str]:
        """The columns whose values differ in length, even if those of a batch do not."""
        listed = {c.name for c in self.store.columns.values() if c.kind == "list"}
        decoded = {name for name, decoder in self.decode.items() if decoder in LISTED}
        return frozenset(listed | decoded)

    def _replaced(
        self, failed: list[_Failed], block: Block
    ) -> tuple[NDArray[np.int64] | None, Skips]:
        """Return which sample stands in each slot, and what was skipped."""
        if not failed:
            return None, ()
        ids, num_samples = block.indices.tolist(), len(block.indices)
        is_good = np.ones(num_samples, np.bool_)
        is_good[[one.slot for one in failed]] = False
        if not is_good.any():
            why = (
                f"all {num_samples} samples of a batch failed, so none can replace them; the first"
            )
            raise SampleError(f"{why}: {self._words(failed[0], ids)}") from failed[0].error
        is_real = np.ones(num_samples, np.bool_) if block.is_real is None else block.is_real
        chosen = is_good & is_real if (is_good & is_real).any() else is_good
        by = int(np.argmax(chosen))
        rows = np.arange(num_samples)
        rows[~is_good] = by
        return rows, tuple(
            Skipped(
                one.slot, ids[one.slot], ids[by], bool(is_real[one.slot]), self._words(one, ids)
            )
            for one in failed
        )

    def _with_untouched(
        self, columns: Any, arrays: Arrays, rows: NDArray[np.int64] | None
    ) -> dict[str, Any]:
        """Return the decoded columns together with those that were not."""
        if rows is not None:
            for name in self.untouched:
                array = arrays[name]
                arrays[name] = array.take(rows) if isinstance(array, Lists) else array[rows]
        own = {name: columns.get(name, arrays[name]) for name in self.store.columns}
        return {**own, **columns}

    def _error(self, failed: _Failed, ids: list[int]) -> SampleError:
        remedy = "mend it, or use on_error='skip' to skip such samples"
        return SampleError(f"{self._words(failed, ids)}; {remedy}")

    def _words(self, failed: _Failed, ids: list[int]) -> str:
        index, error = ids[failed.slot], failed.error
        kind = "" if isinstance(error, StoreError) else f"{type(error).__name__}: "
        what = f"{kind}{error}"[:_MOST_CHARACTERS]
        chunk, row = chunking_of(self.store).rows_of(np.array([index]))
        where = self.store.describe_row(int(chunk[0]), int(row[0]))
        return f"{where}: sample {index}: {failed.step} ({what})"


def _put(sample: Sample, name: str, value: Any, columns: Container[str]) -> None:
    """Put what was decoded into a sample; a dict has values beside the column itself."""
    if not isinstance(value, dict):
        sample[name] = value
        return
    for key, part in value.items():
        if key and f"{name}/{key}" in columns:
            raise InvalidValueError(
                f"it gives {f'{name}/{key}'!r:.80}, but that is a column too; rename the column, "
                "or decode with a function that returns another key"
            )
        sample[f"{name}/{key}" if key else name] = part


def preparation_for(
    store: Store,
    plan: Plan,
    *,
    decode: Mapping[str, str | Decoder] | None,
    sample_transform: SampleTransform | None,
    on_error: str,
    seed: Seed | None,
) -> Preparation | None:
    """Return what becomes of each sample, from the arguments of a loader; None for nothing."""
    check_callable("sample_transform", sample_transform)
    check_choice("on_error", on_error, ("raise", "skip"))
    if decode is not None and not isinstance(decode, Mapping):
        raise InvalidValueError(f"decode={decode!r:.80} must be a dict such as {{'image': 'jpeg'}}")
    if not decode and sample_transform is None:
        if on_error != "raise":
            raise InvalidValueError(
                f"on_error={on_error!r} needs decode or sample_transform: without them, no single "
                "sample can fail"
            )
        return None
    return Preparation(
        store=store,
        decode=dict(decode or {}),
        sample_transform=sample_transform,
        on_error=on_error,
        seed=plan.main_seed if seed is None else check_seed(seed),
    )
