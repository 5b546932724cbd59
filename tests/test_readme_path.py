"""The README's path: from a CSV file in an empty folder to a killed and resumed training."""

from __future__ import annotations

import contextlib
import io
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

import feedline
from document_blocks import Block, BlockRunner, blocks_of
from feedline.runs import audit_logs
from forked import Forked, forked_ranks
from processes import finish, kill_job, python, torchrun, wait_for

README = Path(__file__).parent.parent / "README.md"
SECTION = "From a CSV file to a resumed training"

#: As many that the last step of an epoch has 1 sample: it is padded on any number of processes.
NUM_ROWS, NUM_SAMPLES = 535, 481
NUM_EPOCHS, EPOCH_LEN = 10, 11

GLOBAL_BATCH = 48
#: What the tests change of the script; everything else is as it stands in the README.
SHORTER = {
    "NUM_ROWS = 20_000": f"NUM_ROWS = {NUM_ROWS}",
    "NUM_EPOCHS = 5": f"NUM_EPOCHS = {NUM_EPOCHS}",
    "ckpt_every_steps=100": "ckpt_every_steps=7",
}
#: Saves what the parameters and gradients are at each step.
SAVING_GRADIENTS = {
    "optimizer.step()": "torch.save([[p.detach(), p.grad] for p in model.parameters()], "
    "f'{world}-{rank}-{clock.step}.grad'); optimizer.step()",
    f"NUM_EPOCHS = {NUM_EPOCHS}": "NUM_EPOCHS = 1",
}


def blocks_of_path() -> list[Block]:
    return [block for block in blocks_of(README) if block.heading == SECTION]


def is_training(block: Block) -> bool:
    return block.language == "sh" and "torchrun" in block.text


def substituted(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def walk_to_training(folder: Path, changes: dict[str, str]) -> str:
    """Run the blocks before the training in an empty folder; return what Python printed."""
    printed = io.StringIO()
    runner = BlockRunner(README, folder)
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        for block in blocks_of_path():
            if not is_training(block):
                text = substituted(block.text, changes)
                runner.run(Block(block.language, text, block.line, block.heading))
    assert runner.unused == {"train.py"}
    return printed.getvalue()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.py and little data, made as the README says."""
    folder = tmp_path_factory.mktemp("packed")
    walk_to_training(folder, SHORTER)
    text = (folder / "train.py").read_text()
    assert all(new in text for old, new in SHORTER.items() if "ROWS" not in old)
    return folder


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


def last_step(folder: Path) -> int:
    """The number of the step that the checkpoint would resume at; 0 if there is none."""
    path = folder / "checkpoint.pt"
    return int(torch.load(path)["clock"]["step"]) if path.exists() else 0


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(folder / "checkpoint.pt")["model"]
    return found


def killed(kill: Callable[[Path], None], before: Path, to: Path, attempts: int = 5) -> Path:
    """Return a copy of a folder in which a training went on and was killed before its end."""
    for attempt in range(attempts):
        folder = copied(before, to / str(attempt))
        kill(folder)
        if last_step(before) < last_step(folder) < NUM_EPOCHS * EPOCH_LEN:
            return folder
    raise AssertionError(f"all of {attempts} trainings ended before they could be killed")


def ranks_of(folder: Path, num_processes: int) -> AbstractContextManager[Forked]:
    """Start the training of a folder on processes that share the import of torch."""
    preload = ["torch._dynamo"]  # An optimizer imports it.
    return forked_ranks(folder / "train.py", num_processes, folder=folder, preload=preload)


def kill_torchrun(folder: Path) -> None:
    """Start a training on two processes, and `kill -9` all of it when it has a checkpoint."""
    checkpoint = folder / "checkpoint.pt"
    with torchrun(folder / "train.py", 2, folder=folder) as job:
        try:
            wait_for(checkpoint.exists, job)
        except AssertionError:
            if not checkpoint.exists():  # Else it has ended meanwhile.
                raise
        kill_job(job)


def kill_ranks(num_processes: int) -> Callable[[Path], None]:
    """Return what starts or resumes a training, and kills it when it has a new checkpoint."""

    def kill(folder: Path) -> None:
        before = last_step(folder)
        with ranks_of(folder, num_processes) as ranks:
            end = time.monotonic() + 120
            while last_step(folder) == before and ranks.poll() is None:
                assert time.monotonic() < end, "no checkpoint came"
                time.sleep(0.02)
            kill_job(ranks)
            printed, _ = ranks.communicate()
        assert f"{'resumed' if before else 'fresh'} at step {before}:" in printed, printed
        assert last_step(folder) > before, printed

    return kill


def run_on(num_processes: int, folder: Path) -> str:
    with ranks_of(folder, num_processes) as ranks:
        return finish(ranks)


def assert_each_sample_came_once_an_epoch(folder: Path) -> None:
    result = audit_logs([folder / "logs"])
    assert result.ok
    counts = [(epoch.epoch, epoch.num_once, epoch.num_to_come) for epoch in result.epochs]
    assert counts == [(epoch, NUM_SAMPLES, 0) for epoch in range(NUM_EPOCHS)]


@pytest.mark.slow
def test_a_killed_training_ends_with_the_parameters_of_one_that_was_not_killed(
    packed: Path, tmp_path: Path
) -> None:
    whole = copied(packed, tmp_path / "whole")
    assert "fresh at step 0: 3 x 8 samples on each of 2" in run_on(2, whole)
    folder = killed(kill_torchrun, packed, tmp_path / "killed")
    resumes_at = f"resumed at step {last_step(folder)}: 3 x 8 samples on each of 2"
    assert resumes_at in run_on(2, folder)
    assert last_step(whole) == last_step(folder) == NUM_EPOCHS * EPOCH_LEN
    expected, found = parameters(whole), parameters(folder)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert_each_sample_came_once_an_epoch(folder)


def test_a_training_killed_on_two_and_on_three_processes_ends_on_one_with_each_sample_once(
    packed: Path, tmp_path: Path
) -> None:
    first = killed(kill_ranks(2), packed, tmp_path / "two")
    folder = killed(kill_ranks(3), first, tmp_path / "three")
    resumes_at = f"resumed at step {last_step(folder)}: 6 x 8 samples on each of 1"
    assert resumes_at in run_on(1, folder)
    assert last_step(folder) == NUM_EPOCHS * EPOCH_LEN
    assert_each_sample_came_once_an_epoch(folder)


@pytest.mark.parametrize(
    "num_processes",
    [3, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2, 4, 5, 6, 8))],
)
def test_the_gradient_of_a_step_does_not_depend_on_the_number_of_processes(
    num_processes: int, packed: Path, tmp_path: Path
) -> None:
    folder = copied(packed, tmp_path / "folder")
    script = folder / "train.py"
    script.write_text(substituted(script.read_text(), SAVING_GRADIENTS))
    run_on(num_processes, folder)
    global_batch = GLOBAL_BATCH // num_processes * num_processes  # 45 on 5
    num_steps = -(-NUM_SAMPLES // global_batch)
    assert len(list(folder.glob("*.grad"))) == num_steps * num_processes
    for step in (0, 1, num_steps - 1):
        for rank in range(num_processes):
            saved = torch.load(folder / f"{num_processes}-{rank}-{step}.grad")
            expected = gradients_of(folder, [weights for weights, _ in saved], step, global_batch)
            for (_, found), exact in zip(saved, expected, strict=True):
                torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-6)


def gradients_of(folder: Path, weights: list[Any], step: int, global_batch: int) -> list[Any]:
    """Return the gradients of the mean loss over a step's samples, in double precision."""
    order = feedline.Shuffled(num_samples=NUM_SAMPLES, seed=7)
    epoch = feedline.SamplePlan(order=order, tail="even").segment(
        world_size=1, batch_size=global_batch
    )
    batch = epoch.batch(rank=0, number=step)
    samples = feedline.open(folder / "packed", split="train")[batch.indices[batch.is_real]]
    assert len(samples["x"]) == min(global_batch, NUM_SAMPLES - step * global_batch)
    model = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    model.double()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), weights, strict=True):
            parameter.copy_(value)
    outputs = model(torch.from_numpy(samples["x"])[:, None])[:, 0]
    (outputs - torch.from_numpy(samples["y"])).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]


