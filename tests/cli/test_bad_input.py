"""Bad input to every command: exit code 2, one line that names what is wrong, and no trace."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from cli_runs import CONFIGS, check_refused, invoke, run, run_json, write_config
from feedline.cli.commands import feedline
from feedline.runs import ConsumptionLog
from feedline.runs.run_config import RunConfig
from feedline.steps.run_state import RunState
from feedline.store import pack

SAMPLES = CONFIGS["samples"]
GARBAGE = bytes(range(256)) * 4

CONFIGS_THAT_ARE_WRONG: dict[str, dict[str, Any]] = {
    "key": {**SAMPLES, "rank": 4},
    "data-key": {"batch_size": 1, "data": {"sampels": 1}},
    "source-key": {
        "batch_size": 1,
        "data": {"mixture": [{"name": "a", "samples": 1}, {"name": "b", "wieght": 1}]},
    },
    "zero-ranks": {**SAMPLES, "ranks": 0},
    "negative-batch": {**SAMPLES, "batch_size": -8},
    "huge-samples": {**SAMPLES, "data": {"samples": 10**30}},
    "text-samples": {**SAMPLES, "data": {"samples": "1e12"}},
    "no-data": {"batch_size": 1},
    "two-kinds": {"batch_size": 1, "data": {"samples": 1, "folder": "packed"}},
    "no-folder": {"batch_size": 1, "data": {"folder": "nowhere"}},
    "file-folder": {"batch_size": 1, "data": {"folder": "run.yaml"}},
    "bad-folder": {"batch_size": 1, "data": {"folder": "damaged"}},
    "no-lengths": {"batch_size": 1, "data": {"lengths": "none.npy"}},
    "bad-lengths": {"batch_size": 1, "data": {"lengths": "garbage.pt"}},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of good and bad files, which no command may change."""
    place = tmp_path_factory.mktemp("place")
    write_config(place / "run.yaml", SAMPLES)
    write_config(place / "mixture.yaml", CONFIGS["mixture"])
    for name, config in CONFIGS_THAT_ARE_WRONG.items():
        write_config(place / f"{name}.yaml", config)
    (place / "broken.yaml").write_text("ranks: [\n")
    (place / "list.yaml").write_text("- 1\n")
    plans = {kind: RunConfig.from_dict(CONFIGS[kind]).plan for kind in ("samples", "chunks")}
    cursors = {
        kind: plan.segment(world_size=4, batch_size=8).cursor(5) for kind, plan in plans.items()
    }
    cursors["samples"].save(place / "cursor.json")
    cursors["chunks"].save(place / "other.json")
    whole = cursors["samples"].to_json()
    (place / "cut.json").write_text(whole[: len(whole) // 2])
    (place / "altered.json").write_text(whole.replace("[4,8,5]", "[4,8,-5]"))
    clock = RunState(step=5, epoch=1, num_batches=3).to_dict()
    (place / "clock.json").write_text(json.dumps(clock))
    (place / "clockwork.json").write_text(json.dumps({**clock, "step": "x"}))
    (place / "zip.pt").write_bytes(b"PK\x03\x04" + GARBAGE)
    (place / "a.csv").write_text("x\n1\n2\n")
    for name in ("garbage.pt", "garbage.parquet", "garbage.npy", "garbage.csv", "garbage.h5ad"):
        (place / name).write_bytes(GARBAGE)
    for name in ("empty.yaml", "empty.json", "empty.csv", "empty.log", "empty.jsonl"):
        (place / name).touch()
    pack({"x": np.arange(20)}, place / "packed", chunk_samples=10)
    for name in ("damaged", "damaged.zarr", "nothing"):
        (place / name).mkdir()
    (place / "damaged" / "metadata.json").write_text("{")
    (place / "damaged.zarr" / "zarr.json").write_text("{")
    _write_logs(place)
    return place


def _write_logs(place: Path) -> None:
    for name, info in (("logs", {"num_samples": 4}), ("others", {"num_samples": 5}), ("bare", {})):
        path = place / name / "rank0.log"
        with ConsumptionLog(path, rank=0, world_size=1, run=name, info=info) as log:
            log.event("start")
            log.record(epoch=0, step=0, batch=0, ids=[0, 1, 2, 3])
            log.event("epoch_end", epoch=0, step=0)
    content = bytearray((place / "logs" / "rank0.log").read_bytes())
    content[-60] ^= 1
    (place / "damaged.log").write_bytes(content)


# Each line is a command, and what its error must name.
REFUSED = {
    # Run configs, which plan, where, quality, inspect and audit read alike.
    "plan none.yaml": "none.yaml: does not exist",
    "where none.yaml --step 0": "none.yaml: does not exist",
    "quality none.yaml": "none.yaml: does not exist",
    "inspect cursor.json --against none.yaml": "none.yaml: does not exist",
    "audit logs --config none.yaml": "none.yaml: does not exist",
    "plan nothing": "nothing: must be a file",
    "quality packed": "packed: must be a file",
    "where nothing --index 0": "nothing: must be a file",
    "plan key.yaml": "rank is not a key; did you mean ranks?",
    "plan data-key.yaml": "data.sampels is not a key; did you mean data.samples?",
    "where source-key.yaml --step 0": "data.mixture[1].wieght is not a key; did you mean data.",
    "quality key.yaml": "rank is not a key; did you mean ranks?",
    "inspect cursor.json --against key.yaml": "rank is not a key; did you mean ranks?",
    "audit logs --config data-key.yaml": "data.sampels is not a key",
    "plan broken.yaml": "broken.yaml: is not YAML",
    "quality broken.yaml": "broken.yaml: is not YAML",
    "plan empty.yaml": "the config must be a mapping",
    "plan list.yaml": "the config must be a mapping",
    "plan garbage.pt": "garbage.pt: ",
    "where garbage.pt --step 0": "garbage.pt: ",
    "plan zero-ranks.yaml": "ranks=0 must be at least 1",
    "where zero-ranks.yaml --index 0": "ranks=0 must be at least 1",
    "plan negative-batch.yaml": "batch_size=-8 must be at least 1",
    "plan huge-samples.yaml": "data.samples=1000000000000000000000000000000 must be at most",
    "plan text-samples.yaml": "data.samples='1e12' must be an integer",
    "plan no-data.yaml": "data is missing",
    "plan two-kinds.yaml": "data.samples and data.folder",
    "plan no-folder.yaml": "nowhere/metadata.json: does not exist",
    "plan file-folder.yaml": "run.yaml",
    "plan bad-folder.yaml": "damaged/metadata.json: ",
    "plan no-lengths.yaml": "none.npy: does not exist",
    "plan bad-lengths.yaml": "garbage.pt: begins with",
    # Sizes and places.
    "plan run.yaml --ranks 0": "--ranks=0 must be at least 1",
    "plan run.yaml --ranks -4": "--ranks=-4 must be at least 1",
    "plan run.yaml --ranks 99999999999999999999": "--ranks=99999999999999999999 must be at most ",
    "plan run.yaml --batch-size 0": "--batch-size=0 must be at least 1",
    "plan run.yaml --batch-size=9999": "num_batches=0 must be at least 1",
    "plan run.yaml --epoch -1": "--epoch=-1",
    "plan run.yaml --epoch one": "'--epoch': 'one' is not a valid integer",
    "plan run.yaml --resize 4,0": "--resize='4,0' must be two or more numbers of ranks",
    "plan run.yaml --resize 4": "--resize='4' must be two or more numbers of ranks",
    "plan run.yaml --resize four": "--resize='four' must be two or more numbers of ranks",
    "plan run.yaml --resize 4,99999999999": "--resize='4,99999999999' must be",
    "where run.yaml": "exactly one of --step and --index",
    "where run.yaml --step 31": "--step=31 must be in [0, 30]",
    "where run.yaml --step -1": "--step=-1",
    "where run.yaml --step 99999999999999999999999": "--step=99999999999999999999999",
    "where run.yaml --step 0 --rank 4": "--rank=4 must be in [0, 3]",
    "where run.yaml --step 0 --rank -1": "--rank=-1 must be in [0, 3]",
    "where run.yaml --step 0 --ranks 0": "--ranks=0 must be at least 1",
    "where run.yaml --index 1003": "--index=1003",
    "where run.yaml --index -1": "--index=-1",
    "where run.yaml --index 99999999999999999999999": "--index=99999999999999999999999",
    "where run.yaml --index 0 --epoch -1": "--epoch=-1",
    "where mixture.yaml --index 0 --source film": "--source='film' must be one of web, books",
    "where mixture.yaml --index 100 --source books": "--index=100 must be in [0, 99]",
    "quality run.yaml --epoch -1": "--epoch=-1",
    # Checkpoints.
    "inspect none.json": "none.json: does not exist",
    "inspect nothing": "nothing: is not a folder of chunks",
    "inspect empty.json": "empty.json: is neither JSON nor",
    "inspect cut.json": "cut.json: is neither JSON nor",
    "inspect altered.json": "altered.json: ",
    "inspect clockwork.json": "clockwork.json: ",
    "inspect garbage.pt": "garbage.pt: is neither JSON nor",
    "inspect zip.pt": "zip.pt: is not a torch.save archive, or is damaged",
    "inspect run.yaml": "run.yaml: contains no cursor",
    "inspect damaged": "damaged/metadata.json: ",
    "inspect damaged.zarr": "damaged.zarr",
    "inspect damaged.log": "damaged.log: the record at byte",
    "inspect packed --against run.yaml": "packed: contains no cursor",
    "inspect logs --against run.yaml": "logs: contains no cursor",
    "inspect clock.json --against run.yaml": "clock.json: contains no cursor",
    "where run.yaml --index 0 --checkpoint none.json": "none.json: does not exist",
    "where run.yaml --index 0 --checkpoint packed": "packed: must be a file",
    "where run.yaml --index 0 --checkpoint garbage.pt": "garbage.pt: is neither JSON nor",
    "where run.yaml --step 0 --checkpoint cut.json": "cut.json: is neither JSON nor",
    "where run.yaml --step 0 --checkpoint clock.json": "clock.json: contains no cursor",
    "where run.yaml --step 0 --checkpoint other.json": "other.json: the cursor belongs to another",
    # Logs.
    "audit none": "none: does not exist; pass a log",
    "audit nothing": "nothing: contains no log",
    "audit run.yaml": "run.yaml: does not begin like a log",
    "audit empty.log": "empty.log: does not begin like a log",
    "audit garbage.pt": "garbage.pt: does not begin like a log",
    "audit damaged.log": "damaged.log: the record at byte",
    "audit logs damaged.log": "damaged.log: the record at byte",
    "audit logs others": "must be {'': 4}, as in the other logs",
    "audit bare": "--samples is required",
    "audit bare --samples 0": "--samples=0 must be at least 1",
    "audit bare --samples -5": "--samples=-5 must be at least 1",
    "audit bare --samples 99999999999999999999": "--samples=99999999999999999999 must be at most ",
    "audit logs --samples 4 --config run.yaml": "--samples=4 cannot be used with --config",
    "audit logs --config run.yaml": "run.yaml: the config's data has 1003 samples but must have 4",
    # Folders to check and to write.
    "verify none": "none/metadata.json: does not exist",
    "verify run.yaml": "run.yaml: is a file but must be a folder",
    "verify nothing": "nothing/metadata.json: does not exist",
    "verify damaged": "damaged/metadata.json: ",
    "verify packed --threads 0": "--threads=0",
    "bench-data none": "none: does not exist",
    "bench-data nothing": "nothing",
    "pack none.csv out": "none.csv",
    "pack run.yaml out": "run.yaml",
    "pack nothing out": "nothing",
    "pack empty.csv out": "empty.csv",
    "pack empty.jsonl out": "empty.jsonl",
    "pack garbage.csv out": "column name",
    "pack garbage.npy out": "garbage.npy",
    "pack garbage.parquet out": "garbage.parquet",
    "pack garbage.h5ad out": "garbage.h5ad",
    "pack damaged.zarr out": "damaged.zarr",
    "pack a.csv packed": "packed",
    "pack a.csv run.yaml": "run.yaml",
    "pack a.csv run.yaml/out": "run.yaml",
    "pack a.csv out --chunk-samples 0": "--chunk-samples=0",
    "pack a.csv out --chunk-samples -3": "--chunk-samples=-3",
    "pack a.csv out --chunk-bytes 64apples": "'64apples' must be a number of bytes",
    "pack a.csv out --memory 5": "--memory=5",
    "pack a.csv out --threads 0": "--threads=0",
    "pack a.csv out --split 1.5": "--split=1.5",
    "pack a.csv out --split train=x": "'train=x' must be like",
    "pack a.csv out --format zip": "'--format': 'zip' is not one of",
    "pack a.csv out --column y": "'y'",
    # The options and commands themselves.
    "plan": "Missing argument 'CONFIG'",
    "audit": "Missing argument 'LOG_OR_FOLDER...'",
    "inspect": "Missing argument 'FILE'",
    "verify": "Missing argument 'FOLDER'",
    "pack a.csv": "Missing argument",
    "quality run.yaml more.yaml": "unexpected extra argument",
    "plan run.yaml --rnaks 4": "--rnaks",
    "where run.yaml --step": "--step",
    "audit logs --json=yes": "--json",
    "completion tcsh": "'tcsh' is not one of 'bash', 'zsh', 'fish'",
    "unpack": "'unpack'",
    "--jsno": "--jsno",
}


# Those that a fresh process is started for: of every command, each kind of bad input.
AS_PROCESSES = [
    *("plan none.yaml", "plan key.yaml", "plan broken.yaml", "plan garbage.pt"),
    *("plan zero-ranks.yaml", "plan run.yaml --ranks 0", "plan run.yaml --resize 4,0"),
    *("plan run.yaml --rnaks 4", "where none.yaml --step 0", "where source-key.yaml --step 0"),
    *("where run.yaml --step 31", "where run.yaml --step 0 --ranks 0"),
    *("where run.yaml --step 0 --checkpoint cut.json", "quality none.yaml", "quality key.yaml"),
    *("where run.yaml --step 0 --checkpoint other.json", "quality run.yaml --epoch -1"),
    *("inspect none.json", "inspect nothing", "inspect cut.json", "inspect garbage.pt"),
    *("inspect zip.pt", "inspect damaged.log", "inspect damaged.zarr", "audit none"),
    *("inspect cursor.json --against key.yaml", "audit garbage.pt", "audit damaged.log"),
    *("audit bare --samples 0", "audit logs --config run.yaml", "verify none", "verify damaged"),
    *("pack none.csv out", "pack empty.csv out", "pack garbage.parquet out", "pack a.csv packed"),
    *("pack a.csv out --chunk-samples 0", "completion tcsh", "unpack", "bench-data none"),
]


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_one_line_and_exit_code_2(
    place: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(place)
    before = sorted(os.listdir(place))
    check_refused(invoke(*line.split()), REFUSED[line])
    assert sorted(os.listdir(place)) == before


@pytest.mark.parametrize("line", AS_PROCESSES)
def test_bad_input_leaves_no_trace_in_a_process(place: Path, line: str) -> None:
    check_refused(run(*line.split(), cwd=place), REFUSED[line])


@pytest.mark.parametrize("line", ["plan none.yaml", "audit damaged.log", "pack empty.csv out"])
def test_json_changes_nothing_about_it(
    place: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(place)
    check_refused(invoke(*line.split(), "--json"), REFUSED[line])


def test_every_command_is_refused_in_a_process() -> None:
    # Those of others have tests of their own.
    commands = set(feedline.list_commands(click.Context(feedline))) - {"demo", "report"}
    assert commands <= {line.split()[0] for line in AS_PROCESSES}
    assert set(AS_PROCESSES) <= set(REFUSED)


def test_a_cursor_of_another_plan_is_a_finding_and_no_failure(place: Path) -> None:
    found = run_json("inspect", "other.json", "--against", "run.yaml", cwd=place, code=1)
    assert found["fit"]["is_fit"] is False
