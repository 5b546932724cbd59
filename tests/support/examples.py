"""How many examples hypothesis tries where one takes long."""

from __future__ import annotations

from hypothesis import settings


def few_examples(share: float) -> settings:
    """A share of the examples of the profile; all three profiles have their proportions."""
    return settings(max_examples=max(3, round(settings().max_examples * share)))
