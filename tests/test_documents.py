"""Every Python block in the README and the docs runs, in the order in which it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(document: Path) -> list[str]:
    """The Python blocks of a document, with blank lines before, so that line numbers match."""
    text = document.read_text(encoding="utf-8")
    return ["\n" * text[: m.start(1)].count("\n") + m[1] for m in BLOCK.finditer(text)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_blocks_of_a_document_run(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(document):
        exec(compile(block, str(document), "exec"), names)


def test_the_readme_has_blocks_to_run() -> None:
    assert blocks_of(ROOT / "README.md")