def test_the_readme_shows_what_its_commands_print(tmp_path: Path) -> None:
    printed = walk_to_training(tmp_path, {})
    shown = [block.text for block in blocks_of_path() if block.language == "text"]
    assert printed == shown[0]


def commands() -> Iterator[str]:
    for block in blocks_of_path():
        if is_training(block):
            yield from block.text.splitlines()


@pytest.mark.slow
def test_the_commands_of_the_readme_end_with_an_audit_that_finds_each_sample_once(
    packed: Path, tmp_path: Path
) -> None:
    first, wait, kill, second, audit = commands()
    assert first == "torchrun --standalone --nproc-per-node 2 train.py &"
    assert wait == "until test -e checkpoint.pt; do sleep 1; done"
    assert kill == "pkill -9 -f train.py"  # Here by process id: others may run such a script.
    folder = killed(kill_torchrun, packed, tmp_path)
    assert second == "torchrun --standalone --nproc-per-node 3 train.py"
    with torchrun(folder / "train.py", 3, folder=folder) as job:
        resumes_at = f"resumed at step {last_step(folder)}: 2 x 8 samples on each of 3"
        assert resumes_at in finish(job)
    with contextlib.chdir(folder):
        BlockRunner(README, folder).run(Block("sh", audit, 0))
    assert_each_sample_came_once_an_epoch(folder)


@pytest.mark.slow
def test_the_script_runs_without_torchrun(packed: Path, tmp_path: Path) -> None:
    folder = copied(packed, tmp_path / "folder")
    with python(folder / "train.py", folder=folder) as job:
        assert "fresh at step 0: 6 x 8 samples on each of 1" in finish(job)
    assert last_step(folder) == NUM_EPOCHS * EPOCH_LEN
    assert_each_sample_came_once_an_epoch(folder)
