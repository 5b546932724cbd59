"""What every refusal of bad input has in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from feedline.errors import FeedlineError

__all__ = ["refusal"]


def refusal(call: Callable[[], Any]) -> str:
    """Return the message of the one error that the call must raise."""
    with pytest.raises(FeedlineError) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    # Nothing went wrong on the way that a user would have to read as well.
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return str(caught.value)
