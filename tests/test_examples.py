"""Every example runs as its docstring says, and does what it promises."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from feedline.runs import audit_logs
from feedline.torch import DataLoader, DistributedSampler
from forked import Forked
from processes import environment, finish, kill_job

EXAMPLES = Path(__file__).parent.parent / "examples"
PROGRAMS = {
    "python": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "feedline": [sys.executable, "-m", "feedline"],
}


def commands_of(name: str) -> list[str]:
    """Return the commands in the docstring of an example."""
    docstring = ast.get_docstring(ast.parse((EXAMPLES / name).read_text())) or ""
    return re.findall(rf"^ +((?:{'|'.join(PROGRAMS)}) .*)$", docstring, re.MULTILINE)


def run(command: str, folder: Path, *, is_forked: bool = False) -> str:
    """Run a command in a folder, and return what it printed; it must end well.

    If it is forked, its processes share the import of their libraries.
    """
    program, *arguments = shlex.split(command)
    # The examples are where they are; all that they write goes to the folder.
    arguments = [
        str(EXAMPLES.parent / argument) if argument.startswith("examples/") else argument
        for argument in arguments
    ]
    options: dict[str, Any] = {"cwd": folder, "env": environment(), "start_new_session": True}
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    job: subprocess.Popen[str] | Forked
    if is_forked:
        job = forked(program, arguments, options)
    else:
        job = subprocess.Popen([*PROGRAMS[program], *arguments], text=True, **options)
    try:
        return finish(job)
    finally:
        kill_job(job)
        assert job.stdout is not None
        job.stdout.close()


def forked(program: str, arguments: list[str], options: dict[str, Any]) -> Forked:
    if program == "feedline":
        return Forked(["-m", "feedline", *arguments], **options)
    num_ranks = 0
    while arguments[0].startswith("-"):
        option = arguments.pop(0)
        if option.startswith("--nproc"):
            value = option.partition("=")[2]
            num_ranks = int(value or arguments.pop(0))
    preload = ["torch._dynamo"] if num_ranks else []  # An optimizer imports it.
    return Forked(arguments, server="torch", preload=preload, num_ranks=num_ranks, **options)


def run_example(name: str, folder: Path, *, is_forked: bool = True) -> str:
    """Run an example that has one command."""
    (command,) = commands_of(name)
    return run(command, folder, is_forked=is_forked)


def test_the_table_has_every_example_with_its_command() -> None:
    table = (EXAMPLES / "README.md").read_text()
    rows = re.findall(r"^\| \[(.+)\]\((.+)\) \|.*\| `(.+)` \|$", table, re.MULTILINE)
    names = sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert sorted(rows) == [(name, name, commands_of(name)[0]) for name in names]


def test_the_plan_example_accounts_for_every_sample(tmp_path: Path) -> None:
    output = run_example("plan_four_ranks.py", tmp_path, is_forked=False)
    assert "audit: 47 of 47 samples were consumed exactly once" in output


@pytest.mark.slow
def test_a_training_goes_on_with_any_number_of_processes(tmp_path: Path) -> None:
    on_two, on_three, alone, audit = commands_of("torch_ddp.py")

    output = run(on_two, tmp_path)
    assert "world_size=2: 14 steps, rank 1 got SIGTERM" in output
    assert "epoch 0: 672 samples once, 288 to come" in output
    output = run(on_three, tmp_path, is_forked=True)
    assert "world_size=3: 14 steps, rank 2 got SIGTERM" in output
    assert "epoch 1: 384 samples once, 576 to come" in output
    assert "world_size=1: 12 steps, the training is over" in run(alone, tmp_path, is_forked=True)
    assert "audit: 1,920 samples, each exactly once" in run(audit, tmp_path, is_forked=True)

    result = audit_logs([tmp_path / "out" / "logs"])
    assert result.ok
    assert result.is_finished
    assert [run.num_batches for run in result.runs] == [(42, 42), (28, 28, 28), (72,)]
    assert [run.num_discarded_batches for run in result.runs] == [0, 0, 0]
    assert [epoch.num_once for epoch in result.epochs] == [960, 960]

    state = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    assert state["clock"]["step"] == 40
    for name, weight in weights_of_a_training_that_never_stopped().items():
        torch.testing.assert_close(state["model"][name], weight)


def weights_of_a_training_that_never_stopped() -> dict[str, torch.Tensor]:
    """Train the model of `torch_ddp.py` in this process, with plain gradient descent."""
    example = runpy.run_path(str(EXAMPLES / "torch_ddp.py"))
    model, dataset = example["make_model"](), example["make_dataset"]()
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, seed=7)
    loader = DataLoader(dataset, example["GLOBAL_BATCH_SIZE"], sampler=sampler)
    for _ in range(example["NUM_EPOCHS"]):
        for points, values in loader:
            loss = (model(points) - values).square().mean()
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for weight, gradient in zip(model.parameters(), gradients, strict=True):
                    weight -= example["LEARNING_RATE"] * gradient
    weights: dict[str, torch.Tensor] = model.state_dict()
    return weights


@pytest.mark.slow
def test_an_evaluation_with_mask_has_the_result_of_one_process(tmp_path: Path) -> None:
    output = run_example("evaluate_with_mask.py", tmp_path, is_forked=False)
    found = dict(re.findall(r"^(.+): accuracy (.+) samples$", output, re.MULTILINE))
    assert found.keys() == {"one process", "3 ranks with mask", "without mask"}
    assert found["one process"] == found["3 ranks with mask"] == "0.700000 of 100"
    assert found["without mask"] == "0.696078 of 102"
    assert "every rank has 5 batches, and of the samples [34, 33, 33]" in output


@pytest.mark.slow
def test_annealed_weights_give_exact_counts_in_every_phase(tmp_path: Path) -> None:
    output = run_example("mixture_annealing.py", tmp_path)
    assert "went on with 4 ranks from step 55 to step 99" in output
    # 1600, 1200 and 1200 samples, in proportion to the weights.
    assert "steps 0 to 39, weights (7, 2, 1): 1120 web, 320 books, 160 code" in output
    assert "steps 40 to 69, weights (5, 3, 2): 600 web, 360 books, 240 code" in output
    assert "steps 70 to 99, weights (2, 4, 4): 240 web, 480 books, 480 code" in output
    assert "code: 320 samples 1x, 280 samples 2x" in output
    assert "all 100 steps have the samples of a run on 1 rank" in output


@pytest.mark.slow
def test_batches_of_images_have_as_many_pixels_on_any_ranks(tmp_path: Path) -> None:
    output = run_example("bucketed_images.py", tmp_path)
    found = re.findall(r"step (\d+): (\d) ranks x (\d+) images of (\d+) x (\d+)", output)
    steps = [tuple(map(int, step)) for step in found]
    assert [step for step, *_ in steps] == list(range(len(steps)))
    assert [num_ranks for _, num_ranks, *_ in steps] == [2] * 6 + [3] * (len(steps) - 6)
    sizes = {(width, height): 0 for *_, width, height in steps}
    for _, _, num_images, width, height in steps:
        sizes[width, height] = max(sizes[width, height], num_images)
    assert len(sizes) == 12
    assert sizes[64, 64] == 4
    assert sizes[32, 32] == 16
    # The run stopped in the middle of a bucket, and finished that one first.
    assert steps[5][3:] == steps[6][3:]
    assert "all 300 images were used exactly once" in output


@pytest.mark.slow
def test_a_folder_is_streamed_in_bounded_memory(tmp_path: Path) -> None:
    # It measures memory, some of which a forked process shares.
    output = run_example("lazy_folder.py", tmp_path, is_forked=False)
    assert "packed 100000 samples, 98 MiB, in 20 chunks" in output
    assert "2 workers, batches of 256: stopped after 38400 samples" in output
    assert "1 worker, batches of 100: went on to 100000 samples" in output
    assert "all 100000 samples were received exactly once" in output
    (growth,) = re.findall(r"memory grew by (\d+) MiB", output)
    assert int(growth) <= 32


def test_a_format_of_the_users_own_keeps_every_promise(tmp_path: Path) -> None:
    output = run_example("own_format.py", tmp_path)
    assert "86 samples in 4 chunks" in output
    assert "check_store: every promise is kept" in output
    assert "4 batches on one rank, the rest on three: 86 lines, each once" in output


@pytest.mark.slow
def test_a_classifier_of_cells_goes_on_with_other_ranks(tmp_path: Path) -> None:
    output = run_example("single_cell.py", tmp_path, is_forked=False)
    assert "packed 4000 cells" in output
    assert "2 ranks: 12 steps, 1536 cells so far" in output
    assert "3 ranks: 13 steps, 4000 cells so far" in output
    (share,) = re.findall(r"all 4000 cells were used exactly once; the type of (.+)%", output)
    assert float(share) > 90
