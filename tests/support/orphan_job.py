"""A trainer that is killed while its worker starts, exactly before the worker is shielded.

Arguments: how workers are started, and a file that gets the worker's number. The worker kills the
trainer, waits until the system has seen to it, and goes on to start.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from feedline.torch import DataLoader


def kill_trainer(trainer: int, report: str) -> None:
    before = os.getppid()
    unfinished = Path(f"{report}.new")
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(report)
    os.kill(trainer, signal.SIGKILL)
    # A fork server stays for a while: it is not the trainer.
    while before == trainer and os.getppid() == before:
        time.sleep(0.001)


class Samples:
    """Samples that kill the trainer when they come to a worker that is not a fork of it."""

    def __init__(self, report: str) -> None:
        self._trainer = os.getpid()
        self._report = report

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        kill_trainer(self._trainer, self._report)


def main(start_method: str, report: str) -> None:
    loader = DataLoader(
        Samples(report), batch_size=4, num_workers=1, multiprocessing_context=start_method
    )
    if start_method == "fork":
        trainer = os.getpid()
        os.register_at_fork(after_in_child=lambda: kill_trainer(trainer, report))
    for _ in loader:
        time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
