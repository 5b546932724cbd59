"""A dataset with buckets, as `SequentialBucketSampler` takes it."""

from __future__ import annotations

from collections.abc import Sequence


class PixelCalculator:
    """Batch sizes scaled inversely to pixels."""

    def get_dynamic_batch_size(
        self,
        resolution: tuple[int, int],
        base_batch_size: int,
        base_resolution: tuple[int, int],
    ) -> int:
        pixels = resolution[0] * resolution[1]
        return max(1, base_batch_size * base_resolution[0] * base_resolution[1] // pixels)


class BucketData:
    """Buckets of the given sizes; indices are dealt to them in turn, so that lists interleave."""

    def __init__(self, sizes: Sequence[int]) -> None:
        left = list(sizes)
        members: list[list[int]] = [[] for _ in sizes]
        index = 0
        while any(left):
            for number, count in enumerate(left):
                if count:
                    members[number].append(index)
                    left[number] -= 1
                    index += 1
        self.bucket_groups = {
            ("square", (64 * (number + 1), 64)): {
                "indices": indices,
                "resolution": (64 * (number + 1), 64),
                "aspect_name": "wide" if number else "square",
            }
            for number, indices in enumerate(members)
        }
        self.sorted_bucket_keys = list(self.bucket_groups)
        self.calculator = PixelCalculator()
        self._size = index

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        return index
