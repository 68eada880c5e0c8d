"""A module of bodies that cannot be imported."""

raise RuntimeError("broken on purpose")
