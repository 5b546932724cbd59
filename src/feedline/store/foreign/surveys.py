"""What was found by looking through all of some data, kept for the next time."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from feedline.store.writing import open_whole

Found = TypeVar("Found")

# Less than this is looked through again.
_LEAST_BYTES = 2**26


def kept_survey(
    what: str, files: Sequence[Path], find: Callable[[], Any], use: Callable[[Any], Found]
) -> Found:
    """Return what `use` makes of what `find` found in some files, now or at an earlier time.

    It is kept as JSON in the folder `$FEEDLINE_CACHE`, by default `~/.cache/feedline`, under the
    names, sizes and times of the files. Of small data nothing is kept.

    Args:
        what: What is looked for: another description is another survey.
        files: The files.
        find: Looks through them; returns JSON values.
        use: Takes these; raises `ValueError`, `TypeError` or `LookupError` if they do not fit.
    """
    found = [_identity(path) for path in files]
    if sum(num_bytes for _, num_bytes, _ in found) < _LEAST_BYTES:
        return use(find())
    digest = hashlib.blake2b(what.encode(), digest_size=16, person=b"feedline.survey1")
    for name, num_bytes, version in found:
        digest.update(f"\\0{name}\\0{num_bytes}\\0{version}".encode())
    path = _folder() / f"survey-{digest.hexdigest()}.json"
    with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
        return use(json.loads(path.read_bytes())["found"])
    result = find()
    # Where nothing can be written, the next time takes as long as this one.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_whole(path) as file:
            file.write(json.dumps({"found": result}).encode())
    return use(result)


def _identity(path: Path) -> tuple[str, int, object]:
    """Return the name and the size of a file, and what changes with its content."""
    told: tuple[str, int, object] | None = getattr(path, "identity", None)
    if told is not None:
        return told
    status = path.stat()
    return str(path.resolve()), status.st_size, status.st_mtime_ns


def _folder() -> Path:
    given = os.environ.get("FEEDLINE_CACHE")
    return Path(given) if given else Path(os.path.expanduser("~")) / ".cache" / "feedline"
