"""A plan over some rows of a matrix: which they are is part of what a cursor is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from feedline.plan import Cursor, Plan, Remaining, Segment


@dataclass(frozen=True, kw_only=True)
class RowsPlan(Plan):
    """What `plan` says, for rows `[start, stop)` of a matrix; indices count from `start`.

    Cursors from before masks were part of them are compared without the mask; those of a loader,
    which name the data, without the data.
    """

    plan: Plan
    start: int
    stop: int

    @property
    def num_indices(self) -> int:
        return self.plan.num_indices

    def begin(self, epoch: int) -> Remaining:
        return self.plan.begin(epoch)

    def describe(self) -> dict[str, Any]:
        return {"kind": "rows", "mask": [self.start, self.stop], "plan": self.plan.describe()}

    def resume(self, cursor: Cursor, *, world_size: int, batch_size: int) -> Segment:
        if isinstance(cursor, Cursor):
            fields = cursor.fields
            inner = fields.get("plan")
            if fields.get("kind") == "data" and isinstance(inner, Mapping):
                fields = {"order_version": fields.get("order_version"), **inner}
            if fields.get("kind") != "rows":
                replace(cursor, fields=fields).check_fields(self.plan.fields)
                fields = self.fields
            cursor = replace(cursor, fields=fields)
        return super().resume(cursor, world_size=world_size, batch_size=batch_size)
