"""Tests that import JAX are collected only in a process of their own; see `test_own_process.py`.

Once it is imported, forking is a warning, and other tests fork.
"""

import os

collect_ignore = ["test_own_process.py", "test_processes.py"]
if "FEEDLINE_JAX_ALONE" not in os.environ:
    collect_ignore = ["test_loader.py", "test_mesh.py"]
