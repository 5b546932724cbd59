"""A cached file that was damaged is never delivered; one that was not is not read to see that."""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_files import content, get, listed, loose
from feedline.store.cache import FileCache, seals

DIGEST = f"crc32:{zlib.crc32(content(1)):08x}"


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    return FileCache(tmp_path / "cache", 10_000)


@pytest.fixture
def restart(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the machine seem to have been started anew."""
    starts = iter(("second start", "third start"))

    def restart() -> None:
        name = next(starts)
        monkeypatch.setattr(seals, "boot_id", lambda: name)

    return restart


def refuse(part: Path) -> None:
    raise AssertionError("this file should be there already")


def overwrite(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(500)
        file.write(b"?")


def overwrite_mapped(path: Path) -> None:
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[500] ^= 1
        mapped.flush()


def extend(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"?")


def replace(path: Path) -> None:
    (path.parent / "other").write_bytes(content(2))
    os.replace(path.parent / "other", path)


def replace_by_a_link(path: Path) -> None:
    (path.parent / "other").write_bytes(content(2))
    path.unlink()
    path.symlink_to("other")


def replace_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("digest", [None, DIGEST])
@pytest.mark.parametrize(
    "damage",
    [
        overwrite,
        overwrite_mapped,
        extend,
        replace,
        replace_by_a_link,
        replace_by_a_pipe,
        lambda path: os.truncate(path, 999),
        lambda path: path.write_bytes(bytes(1000)),
    ],
)
def test_a_damaged_file_is_fetched_again(
    cache: FileCache, damage: Callable[[Path], object], digest: str | None
) -> None:
    def write(part: Path) -> None:
        part.write_bytes(content(1))

    damage(cache.get("file 1", 1000, write, digest=digest))
    cache.let_go("file 1")
    path = cache.get("file 1", 1000, write, digest=digest)
    assert path.read_bytes() == content(1)
    assert not path.is_symlink()
    assert cache.meters.num_misses == 2
    assert cache.get("file 1", 1000, refuse, digest=digest) == path


def test_a_file_that_is_damaged_while_it_is_held_is_replaced_and_stays_held(
    tmp_path: Path,
) -> None:
    cache, other = FileCache(tmp_path, 2000), FileCache(tmp_path, 2000)
    overwrite(get(cache, 1))
    assert get(other, 1).read_bytes() == content(1)
    assert get(cache, 1).read_bytes() == content(1)
    other.close()
    for number in (2, 3, 4):
        loose(other, number)
    cache.let_go("file 1")
    assert cache.get("file 1", 1000, refuse).read_bytes() == content(1)


def test_a_size_that_damage_has_changed_does_not_mislead_the_limit(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 4000)
    for number in (1, 2, 3, 4):
        path = loose(cache, number)
        if number == 1:
            path.write_bytes(bytes(100_000))
    for number in (1, 5, 6, 7):
        loose(cache, number)
        assert sum(listed(tmp_path).values()) <= 4000


def test_a_file_that_was_cut_after_it_was_counted_does_not_mislead_the_limit(
    tmp_path: Path,
) -> None:
    cache = FileCache(tmp_path, 3000)
    paths = [loose(cache, number) for number in (1, 2, 3, 4)]
    os.truncate(paths[1], 10)
    loose(FileCache(tmp_path, 3000), 4)
    loose(cache, 5), loose(cache, 6, 900)
    assert sum(listed(tmp_path).values()) <= 3000


def test_a_file_that_was_only_touched_is_checked_by_its_digest(cache: FileCache) -> None:
    path = cache.get("file 1", 1000, lambda part: part.write_bytes(content(1)), digest=DIGEST)
    os.utime(path)
    assert cache.get("file 1", 1000, refuse, digest=DIGEST) == path


def test_a_seal_belongs_to_one_key(cache: FileCache) -> None:
    first, second = get(cache, 1), get(cache, 2)
    os.replace(second, first)
    assert get(cache, 1).read_bytes() == content(1)


@pytest.mark.parametrize("digest", [None, DIGEST])
def test_after_a_restart_a_file_is_read_once_and_not_fetched_again(
    cache: FileCache, restart: Callable[[], None], digest: str | None
) -> None:
    path = cache.get("file 1", 1000, lambda part: part.write_bytes(content(1)), digest=digest)
    before = path.stat().st_mtime_ns
    for _ in range(2):
        restart()
        assert cache.get("file 1", 1000, refuse, digest=digest) == path
        assert seals.is_sealed(path.stat(), "file 1", digest)
        assert path.stat().st_mtime_ns != before


@pytest.mark.parametrize("digest", [None, DIGEST])
def test_content_that_a_restart_has_lost_is_fetched_again(
    cache: FileCache, restart: Callable[[], None], digest: str | None
) -> None:
    path = cache.get("file 1", 1000, lambda part: part.write_bytes(content(1)), digest=digest)
    before = path.stat()
    path.write_bytes(bytes(1000))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    restart()
    found = cache.get("file 1", 1000, lambda part: part.write_bytes(content(1)), digest=digest)
    assert found.read_bytes() == content(1)
    assert cache.meters.num_misses == 2


@pytest.mark.parametrize("place", [0, 2**14 - 1, 2**20, 3 * 2**20 + 4321])
def test_every_byte_counts_after_a_restart(
    cache: FileCache, restart: Callable[[], None], place: int
) -> None:
    cache = FileCache(cache.folder, 2**23)
    size = 3 * 2**20 + 4322
    path = loose(cache, 1, size)
    before = path.stat()
    with open(path, "r+b") as file:
        value = os.pread(file.fileno(), 1, place)[0]
        os.pwrite(file.fileno(), bytes([value ^ 16]), place)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    restart()
    assert loose(cache, 1, size).read_bytes() == content(1, size)
    assert cache.meters.num_misses == 2


def test_a_hit_does_not_read_the_file(cache: FileCache, monkeypatch: pytest.MonkeyPatch) -> None:
    loose(cache, 1)
    monkeypatch.setattr(os, "preadv", refuse)
    assert get(cache, 1).exists()


def test_the_time_of_a_file_stays_the_same_while_it_is_used_and_when_it_is_fetched_again(
    cache: FileCache,
) -> None:
    """Stores tell by it whether a file was replaced."""
    path = get(cache, 1)
    time = path.stat().st_mtime_ns
    loose(cache, 1)
    assert path.stat().st_mtime_ns == time
    cache.let_go("file 1")
    path.unlink()
    assert get(cache, 1).stat().st_mtime_ns == time
