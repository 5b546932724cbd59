"""What is known of an object, or of a part of one, before it is fetched."""

from __future__ import annotations

from dataclasses import dataclass

from feedline.lazy import lazy
from feedline.store.checksums import digest_texts
from feedline.store.remote.urls import Url


@dataclass(frozen=True)
class RemoteFile:
    """An object, or a part of one, that becomes a file in the cache.

    Args:
        url: The object.
        num_bytes: The bytes of the file.
        etag: The object's ETag; None if it is not known.
        digest: The digest of the file, if it is known.
        start: The first byte in the object.
        crc32: The CRC-32 of the file, if it is known; compared in place of the digest, as that
            takes five times longer.
        ranges: Parts of the object that follow each other in the file; by default one part.
        object_bytes: The bytes of the whole object, if the server has told them.
        server: The server that told the ETag, where the URL does not say it.
    """

    url: Url
    num_bytes: int
    etag: str | None = None
    digest: str | None = None
    start: int = 0
    crc32: str | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    object_bytes: int | None = None
    server: str = ""

    def part(
        self, num_bytes: int, *, start: int = 0, ranges: tuple[tuple[int, int], ...] = ()
    ) -> RemoteFile:
        """Return a part of the object that is a file of its own."""
        return RemoteFile(
            self.url,
            num_bytes,
            self.etag,
            start=start,
            ranges=ranges,
            object_bytes=self.object_bytes,
            server=self.server,
        )

    @property
    def version(self) -> str:
        """A text that no other object with this URL and this size has."""
        return f"{self.etag} {self.server}" if self.server else f"{self.etag}"

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """The parts of the object, as start and end."""
        return self.ranges or ((self.start, self.start + self.num_bytes),)

    @lazy
    def check(self) -> str | None:
        """The digest that the file must have when it arrives."""
        return self.digest if self.crc32 is None else f"crc32:{self.crc32}"

    @lazy
    def key(self) -> str:
        """The name of the content, in the cache; its ending is that of the object."""
        known = self.digest or self.etag or ""
        start = digest_texts([str(self.ranges)]) if self.ranges else self.start
        # A server may tell versions of an object apart by nothing but their sizes.
        whole = "" if self.object_bytes in (None, self.num_bytes) else f" of {self.object_bytes}"
        place = f"{self.server} {self.url.root}/{self.url.key}".strip()
        return f"{known} {start}+{self.num_bytes}{whole} {place}"
