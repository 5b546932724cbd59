"""Every block in the README and the docs runs, in the order in which it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from document_blocks import BlockRunner, blocks_of
from feedline.errors import InvalidValueError
from feedline.runs import ConsumptionLog, RunConfig
from known_trainers import known_trainers
from sample_data import jpeg_bytes, photo

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: These are run where the trainers are installed, by `make test-trainers`.
OF_TRAINERS = {ROOT / "docs" / "trainers" / f"{name}.md" for name in known_trainers()}

#: By `make test-ray`.
OF_RAY = {ROOT / "docs" / "guides" / "packing-on-ray.md"}

SOUND = """
```python
# print.py
print(42, end="")
```

- In a list:

  ```python
  number = 42
  ```

```python
assert number == 42
```

<!-- exits with 3 -->

```console
$ python print.py > printed
$ make test
$ exit 3
not compared
```

```
a ← b ← c
```
"""
FAULTS = {
    "a language that is not known": "```ruby\nputs 1\n```",
    "code without a language": "```\nfeedline plan run.yaml\n```",
    "a fence that is not closed": "```python\n",
    "a command that fails": "```sh\nfalse\ntrue\n```",
    "another exit code": "<!-- exits with 2 -->\n\n```sh\nexit 1\n```",
    "a target that is not there": "```sh\nmake nothing\n```",
    "an extra that is not there": '```sh\npip install "feedline[nothing]"\n```',
    "an option that is not there": "```sh\nfeedline demo --nothing\n```",
    "an option that Slurm has not": "```sh\nsrun --nothing true\n```",
    "a run config with a wrong key": "```yaml\nbatchsize: 1\n```",
    "a file that nothing uses": "```python\n# train.py\n```",
    "a process that is left": "```sh\nsleep 100 &\n```",
    "jax in the process of the tests": "```python\nimport jax\n```",
}


BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


# They start many processes: trainings that are stopped and started again, commands and examples.
LONG = {path.stem for path in (ROOT / "docs" / "guides").iterdir()} | {
    *("cli", "chunks", "report", "folders")
}

#: A section whose blocks are run elsewhere, by test_readme_path.py: a training that is killed.
RUN_ELSEWHERE = {"README.md": "From a CSV file to a resumed training"}


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(document, marks=[pytest.mark.slow] if document.stem in LONG else [])
        for document in DOCUMENTS
        if document not in OF_TRAINERS | OF_RAY
    ],
    ids=name_of,
)
def test_blocks_of_a_document_run(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for make in READERS_FILES.get(name_of(document), ()):
        make(tmp_path)
    elsewhere = RUN_ELSEWHERE.get(name_of(document))
    assert elsewhere in (None, *(block.heading for block in blocks_of(document)))
    run(document, tmp_path, elsewhere)


def test_the_readme_has_blocks_to_run() -> None:
    assert {block.language for block in blocks_of(ROOT / "README.md")} >= {"python", "sh"}


def test_figures_in_the_performance_guide_stand_in_the_results() -> None:
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    results = "".join(p.read_text("utf-8") for p in (ROOT / "benchmarks" / "results").glob("*.md"))
    # Measured figures have two digits after the point.
    figures = set(re.findall(r"\b\d+\.\d\d\b", BLOCK.sub("", text)))
    assert len(figures) > 10
    assert {one for one in figures if not re.search(rf"\b{re.escape(one)}\b", results)} == set()


def test_a_sound_document_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "document.md").write_text(SOUND, encoding="utf-8")
    run(tmp_path / "document.md", tmp_path)
    assert (tmp_path / "printed").read_text() == "42"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_document_is_found(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "document.md").write_text(FAULTS[fault], encoding="utf-8")
    with pytest.raises((AssertionError, InvalidValueError)):
        run(tmp_path / "document.md", tmp_path)


def run(document: Path, folder: Path, elsewhere: str | None = None) -> None:
    """Run the blocks of a document, but not those of one section."""
    runner = BlockRunner(document, folder)
    for block in blocks_of(document):
        if block.heading != elsewhere:
            runner.run(block)
    assert not runner.unused, f"written, and not used by any command: {runner.unused}"


def make_table(folder: Path) -> None:
    """Write rows.parquet."""
    items = np.arange(1000)[:, None] + np.arange(4)
    table = pa.table({"item": items.tolist(), "next_item": (items + 1).tolist()})
    pyarrow.parquet.write_table(table, folder / "rows.parquet")


def make_json_lines(folder: Path) -> None:
    """Write log-0.jsonl and log-1.jsonl."""
    for number in range(2):
        rows = [{"item": [n, n + 1], "next_item": [n + 1, n + 2]} for n in range(100)]
        (folder / f"log-{number}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def make_cells(folder: Path) -> None:
    """Write a.h5ad, b.h5ad and cells.zarr, where cells lie type by type."""
    # Here, because these take long.
    import pandas as pd

    from anndata_data import make_anndata, write

    for name, kind in (("a", "h5ad"), ("b", "h5ad"), ("cells", "zarr3")):
        cells = make_anndata(200)
        cells.obs["cell_type"] = pd.Categorical(["B"] * 120 + ["T"] * 80)
        cells.layers["counts"] = cells.X
        write(cells, folder / name, kind)


def make_run(folder: Path) -> None:
    """Write run.yaml, and checkpoint.json that belongs to it."""
    text = "seed: 7\nranks: 512\nbatch_size: 4\ntail: even\ndata: {samples: 1_000_000}\n"
    (folder / "run.yaml").write_text(text)
    plan = RunConfig.load(folder / "run.yaml").plan
    cursor = plan.segment(world_size=512, batch_size=4).cursor(num_batches=100)
    (folder / "checkpoint.json").write_text(cursor.to_json())


def make_logs(folder: Path) -> None:
    """Write logs of two ranks."""
    for rank in range(2):
        path = folder / "logs" / f"rank{rank}.log"
        with ConsumptionLog(path, rank=rank, world_size=2, info={"num_samples": 80}) as log:
            for step in range(5):
                first = (2 * step + rank) * 8
                log.record(epoch=0, step=step, batch=step, ids=range(first, first + 8))
            log.event("epoch_end", epoch=0, step=4)


def make_photos(folder: Path) -> None:
    """Write JPEG images of several sizes, in a folder for each class."""
    for number in range(64):
        path = folder / "pictures" / str(number % 10) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg_bytes(photo(32 + number % 3, 40, number)))


#: What a reader of a document has, before its first block.
READERS_FILES: dict[str, tuple[Callable[[Path], None], ...]] = {
    "README.md": (make_run, make_logs),
    "docs/chunks.md": (make_cells,),
    "docs/cli.md": (make_run,),
    "docs/folders.md": (make_table, make_json_lines),
    "docs/guides/single-cell.md": (make_cells,),
    "docs/report.md": (make_run, make_logs),
    "docs/transforms.md": (make_photos,),
}
