"""Where a rank is in an iterable dataset: what each of its readers is at, and whose turn it is."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from feedline.errors import CursorFormatError, PlanMismatchError, check_integer
from feedline.feed.state_text import from_plain, to_plain
from feedline.feed.streams import ENDED, FRESH, Saved, Snapped
from feedline.words import several

_FORMAT = "feedline iterable"
_VERSION = 1
_MOST_READERS = 4096
_PACKED = "or pack the dataset with feedline.pack: a packed one resumes on any number"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a rank is in an epoch of an iterable dataset.

    Args:
        epoch: The epoch.
        readers: What each reader is at.
        next_reader: Whose turn it is.
        num_batches: How many batches of the epoch the loop has received.
        has_ended: Whether these were all.
    """

    epoch: int
    readers: tuple[Saved, ...]
    next_reader: int = 0
    num_batches: int = 0
    has_ended: bool = False

    @classmethod
    def start(cls, epoch: int, num_readers: int) -> Place:
        """Return the start of an epoch."""
        return cls(epoch=epoch, readers=(FRESH,) * num_readers)

    def after(self, item: Snapped) -> Place:
        """Return the place after what a reader has sent."""
        readers = (*self.readers[: item.reader], item.saved, *self.readers[item.reader + 1 :])
        if not item.has_batch:
            return replace(self, readers=readers)
        return replace(
            self,
            readers=readers,
            next_reader=(item.reader + 1) % len(readers),
            num_batches=self.num_batches + 1,
        )

    @property
    def is_between(self) -> bool:
        """Whether this is the start or the end of an epoch, which any number of ranks may load."""
        return self.has_ended or not self.num_batches


def place_to_dict(place: Place, dataset: str, rank: int, world_size: int) -> dict[str, Any]:
    """Return a place as JSON has it."""
    readers = [] if place.is_between else [_saved_to_plain(saved) for saved in place.readers]
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "dataset": dataset,
        "epoch": place.epoch,
        "num_batches": place.num_batches,
        "has_ended": place.has_ended,
        "rank": rank,
        "world_size": world_size,
        "num_readers": len(place.readers),
        "next_reader": place.next_reader,
        "readers": readers,
    }


def _saved_to_plain(saved: Saved) -> Any:
    if not saved:
        return "ended" if saved is ENDED else "fresh"
    # Bytes from our own process or its workers.
    return to_plain(pickle.loads(saved))


def place_from_state(
    state: Mapping[str, Any], dataset: str, rank: int, world_size: int, num_readers: int
) -> Place:
    """Return the place that a state says, or raise if it cannot be resumed from here.

    Args:
        state: What `state_dict` or `gather_state_dict` returned.
        dataset: The name of the class of the dataset.
        rank: The rank that loads.
        world_size: The number of ranks now.
        num_readers: The number of readers of each rank now.
    """
    if not isinstance(state, Mapping) or "cursor" not in state:
        raise CursorFormatError(
            f"state={state!r:.80} must be a mapping with the key 'cursor'; pass what state_dict() "
            "returned"
        )
    found = _parsed(state["cursor"])
    ranks = found.get("ranks")
    if isinstance(ranks, list) and ranks:
        first = _checked(ranks[0])
        # Another number of ranks is refused below, unless it does not matter.
        found = ranks[rank] if len(ranks) == world_size else first
    found = _checked(found)
    if found["dataset"] != dataset:
        raise PlanMismatchError(
            f"the state was saved with a dataset of the class {found['dataset']!r:.80}, but this "
            f"one is {dataset!r:.80}; use the same dataset",
            {"dataset": (found["dataset"], dataset)},
        )
    epoch, num_batches, has_ended = found["epoch"], found["num_batches"], found["has_ended"]
    if has_ended or not num_batches:
        start = Place.start(epoch, num_readers)
        return replace(start, num_batches=num_batches, has_ended=has_ended)
    _check_same(found, rank, world_size, num_readers)
    return Place(
        epoch=epoch,
        readers=tuple(_saved_from_plain(plain) for plain in found["readers"]),
        next_reader=found["next_reader"],
        num_batches=num_batches,
    )


def _saved_from_plain(plain: Any) -> Saved:
    if plain == "ended":
        return ENDED
    return FRESH if plain == "fresh" else pickle.dumps(from_plain(plain))


def _parsed(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise CursorFormatError(
            f"cursor={text!r:.80} must be the text that state_dict() returned; the state is "
            "damaged; use an earlier checkpoint"
        )
    return found


def _checked(found: Any) -> dict[str, Any]:
    """Return a place as JSON has it, with each of its fields in its bounds."""
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise PlanMismatchError(
            "the state was not saved with an iterable dataset; use the same data as when it was "
            "saved, or a state of this loader",
            {"dataset": (None, _FORMAT)},
        )
    version = found.get("version")
    if version != _VERSION:
        raise CursorFormatError(
            f"version={version!r:.80} must be {_VERSION}; use the release of Feedline that saved it"
        )
    try:
        checked = {
            **{name: check_integer(name, found.get(name), 0) for name in ("epoch", "num_batches")},
            "world_size": check_integer("world_size", found.get("world_size"), 1),
            "num_readers": check_integer("num_readers", found.get("num_readers"), 1, _MOST_READERS),
        }
        checked["rank"] = check_integer("rank", found.get("rank"), 0, checked["world_size"] - 1)
        most = checked["num_readers"] - 1
        checked["next_reader"] = check_integer("next_reader", found.get("next_reader"), 0, most)
    except ValueError as error:
        raise CursorFormatError(
            f"{error}; the state is damaged; use an earlier checkpoint"
        ) from error
    readers, has_ended = found.get("readers"), found.get("has_ended")
    is_between = has_ended or not checked["num_batches"]
    is_whole = isinstance(readers, list) and (is_between or len(readers) == most + 1)
    if not is_whole or not isinstance(has_ended, bool) or not isinstance(found.get("dataset"), str):
        raise CursorFormatError("the state is damaged; use an earlier checkpoint")
    return {**found, **checked}


def _check_same(found: dict[str, Any], rank: int, world_size: int, num_readers: int) -> None:
    """Raise unless a state within an epoch comes from the same rank, on as many readers."""
    after = f"after {several(found['num_batches'], 'batch', 'batches')} of an epoch"
    between = "load a state from the end of an epoch"
    if found["world_size"] != world_size:
        raise PlanMismatchError(
            f"the state was saved {after} on {several(found['world_size'], 'rank')}, but now there "
            f"are {world_size}: the state of an iterable dataset cannot be divided anew; resume on "
            f"{several(found['world_size'], 'rank')}, {between}, {_PACKED} of ranks",
            {"world_size": (found["world_size"], world_size)},
        )
    if found["rank"] != rank:
        raise PlanMismatchError(
            f"the state was saved {after} by rank {found['rank']}, but this is rank {rank}: each "
            "rank of an iterable dataset has a state of its own; save state_dict() on every rank, "
            "or gather_state_dict(), which is the same on all",
            {"rank": (found["rank"], rank)},
        )
    if found["num_readers"] != num_readers:
        raise PlanMismatchError(
            f"the state was saved {after} with num_workers={_workers(found['num_readers'])}, but "
            f"now it is {_workers(num_readers)}: each worker of an iterable dataset has a state of "
            f"its own; use the same num_workers, {between}, {_PACKED} of workers",
            {"num_workers": (found["num_readers"], num_readers)},
        )


def _workers(num_readers: int) -> str:
    # A loader without workers has one reader, as one with one worker.
    return "0 or 1" if num_readers == 1 else str(num_readers)
