"""Measures of a shuffle are near chance for good orders, and off for bad ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cli_runs import CONFIGS
from feedline.runs.run_config import RunConfig
from feedline.runs.shuffle_quality import measure_quality


def measures(given: dict[str, Any], epoch: int = 0) -> dict[str, Any]:
    found = measure_quality(RunConfig.from_dict(given), epoch)
    return {measure.name: measure for measure in found.measures}


@pytest.mark.parametrize("kind", ["samples", "mixture", "buckets"])
def test_shuffled_runs_are_as_good_as_chance(kind: str) -> None:
    found = measure_quality(RunConfig.from_dict(CONFIGS[kind]))
    assert found.is_good, [m for m in found.measures if not m.is_good]
    assert not measure_quality(RunConfig.from_dict({**CONFIGS[kind], "shuffle": False})).is_good


@pytest.mark.parametrize("num_samples", [10**5, 10**6, 10**12, 2**63 - 1])
def test_any_size_is_measured_on_few_positions(num_samples: int) -> None:
    given = {"batch_size": 32, "data": {"samples": num_samples}}
    for epoch in (0, 1):
        found = measure_quality(RunConfig.from_dict(given), epoch)
        assert found.is_good, [m for m in found.measures if not m.is_good]
        assert found.num_measured == min(num_samples, 200_000)


def test_windows_are_better_with_more_chunks_in_them() -> None:
    values = []
    for preload in (1, 8, 200):
        chunks = {"num_chunks": 200, "chunk_size": 50, "preload": preload}
        values.append(measures({"batch_size": 16, "data": {"chunks": chunks}}))
    spread = [value["chunks per batch"].value for value in values]
    assert spread == sorted(spread)
    assert not values[0]["chunks per batch"].is_good
    assert all(measure.is_good for measure in values[2].values())


def test_what_a_perfect_shuffle_gives_is_what_random_orders_give() -> None:
    given = {"batch_size": 10, "data": {"samples": 3000}}
    expected = measures(given)["chunks per batch"]
    generator = np.random.default_rng(3)
    width = -(-3000 // 64)
    counts = []
    for _ in range(30):
        batches = generator.permutation(3000).reshape(-1, 10) // width
        counts += [len(set(batch)) for batch in batches.tolist()]
    assert abs(np.mean(counts) - expected.expected) < expected.tolerance


def test_an_ordered_run_keeps_every_neighbour() -> None:
    found = measures({"batch_size": 32, "shuffle": False, "data": {"samples": 10**6}})
    assert found["position correlation"].value == pytest.approx(1)
    assert found["adjacency"].value == 1
    assert found["parity"].value == 1
    assert found["mean displacement"].value == pytest.approx(0)


def test_a_bucket_of_lengths_is_measured_in_its_own_batches(tmp_path: Any) -> None:
    lengths = np.random.default_rng(1).integers(1, 100, 5000)
    np.save(tmp_path / "lengths.npy", lengths)
    data = {"lengths": "lengths.npy", "edges": [20, 100], "token_budget": 1000}
    config = RunConfig.from_dict({"data": data}, folder=tmp_path)
    found = measure_quality(config)
    assert found.is_good
    by_bucket = {m.stream: m.expected for m in found.measures if m.name == "chunks per batch"}
    assert by_bucket["20"] > by_bucket["100"]


def test_tiny_runs_can_be_measured() -> None:
    for num_samples in (1, 2, 3):
        config = RunConfig.from_dict({"batch_size": 1, "data": {"samples": num_samples}})
        assert measure_quality(config).is_good
