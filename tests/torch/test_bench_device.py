"""`feedline bench-data --device`: the link and batches on a device."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cli_runs import check_refused, invoke
from feedline.packing import pack
from feedline.store import FolderStore
from feedline.torch.device.bench import TorchBenchDevice

QUICK = ("--seconds", "0.01", "--batch-size", "8")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "packed"
    pack({"x": np.arange(12_800).reshape(200, 64)}, folder, chunk_samples=20, progress=False)
    return folder


def test_the_link_and_batches_on_a_device_are_measured(packed: Path) -> None:
    done = invoke("bench-data", packed, *QUICK, "--device", "cpu", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["device"] == "cpu"
    link = next(figure for figure in found["figures"] if figure["stage"] == "link")
    assert link["rows_per_second"] == pytest.approx(link["bytes_per_second"] / 512)
    assert sum(figure["stage"] == "batches" for figure in found["figures"]) == 2
    assert "on cpu" in invoke("bench-data", packed, *QUICK, "--device", "cpu").stdout


def test_batches_of_the_loader_are_tensors_on_the_device(packed: Path) -> None:
    device = TorchBenchDevice("cpu")
    loader = device.loader(FolderStore(packed), 8, shuffle=True, num_threads=1)
    seen = torch.cat([batch["x"][:, 0] for batch in loader])
    device.wait()
    assert sorted(seen.tolist()) == list(range(0, 12_800, 64))


def test_copies_are_counted_in_whole_pieces() -> None:
    done = TorchBenchDevice("cpu").copied(0.001)
    assert done.amount > 0
    assert done.amount % 2**26 == 0


def test_a_device_that_is_not_there_is_one_line(packed: Path) -> None:
    refused = invoke("bench-data", packed, "--device", "nothing")
    check_refused(refused, "--device='nothing' must be a torch device")
    if not torch.cuda.is_available():
        refused = invoke("bench-data", packed, "--device", "cuda")
        check_refused(refused, "--device='cuda' needs a GPU, but torch finds none")
