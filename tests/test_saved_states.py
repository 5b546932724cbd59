"""States that were saved before the loaders were rebuilt give the same rest as they did then.

Orders of some kinds have another version since then. States of these are refused.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from feedline.errors import PlanMismatchError
from feedline.plan.versions import VERSIONS
from feedline.store import FolderStore, pack
from saved_places import Saved, Sizes, find_rest
from saved_states import CASES, OF_CHANGED_ORDERS, file_of, make_data, read_saved, saved_names

UNCHANGED = [(case, place) for case, place in saved_names() if case not in OF_CHANGED_ORDERS]
CHANGED = [(case, place) for case, place in saved_names() if case in OF_CHANGED_ORDERS]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("states"))


def has_cursor(saved: Saved) -> bool:
    return "feedline.cursor/1" in json.dumps(saved.state)


def is_slow(case: str, place: str) -> bool:
    """Workers are many processes, so one place of each such case is enough for every day."""
    return case.endswith("2 workers") and place != "after a resize"


@pytest.mark.parametrize(
    ("case", "place"),
    [
        pytest.param(
            *names, id=": ".join(names), marks=[pytest.mark.slow] if is_slow(*names) else []
        )
        for names in UNCHANGED
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


@pytest.mark.parametrize(("case", "place"), CHANGED, ids=map(": ".join, CHANGED))
def test_a_state_of_an_older_version_of_an_order_is_refused(
    case: str, place: str, data: Path
) -> None:
    saved, loads = read_saved(case, place)
    assert loads
    for load in loads:
        sizes = Sizes(load["world_size"], load["batch_size"])
        for rank, rest in enumerate(load["rest"]):
            if has_cursor(saved):
                with pytest.raises(PlanMismatchError, match=r"has version 1 .* has version 2"):
                    find_rest(CASES[case], data, saved, sizes, rank)
            else:
                # It says which epoch comes, and nothing about an order.
                epochs = [epoch for epoch, _ in find_rest(CASES[case], data, saved, sizes, rank)]
                assert epochs == [epoch for epoch, _ in rest]


def test_states_of_every_kind_of_order_that_changed_are_among_those_refused() -> None:
    states = [read_saved(case, place)[0].state for case, place in CHANGED]
    text = json.dumps(states).replace("\\", "").replace('": "', '":"')
    kinds = {kind for kind in VERSIONS if f'"kind":"{kind}"' in text}
    # Of orders one after another, no state was saved.
    assert kinds == set(VERSIONS) - {"concatenated"}


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
