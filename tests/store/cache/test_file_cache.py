"""A cache gives whole and right files, fetches each once, and stays within its limit."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_files import content, get, listed, loose, taken
from feedline.errors import CacheError, DamagedDataError, InvalidValueError
from feedline.store.cache import CacheMeters, FileCache, default_folder


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    return FileCache(tmp_path / "cache", 10_000, wait_seconds=0.05)


def refuse(part: Path) -> None:
    raise AssertionError("this file should be there already")


def test_a_file_is_fetched_once_and_its_bytes_are_counted(cache: FileCache) -> None:
    for _ in range(3):
        assert get(cache, 1).read_bytes() == content(1)
    assert cache.meters == CacheMeters(num_hits=2, num_misses=1, num_bytes_fetched=1000)


def test_another_process_or_object_finds_what_is_there(cache: FileCache) -> None:
    path = get(cache, 1)
    other = pickle.loads(pickle.dumps(cache))
    assert other.get("file 1", 1000, refuse) == path
    assert (other.meters.num_hits, cache.meters.num_hits) == (1, 0)


@pytest.mark.parametrize(
    ("key", "ending"),
    [
        ("s3://bucket/a.parquet", ".parquet"),
        ('s3://bucket/a.parquet "etag" 0-100', ""),
        ("../../etc/passwd", ""),
        ("a.lock\n", ""),
        ("x" * 10_000 + ".mds", ".mds"),
        ("./..", ""),
        ("\ud800\0é", ""),
        ("", ""),
    ],
)
def test_any_text_is_a_key_and_its_file_lies_in_the_folder(
    cache: FileCache, key: str, ending: str
) -> None:
    path = cache.get(key, 3, lambda part: part.write_bytes(b"abc"))
    assert (path.parent, path.suffix, path.read_bytes()) == (cache.folder, ending, b"abc")
    assert cache.get(key, 3, refuse) == path
    cache.let_go(key)


def test_an_empty_file_can_be_cached(cache: FileCache) -> None:
    assert cache.get("empty", 0, lambda part: None).read_bytes() == b""
    assert cache.get("empty", 0, refuse).exists()


def test_the_least_recently_used_file_is_evicted_first(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 3000)
    for number in (1, 2, 3, 1, 4):
        loose(cache, number)
    other = FileCache(tmp_path, 3000)
    assert [other.hold(f"file {number}") for number in (1, 2, 3, 4)] == [True, False, True, True]
    assert cache.meters.num_evictions == 1


def test_a_use_between_two_evictions_counts(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 3000)
    for number in (1, 2, 3, 4):
        loose(cache, number)
    loose(FileCache(tmp_path, 3000), 2)
    loose(cache, 5)
    assert [cache.hold(f"file {number}") for number in (2, 3, 4, 5)] == [True, False, True, True]


def test_a_file_that_was_let_go_late_counts_as_used_late(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 2000)
    get(cache, 1)
    loose(cache, 2)
    cache.let_go("file 1")
    loose(cache, 3)
    assert (cache.hold("file 1"), cache.hold("file 2")) == (True, False)


def test_only_as_much_is_evicted_as_is_needed(cache: FileCache) -> None:
    for number in range(10):
        loose(cache, number)
    get(cache, 100, 2500)
    assert cache.meters.num_evictions == 3
    assert taken(cache.folder) == 9500


def test_without_room_the_error_names_the_bytes_that_are_needed(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 2500, wait_seconds=0.01)
    get(cache, 1), get(cache, 2)
    with pytest.raises(CacheError, match=r"limit_bytes to at least 3000, or use smaller windows"):
        get(cache, 3)
    assert len(listed(tmp_path)) == 2


def test_get_waits_until_another_thread_lets_a_file_go(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 1000, wait_seconds=60)
    get(cache, 1)
    waiting = threading.Thread(target=get, args=(cache, 2))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    cache.let_go("file 1")
    waiting.join(30)
    assert list(listed(tmp_path).values()) == [1000]
    assert cache.hold("file 2")


def test_a_limit_below_one_window_or_file_names_both_numbers(cache: FileCache) -> None:
    cache.check_room(10_000)
    with pytest.raises(
        InvalidValueError, match=r"limit_bytes=10000 must be at least 10001.*window"
    ):
        cache.check_room(10_001)
    with pytest.raises(InvalidValueError, match=r"limit_bytes=10000 must be at least 20000.*file"):
        cache.get("large", 20_000, refuse)


@pytest.mark.parametrize(
    "write",
    [
        lambda part: part.write_bytes(b"short"),
        lambda part: part.write_bytes(content(1) + b"!"),
        lambda part: None,
    ],
)
def test_a_file_of_another_size_is_refused_and_not_kept(
    cache: FileCache, write: Callable[[Path], object]
) -> None:
    with pytest.raises(DamagedDataError, match=r"^file 1: arrived with .* and must have 1000"):
        cache.get("file 1", 1000, write)
    assert not listed(cache.folder)
    assert get(cache, 1).read_bytes() == content(1)


def test_what_fetching_raises_is_raised_and_nothing_is_left(cache: FileCache) -> None:
    def fail(part: Path) -> None:
        part.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.get("file 1", 1000, fail)
    with pytest.raises(ConnectionResetError):
        cache.get("file 1", 1000, lambda part: (_ for _ in ()).throw(ConnectionResetError()))
    assert not listed(cache.folder)
    assert cache.meters.num_misses == 0
    assert int((cache.folder / "total").read_bytes().split()[0]) == 0


def test_a_file_that_fetching_removes_or_links_is_refused(cache: FileCache) -> None:
    def link(part: Path) -> None:
        part.unlink()
        part.symlink_to("/etc/hostname")

    for write in (Path.unlink, link):
        with pytest.raises(CacheError):
            cache.get("file 1", 1000, write)
    assert not listed(cache.folder)


@pytest.mark.parametrize(
    "digest",
    [
        f"crc32:{zlib.crc32(content(1)):08x}",
        f"sha256:{hashlib.sha256(content(1)).hexdigest().upper()}",
        f"md5:{hashlib.md5(content(1)).hexdigest()}",
        f"blake2b:{hashlib.blake2b(content(1), digest_size=16).hexdigest()}",
    ],
)
def test_the_digest_is_compared_on_arrival(cache: FileCache, digest: str) -> None:
    wrong = content(1)[:-1] + b"?"
    with pytest.raises(DamagedDataError, match="arrived with the digest"):
        cache.get("file 1", 1000, lambda part: part.write_bytes(wrong), digest=digest)
    assert not listed(cache.folder)
    cache.get("file 1", 1000, lambda part: part.write_bytes(content(1)), digest=digest)
    assert cache.get("file 1", 1000, refuse, digest=digest).read_bytes() == content(1)


def test_a_digest_that_is_told_later_is_compared_with_what_is_there(cache: FileCache) -> None:
    loose(cache, 1)
    right, wrong = (f"crc32:{zlib.crc32(data):08x}" for data in (content(1), content(2)))
    cache.get("file 1", 1000, refuse, digest=right)
    with pytest.raises(DamagedDataError, match="must have crc32"):
        cache.get("file 1", 1000, lambda part: part.write_bytes(content(1)), digest=wrong)


@pytest.mark.parametrize(
    "digest", ["", "crc32", "crc32:", "crc32:12", "no:00", "md5:xy", 7, b"md5:"]
)
def test_a_digest_that_cannot_be_computed_is_refused(cache: FileCache, digest: str) -> None:
    with pytest.raises(InvalidValueError, match=r"digest=.* must be the name of a hash function"):
        cache.get("file 1", 1000, refuse, digest=digest)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_one_clear_error(cache: FileCache, number: int) -> None:
    def fill(part: Path) -> None:
        part.write_bytes(b"half")
        raise OSError(number, os.strerror(number), str(part))

    with pytest.raises(CacheError, match="free some space on its disk") as caught:
        cache.get("file 1", 1000, fill)
    assert str(caught.value).startswith(f"{cache.folder}: ")
    assert not listed(cache.folder)


def test_a_folder_that_cannot_be_made_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CacheError, match="set another one"):
        get(FileCache(tmp_path / "file" / "cache", 1000), 1)


@pytest.mark.parametrize("total", [b"", b"nonsense", b"0" * 20 + b" 00000000", b"\0" * 29])
def test_a_damaged_total_is_counted_anew(cache: FileCache, total: bytes) -> None:
    for number in range(10):
        loose(cache, number)
    (cache.folder / "total").write_bytes(total)
    loose(cache, 10)
    assert taken(cache.folder) == 10_000


def test_files_that_users_remove_make_room(cache: FileCache) -> None:
    for number in range(10):
        os.unlink(loose(cache, number))
    loose(cache, 10, 9000), loose(cache, 11)
    assert cache.meters.num_evictions == 0


def test_files_of_others_in_the_folder_are_left_alone(cache: FileCache) -> None:
    cache.folder.mkdir()
    (cache.folder / "notes.txt").write_bytes(bytes(50_000))
    for number in range(20):
        loose(cache, number)
    assert (cache.folder / "notes.txt").exists()


def test_a_cache_that_is_removed_while_it_is_used_begins_anew(cache: FileCache) -> None:
    path = loose(cache, 1)
    for name in os.listdir(cache.folder):
        (cache.folder / name).unlink()
    assert loose(cache, 1) == path
    assert loose(cache, 2).read_bytes() == content(2)


def test_read_only_files_are_evicted_too(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 1000, wait_seconds=0.05)
    data = content(1)
    cache.get("file 1", 1000, lambda part: (part.write_bytes(data), part.chmod(0o444)))
    cache.let_go("file 1")
    assert get(cache, 2).read_bytes() == content(2)


def test_the_folder_is_for_this_user_alone(cache: FileCache) -> None:
    loose(cache, 1)
    assert cache.folder.stat().st_mode & 0o777 == 0o700


def test_the_default_folder_can_be_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path))
    assert default_folder() == tmp_path / "objects"
    monkeypatch.delenv("FEEDLINE_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "feedline" / "objects"


@pytest.mark.parametrize("arguments", [{"limit_bytes": 0}, {"limit_bytes": 1, "wait_seconds": 0}])
def test_wrong_arguments_are_refused(tmp_path: Path, arguments: dict[str, int]) -> None:
    with pytest.raises(InvalidValueError):
        FileCache(tmp_path, **arguments)
    with pytest.raises(InvalidValueError, match="key=7 must be a text"):
        FileCache(tmp_path, 1).get(7, 1, refuse)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["get", "let_go", "hold", "damage", "remove"]), st.integers(0, 7)),
    max_size=40,
)


@given(actions=ACTIONS, limit=st.integers(800, 3000))
def test_any_sequence_of_calls_gives_right_files_within_the_limit(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]], limit: int
) -> None:
    """A model of who holds what: what is held stays, what is got is right, and the limit holds."""
    folder = tmp_path_factory.mktemp("cache")
    cache = FileCache(folder, limit, wait_seconds=1e-6)
    held: dict[int, int] = {}
    paths: dict[int, Path] = {}
    for action, number in actions:
        size = 100 * number
        if action == "get":
            in_use = sum(100 * one for one in held if one != number)
            if in_use + size > limit:
                with pytest.raises(CacheError):
                    get(cache, number, size)
                continue
            paths[number] = get(cache, number, size)
            assert paths[number].read_bytes() == content(number, size)
            held[number] = held.get(number, 0) + 1
        elif action == "hold" and cache.hold(f"file {number}"):
            held[number] = held.get(number, 0) + 1
        elif action == "let_go":
            cache.let_go(f"file {number}")
            held[number] = held.get(number, 1) - 1
            if not held[number]:
                del held[number]
        elif action == "damage" and number not in held and number in paths:
            if paths[number].exists():
                paths[number].write_bytes(content(-1, size))
        elif action == "remove" and number not in held and number in paths:
            paths[number].unlink(missing_ok=True)
        assert taken(folder) <= limit
        assert all(paths[one].read_bytes() == content(one, 100 * one) for one in held)
    cache.close()
