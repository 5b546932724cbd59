"""Write a dataset with Hugging Face `datasets`, and what its own reader says of it."""

from __future__ import annotations

import datetime as dt
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
from datasets import (
    Array2D,
    ClassLabel,
    Dataset,
    Features,
    Image,
    List,
    Value,
    load_from_disk,
)
from expected import dump

NUM_SAMPLES = 60
FEATURES = Features(
    {
        "id": Value("int64"),
        "text": Value("string"),
        "long": Value("large_string"),
        "raw": Value("binary"),
        "tokens": List(Value("int32")),
        "pair": List(Value("float32"), length=2),
        "matrix": Array2D(shape=(2, 3), dtype="float32"),
        "rows": Array2D(shape=(None, 2), dtype="int16"),
        "label": ClassLabel(names=["cat", "dog"]),
        "is_good": Value("bool"),
        "score": Value("float64"),
        "note": Value("string"),
        "when": Value("timestamp[us]"),
        "image": Image(decode=False),
        "meta": {"width": Value("uint8"), "name": Value("string")},
    }
)


def rows() -> list[dict[str, Any]]:
    """Return samples that are the same each time."""
    rng = np.random.default_rng(5)
    made = []
    for number in range(NUM_SAMPLES):
        length = int(rng.integers(0, 9))
        made.append(
            {
                "id": number,
                "text": "é" * (number % 7) + str(number),
                "long": "x" * int(rng.integers(0, 50)),
                "raw": rng.bytes(length),
                "tokens": rng.integers(0, 1000, length).tolist(),
                "pair": rng.random(2, np.float32).tolist(),
                "matrix": rng.random((2, 3), np.float32),
                "rows": rng.integers(0, 99, (number % 4 + 1, 2)).astype(np.int16),
                "label": int(rng.integers(0, 2)),
                "is_good": bool(rng.integers(0, 2)),
                "score": None if number % 5 == 3 else float(rng.random()),
                "note": None if number % 3 else f"note {number}",
                "when": dt.datetime(2026, 1, 1) + dt.timedelta(minutes=number),
                "image": {"bytes": rng.bytes(20), "path": f"{number}.png" if number % 2 else None},
                "meta": {"width": number, "name": f"name {number}"},
            }
        )
    return made


def sample_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the library's own reader, with the types of its features."""
    image, meta = row.pop("image"), row.pop("meta")
    types = {"tokens": np.int32, "pair": np.float32, "matrix": np.float32, "rows": np.int16}
    return {
        **row,
        **{name: np.asarray(row[name], dtype) for name, dtype in types.items()},
        **{"id": np.int64(row["id"]), "label": np.int64(row["label"])},
        "when": row["when"].isoformat(),
        **{"image/bytes": image["bytes"], "image/path": image["path"]},
        **{"meta/width": np.uint8(meta["width"]), "meta/name": meta["name"]},
    }


def main(out: Path) -> None:
    """Write the dataset in three files, and read it back."""
    Dataset.from_list(rows(), features=FEATURES).save_to_disk(out / "data", num_shards=3)
    samples = [sample_of(row) for row in load_from_disk(out / "data")]
    # JSON has no times; the test of this format compares them.
    for sample in samples:
        sample.pop("when")
    dump(samples, out / "expected.json.gz")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
