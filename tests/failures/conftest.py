"""A misbehaving provider for the tests of this folder, and users' entries that do not outlive a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentrun.core import classifying
from tests.failures.misbehaving import Provider


@pytest.fixture(scope="session")
def provider() -> Iterator[Provider]:
    """The one server of these tests; what it does is in the path."""
    provider = Provider()
    yield provider
    provider.close()


@pytest.fixture(autouse=True)
def _own_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test adds by `classify_as` is forgotten after it."""
    monkeypatch.setattr(classifying, "_registered", {})
