"""Code that runs in a process of its own, with little memory and little time."""

from __future__ import annotations

from pathlib import Path

from forked import forked_run
from processes import SUPPORT, environment

_PRELUDE = """
import resource, sys, warnings
warnings.simplefilter("ignore")
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
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
    done = forked_run("-c", code, path, env=environment(SUPPORT), timeout=seconds)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    return done.stdout
