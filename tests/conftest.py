"""Hypothesis profiles, chosen by FEEDLINE_HYPOTHESIS_PROFILE, and the seed of the test order."""

import gc
import os
import tempfile
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from foreign import remove_copies
from forked import stop_servers
from leftovers import find_leftovers
from processes import wait_for_children

settings.register_profile(
    "default",
    max_examples=25,
    # Time says more about the machine than about the code, so neither a slow example nor a slow
    # start fails a test.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=False,
    # No database: what a test does depends on its seed alone. The blob reproduces a failure.
    database=None,
    print_blob=True,
)
settings.register_profile("quick", settings.get_profile("default"), max_examples=5)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=1000)
settings.load_profile(os.environ.get("FEEDLINE_HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from the tests and all that they import.

    These stay until the end. To look through them takes a third of a second each time, and copies
    them in every process that is forked from this one.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Name the seed of a run that failed: `-q` hides the header that has it."""
    seed = getattr(config.option, "randomly_seed", None)
    if exitstatus and seed is not None:
        terminalreporter.write_line(f"repeat this run with --randomly-seed={seed}")


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail if the tests leave processes or temporary files behind."""
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        # Set, and not looked up: a worker that is killed while it looks leaves a file.
        patch.setattr(tempfile, "tempdir", str(folder))
        yield
    stop_servers()
    remove_copies()
    # An error that was caught may hold a loader with its workers.
    gc.collect()
    assert not (left := wait_for_children()), f"processes are left: {left}"
    left_files = find_leftovers(folder)
    assert not left_files, f"files are left in the folder for temporary ones: {left_files}"
