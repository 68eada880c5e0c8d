"""`import agentrun` is quick: what only some processes need is imported by those, on first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

LATER = ("alembic", "celery", "kombu", "redis", "jsonschema", "sqlalchemy.orm", "pydantic_ai", "flower", "starlette")


def imported_by(program: str) -> set[str]:
    command = [sys.executable, "-c", f"{program}; import sys; print('\\n'.join(sys.modules))"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split())


@pytest.mark.parametrize(
    "program",
    [
        "import agentrun",
        "from agentrun import Client; Client(database_url='postgresql://nobody', broker_url='redis://nobody').close()",
    ],
)
def test_a_producer_imports_nothing_that_it_may_never_use(program: str) -> None:
    modules = imported_by(program)
    assert "agentrun.client" in modules
    assert modules.isdisjoint(LATER)


def test_the_check_can_tell() -> None:
    assert not imported_by("import agentrun.broker.app").isdisjoint(LATER)
