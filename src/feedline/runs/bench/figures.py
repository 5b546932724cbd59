"""What is measured: a figure for each stage on the way from the files to the training loop."""

from __future__ import annotations

from dataclasses import dataclass, field

# In the order in which data passes through them.
STORAGE, DECODE, GATHER, LINK, BATCHES = STAGES = (
    *("storage", "decode", "gather", "link", "batches"),
)
COLD, WARM, DIRECT = "cold", "warm", "direct I/O"
COLD_ROWS = "rows at random, cold"
COPIES = "pinned memory"
SHUFFLE, WINDOWS = "full shuffle", "windows"

# Above this share of the memory that is free, files do not stay in the page cache.
_FITTING_SHARE = 0.8
_CACHED_SHARE = 0.9


@dataclass(frozen=True, kw_only=True)
class Figure:
    """How fast one stage is in one way.

    Bytes are those of the samples; of storage, those of the files.

    Args:
        stage: One of `STAGES`.
        name: The way.
        rows_per_second: Samples in a second.
        bytes_per_second: Bytes in a second.
        num_threads: The number of threads, where it matters.
    """

    stage: str
    name: str
    rows_per_second: float
    bytes_per_second: float
    num_threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class DataFigures:
    """All figures of some data, and what is known of it.

    Args:
        num_samples: The number of samples.
        num_chunks: The number of chunks.
        row_bytes: The bytes of a sample.
        file_bytes: The bytes of the files.
        memory_bytes: The memory that is free for the page cache; None if unknown.
        cached_share: The share of the files in the page cache when batches were measured; None if
            unknown.
        is_decoded: Whether chunks are decoded, and not read in place.
        batch_size: The number of samples in a batch.
        num_threads: The number of threads that a loader uses.
        auto_threads: The number of threads that `num_threads="auto"` uses here.
        window: The window of the loader in windows.
        device: The device, if there is one.
        figures: What was measured.
        missing: Why a figure is missing, by its name.
        fetched: What was fetched of data at a URL, in words.
    """

    num_samples: int
    num_chunks: int
    row_bytes: int
    file_bytes: int
    memory_bytes: int | None
    cached_share: float | None
    is_decoded: bool
    batch_size: int
    num_threads: int
    auto_threads: int
    window: str
    device: str | None
    figures: tuple[Figure, ...]
    missing: dict[str, str] = field(default_factory=dict)
    fetched: str | None = None

    def find(self, stage: str, name: str) -> Figure | None:
        """Return a figure; None if it could not be measured."""
        named = (f for f in self.figures if (f.stage, f.name) == (stage, name))
        return next(named, None)

    @property
    def gathers(self) -> dict[int, Figure]:
        """What is gathered from memory, by the number of threads."""
        return {f.num_threads: f for f in self.figures if f.stage == GATHER and f.num_threads}

    @property
    def batches(self) -> list[Figure]:
        """What a loader delivers."""
        return [figure for figure in self.figures if figure.stage == BATCHES]

    @property
    def unit(self) -> tuple[str, int]:
        """The unit in which all figures can be compared, and its bytes."""
        most = max(figure.bytes_per_second for figure in self.figures)
        return ("GiB/s", 2**30) if most >= 2**30 else ("MiB/s", 2**20)

    @property
    def fits_in_memory(self) -> bool:
        """Whether all files can stay in the page cache."""
        return self.memory_bytes is None or self.file_bytes <= _FITTING_SHARE * self.memory_bytes

    @property
    def is_cold(self) -> bool:
        """Whether batches have to come from storage, and not from the page cache."""
        is_partly = self.cached_share is not None and self.cached_share < _CACHED_SHARE
        return is_partly or not self.fits_in_memory
