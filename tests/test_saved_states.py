"""States that were saved before the loaders were rebuilt give the same rest as they did then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from feedline.store import FolderStore, pack
from saved_places import Sizes, find_rest
from saved_states import CASES, file_of, make_data, read_saved, saved_names


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("states"))


def is_slow(case: str, place: str) -> bool:
    """Workers are many processes, so one place of each such case is enough for every day."""
    return case.endswith("2 workers") and place != "after a resize"


@pytest.mark.parametrize(
    ("case", "place"),
    [
        pytest.param(
            *names, id=": ".join(names), marks=[pytest.mark.slow] if is_slow(*names) else []
        )
        for names in saved_names()
    ],
)
def test_a_saved_state_gives_the_same_rest(case: str, place: str, data: Path) -> None:
    saved, loads = read_saved(case, place)
    assert loads
    for load in loads:
        sizes = Sizes(load["world_size"], load["batch_size"])
        assert len(load["rest"]) == sizes.world_size
        for rank, rest in enumerate(load["rest"]):
            assert find_rest(CASES[case], data, saved, sizes, rank) == rest, (sizes, rank)


def test_every_case_has_states_of_all_its_places() -> None:
    expected = {
        (name, place) for name, case in CASES.items() for place in (*case.places, *case.foreign)
    }
    assert set(saved_names()) == expected
    assert all(file_of(name).exists() for name in CASES)


def test_data_packed_twice_has_one_fingerprint(tmp_path: Path) -> None:
    for name in ("one", "other"):
        pack({"x": np.arange(43)}, tmp_path / name, chunk_samples=9)
    one, other = (FolderStore(tmp_path / name).fingerprint for name in ("one", "other"))
    assert one == other
