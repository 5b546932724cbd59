"""Writes shards with TensorFlow, and what its own reader finds in them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf
from expected import dump

NUM_SAMPLES = 70
NUM_SHARDS = 4


def example_of(number: int, rng: np.random.Generator) -> tf.train.Example:
    """Return one record: some features are missing in some records."""
    tokens = rng.integers(-(2**62), 2**62, int(rng.integers(0, 40))) >> rng.integers(0, 62)
    image = rng.integers(0, 256, int(rng.integers(0, 900)), dtype=np.uint8).tobytes()
    words = [f"wörd {n}".encode() for n in range(int(rng.integers(0, 4)))]
    values: dict[str, list[object]] = {
        "id": [number],
        "score": [float(rng.standard_normal())],
        "tokens": tokens.tolist(),
        "embedding": rng.standard_normal(int(rng.integers(1, 9))).tolist(),
        "image": [image],
        "words": words,
    }
    if number % 3:
        values["label"] = [number % 10 - 5]
    if number % 4 == 0:
        values["caption"] = [f"sample {number}".encode()]
    kinds = {"score": "float_list", "embedding": "float_list"}
    kinds |= dict.fromkeys(("image", "words", "caption"), "bytes_list")
    lists = {"float_list": tf.train.FloatList, "bytes_list": tf.train.BytesList}
    feature = {}
    for name, value in values.items():
        kind = kinds.get(name, "int64_list")
        made = lists.get(kind, tf.train.Int64List)(value=value)
        feature[name] = tf.train.Feature(**{kind: made})
    return tf.train.Example(features=tf.train.Features(feature=feature))


def sample_of(record: bytes) -> dict[str, object]:
    """Return what TensorFlow finds in a record."""
    sparse = {
        name: tf.io.RaggedFeature(kind)
        for name, kind in {
            **dict.fromkeys(("id", "tokens", "label"), tf.int64),
            **dict.fromkeys(("score", "embedding"), tf.float32),
            **dict.fromkeys(("image", "words", "caption"), tf.string),
        }.items()
    }
    found = {name: v.numpy() for name, v in tf.io.parse_single_example(record, sparse).items()}
    sample: dict[str, object] = {name: found[name] for name in ("tokens", "embedding")}
    for name in ("id", "score", "label", "image", "caption"):
        sample[name] = found[name][0] if len(found[name]) else None
    sample["words"] = b"".join(found["words"])
    sample["words/lengths"] = np.array([len(word) for word in found["words"]], np.int64)
    return sample


def main(out: Path) -> None:
    rng = np.random.default_rng(0)
    (out / "data").mkdir(parents=True, exist_ok=True)
    samples: list[dict[str, object]] = []
    for shard in range(NUM_SHARDS):
        path = str(out / "data" / f"x.tfrecord-{shard:05d}-of-{NUM_SHARDS:05d}")
        # The second one is compressed.
        kind = "GZIP" if shard == 1 else ""
        with tf.io.TFRecordWriter(path, kind) as writer:
            for number in range(NUM_SAMPLES * shard // 4, NUM_SAMPLES * (shard + 1) // 4):
                writer.write(example_of(number, rng).SerializeToString(deterministic=True))
        read = tf.data.TFRecordDataset(path, kind)
        samples += [sample_of(record) for record in read]
    dump(samples, out / "expected.json.gz")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
