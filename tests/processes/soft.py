"""How long the soft shutdown of `soft_app` takes."""

SOFT_SECONDS = 2.0
