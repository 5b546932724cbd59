"""Remote parquet files: the footer is fetched on opening, and row groups one by one."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError
from feedline.store.extras import import_arrow
from feedline.store.remote.ranged import USUAL_FOOTER, RangedPath

_MAGIC = b"PAR1"
_TAIL_BYTES = 8


class ParquetPath(RangedPath):
    """The path of a remote parquet file, of which only parts are fetched."""

    def image(self) -> NDArray[np.uint8]:
        """Return the bytes of the file, of which only the footer is filled in."""
        whole = self.tree.file_of(self.relative)
        size = whole.num_bytes
        if size < 3 * len(_MAGIC):
            raise DamagedDataError(f"{self}: has {size} bytes, too few for a parquet file")
        image = self._blank(size)
        self._fill(image, max(0, size - USUAL_FOOTER), size)
        if image[-len(_MAGIC) :].tobytes() != _MAGIC:
            raise DamagedDataError(f"{self}: does not end like a parquet file; write it again")
        length = int(image[-_TAIL_BYTES : -len(_MAGIC)].view("<u4")[0]) + _TAIL_BYTES
        if length + len(_MAGIC) > size:
            raise DamagedDataError(
                f"{self}: has a footer of {length} bytes but only {size} bytes in all; write it "
                "again"
            )
        if length > USUAL_FOOTER:
            self._fill(image, size - length, size)
        image[: len(_MAGIC)] = np.frombuffer(_MAGIC, np.uint8)
        return image

    def fill(self, image: NDArray[np.uint8], metadata: Any, group: int) -> None:
        """Fill in a row group, which is fetched if need be.

        Args:
            image: What `image` has returned.
            metadata: pyarrow's metadata of the file.
            group: The number of the row group.
        """
        self._fill(image, *self._range_of(image.size, metadata, group))

    def group_names(self) -> list[str]:
        """Return the names of the row groups of the file in its tree, in order."""
        arrow = import_arrow()
        image = self.image()
        buffer = arrow.BufferReader(arrow.py_buffer(image))
        metadata = import_arrow("pyarrow.parquet").read_metadata(buffer)
        groups = range(metadata.num_row_groups)
        return [self._part(*self._range_of(image.size, metadata, group)) for group in groups]

    def _range_of(self, size: int, metadata: Any, group: int) -> tuple[int, int]:
        row_group = metadata.row_group(group)
        columns = [row_group.column(number) for number in range(row_group.num_columns)]
        pages = ((c.dictionary_page_offset, c.data_page_offset) for c in columns)
        starts = [min(offset for offset in of if offset is not None) for of in pages]
        ends = [
            start + column.total_compressed_size
            for start, column in zip(starts, columns, strict=True)
        ]
        start, end = min(starts, default=0), max(ends, default=0)
        if not 0 <= start <= end <= size or any(n < 0 for n in chain(starts, ends)):
            raise DamagedDataError(
                f"{self}: row group {group} has bytes [{start}, {end}) but the file has {size}; it "
                "is truncated or damaged; write it again"
            )
        return start, end
