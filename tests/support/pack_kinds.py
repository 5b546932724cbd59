"""Columns of every kind, as sources of every kind, and what a store should say of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import feedline

KINDS = ("arrays", "records", "list", "jsonl", "parquet", "arrow")


def make_samples(num_rows: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Return records with texts, bytes, lists, dates, records in records and missing values."""
    rng = np.random.default_rng(seed)
    samples = []
    for number in range(num_rows):
        length = int(rng.integers(0, 9))
        samples.append(
            {
                "item": number,
                "text": "é" * length + str(number),
                "image": b"\xff\xd8" + rng.bytes(length) + b"\0",
                "tokens": rng.integers(0, 2**15, length).tolist() if number % 7 else [number],
                "boxes": rng.integers(0, 99, (length, 4)).astype(np.float64).tolist()
                if length
                else [[1.0, 2.0, 3.0, 4.0]],
                "label": None if number % 5 == 3 else number % 5,
                "caption": None if number % 4 == 1 else f"caption {number}",
                "day": np.datetime64("2020-01-01", "D") + number,
                "meta": {"source": f"s{number % 3}", "size": {"width": number, "height": 2.5}},
            }
        )
    return samples


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def make_source(kind: str, samples: list[dict[str, Any]], folder: Path) -> Any:
    """Return samples as a source of that kind; bytes are left out where there are none."""
    if kind == "records":
        return iter(samples)
    if kind == "list":
        return samples
    if kind == "arrays":
        return {name: [sample[name] for sample in samples] for name in samples[0]}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"data.{kind}"
    rows = [_plain(sample) for sample in samples]
    if kind == "jsonl":
        for row in rows:
            del row["image"]
            # As pyarrow takes it for a date.
            row["day"] = f"{row['day']} 00:00:00"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet

    table = pa.Table.from_pylist(rows)
    if kind == "parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=40)
    else:
        pyarrow.feather.write_feather(table, path, compression="uncompressed", chunksize=40)
    return path


def expected_of(samples: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what a store has of each sample."""
    for sample in samples:
        meta = sample["meta"]
        yield {
            "item": sample["item"],
            "text": sample["text"],
            "image": sample["image"],
            "tokens": sample["tokens"],
            "boxes": sample["boxes"],
            "label": sample["label"] or 0,
            "label/is_missing": sample["label"] is None,
            "caption": sample["caption"] or "",
            "caption/is_missing": sample["caption"] is None,
            "day": sample["day"],
            "meta/source": meta["source"],
            "meta/size/width": meta["size"]["width"],
            "meta/size/height": meta["size"]["height"],
        }


def plain_sample(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sample of a store as Python values; dates stay dates."""
    return {
        name: value.tolist()
        if isinstance(value, np.ndarray | np.number | np.bool_) and value.dtype.kind not in "mM"
        else value
        for name, value in sample.items()
    }


def read_samples(folder: Path, **options: Any) -> list[dict[str, Any]]:
    """Return all samples of a packed folder."""
    return [plain_sample(sample) for sample in feedline.open(folder, **options)]
