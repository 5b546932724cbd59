"""The guide to packing on a cluster runs as it stands."""

from pathlib import Path

import pytest

from document_blocks import BlockRunner, blocks_of

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "packing-on-ray.md"


@pytest.mark.usefixtures("cluster")
def test_blocks_of_the_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = BlockRunner(PAGE, tmp_path)
    for block in blocks_of(PAGE):
        runner.run(block)
    assert (tmp_path / "shared" / "packed" / "metadata.json").is_file()
