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


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (0, 1, 2**63 - 1, "n=0 must be at least 1"),
        (2**63, 1, 2**63 - 1, "n=9223372036854775808 must be at most 9223372036854775807"),
        (1.5, 1, 2**63 - 1, "n=1.5 must be an integer of at least 1"),
        (1.5, -(2**63), 2**63 - 1, "n=1.5 must be an integer"),
        (-(2**64), -(2**63), 2**63 - 1, f"n={-(2**64)} must be at least {-(2**63)}"),
        (9, 1, 7, "n=9 must be in [1, 7]"),
        (None, 1, 7, "n=None must be an integer in [1, 7]"),
    ],
)
def test_a_bound_is_shown_only_if_it_helps(value: object, low: int, high: int, text: str) -> None:
    with pytest.raises(errors.InvalidValueError) as caught:
        errors.check_integer("n", value, low, high)
    assert str(caught.value) == text
