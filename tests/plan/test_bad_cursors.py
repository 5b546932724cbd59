"""Cursors that are damaged, of another version, of another plan, or not ours at all."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import CursorError, CursorFormatError, FeedlineError
from feedline.plan import BucketPlan, Cursor, EqualChunks, Mixture, SamplePlan, Shuffled, WindowPlan
from refusals import refusal

PLAN = SamplePlan(order=Mixture(sizes=(60, 40), weights=(2, 1), seed="cursor"))
CURSOR = PLAN.segment(world_size=2, batch_size=3).cursor(4)
TEXT = CURSOR.to_json()


def resume(cursor: Cursor) -> Any:
    return PLAN.resume(cursor, world_size=2, batch_size=3)


def with_entry(name: str, value: Any) -> dict[str, Any]:
    return {**json.loads(TEXT), name: value}


def without_entry(name: str) -> dict[str, Any]:
    state = json.loads(TEXT)
    del state[name]
    return state


NOT_OURS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "nothing": ("", ("not JSON", "truncated")),
    "words": ("hello", ("not JSON",)),
    "a list": ("[1, 2]", ("not a cursor", "[1, 2]")),
    "a number": ("17", ("not a cursor", "17")),
    "null": ("null", ("not a cursor", "None")),
    "text": ('"format"', ("not a cursor", "'format'")),
    "a mapping": ('{"epoch": 1}', ("not a cursor", "'epoch'")),
    "NaN": ("NaN", ("not a cursor", "nan")),
    "many brackets": ("[" * 10**6, ("not JSON",)),
    "many digits": ("1" * 10**5, ("not JSON",)),
    "another format": ('{"format": "other"}', ("format='other'", "feedline.cursor/1")),
    "another version": (
        json.dumps(with_entry("format", "feedline.cursor/3")),
        ("format='feedline.cursor/3'", "feedline.cursor/1", "feedline.cursor/2"),
    ),
    "no version": (json.dumps(with_entry("format", None)), ("format=None", "feedline.cursor/1")),
}


@pytest.mark.parametrize("case", NOT_OURS)
def test_what_is_no_cursor_is_refused(case: str) -> None:
    text, fragments = NOT_OURS[case]
    message = refusal(lambda: Cursor.from_json(text))
    for fragment in fragments:
        assert fragment in message
    # The message stays readable, whatever was given.
    assert len(message) < 500


@pytest.mark.parametrize("given", [None, 17, 1.5, [TEXT], {"format": 1}], ids=lambda g: repr(g)[:9])
def test_what_is_no_text_is_refused_as_json(given: Any) -> None:
    refusal(lambda: Cursor.from_json(given))


@pytest.mark.parametrize(
    "given", [None, 17, "text", TEXT, [1], b"x", {}], ids=lambda g: repr(g)[:9]
)
def test_what_is_no_mapping_of_ours_is_refused(given: Any) -> None:
    assert "not a cursor" in refusal(lambda: Cursor.from_dict(given))


@pytest.mark.parametrize("given", [None, 17, TEXT, CURSOR.to_dict()], ids=lambda g: repr(g)[:9])
def test_only_a_cursor_can_be_resumed(given: Any) -> None:
    refusal(lambda: resume(given))


@pytest.mark.parametrize("length", range(0, len(TEXT), 7))
def test_a_truncated_cursor_is_refused(length: int) -> None:
    with pytest.raises(CursorFormatError, match="truncated"):
        Cursor.from_json(TEXT[:length])


@pytest.mark.parametrize("name", list(json.loads(TEXT)))
def test_a_cursor_that_lacks_an_entry_is_refused(name: str) -> None:
    message = refusal(lambda: Cursor.from_dict(without_entry(name)))
    assert name in message


DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    f"{name}={value!r}": (with_entry(name, value), fragment)
    for name, value, fragment in [
        ("epoch", -1, "epoch=-1"),
        ("epoch", 1.5, "epoch=1.5"),
        ("epoch", "0", "epoch='0'"),
        ("epoch", True, "epoch=True"),
        ("epoch", None, "epoch=None"),
        ("history", None, ""),
        ("history", 17, ""),
        ("history", "abc", ""),
        ("history", [17], ""),
        ("history", [[1, 2]], ""),
        ("history", [[1, 2, 3, 4]], ""),
        ("history", [[0, 3, 4]], "world_size=0"),
        ("history", [[2, 0, 4]], "batch_size=0"),
        ("history", [[2, 3, -4]], "num_batches=-4"),
        ("history", [[2, 3, 4.0]], "num_batches=4.0"),
        ("history", [["2", 3, 4]], "world_size='2'"),
        ("history", [[2, 3, True]], "num_batches=True"),
        ("fields", None, ""),
        ("fields", 17, ""),
        ("fields", "ab", ""),
        ("fields", [], "fingerprint"),
        ("fields", {}, "fingerprint"),
        ("fields", {"weight": float("nan")}, ""),
        ("fingerprint", "0" * 32, "0" * 32),
        ("fingerprint", None, "fingerprint=None"),
        ("changes", None, ""),
        ("changes", 17, ""),
        ("changes", [17], ""),
        ("changes", "ab", ""),
    ]
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_cursor_is_refused(case: str) -> None:
    state, fragment = DAMAGED[case]
    message = refusal(lambda: Cursor.from_dict(state))
    assert fragment in message
    assert "damaged" in message


UNUSABLE: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "more batches than there are": ("history", [[2, 3, 17]], ("num_batches=17", "16")),
    "too many in the second": ("history", [[2, 3, 16], [1, 1, 5]], ("num_batches=5", "4")),
    "too many ranks": ("history", [[2**40, 1, 1]], (str(2**40), str(2**31))),
    "unknown change": ("changes", [{"a": 1}], ("'a'",)),
    "change without weights": ("changes", [{"epoch": 1}], ("weights",)),
    "change of too few": ("changes", [{"weights": [1.0]}], ("1 entry", "2 sources")),
    "change to nothing": ("changes", [{"weights": [0.0, 0.0]}], ("zero",)),
    "change to texts": ("changes", [{"weights": ["a", "b"]}], ("'a'",)),
    "change too late": (
        "changes",
        [{"weights": [1.0, 1.0], "position": 100}],
        ("position=100", "100"),
    ),
    "changes out of order": (
        "changes",
        [{"weights": [1.0, 1.0], "position": position} for position in (9, 5)],
        ("(0, 5)", "(0, 9)"),
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_cursor_that_does_not_fit_its_plan_is_refused(case: str) -> None:
    name, value, fragments = UNUSABLE[case]
    message = refusal(lambda: resume(Cursor.from_dict(with_entry(name, value))))
    for fragment in fragments:
        assert fragment in message


@pytest.mark.parametrize(
    "other",
    [
        SamplePlan(order=Shuffled(num_samples=100)),
        BucketPlan.from_groups({"a": range(100)}),
        WindowPlan(chunks=EqualChunks(num_samples=100, chunk_size=10)),
    ],
    ids=lambda plan: type(plan).__name__,
)
def test_changed_weights_are_refused_by_a_plan_without_weights(other: Any) -> None:
    cursor = other.segment(world_size=1, batch_size=1).cursor(1)
    changed = replace(cursor, changes=({"weights": [1.0]},))
    assert "1 change of weights" in refusal(
        lambda: other.resume(changed, world_size=1, batch_size=1)
    )


@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_bytes_of_any_kind_are_refused_and_nothing_else_happens(content: bytes) -> None:
    with pytest.raises(CursorError):
        Cursor.from_json(content)  # type: ignore[arg-type]


@given(st.integers(0, len(TEXT) - 1), st.characters(codec="ascii"))
def test_one_wrong_character_never_becomes_another_plan(place: int, character: str) -> None:
    """It is refused, or it is in the epoch or the history, which no fingerprint guards."""
    damaged = TEXT[:place] + character + TEXT[place + 1 :]
    try:
        cursor = Cursor.from_json(damaged)
    except FeedlineError:
        return
    assert cursor.fingerprint == PLAN.fingerprint


FILES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(4096)),
    "random bytes": lambda path: path.write_bytes(random.Random(0).randbytes(4096)),
    "half a cursor": lambda path: path.write_text(TEXT[: len(TEXT) // 2]),
    "a cursor twice": lambda path: path.write_text(TEXT + TEXT),
    "a cursor and more": lambda path: path.write_text(TEXT + "x"),
    "a picture": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100)),
    "utf-16": lambda path: path.write_text(TEXT, encoding="utf-16"),
}


@pytest.mark.parametrize("content", FILES)
def test_a_file_that_is_no_cursor_is_refused_and_left_alone(content: str, tmp_path: Path) -> None:
    path = tmp_path / "cursor.json"
    FILES[content](path)
    before = path.read_bytes()
    assert str(path) in refusal(lambda: Cursor.load(path))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_huge_file_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.bin"
    with path.open("wb") as file:
        file.truncate(2**40)
    message = refusal(lambda: Cursor.load(path))
    assert str(2**40) in message
    assert str(path) in message


def test_a_plan_goes_on_as_before_after_bad_cursors() -> None:
    before = [batch.indices.tolist() for batch in resume(CURSOR).batches(0)]
    for name, value, _ in UNUSABLE.values():
        refusal(lambda name=name, value=value: resume(Cursor.from_dict(with_entry(name, value))))
    assert [batch.indices.tolist() for batch in resume(CURSOR).batches(0)] == before


@pytest.mark.parametrize(
    ("name", "value"), [("history", {}), ("changes", {}), ("ended", "yes"), ("ended", 1)]
)
def test_an_entry_of_another_kind_is_damage_and_not_another_place(name: str, value: Any) -> None:
    with pytest.raises(CursorFormatError, match=f"the cursor is damaged .{name}="):
        Cursor.from_dict(with_entry(name, value))
