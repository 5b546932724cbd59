"""Run configs: what they mean, and how they are refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_runs import CONFIGS
from feedline.errors import FeedlineError, InvalidValueError, MissingDataError
from feedline.plan import (
    BucketPlan,
    EqualChunks,
    Mixture,
    Phase,
    SamplePlan,
    Sequential,
    Shuffled,
    WindowPlan,
)
from feedline.runs.run_config import RunConfig, SourceInfo
from feedline.store import pack


def test_samples_mean_one_shuffled_order() -> None:
    config = RunConfig.from_dict(CONFIGS["samples"])
    assert config.plan == SamplePlan(order=Shuffled(num_samples=1003, seed=7), tail="drop")
    assert (config.ranks, config.batch_size, config.epochs, config.grad_acc_steps) == (4, 8, 1, 1)
    assert config.sources == (SourceInfo("data", 1003, 0),)
    assert config.store is None
    assert config.bytes_per_sample is None
    plain = RunConfig.from_dict({**CONFIGS["samples"], "shuffle": False})
    assert plain.plan == SamplePlan(order=Sequential(num_samples=1003))


def test_a_mixture_means_weights_and_phases() -> None:
    config = RunConfig.from_dict(CONFIGS["mixture"])
    mixture = Mixture(
        sizes=(900, 100),
        weights=(3, 1),
        phases=(Phase(weights=(0, 1), position=500),),
        seed="x",
    )
    assert config.plan == SamplePlan(order=mixture, tail="pad")
    assert config.sources == (SourceInfo("web", 900, 0), SourceInfo("books", 100, 900))
    assert config.source_of(899) == (config.sources[0], 899)
    assert config.source_of(900) == (config.sources[1], 0)
    assert config.index_in("books", 99) == 999
    with pytest.raises(InvalidValueError, match=r"index=100 must be in \[0, 99\]"):
        config.index_in("books", 100)
    with pytest.raises(InvalidValueError, match="source='film' must be one of web, books"):
        config.index_in("film", 0)


def test_a_mixture_may_stop_when_a_source_runs_out() -> None:
    given = copy.deepcopy(CONFIGS["mixture"])
    given["data"] |= {
        "stop": True,
        "temperature": 2,
        "phases": [{"position": 9, "weights": [1, 2]}],
    }
    mixture = RunConfig.from_dict(given).mixture
    assert mixture is not None
    assert (mixture.strategy, mixture.temperature) == ("stop", 2.0)
    assert mixture.phases == (Phase(weights=(1, 2), position=9),)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 10, 49, 999, 10**6 + 3])
def test_buckets_have_the_batch_sizes_that_are_asked_for(batch_size: int) -> None:
    for wanted in [1, 2, 3, 7, 41, 1000, 12345]:
        listed = [{"name": "a", "samples": 9, "batch_size": wanted}, {"name": "b", "samples": 9}]
        config = RunConfig.from_dict({"batch_size": batch_size, "data": {"buckets": listed}})
        assert isinstance(config.plan, BucketPlan)
        rule = config.plan.rule
        assert [rule.batch_size(i, batch_size) for i in range(2)] == [wanted, batch_size]


def test_buckets_of_any_size_cost_nothing() -> None:
    listed = [{"name": "a", "samples": 10**15}, {"name": "b", "samples": 10**15}]
    config = RunConfig.from_dict({"batch_size": 8, "data": {"buckets": listed}})
    assert config.plan.segment(world_size=1000, batch_size=8).num_batches == 2 * 10**15 // 8000
    assert config.sources[1] == SourceInfo("b", 10**15, 10**15)


def test_lengths_are_read_from_a_file_beside_the_config(tmp_path: Path) -> None:
    lengths = np.random.default_rng(1).integers(1, 100, 500)
    np.save(tmp_path / "lengths.npy", lengths)
    data = {"lengths": "lengths.npy", "edges": [30, 100], "token_budget": 400}
    config = RunConfig.from_dict({"data": data, "tail": "even"}, folder=tmp_path)
    expected = BucketPlan.from_lengths(lengths, edges=[30, 100], batch_by="tokens", tail="even")
    assert config.plan.fingerprint == expected.fingerprint
    assert config.batch_size == 400
    by_count = {"batch_size": 4, "data": {"lengths": "lengths.npy", "num_buckets": 3}}
    plan = RunConfig.from_dict(by_count, folder=tmp_path).plan
    assert isinstance(plan, BucketPlan)
    assert len(plan.buckets) == 3


def test_a_folder_means_windows_over_its_chunks(tmp_path: Path) -> None:
    pack({"x": np.arange(100), "y": np.zeros((100, 4), np.float32)}, tmp_path / "data" / "packed")
    text = "seed: 3\nbatch_size: 4\ndata:\n  folder: data/packed\n  preload: 2\n"
    (tmp_path / "run.yaml").write_text(text)
    config = RunConfig.load(tmp_path / "run.yaml")
    chunks = EqualChunks(num_samples=100, chunk_size=100)
    assert config.plan == WindowPlan(chunks=chunks, preload=2, seed=3)
    assert config.store is not None
    assert config.bytes_per_sample == 8 + 16
    absolute = {"batch_size": 4, "data": {"folder": str(tmp_path / "data" / "packed")}}
    assert RunConfig.from_dict(absolute, folder=Path("/elsewhere")).plan.num_indices == 100


def test_chunks_mean_windows_without_data() -> None:
    config = RunConfig.from_dict(CONFIGS["chunks"])
    chunks = EqualChunks(num_samples=740, chunk_size=37)
    assert config.plan == WindowPlan(chunks=chunks, preload=2, tail="even", seed=2)


def mixture_with(**entry: Any) -> dict[str, Any]:
    listed = [{"name": "a", "samples": 5}, {"name": "b", "samples": 5, **entry}]
    return {"batch_size": 1, "data": {"mixture": listed}}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"batchsize": 3}, "batchsize is not a key; did you mean batch_size?"),
        ({"zzz": 3}, "zzz is not a key; the keys here are seed, ranks"),
        ({1: 2}, "1 is not a key"),
        ([1], "the config must be a mapping"),
        (None, "the config must be a mapping .* not nothing"),
        ({"batch_size": 1}, "data is missing"),
        ({"data": {"samples": 5}}, "batch_size is missing"),
        ({"batch_size": 1, "data": 5}, "data must be a mapping"),
        ({"batch_size": 1, "data": {}}, "data must have one of samples, mixture"),
        ({"batch_size": 1, "data": {"samples": 5, "folder": "x"}}, "data.samples and data.folder"),
        ({"batch_size": 1, "data": {"samples": "1e12"}}, "data.samples='1e12' .* write it in full"),
        ({"batch_size": 1, "data": {"samples": 0}}, "data.samples=0 must be at least 1$"),
        ({"batch_size": 1, "data": {"samples": 2**70}}, "at most 9223372036854775807$"),
        ({"batch_size": 8.5, "data": {"samples": 5}}, "=8.5 must be an .* use a whole number$"),
        ({"batch_size": 1e6, "data": {"samples": 5}}, "=1000000.0 must be .* write it in full"),
        ({"batch_size": "all", "data": {"samples": 5}}, "='all' must be an integer of at least 1$"),
        ({"world_size": 2}, "world_size is not a key; did you mean ranks?"),
        ({"num_gpus": 2}, "num_gpus is not a key; did you mean ranks?"),
        ({"nproc": 2}, "nproc is not a key; did you mean ranks?"),
        ({"num_replicas": 2}, "num_replicas is not a key; did you mean ranks?"),
        ({"bs": 2}, "bs is not a key; did you mean batch_size?"),
        ({"page_size": 2}, "page_size is not a key; the keys here are seed, ranks"),
        ({"batch_size": 1, "data": {"samples": [5]}}, "data.samples must be one value, not a list"),
        ({"batch_size": 1, "data": {"samples": True}}, "data.samples=True must be an integer"),
        ({"batch_size": 1, "data": {"samples": 5, "preload": 2}}, "data.preload is not a key"),
        ({"batch_size": 0, "data": {"samples": 5}}, "batch_size=0 must be at least 1$"),
        ({"batch_size": 1, "ranks": 0, "data": {"samples": 5}}, "ranks=0 must be at least 1"),
        ({"batch_size": 1, "epochs": -1, "data": {"samples": 5}}, "epochs=-1"),
        ({"batch_size": 1, "tail": "cut", "data": {"samples": 5}}, "tail='cut' must be one of"),
        ({"batch_size": 1, "tail": ["drop"], "data": {"samples": 5}}, "tail must be one value"),
        ({"batch_size": 1, "shuffle": "no", "data": {"samples": 5}}, "shuffle='no' must be true"),
        ({"batch_size": 1, "seed": 1.5, "data": {"samples": 5}}, "seed must be an integer"),
        (mixture_with(wieght=1), r"data.mixture\[1\].wieght is not a key; did you mean .*weight\?"),
        (mixture_with(weight=-1), r"data.mixture\[1\].weight=-1 must be a number of at least 0"),
        (mixture_with(weight="x"), r"data.mixture\[1\].weight='x'"),
        (mixture_with(weight=float("nan")), r"data.mixture\[1\].weight=nan"),
        (mixture_with(samples=-1), r"data.mixture\[1\].samples=-1"),
        (mixture_with(name="a"), r"data.mixture\[1\].name='a' appears twice"),
        (mixture_with(name=""), r"data.mixture\[1\].name='' must be a string"),
        (mixture_with(samples=0), "data.mixture: weights"),
        (
            {"batch_size": 1, "data": {"mixture": []}},
            "data.mixture must be a list that is not empty",
        ),
        ({"batch_size": 1, "data": {"mixture": "a"}}, "data.mixture must be a list"),
        ({"batch_size": 1, "data": {"mixture": [3]}}, r"data.mixture\[0\] must be a mapping"),
        ({"batch_size": 1, "data": {"buckets": [{"name": "a"}]}}, r"data.buckets\[0\].samples is"),
        ({"batch_size": 1, "data": {"chunks": {"num_chunks": 2}}}, "data.chunks.chunk_size is mis"),
        ({"batch_size": 1, "data": {"folder": "../x"}}, "must not be outside"),
        ({"batch_size": 1, "data": {"folder": "a/../../x"}}, "must not be outside"),
        ({"batch_size": 1, "data": {"lengths": "none.npy", "num_buckets": 2}}, "does not exist"),
        (
            {"batch_size": 1, "data": {"lengths": "x.npy", "num_buckets": 2, "token_budget": 0}},
            "data.token_budget=0",
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_path(given: Any, text: str) -> None:
    with pytest.raises(InvalidValueError, match=text):
        RunConfig.from_dict(given)


@pytest.mark.parametrize("weights", [{"film": 1}, [1], [1, "x"], {"web": -1}, [0, 0], 3, None])
def test_wrong_weights_of_a_phase_are_named(weights: Any) -> None:
    given = copy.deepcopy(CONFIGS["mixture"])
    given["data"]["phases"] = [{"position": 5, "weights": weights}]
    with pytest.raises(InvalidValueError, match=r"^data\.(phases\[0\]|mixture: )"):
        RunConfig.from_dict(given)


def test_a_batch_size_beside_a_token_budget_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(1, 10))
    data = {"lengths": "a.npy", "num_buckets": 2, "token_budget": 100}
    with pytest.raises(InvalidValueError, match="batch_size=4 cannot be used"):
        RunConfig.from_dict({"batch_size": 4, "data": data}, folder=tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "a: !!python/object/apply:os.system [echo]",
        "[" * 5000,
        "when: 2024-99-99",
        "n: " + "9" * 5000,
        "{[1]: 2}",
        "- 1",
        "",
        "x: &a [1]\ny: " + "*a",
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(InvalidValueError):
        RunConfig.load(tmp_path / "run.yaml")


def test_a_value_that_aliases_make_endless_is_not_written_out(tmp_path: Path) -> None:
    lines = ["a0: &a0 [1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    text = "\n".join(lines).replace("\n", "\n  ")
    (tmp_path / "run.yaml").write_text(f"data:\n  {text}\nranks: *a29\n")
    with pytest.raises(InvalidValueError, match="line 2 has an anchor or an alias"):
        RunConfig.load(tmp_path / "run.yaml")


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="does not exist"):
        RunConfig.load(tmp_path / "none.yaml")
    with pytest.raises(InvalidValueError, match="must be a file"):
        RunConfig.load(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidValueError, match="cannot be read"):
        RunConfig.load(tmp_path / "binary.yaml")
    (tmp_path / "large.yaml").write_bytes(b" " * (2**20 + 1))
    with pytest.raises(InvalidValueError, match="at most 1048576"):
        RunConfig.load(tmp_path / "large.yaml")
    with pytest.raises(MissingDataError):
        RunConfig.from_dict({"batch_size": 1, "data": {"folder": "none"}}, folder=tmp_path)
    np.savez(tmp_path / "many.npz", np.arange(3))
    for name, content in [("many.npz", None), ("bad.npy", b"xx"), ("empty.npy", b"")]:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        data = {"lengths": name, "num_buckets": 1}
        with pytest.raises(FeedlineError, match=r"data\.lengths: "):
            RunConfig.from_dict({"batch_size": 1, "data": data}, folder=tmp_path)
