"""What a pack takes, told before it is begun, beside what it took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.errors import InvalidValueError
from feedline.packing import pack, pack_needs
from feedline.packing.engines import local
from pack_data import partial_of


@pytest.mark.parametrize("num_rows", [50_000, 100_000, 200_000])
def test_temporary_disk_of_a_shuffle_is_what_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_rows: int
) -> None:
    folder, found = tmp_path / "out", []
    write = local.Shuffle.shuffled

    def shuffled(*arguments: Any, **options: Any) -> Any:
        spills = partial_of(folder) / "spills"
        found.append(sum(path.stat().st_size for path in spills.iterdir()))
        return write(*arguments, **options)

    monkeypatch.setattr(local.Shuffle, "shuffled", shuffled)
    source = {"x": np.zeros((num_rows, 16))}
    pack(source, folder, shuffle=True, memory_budget=2**22)
    needs = pack_needs(num_rows * 128, num_rows, engine="local", memory_budget=2**22)
    # Beside the rows there are the lengths of what is written at once.
    assert needs.disk <= found[0] <= 1.02 * needs.disk
    (bytes_of_chunks,) = {sum(path.stat().st_size for path in folder.glob("chunk-*"))}
    assert bytes_of_chunks + found[0] == pytest.approx(needs.written, rel=0.02)


def test_needs_of_a_node_are_its_share_of_those_of_the_data() -> None:
    one = pack_needs(10**12, 10**9, num_nodes=1, num_cores=16)
    many = pack_needs(10**12, 10**9, num_nodes=100, num_cores=16)
    assert many.memory == one.memory
    assert (many.written, many.num_blocks) == (one.written, one.num_blocks)
    # More tasks need more ranges together.
    assert one.read < many.read < 2 * one.read
    assert many.network < one.network / 50
    double = pack_needs(2 * 10**12, 2 * 10**9, num_nodes=100, num_cores=16)
    assert double.memory == many.memory
    assert double.written == pytest.approx(2 * many.written)


def test_in_order_this_machine_needs_no_temporary_disk() -> None:
    needs = pack_needs(10**9, 10**6, engine="local", shuffle=False, source_bytes=2 * 10**9)
    assert (needs.disk, needs.num_blocks, needs.piece_bytes, needs.moved) == (0, 0, 0, 0)
    assert (needs.read, needs.written) == (3 * 10**9, 10**9)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_bytes": 0}, "num_bytes=0"),
        ({"num_rows": 0}, "num_rows=0"),
        ({"engine": "dask"}, "engine='dask'"),
        ({"num_nodes": 0}, "num_nodes=0"),
        ({"memory_budget": 9}, "memory_budget=9"),
    ],
)
def test_impossible_needs_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidValueError, match=text):
        pack_needs(**{"num_bytes": 1, "num_rows": 1, **options})
