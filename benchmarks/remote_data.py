"""The sizes of `remote.py`: more rows than `formats.py` has, or few with `--try`."""

from __future__ import annotations

import os
import sys

IS_TRIAL = "--try" in sys.argv
# Processes that are started, the peers' writers among them, have the same.
os.environ.setdefault("FEEDLINE_BENCH_ROWS", "20000" if IS_TRIAL else "262144")

from format_data import BATCH_SIZE, NUM_ROWS, ROW_BYTES, SHARD_BYTES, row  # noqa: E402

__all__ = ["BATCH_SIZE", "IS_TRIAL", "NUM_ROWS", "ROW_BYTES", "SHARD_BYTES", "row"]
