"""What jobs share: their settings, their log, and how they end.

A job may use this, or keep to the protocol in `tests/trainers/README.md` by itself.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

#: How a job ends that refuses what it is asked for.
REFUSED = 3


@dataclass(frozen=True)
class Settings:
    """What a job is told; see `tests/trainers/README.md`."""

    num_samples: int
    num_epochs: int
    batch_size: int
    num_workers: int
    folder: Path
    log: Path
    run: int
    stop_after: int | None
    resume: bool
    shuffle: bool
    seed: int
    num_processes: int

    @classmethod
    def read(cls, path: str) -> Settings:
        """Return the settings in a file."""
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        values |= {name: Path(values[name]) for name in ("folder", "log")}
        return cls(**{field.name: values[field.name] for field in fields(cls)})


class StepLog:
    """The log of one rank: a line for each batch that its training step has received."""

    def __init__(self, settings: Settings, rank: int | None = None) -> None:
        rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self._path = settings.log / f"run{settings.run}-rank{rank}.jsonl"
        self.num_batches = 0

    def write(self, epoch: int, batch: int, ids: Iterable[int], is_real: Any = None) -> None:
        """Append a line; it is on disk when this returns."""
        record: dict[str, Any] = {"epoch": int(epoch), "batch": int(batch)}
        record["ids"] = [int(one) for one in ids]
        record["is_real"] = None if is_real is None else [bool(one) for one in is_real]
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self.num_batches += 1


def run_job(main: Callable[[Settings], None], refusals: tuple[type[Exception], ...] = ()) -> None:
    """Run a job with the settings that the command line names, and end with its exit code."""
    try:
        main(Settings.read(sys.argv[1]))
    except refusals as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        code = REFUSED
    except BaseException:
        traceback.print_exc()
        code = 1
    else:
        code = 0
        leave_group()
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)


def leave_group() -> None:
    """Leave torch's process group, if there is one: at exit, its threads may end the process."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
