"""The position of a run: a few integers that are the same on every rank.

A cursor holds the epoch and its history: the number of batches consumed at each world size and
batch size, and those that are skipped. What is left of the epoch is computed from that. Nothing in
it depends on the rank, the number of workers or the size of the data. It also contains the plan's
fields, so that an error can say how another plan differs.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from feedline.errors import (
    CursorFormatError,
    InvalidValueError,
    PlanMismatchError,
    UnsafeDataError,
    check_flag,
    check_integer,
)
from feedline.plain_file import read_plain
from feedline.plan.frozen import (
    fingerprint_of,
    flatten_fields,
    in_form_of,
    list_differences,
    store,
    store_integers,
)
from feedline.plan.skipping import Spans, check_spans, num_behind
from feedline.words import several, shown

CURSOR_FORMAT = "feedline.cursor/1"
#: The format of a cursor that skips batches. Releases that ignore skips must refuse it.
SKIPPING_FORMAT = "feedline.cursor/2"
CURSOR_FORMATS = (CURSOR_FORMAT, SKIPPING_FORMAT)
_KEYS = ("format", "fingerprint", "fields", "epoch", "history", "changes")
_MAX_BYTES = 2**26
_MOST_LISTED = 1000


class PastSegment(NamedTuple):
    """Batches that were consumed under one world size and batch size.

    Args:
        world_size: The number of ranks.
        batch_size: The number of samples of a batch on each of them.
        num_batches: How many batches each of them had.
        skipped: Ranges of batches that were skipped, or will be, as they are numbered without any
            skip; `num_batches` does not count these.
    """

    world_size: int
    batch_size: int
    num_batches: int
    skipped: Spans = ()

    @property
    def num_behind(self) -> int:
        """The number of batches that were consumed, or skipped on the way."""
        return num_behind(self.skipped, self.num_batches)

    @property
    def num_skipped(self) -> int:
        """The number of batches that are skipped."""
        return sum(stop - start for start, stop in self.skipped)

    def to_json(self) -> list[Any]:
        """Return the entry as JSON values."""
        skipped = [[list(span) for span in self.skipped]] if self.skipped else []
        return [*self[:3], *skipped]


def check_past(past: Any) -> PastSegment:
    """Return an entry of a history with plain integers, or raise."""
    try:
        world_size, batch_size, num_batches, *skipped = past
        (skipped,) = skipped or [()]
    except (TypeError, ValueError):
        raise InvalidValueError(
            f"history holds {past!r:.80} but must hold (world_size, batch_size, num_batches), and "
            "the ranges of batches that were skipped, if any"
        ) from None
    return PastSegment(
        check_integer("world_size", world_size, 1),
        check_integer("batch_size", batch_size, 1),
        check_integer("num_batches", num_batches, 0),
        check_spans("skipped", skipped),
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class Cursor:
    """The position of a run in its data.

    Args:
        fields: The description of the plan that the run follows.
        epoch: The epoch that the run is in.
        history: What was consumed and skipped of it, one entry for each world size and batch size.
        changes: Weights that were changed while the run went on.
        has_ended: Whether the run was done with this epoch, whatever its tail policy had left out.

    Examples:
        >>> cursor = Cursor(fields={"seed": 1}, epoch=2, history=(PastSegment(8, 32, 1000),))
        >>> Cursor.from_json(cursor.to_json()) == cursor
        True
    """

    fields: Mapping[str, Any]
    epoch: int = 0
    history: tuple[PastSegment, ...] = ()
    changes: tuple[Mapping[str, Any], ...] = field(default=())
    #: Whether the run had finished this epoch, even if its tail policy dropped samples.
    has_ended: bool = False

    def __post_init__(self) -> None:
        store_integers(self, "epoch", low=0)
        store(self, history=tuple(check_past(past) for past in self.history))

    def __repr__(self) -> str:
        num_batches = sum(past.num_batches for past in self.history)
        place = several(num_batches, "batch", "batches") if self.history else "no batch"
        if self.history:
            place += f", the latest on {several(self.history[-1].world_size, 'rank')}"
            place += f", {self.num_skipped:,} skipped" if self.num_skipped else ""
        kind = shown(self.fields.get("kind", "unknown"), 40)
        ended = ", ended" if self.has_ended else ""
        return f"<Cursor: epoch {self.epoch}{ended}, {place}; plan of kind {kind}>"

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the plan that this cursor belongs to."""
        return fingerprint_of(self.fields)

    @property
    def num_skipped(self) -> int:
        """The number of batches of this epoch that each rank skips."""
        return sum(past.num_skipped for past in self.history)

    def to_dict(self) -> dict[str, Any]:
        """Return the cursor as JSON values."""
        return {
            "format": SKIPPING_FORMAT if self.num_skipped else CURSOR_FORMAT,
            "fingerprint": self.fingerprint,
            "fields": dict(self.fields),
            "epoch": self.epoch,
            "history": [past.to_json() for past in self.history],
            "changes": [dict(change) for change in self.changes],
            **({"ended": True} if self.has_ended else {}),
        }

    @classmethod
    def from_dict(cls, state: Any) -> Cursor:
        """Return the cursor from `to_dict`, or raise `CursorFormatError`."""
        if not isinstance(state, Mapping) or "format" not in state:
            raise CursorFormatError(
                f"this is not a cursor: expected a mapping with the key 'format', got "
                f"{_shorten(state)}; pass what to_dict() or to_json() returned"
            )
        if state["format"] not in CURSOR_FORMATS:
            known = " or ".join(map(repr, CURSOR_FORMATS))
            raise CursorFormatError(
                f"format={_shorten(state['format'])} must be {known}; load this cursor with the "
                "version of feedline that wrote it"
            )
        missing = [key for key in _KEYS if key not in state]
        if missing:
            raise CursorFormatError(
                f"the cursor lacks {', '.join(missing)}; it is damaged; use an earlier checkpoint"
            )
        try:
            for name in ("history", "changes"):
                if isinstance(state[name], Mapping):
                    raise InvalidValueError(f"{name}={_shorten(state[name])} must be a list")
            cursor = cls(
                fields=dict(state["fields"]),
                epoch=state["epoch"],
                history=tuple(state["history"]),
                changes=tuple(dict(change) for change in state["changes"]),
                has_ended=check_flag("ended", state.get("ended", False)),
            )
            intact = cursor.fingerprint == state["fingerprint"]
            if cursor.num_skipped and state["format"] == CURSOR_FORMAT:
                raise InvalidValueError(f"{CURSOR_FORMAT!r} cannot skip batches")
        except (InvalidValueError, TypeError, ValueError) as error:
            raise CursorFormatError(
                f"the cursor is damaged ({error}); use an earlier checkpoint"
            ) from None
        if not intact:
            raise CursorFormatError(
                f"fingerprint={_shorten(state['fingerprint'])} does not match the fields of this "
                f"cursor ({cursor.fingerprint}); it is damaged; use an earlier checkpoint"
            )
        return cursor

    def to_json(self) -> str:
        """Return the cursor as one line of JSON."""
        return json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Cursor:
        """Return the cursor from `to_json`, or raise `CursorFormatError`."""
        try:
            state = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise CursorFormatError(
                f"the cursor is not JSON ({error}); it is damaged or truncated; use an earlier "
                "checkpoint"
            ) from None
        return cls.from_dict(state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cursor to a file; a crash leaves either the old file or the new one."""
        temporary = Path(f"{os.fspath(path)}.{secrets.token_hex(8)}.tmp")
        try:
            with temporary.open("x", encoding="utf-8") as file:
                file.write(self.to_json() + "\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException as error:
            temporary.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno and error.filename is None:
                # A full disk is told without a name.
                error.filename = os.fspath(path)
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Cursor:
        """Return the cursor in a file, or raise `CursorFormatError`."""
        try:
            text = read_plain(path, _MAX_BYTES).decode("utf-8")
        except UnsafeDataError as error:
            raise CursorFormatError(f"{error}; pass a cursor file") from None
        except UnicodeDecodeError:
            raise CursorFormatError(
                f"{os.fspath(path)} is not text, so it is not a cursor; pass a cursor file"
            ) from None
        try:
            return cls.from_json(text)
        except CursorFormatError as error:
            raise CursorFormatError(f"{os.fspath(path)}: {error}") from None

    def check_fields(self, fields: Mapping[str, Any]) -> None:
        """Raise `PlanMismatchError`, with every differing field, unless `fields` are the same."""
        if self.fields == fields:
            return
        fields = in_form_of(fields, self.fields)
        differences = list_differences(self.fields, fields)
        if differences:
            listed = "; ".join(
                f"{name} was {_shorten(saved)} and is {_shorten(current)}"
                for name, (saved, current) in list(differences.items())[:_MOST_LISTED]
            )
            if len(differences) > _MOST_LISTED:
                listed += f"; and {len(differences) - _MOST_LISTED} more fields"
            self._check_versions(fields, differences, listed)
            raise PlanMismatchError(
                f"the cursor belongs to another plan: {listed}. Use the same plan as when the "
                "cursor was saved, or start a new epoch without the cursor",
                differences,
            )

    def _check_versions(
        self, fields: Mapping[str, Any], differences: Mapping[str, Any], listed: str
    ) -> None:
        """Raise if the plan is of the same kind, but of another version of its order."""
        before, now = flatten_fields(self.fields), flatten_fields(fields)
        for name, (saved, current) in differences.items():
            prefix, _, last = name.rpartition("version")
            kind = now.get(f"{prefix}kind")
            if last or kind is None or before.get(f"{prefix}kind") != kind:
                continue
            others = "" if len(differences) == 1 else f" All differences: {listed}."
            raise PlanMismatchError(
                f"the cursor has version {_shorten(saved)} of the order {_shorten(kind)}, but this "
                f"feedline has version {_shorten(current)}, in which the same plan gives another "
                "order. Finish the epoch with the feedline that saved the cursor, or start a new "
                f"epoch without the cursor.{others}",
                differences,
            )


def _shorten(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
