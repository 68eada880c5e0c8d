"""Processes of pytest-xdist that share given servers do not share a Redis database."""

from __future__ import annotations

import pytest

from agentrun.testing.servers import BROKER_VARIABLE, _own


@pytest.mark.parametrize(("process", "database"), [(None, 3), ("gw0", 3), ("gw2", 5)])
def test_each_process_of_xdist_has_a_redis_database_of_its_own(
    monkeypatch: pytest.MonkeyPatch, process: str | None, database: int
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    if process is not None:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", process)
    assert _own("redis://:word@host:6379/3") == f"redis://:word@host:6379/{database}"


def test_a_broker_that_cannot_be_divided_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    with pytest.raises(ValueError, match=BROKER_VARIABLE):
        _own("amqp://host")
