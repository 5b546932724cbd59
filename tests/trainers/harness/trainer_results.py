"""The results of the stories, as files, and the table in the docs that is made from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from known_trainers import ROOT, TRAINERS, Trainer, known_trainers
from trainer_stories import Story, stories

RESULTS = TRAINERS / "results"
PAGE = ROOT / "docs" / "trainers" / "index.md"
BEGIN = "<!-- The table is written by scripts/test_trainers.py --table. -->"
END = "<!-- End of the table. -->"
_HEAD = ("trainer", "version", "works", "resume", "elastic", "workers", "user lines", "stories")
#: The columns, and the stories that each is about.
_CELLS: dict[str, Callable[[Story], bool]] = {
    "works": lambda story: not story.is_resumed,
    "resume": lambda story: story.is_resumed and not story.is_resized,
    "elastic": lambda story: story.is_resized,
    "workers": lambda story: story.has_workers,
}


@dataclass
class Results:
    """How the stories of one trainer and version went, and with what."""

    trainer: str
    version: str
    torch: str = ""
    python: str = ""
    num_user_lines: int = 0
    #: Tests of the trainer's own folder that passed.
    num_tests: int = 0
    #: The outcome of each story, by its name.
    stories: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Where they are kept."""
        return RESULTS / f"{self.trainer}-{self.version}.json"

    @classmethod
    def read(cls, path: Path) -> Results:
        """Return the results in a file."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def write(self) -> None:
        """Keep them, with the outcomes of what did not run this time."""
        if self.path.exists():
            before = Results.read(self.path)
            self.stories = before.stories | self.stories
            self.num_tests = self.num_tests or before.num_tests
        known = [story.name for story in stories(is_full=True)]
        self.stories = {name: self.stories[name] for name in known if name in self.stories}
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def fault_of(trainer: Trainer, story: Story, outcome: str) -> str | None:
    """Return what is wrong with an outcome: all must be exact, or refused as promised."""
    kind, _, reason = outcome.partition(": ")
    promised = trainer.refusal_of(story)
    if promised is None:
        return None if kind == "exact" else outcome
    if kind != "refused":
        return f"it should be refused with {promised.says!r}, and is {outcome}"
    return None if promised.says in reason else f"{promised.says!r} is not in {outcome}"


def table(results: list[Results], trainers: Mapping[str, Trainer]) -> str:
    """Return the table, in Markdown."""
    rows = [_HEAD, tuple("---" for _ in _HEAD)]
    by_name = {story.name: story for story in stories(is_full=True)}
    order = sorted(results, key=lambda one: (one.trainer, _numbers(one.version)), reverse=True)
    for one in sorted(order, key=lambda one: trainers[one.trainer].title.lower()):
        title = trainers[one.trainer].title
        cells = [
            _cell({name: o for name, o in one.stories.items() if is_about(by_name[name])})
            for is_about in _CELLS.values()
        ]
        name = f"[{title}]({one.trainer}.md)"
        counts = (str(one.num_user_lines), f"{len(one.stories)} of {len(by_name)}")
        rows.append((name, one.version, *cells, *counts))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def _cell(outcomes: Mapping[str, str]) -> str:
    if not outcomes:
        return "not run"
    kinds = {outcome.partition(": ")[0] for outcome in outcomes.values()}
    if kinds == {"exact"}:
        return "yes"
    if kinds == {"refused"}:
        return "refused"
    return "in part" if "failed" not in kinds else "no"


def read_results() -> list[Results]:
    """Return all results that are kept."""
    return [Results.read(path) for path in sorted(RESULTS.glob("*.json"))]


def page_with_table(page: str) -> str:
    """Return the page with the table of the results that are kept."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    made = table(read_results(), known_trainers())
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"
