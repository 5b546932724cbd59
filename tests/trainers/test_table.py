"""The table in the docs is the one that the results make, and the results are those of the jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from known_trainers import Trainer, known_trainers
from trainer_results import PAGE, RESULTS, Results, fault_of, page_with_table, read_results, table
from trainer_stories import plain_story, stories, story_of

REFUSAL = "refused: InvalidValueError: use one process"


def results_of(**outcomes: str) -> Results:
    """Return results with an outcome for stories that run plainly, resume, resize, have workers."""
    named = {
        "plain": plain_story(),
        "resumed": story_of((240, "middle", 2, 2, 0, 0)),
        "resized": story_of((240, "middle", 2, 1, 0, 0)),
        "workers": story_of((240, "middle", 1, 1, 0, 2)),
    }
    told = {named[name].name: outcome for name, outcome in outcomes.items()}
    return Results("some", "1.2.0", num_user_lines=3, stories=told)


@pytest.mark.parametrize(
    ("outcomes", "cells"),
    [
        (
            {"plain": "exact", "resumed": "exact", "resized": "exact", "workers": "exact"},
            "yes | yes | yes | yes | 3 | 4 of 217",
        ),
        ({"plain": "exact"}, "yes | not run | not run | not run | 3 | 1 of 217"),
        (
            {"plain": "exact", "resumed": "exact", "resized": REFUSAL, "workers": "failed: x"},
            "yes | no | refused | no | 3 | 4 of 217",
        ),
        (
            {"plain": "exact", "resumed": "exact", "workers": REFUSAL},
            "yes | in part | not run | refused | 3 | 3 of 217",
        ),
    ],
)
def test_a_cell_says_what_the_stories_of_its_column_say(
    outcomes: dict[str, str], cells: str
) -> None:
    made = table([results_of(**outcomes)], {"some": Trainer(Path("some"))})
    assert made.splitlines()[2] == f"| [some](some.md) | 1.2.0 | {cells} |"


def test_results_that_are_written_keep_those_that_did_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer_results.RESULTS", tmp_path)
    first = results_of(plain="exact", workers="exact")
    first.num_tests = 7
    first.write()
    results_of(plain=REFUSAL, resized="exact").write()
    (path,) = tmp_path.iterdir()
    assert path.name == "some-1.2.0.json"
    assert list(Results.read(path).stories.values()) == [REFUSAL, "exact", "exact"]
    assert Results.read(path).num_tests == 7


def test_the_table_in_the_docs_is_made_from_the_results() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with_table(page), "run scripts/test_trainers.py --table"


def test_every_trainer_and_version_has_results_that_are_as_promised() -> None:
    trainers = known_trainers()
    wanted = {(one.name, version) for one in trainers.values() for version in one.versions}
    assert {(one.trainer, one.version) for one in read_results()} == wanted
    for one in read_results():
        trainer = trainers[one.trainer]
        by_name = {story.name: story for story in stories(is_full=True, tail=trainer.tail)}
        assert one.path.parent == RESULTS
        assert one.num_user_lines == trainer.num_user_lines > 0
        assert one.stories.keys() >= {story.name for story in trainer.stories()}
        faults = {name: fault_of(trainer, by_name[name], o) for name, o in one.stories.items()}
        assert not {name: fault for name, fault in faults.items() if fault}
        assert one.num_tests > 0
