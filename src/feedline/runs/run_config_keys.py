"""The keys of a config: each is checked, and errors name it by its path."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from feedline.errors import InvalidValueError, as_float, check_choice, check_integer, check_positive

# Names that other systems use for our keys, without `num_` or `n_`.
_SYNONYMS = {
    **dict.fromkeys(
        ("world_size", "world", "replicas", "gpus", "devices", "nproc", "nprocs", "procs"), "ranks"
    ),
    **dict.fromkeys(("processes", "nproc_per_node", "dp_size"), "ranks"),
    **dict.fromkeys(("bs", "batch", "micro_batch_size", "per_device_batch_size"), "batch_size"),
    **dict.fromkeys(("gradient_accumulation_steps", "accumulation_steps"), "grad_acc_steps"),
    **dict.fromkeys(("accumulate_grad_batches", "grad_accum", "grad_acc"), "grad_acc_steps"),
    **dict.fromkeys(("max_epochs", "train_epochs", "epoch"), "epochs"),
    **dict.fromkeys(("random_seed", "rng_seed"), "seed"),
    **dict.fromkeys(("dataset", "datasets"), "data"),
    **dict.fromkeys(("examples", "rows", "size", "length"), "samples"),
    **dict.fromkeys(("path", "dir", "directory", "root"), "folder"),
    **dict.fromkeys(("weighting", "proportion", "probability", "ratio"), "weight"),
    "drop_last": "tail",
    "sources": "mixture",
    "max_tokens": "token_budget",
    "tokens_per_batch": "token_budget",
    "boundaries": "edges",
    "chunks": "num_chunks",
}
# Names that share only a part, such as world_size and batch_size, are not close.
_CLOSE = 0.7


@dataclass(frozen=True)
class Keys:
    """One mapping of a config, its path, and the keys that it may have.

    Examples:
        >>> keys = Keys("data", {"sampels": 5}, ("samples", "folder"))
        Traceback (most recent call last):
            ...
        feedline.errors.InvalidValueError: data.sampels is not a key; did you mean data.samples?
    """

    path: str
    values: Mapping[str, Any]
    known: tuple[str, ...]

    def __post_init__(self) -> None:
        listed = ", ".join(self.known)
        if not isinstance(self.values, Mapping):
            raise InvalidValueError(
                f"{self.path or 'the config'} must be a mapping with the keys {listed}, not "
                f"{_kind_of(self.values)}"
            )
        for key in self.values:
            if key not in self.known:
                near = self._meant_by(str(key)[:80])
                hint = f"did you mean {self.at(near)}?" if near else f"the keys here are {listed}"
                raise InvalidValueError(f"{self.at(key)} is not a key; {hint}")

    def _meant_by(self, key: str) -> str | None:
        """Return the known key that a user most likely meant, or None."""
        plain = key.lower().replace("-", "_")
        synonym = _SYNONYMS.get(plain.removeprefix("num_").removeprefix("n_"))
        if synonym in self.known:
            return synonym
        near = difflib.get_close_matches(plain, self.known, n=1, cutoff=_CLOSE)
        return near[0] if near else None

    def at(self, key: Any) -> str:
        """Return the path of a key."""
        # Always one line: keys in YAML may be texts of several lines, dates and lists.
        name = f"{key:.80}" if isinstance(key, str) and key.isprintable() else f"{key!r:.80}"
        return f"{self.path}.{name}" if self.path else name

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def needed(self, key: str) -> Any:
        """Return the value of a required key."""
        if self.values.get(key) is None:
            raise InvalidValueError(f"{self.at(key)} is missing; add it to the config")
        return self.values[key]

    def scalar(self, key: str, default: Any = None) -> Any:
        """Return a single value; without a default the key is required."""
        value = self.values.get(key)
        if value is None:
            value = self.needed(key) if default is None else default
        # Never shown in full: a few aliases in YAML can make it longer than memory.
        if isinstance(value, Mapping | list | set | tuple):
            raise InvalidValueError(f"{self.at(key)} must be one value, not {_kind_of(value)}")
        return value

    def integer(
        self, key: str, low: int, default: int | None = None, high: int | None = None
    ) -> int:
        """Return an integer in `[low, high]`."""
        value = self.scalar(key, default)
        return check_integer(self.at(key), value, low, high, remedy=_integer_remedy(value))

    def optional_integer(self, key: str, low: int, high: int | None = None) -> int | None:
        """Return an integer in `[low, high]`, or None if the key is missing."""
        return None if self.values.get(key) is None else self.integer(key, low, high=high)

    def weight(self, key: str, default: float) -> float:
        """Return a number of at least 0."""
        return _check_weight(self.at(key), self.scalar(key, default))

    def weights(self, key: str, names: tuple[str, ...]) -> list[float]:
        """Return numbers of at least 0: a list, or a mapping by name, where missing names are 0."""
        given = self.needed(key)
        if isinstance(given, Mapping):
            by_name = Keys(self.at(key), given, names)
            return [by_name.weight(name, 0.0) for name in names]
        listed = enumerate(self.entries(key))
        return [_check_weight(f"{self.at(key)}[{number}]", value) for number, value in listed]

    def positive(self, key: str, default: float) -> float:
        """Return a number above 0."""
        return check_positive(self.at(key), self.scalar(key, default))

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.scalar(key, default)
        if not isinstance(value, bool):
            raise InvalidValueError(f"{self.at(key)}={value!r:.80} must be true or false")
        return value

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        """Return one of `choices`, by default the first."""
        return check_choice(self.at(key), self.scalar(key, choices[0]), choices)

    def text(self, key: str) -> str:
        """Return a string that is not empty."""
        value = self.scalar(key)
        if not isinstance(value, str) or not value:
            raise InvalidValueError(
                f"{self.at(key)}={value!r:.80} must be a string that is not empty"
            )
        return value

    def entries(self, key: str) -> list[Any]:
        """Return a list that is not empty."""
        value = self.needed(key)
        if not isinstance(value, list) or not value:
            raise InvalidValueError(
                f"{self.at(key)} must be a list that is not empty, not {_kind_of(value)}"
            )
        return value

    def sections(self, key: str, known: tuple[str, ...]) -> list[Keys]:
        """Return the mappings of a list."""
        listed = enumerate(self.entries(key))
        return [Keys(f"{self.at(key)}[{number}]", value, known) for number, value in listed]


@contextmanager
def named(path: str) -> Iterator[None]:
    """Put the path of a key before an error of the plan."""
    try:
        yield
    except InvalidValueError as error:
        raise InvalidValueError(f"{path}: {error}") from None


def _integer_remedy(value: Any) -> str:
    """Return what to do about a value that should be an integer, or nothing."""
    if isinstance(value, bool) or not isinstance(value, str | float):
        return ""
    try:
        number = float(value)
    except ValueError:
        return ""
    if not number.is_integer():
        return "use a whole number"
    # YAML reads 1e12 as text and 1.0e+12 as a number with a point.
    return "write it in full, such as 1_000_000, without quotes, a point or an exponent"


def _check_weight(name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    number = as_float(value) if is_number else math.nan
    if not 0 <= number < math.inf:
        raise InvalidValueError(f"{name}={_kind_of(value)} must be a number of at least 0")
    return number


def _kind_of(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return "nothing" if value is None else f"{value!r:.80}"
