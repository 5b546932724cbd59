"""What stands in a saved state."""

from __future__ import annotations

import json
from typing import Any


def cursor_of(state: dict[str, Any]) -> dict[str, Any]:
    """The cursor of a state, which is one JSON string in it."""
    cursor: dict[str, Any] = json.loads(state["cursor"])
    return cursor


def history_of(state: dict[str, Any]) -> list[list[int]]:
    """World size, batch size and number of batches of each segment in a state."""
    history: list[list[int]] = cursor_of(state)["history"]
    return history
