"""A run's config in YAML, converted to a plan."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from feedline.errors import InvalidValueError, UnsafeDataError, check_integer
from feedline.feed.data_plan import DataPlan
from feedline.plain_file import read_plain
from feedline.plan import Chunking, Cursor, Mixture, Plan, Segment
from feedline.plan.frozen import store
from feedline.plan.seeds import check_seed
from feedline.runs.config_yaml import parse_yaml
from feedline.runs.run_config_data import PlannedData, Settings, SourceInfo, read_data
from feedline.runs.run_config_keys import Keys
from feedline.words import one_line, several

_COUNTS = ("ranks", "epochs", "grad_acc_steps")
_KEYS = ("seed", *_COUNTS, "batch_size", "tail", "shuffle", "data")
_TAILS = ("drop", "pad", "even", "exact")
_MAX_BYTES = 2**20
_MOST_RANKS = 2**31


@one_line
@dataclass(frozen=True, kw_only=True, eq=False)
class RunConfig(PlannedData):
    """The config of a run: its data, ranks and batches.

    `plan` is the order of the samples; `kind` is the key of the config that names the data, and
    `sources` are its parts. `store` is the folder, if there is one.

    Args:
        kind: The kind of data.
        plan: Which sample comes when.
        sources: The parts of the data that have names.
        store: The folder, where there is one.
        bytes_per_sample: The bytes of a sample, where they are known.
        token_budget: The number of tokens of a batch, where that is what is given.
        batch_size: The number of samples of a batch on one rank.
        ranks: The number of ranks.
        epochs: The number of epochs.
        grad_acc_steps: The number of batches of a step.

    Examples:
        >>> config = RunConfig.from_dict({"ranks": 4, "batch_size": 8, "data": {"samples": 1000}})
        >>> config.plan.segment(world_size=config.ranks, batch_size=config.batch_size).num_batches
        31
    """

    batch_size: int
    ranks: int = 1
    epochs: int = 1
    grad_acc_steps: int = 1

    def __post_init__(self) -> None:
        store(
            self,
            ranks=check_integer("ranks", self.ranks, 1, _MOST_RANKS),
            batch_size=check_integer("batch_size", self.batch_size, 1, _MOST_RANKS),
            epochs=check_integer("epochs", self.epochs, 1, 2**62),
            grad_acc_steps=check_integer("grad_acc_steps", self.grad_acc_steps, 1, 2**62),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RunConfig:
        """Return the config in a YAML file; paths in it are relative to the file's folder."""
        file = Path(path)
        return cls.from_dict(_load_yaml(file), folder=file.parent)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], folder: Path = Path()) -> RunConfig:
        """Return the config from a mapping; paths in it are relative to `folder`."""
        keys = Keys("", values, _KEYS)
        seed = keys.values.get("seed", 0)
        if isinstance(seed, Mapping | list | float):
            raise InvalidValueError("seed must be an integer or a string")
        settings = Settings(
            seed=check_seed(seed),
            tail=keys.choice("tail", _TAILS),
            shuffle=keys.flag("shuffle", True),
            batch_size=keys.optional_integer("batch_size", 1, _MOST_RANKS),
            folder=folder,
        )
        counts: dict[str, Any] = {name: keys.integer(name, 1, 1) for name in _COUNTS}
        data = read_data(keys.needed("data"), settings)
        batch_size = data.token_budget
        if batch_size is None:
            batch_size = keys.integer("batch_size", 1, high=_MOST_RANKS)
        elif settings.batch_size is not None:
            raise InvalidValueError(
                f"batch_size={settings.batch_size} cannot be used with data.token_budget, which "
                "decides the batch size; remove one of them"
            )
        return cls(**vars(data), batch_size=batch_size, **counts)

    def resized(self, *, ranks: int | None = None, batch_size: int | None = None) -> RunConfig:
        """Return the same run on another number of ranks, or with another batch size."""
        sizes: dict[str, Any] = {"ranks": ranks, "batch_size": batch_size}
        return replace(self, **{name: size for name, size in sizes.items() if size is not None})

    def plan_for(self, cursor: Cursor) -> Plan:
        """Return the plan that a cursor is compared with; for a feed's cursor it includes the
        data."""
        if self.store is not None and cursor.fields.get("kind") == "data":
            return DataPlan(plan=self.plan, store=self.store)
        return self.plan

    @property
    def mixture(self) -> Mixture | None:
        """The mixture, if the data is one."""
        return self.plan.mixture

    @property
    def chunks(self) -> Chunking | None:
        """The chunks of the data, if it has any."""
        return self.plan.chunks

    def segment(self, epoch: int) -> Segment:
        """Return one epoch of the run, dealt to its ranks."""
        epoch = check_integer("epoch", epoch, 0)
        return self.plan.segment(world_size=self.ranks, batch_size=self.batch_size, epoch=epoch)

    def num_steps_in(self, epoch: int) -> int:
        """Return the number of steps in an epoch; the last step may have fewer batches."""
        return -(-self.segment(epoch).num_batches // self.grad_acc_steps)

    @property
    def num_steps(self) -> int:
        """The number of steps in all epochs.

        Examples:
            >>> values = {"batch_size": 10, "epochs": 3, "data": {"samples": 1000}}
            >>> RunConfig.from_dict(values).num_steps
            300
        """
        num_uneven = self._num_uneven_epochs
        uneven = sum(self.num_steps_in(epoch) for epoch in range(num_uneven))
        num_even = self.epochs - num_uneven
        return uneven + (num_even * self.num_steps_in(num_uneven) if num_even else 0)

    def find_step(self, step: int) -> tuple[int, int]:
        """Return the epoch of a step of the run, and its number in that epoch."""
        left = step = check_integer("step", step, 0)
        num_uneven = self._num_uneven_epochs
        for epoch in range(num_uneven):
            num_steps = self.num_steps_in(epoch)
            if left < num_steps:
                return epoch, left
            left -= num_steps
        if num_uneven < self.epochs:
            more, left = divmod(left, self.num_steps_in(num_uneven))
            if num_uneven + more < self.epochs:
                return num_uneven + more, left
        raise InvalidValueError(
            f"step={step} must be in [0, {self.num_steps - 1}], the steps of the run's "
            f"{several(self.epochs, 'epoch')}; pass an epoch to count from its start"
        )

    @property
    def _num_uneven_epochs(self) -> int:
        """The number of epochs that may differ in length; later ones are all equal."""
        phases = () if self.mixture is None else self.mixture.phases
        return min(max((phase.epoch + 1 for phase in phases), default=0), self.epochs)

    def source_of(self, index: int) -> tuple[SourceInfo, int]:
        """Return the source that holds an index, and the index inside that source."""
        # Empty sources share their first index with the next one; the last of these holds it.
        number = bisect_right([source.first_index for source in self.sources], index) - 1
        source = self.sources[number]
        return source, index - source.first_index

    def index_in(self, name: str, index: int) -> int:
        """Return the index in all data of an index inside one source."""
        found = [source for source in self.sources if source.name == name]
        if not found:
            listed = ", ".join(source.name for source in self.sources[:20])
            raise InvalidValueError(f"source={name!r:.80} must be one of {listed}")
        index = check_integer("index", index, 0, found[0].num_samples - 1)
        return found[0].first_index + index


def _load_yaml(path: Path) -> Any:
    try:
        text = read_plain(path, _MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise InvalidValueError(f"{path}: does not exist; pass a run config in YAML") from None
    except UnsafeDataError as error:
        raise InvalidValueError(f"{error}; pass a run config in YAML") from None
    except (OSError, ValueError) as error:
        raise InvalidValueError(f"{path}: cannot be read ({error!s:.200})") from None
    try:
        return parse_yaml(text)
    except InvalidValueError as error:
        raise InvalidValueError(f"{path}: {error}") from None
