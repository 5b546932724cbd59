"""The error tree: one root, values that are ValueErrors, and errors that cross processes whole."""

from __future__ import annotations

import pickle

import pytest

from feedline import errors

CLASSES = [
    getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)
]


def test_every_error_has_one_root_and_is_drawn_in_the_tree() -> None:
    assert errors.__doc__
    for kind in CLASSES:
        assert issubclass(kind, errors.FeedlineError)
        assert kind.__name__ in errors.__doc__


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling(kind: type[Exception]) -> None:
    found = pickle.loads(pickle.dumps(kind("what happened")))
    assert type(found) is kind
    assert str(found) == "what happened"


@pytest.mark.parametrize("kind", [errors.PlanMismatchError, errors.DesyncError])
def test_differences_survive_pickling(kind: type[Exception]) -> None:
    found = pickle.loads(pickle.dumps(kind("they differ", {"seed": (1, 2)})))
    assert str(found) == "they differ"
    assert found.differences == {"seed": (1, 2)}
