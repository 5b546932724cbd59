"""Plans answer for themselves: outside of `plan/` nothing asks which kind a plan or an order is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import feedline.plan
from feedline.plan import Order, Plan

SOURCE = Path(__file__).resolve().parent.parent / "src" / "feedline"
FILES = sorted(path for path in SOURCE.rglob("*.py") if path.parent.name != "plan")
KINDS = {
    name
    for name, kind in vars(feedline.plan).items()
    if isinstance(kind, type) and issubclass(kind, Plan | Order) and kind not in (Plan, Order)
}

# Files that still ask; each goes from here when it is changed.
NOT_YET = {"torch/folder_batches.py", "torch/mixture.py"}


def asked_kinds(tree: ast.Module) -> set[str]:
    """The kinds of plans that `isinstance` or `match` asks for in a file."""
    asked: set[str] = set()
    for node in ast.walk(tree):
        where: list[ast.AST] = []
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
            "isinstance",
            "issubclass",
        ):
            where = list(node.args[1:])
        elif isinstance(node, ast.MatchClass):
            where = [node.cls]
        parts = [part for place in where for part in ast.walk(place)]
        names = {getattr(part, "id", getattr(part, "attr", "")) for part in parts}
        asked |= {name for name in names if name in KINDS or name.endswith("Plan")} - {"Plan"}
    return asked


def test_the_kinds_are_known() -> None:
    assert {"SamplePlan", "BucketPlan", "WindowPlan", "Mixture", "Shuffled"} <= KINDS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_nobody_outside_asks_for_the_kind_of_a_plan(path: Path) -> None:
    asked = asked_kinds(ast.parse(path.read_text("utf-8")))
    if path.relative_to(SOURCE).as_posix() in NOT_YET:
        assert asked, "this file asks no longer: take it out of NOT_YET"
    else:
        assert not asked, "ask the plan instead: give `Plan` a method that answers"
