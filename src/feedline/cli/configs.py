"""How the commands read run configs: errors name the file before the key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from feedline.errors import FeedlineError, InvalidValueError

if TYPE_CHECKING:
    from feedline.runs.run_config import RunConfig

__all__ = ["load_config"]


def load_config(path: Path) -> RunConfig:
    """Return the run config in a file, or raise an error that begins with the file."""
    from feedline.runs.run_config import RunConfig

    try:
        return RunConfig.load(path)
    except FeedlineError as error:
        message = str(error)
        if message.startswith(f"{path}: "):
            raise
        raise InvalidValueError(f"{path}: {message}") from None
    except OverflowError as error:
        raise InvalidValueError(f"{path}: a number in it is too large ({error})") from None
