from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import models
from pydantic_ai.models.test import TestModel

from agentrun import AsyncClient, Client, Settings
from agentrun.broker import CeleryPublisher
from agentrun.runtime import hooks
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import registry
from agentrun.testing import environment
from tests.docs.serving import Serving


@pytest.fixture
def as_a_reader(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder to work in, with the environment that the pages presume: the URLs are set, and a model answers."""
    for name, value in environment.variables(settings).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OPENAI_API_KEY", "no-key-is-needed-for-a-test-model")
    monkeypatch.setattr(models, "infer_model", lambda *_, **__: TestModel())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(hooks, "_hooks", {occasion: dict(known) for occasion, known in hooks._hooks.items()})
    monkeypatch.setattr(registry, "_kinds", {})
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def served(make_engine: Callable[..., Engine], settings: Settings) -> Iterator[Engine]:
    """Somebody executes what is enqueued."""
    with contextlib.closing(CeleryPublisher(settings)) as publisher:
        engine = make_engine(publisher=publisher)
        with Serving(engine):
            yield engine


@pytest.fixture
def close_clients() -> Iterator[Callable[[dict[str, Any]], None]]:
    """Closes the clients that a page leaves open, as a script does by ending."""
    namespaces: list[dict[str, Any]] = []
    yield namespaces.append
    for namespace in namespaces:
        for value in namespace.values():
            if isinstance(value, Client):
                value.close()
            elif isinstance(value, AsyncClient):
                value._client.close()
