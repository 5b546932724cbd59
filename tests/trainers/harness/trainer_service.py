"""What the jobs of a trainer share while its stories are told, such as a cluster.

It is a script in the folder of the trainer. It prints one line of JSON, the environment variables
of the jobs, once it is ready; and it ends when its input does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from known_trainers import Trainer
from processes import SUPPORT, environment, kill_job
from trainer_runner import session_of

_HARNESS = Path(__file__).parent
_SECONDS_TO_END = 60.0


@contextmanager
def serving(trainer: Trainer) -> Iterator[Trainer]:
    """Start what the jobs of a trainer share, and yield the trainer whose jobs know of it.

    Args:
        trainer: The trainer; if it has no service, it is yielded as it is.
    """
    if trainer.service is None:
        yield trainer
        return
    with tempfile.TemporaryDirectory(prefix="feedline-") as temporary:
        variables = environment(SUPPORT, _HARNESS) | trainer.variables | {"TMPDIR": temporary}
        service = subprocess.Popen(
            [sys.executable, str(trainer.service)],
            cwd=temporary,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert service.stdin is not None
        assert service.stdout is not None
        try:
            # What it starts may print too.
            lines = iter(service.stdout.readline, "")
            told = next((line for line in lines if line.startswith("{")), None)
            if told is None:
                raise RuntimeError(f"{trainer.service} has ended with {service.wait()}")
            about = {**trainer.about, "variables": trainer.variables | json.loads(told)}
            yield replace(trainer, about=about)
            service.stdin.close()
            code = service.wait(_SECONDS_TO_END)
            if code:
                raise RuntimeError(f"{trainer.service} has ended with {code}")
        finally:
            # What it has started stays in its session when it has ended itself.
            left = session_of(service.pid)
            kill_job(service)
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            service.stdin.close()
            service.stdout.close()
