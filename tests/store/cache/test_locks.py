"""Locks whose files are removed with them have one owner at a time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from feedline.store.cache.locks import OpenFile, locked, take


def test_a_lock_whose_file_is_removed_has_one_owner_at_a_time(tmp_path: Path) -> None:
    owners: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        for _ in range(100):
            with locked(tmp_path / "lock", remove=True):
                owners.append(number)
                # Gives other threads their chance to be wrong.
                os.stat(tmp_path)
                most.append(len(owners))
                owners.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert not os.listdir(tmp_path)


def test_a_waiter_whose_file_was_removed_takes_the_new_one(tmp_path: Path) -> None:
    """Otherwise it and the owner of the new file would both have the lock."""
    path = tmp_path / "lock"
    taken: list[OpenFile | None] = []
    with locked(path, remove=True) as first:
        waiter = threading.Thread(target=lambda: taken.append(take(path, wait=True)))
        waiter.start()
        waiter.join(0.1)
        assert take(path, wait=False) is None
        assert not taken
    waiter.join(30)
    assert taken[0] is not None
    assert taken[0].is_at(path)
    assert first.descriptor == -1
    assert take(path, wait=False) is None
    taken[0].close()
    assert take(path, wait=False) is not None
