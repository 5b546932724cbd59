"""What a process has asked of servers, and got of remote data."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from feedline.words import bytes_in_words, one_line, several


@one_line
@dataclass
class RemoteMeters:
    """What one process has asked of servers.

    Args:
        num_requests: Requests, tries included.
        num_retries: Those that were made again because of a fault.
        num_stalls: Connections that were given up because nothing came.
        num_bytes: Bytes that arrived.
        seconds: The time that all requests took together.
    """

    num_requests: int = 0
    num_retries: int = 0
    num_stalls: int = 0
    num_bytes: int = 0
    seconds: float = 0.0

    def __sub__(self, earlier: RemoteMeters) -> RemoteMeters:
        return RemoteMeters(
            **{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)}
        )


@one_line
@dataclass(frozen=True)
class FetchMeters:
    """What one process has read of remote data.

    Args:
        num_hits: Files that were in the cache.
        num_misses: Files that were fetched.
        num_waits: Times that a reader had to wait for a file.
        wait_seconds: How long readers have waited, all together.
        requests: What was asked of servers.
    """

    num_hits: int = 0
    num_misses: int = 0
    num_waits: int = 0
    wait_seconds: float = 0.0
    requests: RemoteMeters = field(default_factory=RemoteMeters)

    def __sub__(self, earlier: FetchMeters) -> FetchMeters:
        return FetchMeters(
            **{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)}
        )

    def numbers(self) -> dict[str, float]:
        """Return all counts by name, for logs."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "requests"}
        asked = {f.name: getattr(self.requests, f.name) for f in fields(self.requests)}
        return {**found, **asked, "seconds": round(self.requests.seconds, 6)}

    def in_words(self) -> str:
        """Return a sentence for logs."""
        asked = self.requests
        return (
            f"{bytes_in_words(asked.num_bytes)} in {several(asked.num_requests, 'request')}, "
            f"{several(asked.num_retries, 'retry', 'retries')}, "
            f"{several(asked.num_stalls, 'stall')}; {several(self.num_hits, 'hit')} and "
            f"{several(self.num_misses, 'miss', 'misses')} of the cache; readers waited "
            f"{self.wait_seconds:.3g} s"
        )
