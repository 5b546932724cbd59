"""Write MDS shards with MosaicML Streaming, and what its own dataset reads from them."""

from __future__ import annotations

import importlib.machinery
import json
import sys
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from expected import dump


def leave_out(name: str, **names: Any) -> None:
    """Put an empty module in the place of one that the format does not need."""
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__path__ = []
    module.__dict__.update(names)
    sys.modules[name] = module


# Streaming imports them for the datasets that it has ready, and for what batches may be.
leave_out("transformers")
leave_out("transformers.feature_extraction_utils", BatchFeature=dict)
leave_out("transformers.tokenization_utils_base", BatchEncoding=dict)
for part in ("multimodal", "text", "vision"):
    leave_out(f"streaming.{part}")

from PIL import Image  # noqa: E402
from streaming import MDSWriter, StreamingDataset  # noqa: E402

NUM_SAMPLES = 60
COLUMNS = {
    "id": "int",
    **{name: name for name in ("uint8", "uint16", "uint32", "uint64")},
    **{name: name for name in ("int8", "int16", "int32", "int64")},
    **{name: name for name in ("float16", "float32", "float64")},
    "text": "str",
    "raw": "bytes",
    "json": "json",
    "fixed": "ndarray:float32:2,3",
    "same": "ndarray",
    "ragged": "ndarray:int64",
    "rows": "ndarray:uint16",
    "boxes": "ndarray",
    "jpeg": "jpeg",
    "png": "png",
    "pil": "pil",
    "sizes_differ": "pil",
    "str_int": "str_int",
    "str_huge": "str_int",
    "str_float": "str_float",
    "str_decimal": "str_decimal",
}


def sample(rng: np.random.Generator, number: int) -> dict[str, Any]:
    """Return one sample, as the writer takes it."""
    low = {"uint": 0, "int": -100}
    picture = Image.fromarray(rng.integers(0, 255, (4, 5, 3), np.uint8))
    tiny = Image.fromarray(rng.integers(0, 255, (1 + number % 3, 2 + number % 2), np.uint8))
    return {
        "id": number,
        **{
            name: np.dtype(name).type(rng.integers(low[name.rstrip("0123456789")], 100))
            for name in COLUMNS
            if "int" in name and name[-1] in "2468"
        },
        **{name: np.dtype(name).type(rng.normal()) for name in ("float16", "float32", "float64")},
        "text": "ä€😀"[: number % 4] * (number % 3) + str(number),
        "raw": rng.bytes(number % 20),
        "json": {"number": number, "texts": ["a", None, 1.5][: number % 4]},
        "fixed": rng.normal(size=(2, 3)).astype(np.float32),
        "same": rng.integers(0, 9, (3, 2)).astype(np.int16),
        "ragged": rng.integers(-9, 9, 1 + number % 7 * (300 if number == 5 else 1)),
        "rows": rng.integers(0, 9, (1 + number % 4, 3)).astype(np.uint16),
        "boxes": rng.normal(size=(1 + number % 3, 1 + number % 2)).astype(np.float64),
        "jpeg": picture,
        "png": picture,
        "pil": picture,
        "sizes_differ": tiny,
        "str_int": number - 30,
        "str_huge": (-7) ** number,
        "str_float": float(rng.normal()) * 10.0 ** (number - 30),
        "str_decimal": Decimal(number) / 7,
    }


def main() -> None:
    """Write the data and what is in it."""
    out = Path(sys.argv[1])
    rng = np.random.default_rng(0)
    samples = [sample(rng, number) for number in range(NUM_SAMPLES)]
    hashes = ["sha1", "xxh64"]
    with MDSWriter(
        out=str(out / "data"), columns=COLUMNS, size_limit=8000, hashes=hashes
    ) as writer:
        for each in samples:
            writer.write(each)
    small = {"id": "int", "x": "ndarray:int32:40", "text": "str"}
    for codec in ("br", "bz2", "gz", "snappy", "zstd"):
        folder = str(out / "compressed" / codec)
        with MDSWriter(
            out=folder, columns=small, compression=codec, size_limit=2000, hashes=hashes
        ) as writer:
            for number in range(20):
                x = np.full(40, number, np.int32)
                writer.write({"id": number, "x": x, "text": str(number) * 5})
    dump(
        map(read, StreamingDataset(local=str(out / "data"), batch_size=1)), out / "expected.json.gz"
    )


def read(found: dict[str, Any]) -> dict[str, Any]:
    """Return what Streaming has read, as columns."""
    found = dict(found)
    found["id"] = np.int64(found["id"])
    for name in ("jpeg", "png"):
        # What was read must be what was written; files are compared, not pixels.
        image = found[name]
        image.fp.seek(0)
        found[name] = image.fp.read()
    for name in ("pil", "sizes_differ"):
        found[name] = np.asarray(found[name])
    found["json"] = json.dumps(found["json"])
    found["str_int"] = np.int64(found["str_int"])
    found["str_float"] = np.float64(found["str_float"])
    for name in ("str_huge", "str_decimal"):
        found[name] = str(found[name])
    for name in ("boxes", "sizes_differ"):
        found[name + "/shape"] = np.array(found[name].shape)
        found[name] = found[name].reshape(-1)
    return found


if __name__ == "__main__":
    main()
