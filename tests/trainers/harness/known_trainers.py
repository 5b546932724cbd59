"""The trainers that have a folder in `tests/trainers`, and what it says of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from trainer_stories import TAILS, Story, stories

TRAINERS = Path(__file__).resolve().parent.parent
ROOT = TRAINERS.parent.parent
_PINS = re.compile(r"requirements-(.+)\.txt")
# What a user writes for Feedline's sake ends with this comment in a job.
_USER_LINE = re.compile(r"\S.*# feedline$", re.MULTILINE)
_KEYS = {"title", "module", "preload", "launcher", "service", "variables", "tail", "refuses"}
_KEYS |= {"by_default"}


@dataclass(frozen=True)
class Refusal:
    """What a trainer refuses, as its `trainer.json` promises it: these stories and no others."""

    #: Which stories: any of "resumed", "resized" and "workers"; all must hold.
    when: tuple[str, ...]
    #: What must be in the error.
    says: str

    def covers(self, story: Story) -> bool:
        """Whether a story is among those that are refused."""
        holds = {
            "resumed": story.is_resumed,
            "resized": story.is_resized,
            "workers": story.has_workers,
        }
        return all(holds[name] for name in self.when)


@dataclass(frozen=True)
class Trainer:
    """A folder of `tests/trainers`: its job, its environments, and how it is started."""

    folder: Path
    about: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Trainer:
        """Return the trainer of a folder; `trainer.json` in it is optional."""
        path = folder / "trainer.json"
        about = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if strange := set(about) - _KEYS:
            raise ValueError(f"{path} has {sorted(strange)}; its keys are {sorted(_KEYS)}")
        return cls(folder, about)

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    @property
    def title(self) -> str:
        """What people call it."""
        return str(self.about.get("title", self.name))

    @property
    def module(self) -> str:
        """The module of Feedline for it."""
        return f"feedline.trainers.{self.about.get('module', self.name)}"

    @property
    def job(self) -> Path:
        """The job that the stories start."""
        return self.folder / "job.py"

    @property
    def preload(self) -> tuple[str, ...]:
        """What processes share by being forked; nothing: each is started by itself."""
        return tuple(self.about.get("preload", ()))

    @property
    def has_own_launcher(self) -> bool:
        """Whether the job starts its ranks itself."""
        return self.about.get("launcher", "torchrun") == "own"

    @property
    def service(self) -> Path | None:
        """The script that starts what all jobs share; None if they share nothing."""
        name = self.about.get("service")
        return None if name is None else self.folder / str(name)

    @property
    def variables(self) -> dict[str, str]:
        """What its processes have in their environment besides."""
        return dict(self.about.get("variables", {}))

    @property
    def tail(self) -> str:
        """What its job does with the last samples."""
        tail = str(self.about.get("tail", "pad"))
        assert tail in TAILS, f"{self.folder}: the tail {tail!r} is none of {TAILS}"
        return tail

    @cached_property
    def refusals(self) -> list[Refusal]:
        """What it refuses, as promised."""
        return [
            Refusal(tuple(one["when"]), str(one["says"])) for one in self.about.get("refuses", ())
        ]

    @property
    def versions(self) -> list[str]:
        """The versions that it has pins for."""
        found = [_PINS.fullmatch(path.name) for path in self.folder.iterdir()]
        return sorted(match[1] for match in found if match)

    @property
    def versions_by_default(self) -> list[str]:
        """The versions that run where none is named."""
        if self.about.get("by_default", "all") == "all":
            return self.versions
        return [max(self.versions, key=lambda one: [int(part) for part in one.split(".")])]

    def pins(self, version: str) -> Path:
        """Return the requirements of an environment."""
        return self.folder / f"requirements-{version}.txt"

    @property
    def num_user_lines(self) -> int:
        """How many lines of its job a user writes for Feedline's sake: those that say so."""
        return len(_USER_LINE.findall(self.job.read_text(encoding="utf-8")))

    def stories(self, *, is_full: bool = False) -> list[Story]:
        """Return what is told of it."""
        return stories(is_full=is_full, tail=self.tail)

    def refusal_of(self, story: Story) -> Refusal | None:
        """Return what it promises to refuse in a story, if anything."""
        return next((one for one in self.refusals if one.covers(story)), None)


def known_trainers() -> dict[str, Trainer]:
    """Return all trainers by name."""
    folders = sorted(path.parent for path in TRAINERS.glob("*/job.py"))
    return {folder.name: Trainer.of(folder) for folder in folders}
