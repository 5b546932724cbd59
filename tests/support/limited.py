"""Code that runs in a process of its own, with little memory and little time."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from processes import SUPPORT, environment

_PRELUDE = """
import resource, sys
from feedline.errors import FeedlineError
import numpy
{imports}
from pathlib import Path
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + {more}, used + {more}))
path = Path(sys.argv[1])
try:
    print("result:", {call})
except FeedlineError as error:
    print("refused:", type(error).__name__, error)
# Not `ru_maxrss`, which counts what the process that started this one had.
lines = Path("/proc/self/status").read_text().splitlines()
print("peak:", next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")))
"""


def run_limited(
    call: str, path: Path, *, imports: str, megabytes: int = 300, seconds: float = 60
) -> str:
    """Return what a call prints that is given `path` and may take this much memory and time.

    It is refused by an error of Feedline, or has a result; all else fails.
    """
    code = _PRELUDE.format(imports=imports, call=call, more=megabytes * 2**20)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(path)],
        env=environment(SUPPORT),
        capture_output=True,
        text=True,
        timeout=seconds,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (60, 60)),
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    return done.stdout
