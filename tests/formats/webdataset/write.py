"""Writes shards with webdataset's own writer, and what its own reader finds in them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import webdataset
from expected import dump

NUM_SAMPLES = 52
PER_SHARD = 15


def sample_of(number: int, rng: np.random.Generator) -> dict[str, object]:
    """Return one sample: some parts are missing in some samples."""
    image = rng.integers(0, 256, int(rng.integers(0, 600)), dtype=np.uint8).tobytes()
    folder = "deep/" * 18 if number % 7 == 0 else "plain/"
    sample: dict[str, object] = {
        "__key__": f"{folder}sample-{number:06d}",
        "id": number,
        "bin": image,
        "txt": f"sample {number}, ünïcödé",
    }
    if number % 2:
        sample["npy"] = rng.standard_normal((2, 3)).astype(np.float32)
    if number % 3:
        sample["seg.png"] = image[: number % 11]
    if number >= 2 * PER_SHARD:
        sample["json"] = {"number": number}
    return sample


def main(out: Path) -> None:
    rng = np.random.default_rng(0)
    (out / "data").mkdir(parents=True, exist_ok=True)
    files = []
    for shard, first in enumerate(range(0, NUM_SAMPLES, PER_SHARD)):
        files.append(str(out / "data" / f"shard-{shard}.tar"))
        with webdataset.TarWriter(files[-1], mtime=0) as writer:
            for number in range(first, min(NUM_SAMPLES, first + PER_SHARD)):
                writer.write(sample_of(number, rng))
    found = list(webdataset.WebDataset(files, shardshuffle=False))
    names = sorted({name for sample in found for name in sample} - {"__url__", "__local_path__"})
    dump([{name: s.get(name) for name in names} for s in found], out / "expected.json.gz")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
