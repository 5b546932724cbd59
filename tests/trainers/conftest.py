"""The folders of trainers are collected only where `FEEDLINE_TRAINER` names them.

Their frameworks are in environments of their own, and some of them, such as jax, in that of the
other tests too; `make test-trainers` runs them.
"""

import os
from pathlib import Path

_HERE = Path(__file__).parent
_CHOSEN = os.environ.get("FEEDLINE_TRAINER")

collect_ignore = [
    path.parent.name for path in _HERE.glob("*/job.py") if path.parent.name != _CHOSEN
]
if _CHOSEN is None:
    collect_ignore.append("test_pages.py")
