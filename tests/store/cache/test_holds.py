"""What a process holds is not evicted, by whichever locks the system has."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from cache_files import content, get, listed, loose
from feedline.errors import CacheError
from feedline.store.cache import FileCache, holds


@pytest.fixture(params=["locks of bytes", "locks of files"])
def cache(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FileCache:
    if request.param == "locks of files":
        monkeypatch.setattr(holds, "has_byte_locks", lambda _: False)
    return FileCache(tmp_path / "cache", 3000, wait_seconds=0.01)


def other(cache: FileCache) -> FileCache:
    return FileCache(cache.folder, cache.limit_bytes, wait_seconds=0.01)


def test_nobody_evicts_what_is_held(cache: FileCache) -> None:
    get(cache, 1), loose(cache, 2)
    for one in (cache, other(cache)):
        for number in (3, 4, 5, 6):
            loose(one, number)
        assert one.hold("file 1")
        assert not one.hold("file 2")


def test_a_file_is_held_until_each_get_and_hold_was_taken_back(cache: FileCache) -> None:
    get(cache, 1, 3000), get(cache, 1, 3000)
    assert cache.hold("file 1")
    for _ in range(3):
        with pytest.raises(CacheError):
            get(other(cache), 2)
        cache.let_go("file 1")
    cache.let_go("file 1")
    assert get(other(cache), 2).read_bytes() == content(2)
    assert not cache.hold("file 1")


def test_closing_lets_all_files_go(cache: FileCache) -> None:
    with cache:
        get(cache, 1), get(cache, 2)
    assert get(other(cache), 3, 3000).exists()


def test_a_cache_that_is_dropped_holds_nothing(cache: FileCache) -> None:
    get(other(cache), 1, 3000)
    assert get(cache, 2).exists()


def test_nothing_is_held_in_a_cache_that_has_no_folder_yet(cache: FileCache) -> None:
    assert not cache.hold("file 1")
    cache.let_go("file 1")
    assert not cache.folder.exists()


def test_a_file_that_is_evicted_just_before_it_is_held_is_not_held(
    cache: FileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = loose(cache, 1)
    with monkeypatch.context() as patch:
        for name in ("fcntl", "flock"):
            real = getattr(fcntl, name)

            def evict_before(*arguments: object, real: object = real) -> object:
                path.unlink(missing_ok=True)
                return real(*arguments)

            patch.setattr(fcntl, name, evict_before)
        assert not cache.hold("file 1")
    assert get(cache, 1).read_bytes() == content(1)


def test_a_lock_that_is_removed_just_before_it_is_taken_is_taken_anew(
    cache: FileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    loose(cache, 1)
    held = other(cache)
    real = fcntl.flock
    left = iter([True])

    def remove_before(*arguments: int) -> None:
        if next(left, False):
            for path in cache.folder.glob("hold-*"):
                path.unlink()
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", remove_before)
        assert held.hold("file 1")
    for number in (2, 3, 4, 5):
        loose(cache, number)
    assert cache.hold("file 1")


def test_after_the_files_of_a_cache_were_removed_new_ones_are_held(cache: FileCache) -> None:
    get(cache, 1)
    for name in os.listdir(cache.folder):
        (cache.folder / name).unlink()
    get(cache, 2)
    for number in (3, 4, 5, 6):
        loose(other(cache), number)
    assert other(cache).hold("file 2")


def test_a_folder_that_is_removed_while_it_is_used_is_made_again(cache: FileCache) -> None:
    loose(cache, 1), get(cache, 2)
    shutil.rmtree(cache.folder)
    assert get(cache, 1).read_bytes() == content(1)
    assert get(cache, 2).read_bytes() == content(2)


def test_locks_of_files_are_removed_once_nobody_has_them(cache: FileCache) -> None:
    get(cache, 1), loose(cache, 2)
    cache.close()
    loose(other(cache), 3)
    loose(other(cache), 4)
    assert all(size == 1000 for size in listed(cache.folder).values())
