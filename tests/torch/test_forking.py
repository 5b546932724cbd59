"""Workers are forked when the other threads of the process sleep."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from feedline.torch import DataLoader, forking
from loader_data import Ids
from reader_threads import wait_until


@contextmanager
def busy() -> Iterator[None]:
    """Let a thread compute without the interpreter's lock."""
    stop, block = threading.Event(), bytes(2**20)

    def run() -> None:
        while not stop.is_set():
            hashlib.sha256(block)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture(autouse=True)
def _as_before_python_3_12(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "_IS_SAFE", False)


def test_it_waits_until_other_threads_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([True, True, False, True])
    monkeypatch.setattr(forking, "_others_run", lambda: next(looks))
    forking.wait_for_threads(60.0)
    assert list(looks) == [True]


def test_it_sees_whether_other_threads_run() -> None:
    with busy():
        wait_until(forking._others_run)
    wait_until(lambda: not forking._others_run())


def test_it_does_not_wait_forever() -> None:
    with busy():
        forking.wait_for_threads(0.01)


@pytest.mark.parametrize(("method", "waits"), [("fork", 1), ("spawn", 0)])
def test_a_loader_waits_before_it_forks(
    method: str, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    monkeypatch.setattr("feedline.torch.shield.wait_for_threads", lambda: found.append(1))
    loader = DataLoader(Ids(4), batch_size=2, num_workers=1, multiprocessing_context=method)
    assert len(list(loader)) == 2
    assert len(found) == waits
