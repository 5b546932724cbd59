"""Write an indexed dataset with Megatron's own builder, and what its own reader says of it."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
warnings.simplefilter("ignore")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from expected import dump  # noqa: E402
from megatron.core.datasets.indexed_dataset import (  # noqa: E402
    IndexedDataset,
    IndexedDatasetBuilder,
)


def main(folder: Path) -> None:
    rng = np.random.default_rng(7)
    builder = IndexedDatasetBuilder(str(folder / "data.bin"), dtype=np.int32)
    for number in range(70):
        # The first token numbers the sequence.
        length = int(rng.integers(0, 40)) if number % 9 else 3000
        builder.add_item(torch.tensor([number, *rng.integers(0, 50_000, length).tolist()]))
        if number % 4 == 3 or number == 69:
            builder.end_document()
    builder.finalize(str(folder / "data.idx"))
    dataset = IndexedDataset(str(folder / "data"))
    documents = dataset.document_indices
    samples = []
    for number in range(len(dataset)):
        document = int(np.searchsorted(documents, number, side="right") - 1)
        samples.append({"tokens": np.array(dataset[number]), "document": np.int64(document)})
    dump(samples, folder / "expected.json.gz")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
