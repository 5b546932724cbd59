"""Remote Arrow files: their metadata is fetched on opening, and record batches one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError
from feedline.store.arrow_messages import Blocks, blocks_of_file, footer_bytes
from feedline.store.remote.ranged import USUAL_FOOTER, RangedPath

_START = b"ARROW1\0\0"


class ArrowPath(RangedPath):
    """The path of a remote Arrow file, of which only parts are fetched."""

    def image(self) -> NDArray[np.uint8]:
        """Return the bytes of the file, without the values of its record batches."""
        size = self.tree.file_of(self.relative).num_bytes
        image = self._blank(size)
        self._fill(image, max(0, size - USUAL_FOOTER), size)
        image[: len(_START)] = np.frombuffer(_START, np.uint8)
        try:
            length = footer_bytes(image)
            if length > USUAL_FOOTER:
                self._fill(image, size - length, size)
            found = blocks_of_file(image)
        except ValueError as error:
            raise self._damaged(str(error)) from None
        # Dictionaries belong to all batches.
        dictionaries = [self._checked(size, block) for block in found.dictionaries.tolist()]
        heads = [
            (start, start + min(head, end - start))
            for block in found.batches.tolist()
            for head, (start, end) in [(block[1], self._checked(size, block))]
        ]
        self._fill_all(image, dictionaries + heads)
        return image

    def fill(self, image: NDArray[np.uint8], group: int) -> int:
        """Fill in a record batch, which is fetched if need be; return its bytes.

        Args:
            image: What `image` has returned.
            group: The number of the record batch.
        """
        found: Blocks = blocks_of_file(image)
        return self._fill(image, *self._checked(image.size, found.batches[group].tolist()))

    def group_names(self) -> list[str]:
        """Return the names of the record batches of the file in its tree, in order."""
        image = self.image()
        blocks = blocks_of_file(image).batches.tolist()
        return [self._part(*self._checked(image.size, block)) for block in blocks]

    def _checked(self, size: int, block: Any) -> tuple[int, int]:
        start, head, body = block
        end = start + head + body
        if start < 0 or head <= 0 or body < 0 or end > size:
            raise self._damaged(f"a batch has bytes [{start}, {end}) of {size}")
        return start, end

    def _damaged(self, reason: str) -> DamagedDataError:
        return DamagedDataError(
            f"{self}: cannot be read ({reason}); it is truncated or damaged; write it again"
        )
