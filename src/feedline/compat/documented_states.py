"""Sampler states with the keys that other systems document, and states that have only these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedline.errors import CursorFormatError, PlanMismatchError, check_integer
from feedline.plan import Cursor
from feedline.torch.sampler import PlanSampler


class DocumentedState(PlanSampler[Any]):
    """A sampler whose state says its seed and its ranks too, as its document promises.

    A state without a cursor, which another system has saved, begins its epoch; a subclass may know
    more about the place.
    """

    seed: Any

    def state_dict(self) -> dict[str, Any]:
        """Return where this sampler is; save it on any rank, load it on any number of them."""
        return {
            **super().state_dict(),
            "seed": self.seed,
            "num_replicas": self.num_replicas,
            "rank": self.rank,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved. An error leaves the sampler as it was."""
        if not isinstance(state, Mapping) or "epoch" not in state:
            raise CursorFormatError(
                f"state={state!r:.80} must be a mapping with the key 'epoch'; pass what "
                "state_dict() returned"
            )
        if "cursor" in state:
            super().load_state_dict(state)
            return
        saved = state.get("seed", self.seed)
        if saved != self.seed:
            raise PlanMismatchError(
                f"the state belongs to another plan: seed was {saved!r:.80} and is "
                f"{self.seed!r:.80}. Use the seed that it was saved with",
                {"seed": (saved, self.seed)},
            )
        self.position.go_to(self._cursor_of_documented(state))

    def _cursor_of_documented(self, state: Mapping[str, Any]) -> Cursor:
        """Return the cursor for a state that has only the keys that other systems save."""
        return self.position.cursor_at(check_integer("epoch", state["epoch"], 0), 0)
