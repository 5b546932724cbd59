"""A clock that goes on only when a test says so."""

from __future__ import annotations

import sys
import time

import pytest


class FakeClock:
    """Seconds that a test lets pass; wherever the library reads `perf_counter`, it reads these."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        own = [module for name, module in sys.modules.items() if name.startswith("feedline.")]
        for module in own:
            if vars(module).get("perf_counter") is time.perf_counter:
                monkeypatch.setattr(module, "perf_counter", lambda: self.now)

    def spend(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
