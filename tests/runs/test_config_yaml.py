"""The YAML of a config is a safe part of YAML: every other part is refused in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from feedline.errors import InvalidValueError
from feedline.runs.config_yaml import parse_yaml
from feedline.runs.run_config import RunConfig
from limited import run_limited

SOUND = """
# a run
seed: 7
ranks: 1_000
rate: 1.5e-3
name: "yes"
other: 'it''s'
flags: [true, no, ~, null, .inf, -.5, 0x1F, 010]
nested:
  - {a: 1, b: [1, 2]}
  - text of
    several lines
block: |
  a
  b
date: 2024-01-01x
empty:
"""


def test_what_is_let_through_means_what_it_does_in_yaml() -> None:
    assert parse_yaml(SOUND) == yaml.safe_load(SOUND)
    assert parse_yaml("") is None


REFUSED = {
    "anchor": ("a: &x [1]\nb: *x", "line 1 has an anchor or an alias"),
    "alias": ("a: *x", "line 1 has an anchor or an alias"),
    "merge": ("a: 1\n<<: {b: 2}", "line 2 has the merge key"),
    "tag": ("a: !!python/object/apply:os.system [ls]", "line 1 has the tag"),
    "own tag": ("a: !x 1", "line 1 has the tag"),
    "sexagesimal": ("data:\n  samples: 190:20:30", "line 2 has '190:20:30', a number to the base"),
    "float sexagesimal": ("a: 1:30.5", "a number to the base 60"),
    "duplicate": ("a: 1\nb: 2\na: 3", "line 3 has the key 'a' a second time"),
    "nested duplicate": ("a: {b: 1, b: 2}", "the key 'b' a second time"),
    "list as key": ("? [1, 2]\n: 3", "a key that is not a word"),
    "two documents": ("a: 1\n---\nb: 2", "line 2 has a second document"),
    "deep": ("[" * 100_000, "more than 32 levels"),
    "deep blocks": ("\n".join(" " * n + "a:" for n in range(100)), "more than 32 levels"),
    "open list": ("a: [1, 2", "is not YAML"),
    "control character": ("a: \x00", "is not YAML"),
    "tab": ("a:\n\t- 1", "is not YAML"),
    "digits": ("a: 0b" + "1" * 100_000, None),
}


@pytest.mark.parametrize("name", [name for name, (_, message) in REFUSED.items() if message])
def test_the_rest_of_yaml_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    text, message = REFUSED[name]
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(InvalidValueError) as caught:
        RunConfig.load(tmp_path / "run.yaml")
    found = str(caught.value)
    assert message is not None
    assert message in found
    assert found.startswith(str(tmp_path / "run.yaml"))
    assert "\n" not in found
    assert len(found) < 600


BOMBS = {
    "aliases": "a0: &a0 [x]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
    "merges": "a0: &a0 {k0: 1}\n"
    + "".join(
        f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 9)}]\n  k{n}: 1\n" for n in range(1, 9)
    ),
    "nesting": "[" * 500_000,
    "digits": "a: " + "1" * 1_000_000,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_end_at_once(bomb: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(BOMBS[bomb])
    imports = "from feedline.runs.run_config import RunConfig\nimport yaml\n"
    printed = run_limited("RunConfig.load(path)", tmp_path / "run.yaml", imports=imports)
    assert "refused: InvalidValueError" in printed


def test_what_is_no_text_or_no_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    os.mkfifo(tmp_path / "pipe")
    for name in ("bytes", "pipe", "."):
        with pytest.raises(InvalidValueError) as caught:
            RunConfig.load(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_lengths_with_a_header_that_cannot_be_parsed_are_refused(tmp_path: Path) -> None:
    # numpy's own reader raises tokenize.TokenError for this one.
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (3L"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(24)
    (tmp_path / "lengths.npy").write_bytes(content)
    (tmp_path / "run.yaml").write_text("batch_size: 2\ndata: {lengths: lengths.npy}\n")
    with pytest.raises(InvalidValueError, match=r"data\.lengths: .*the header"):
        RunConfig.load(tmp_path / "run.yaml")
