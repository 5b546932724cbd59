"""Workers are forked when the other threads of the process sleep."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from feedline.torch import DataLoader, forking
from loader_data import Ids


class Busy:
    """A thread that computes without the interpreter's lock, until it is told to stop."""

    def __init__(self, num_rounds: int) -> None:
        self._rounds, self._stop = num_rounds, threading.Event()
        self.began, self.is_done = threading.Event(), False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        block = bytes(2**20)
        for number in range(self._rounds):
            hashlib.sha256(block)
            self.is_done = number == self._rounds - 1 or self._stop.is_set()
            self.began.set()
            if self._stop.is_set():
                return

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def busy(num_rounds: int) -> Iterator[Busy]:
    thread = Busy(num_rounds)
    try:
        thread.began.wait()
        yield thread
    finally:
        thread.stop()


@pytest.fixture(autouse=True)
def _as_before_python_3_12(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "_IS_SAFE", False)


def test_it_waits_until_other_threads_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "_MOST_SECONDS", 60.0)
    with busy(100) as thread:
        forking.wait_for_threads()
        assert thread.is_done


def test_it_does_not_wait_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "_MOST_SECONDS", 0.01)
    with busy(10**9) as thread:
        forking.wait_for_threads()
        assert not thread.is_done


@pytest.mark.parametrize(("method", "waits"), [("fork", 1), ("spawn", 0)])
def test_a_loader_waits_before_it_forks(
    method: str, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    monkeypatch.setattr("feedline.torch.shield.wait_for_threads", lambda: found.append(1))
    loader = DataLoader(Ids(4), batch_size=2, num_workers=1, multiprocessing_context=method)
    assert len(list(loader)) == 2
    assert len(found) == waits
