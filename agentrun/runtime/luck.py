"""Where chance comes from: jitter only, so that a thousand retries do not come back in the same instant."""

from __future__ import annotations

import random


def luck() -> float:
    """A number in [0, 1)."""
    return random.random()  # noqa: S311 - nothing is kept secret by it
