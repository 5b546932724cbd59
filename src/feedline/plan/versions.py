"""The versions of orders: one for each kind.

A kind gets a new version when the same plan would give another order than before. The version is
part of what an order or a plan says about itself, and so of every cursor. A cursor of another
version is refused; those of kinds that did not change still load. Version 1 is not written down,
so cursors from before there were versions for each kind have it.
"""

from __future__ import annotations

from typing import Any

VERSIONS = {
    # Version 2: the size is hashed, so windows, blocks and passes of different sizes under one key
    # are independent. Above 65,536 interleaved buckets or sources, offsets share a key too.
    "windows": 2,
    "file shares": 2,
    "mixture": 2,
    "buckets": 2,
    "drawn": 2,
    "class draws": 2,
    # Version 2: orders with the seed of an earlier one have another seed.
    "concatenated": 2,
}
"""The version of each kind that has changed since version 1."""


def of_kind(kind: str, *, has_changed: bool = True) -> dict[str, Any]:
    """Return a kind as fields of a description, with its version unless that is 1.

    Orders of a kind that never came to what changed, such as those that are not shuffled, pass
    `has_changed=False` and keep version 1.

    Examples:
        >>> of_kind("mixture"), of_kind("mixture", has_changed=False)
        ({'kind': 'mixture', 'version': 2}, {'kind': 'mixture'})
    """
    return {"kind": kind, "version": VERSIONS[kind]} if has_changed else {"kind": kind}
