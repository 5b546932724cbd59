"""Write chunks with litdata, and what its own dataset reads from them."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from litdata import StreamingDataset
from litdata.streaming.item_loader import TokensLoader
from litdata.streaming.serializers import BytesSerializer
from litdata.streaming.writer import BinaryWriter
from litdata.types import Jpeg
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent))
from expected import dump

NUM_SAMPLES = 60


def sample(rng: np.random.Generator, number: int) -> dict[str, Any]:
    """Return one sample, as the writer takes it."""
    picture = Image.fromarray(rng.integers(0, 255, (4, 5, 3), np.uint8))
    tiny = Image.fromarray(rng.integers(0, 255, (1 + number % 3, 2 + number % 2), np.uint8))
    file = BytesIO()
    picture.save(file, "JPEG")
    return {
        "id": number,
        "float": float(rng.normal()),
        "flag": number % 3 == 0,
        "text": "ä€😀"[: number % 4] * (number % 3) + str(number),
        "raw": rng.bytes(number % 20),
        "nested": {"number": number, "inner": {"text": str(number), "half": number / 2}},
        "list": [number, str(number)],
        "flat": rng.integers(-9, 9, number % 7),
        "fixed": rng.normal(size=5).astype(np.float32),
        "matrix": rng.integers(0, 9, (3, 2)).astype(np.int16),
        "rows": rng.integers(0, 9, (number % 4, 3)).astype(np.uint64),
        "boxes": rng.normal(size=(1 + number % 3, 1 + number % 2)),
        "flags": rng.integers(0, 2, 4).astype(bool),
        "complex": rng.normal(size=(2, 2)).astype(np.complex64),
        "tensor": torch.from_numpy(rng.normal(size=(2, 3)).astype(np.float16)),
        "scalar": torch.tensor(number, dtype=torch.int32),
        "tokens": torch.from_numpy(rng.integers(0, 9, 1 + number % 5)),
        "jpeg": Jpeg(bytes=file.getvalue()),
        "pil": picture,
        "sizes_differ": tiny,
    }


def row(number: int) -> dict[str, Any]:
    """Return a sample that litdata keeps in a table of Arrow."""
    return {
        "id": number,
        "text": None if number == 9 else f"ä{number}",
        "raw": b"x" * number,
        "number": number / 2,
        "flag": number % 2 == 0,
        "nested": {"a": number, "b": {"c": str(number)}},
        "numbers": list(range(number % 4)),
        "tags": ["a", "b"][: number % 3],
        "chat": [{"role": "user", "content": str(number)}],
        **({"late": number} if number > 15 else {}),
    }


def write(folder: Path, samples: list[Any], chunk_size: int, **options: Any) -> None:
    """Write samples with litdata."""
    writer = BinaryWriter(str(folder), chunk_size=chunk_size, **options)
    for number, each in enumerate(samples):
        writer[number] = each
    writer.done()
    writer.merge()


def main() -> None:
    """Write the data and what is in it."""
    out = Path(sys.argv[1])
    rng = np.random.default_rng(0)
    samples = [sample(rng, number) for number in range(NUM_SAMPLES)]
    write(out / "data", samples, 17)
    small = [
        {"id": number, "x": np.full(40, number, np.int32), "text": str(number) * 5}
        for number in range(20)
    ]
    for level in ("chunk", "batch", "sample"):
        options = {"compression": "zstd", "compression_level": level, "compression_batch_size": 3}
        write(out / "compressed" / level, small, 8, **options)
    write(out / "tuples", [(number, [str(number), 0.5]) for number in range(20)], 8)
    write(out / "values", [torch.arange(number) for number in range(20)], 8)
    documents = [torch.arange(number, dtype=torch.int32) for number in range(3, 20)]
    write(out / "documents", documents, 60, item_loader=TokensLoader())
    for name, options in {"table": {}, "compressed_table": {"compression": "zstd"}}.items():
        write(out / name, [row(number) for number in range(20)], 8, **options)
    # Its own reader of images needs a torchvision that fits torch; files are compared, not pixels.
    dataset = StreamingDataset(str(out / "data"), serializers={"jpeg": BytesSerializer()})
    dump(map(read, dataset), out / "expected.json.gz")


def read(found: dict[str, Any]) -> dict[str, Any]:
    """Return what litdata has read, as columns."""
    found = dict(found)
    nested = found.pop("nested")
    found["nested/number"] = nested["number"]
    found |= {f"nested/inner/{name}": value for name, value in nested["inner"].items()}
    del found["list"]  # stored in a way of litdata's own
    found = {
        name: value.numpy() if isinstance(value, torch.Tensor) else value
        for name, value in found.items()
    }
    for name in ("id", "float", "flag", "nested/number", "nested/inner/half"):
        found[name] = np.asarray(found[name])
    for name in ("pil", "sizes_differ"):
        found[name] = np.asarray(found[name])
    for name in ("boxes", "sizes_differ"):
        found[name + "/shape"] = np.array(found[name].shape)
        found[name] = found[name].reshape(-1)
    return {name: bytes(v) if isinstance(v, memoryview) else v for name, v in found.items()}


if __name__ == "__main__":
    main()
