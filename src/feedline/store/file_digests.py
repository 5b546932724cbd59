"""Digests of the files of a store, in parts whose number is bounded."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from feedline.errors import DamagedDataError
from feedline.lazy import lazy
from feedline.store.checksums import digest_parts, digest_texts
from feedline.store.paths import stamp_of

_NUM_THREADS = 8
_MAX_PARTS = 256


class FileDigests:
    """A digest for each file of a store, or for each group of files if there are very many.

    Args:
        num_files: The number of files.
        path_of: Returns the path of a file, by its number; raises if it is not there.
        name_of: Returns the path of a file, for messages.
        described: Returns what else is known of a file.
    """

    def __init__(
        self,
        num_files: int,
        path_of: Callable[[int], Path],
        name_of: Callable[[int], str],
        described: Callable[[int], str],
    ) -> None:
        self._num_files = num_files
        self._name_of = name_of
        self._path_of = path_of
        self._described = described
        # What each file looked like when its digest was taken; none before that.
        self._stamps: list[int] = []

    @lazy
    def parts(self) -> list[str]:
        """The digests; asking for the first time reads a little of every file."""
        if self._num_files <= _MAX_PARTS:
            found = list(map(self._digest, range(self._num_files)))
        else:
            with ThreadPoolExecutor(_NUM_THREADS) as threads:
                found = list(threads.map(self._digest, range(_MAX_PARTS)))
        self._stamps = [stamp for _, stamps in found for stamp in stamps]
        return [digest for digest, _ in found]

    def _digest(self, part: int) -> tuple[str, list[int]]:
        """Return the digest of a part, and the stamp that each of its files had just before."""
        digests, stamps = [], []
        for number in self._files_in(part):
            path = self._path_of(number)
            stamps.append(stamp_of(path))
            digests.append(digest_texts([self._described(number), digest_parts(path)]))
        return self._joined(digests), stamps

    def _joined(self, digests: list[str]) -> str:
        return digests[0] if self._num_files <= _MAX_PARTS else digest_texts(digests)

    def unchanged(self, number: int) -> Path:
        """Return the path of a file, or raise if it was replaced since the digests were taken.

        A file that was only touched or copied has the same content, which is compared then.
        """
        path = self._path_of(number)
        if not self._stamps or stamp_of(path) == self._stamps[number]:
            return path
        part = number
        if self._num_files > _MAX_PARTS:
            part = ((number + 1) * _MAX_PARTS - 1) // self._num_files
        digest, stamps = self._digest(part)
        if digest != self.parts[part]:
            raise DamagedDataError(
                f"{path}: was replaced while it was in use; restore it, or open the store again "
                "and start a new run"
            )
        files = self._files_in(part)
        self._stamps[files.start : files.stop] = stamps
        return path

    def describe(self, part: int) -> str:
        """Return the file, or the first and the last one, of a part."""
        files = self._files_in(part)
        names = [self._name_of(number) for number in (files[0], files[-1])]
        return names[0] if len(files) == 1 else f"a file from {names[0]} to {names[1]}"

    def _files_in(self, part: int) -> range:
        num_parts = min(self._num_files, _MAX_PARTS)
        count = self._num_files
        return range(count * part // num_parts, count * (part + 1) // num_parts)
