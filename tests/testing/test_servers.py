"""Servers of a session: a Redis database for each process of pytest-xdist, and restarts that stop no later test."""

from __future__ import annotations

import psycopg
import pytest

from agentrun.embedded.postgres import StopMode
from agentrun.testing.servers import BROKER_VARIABLE, Servers, _own


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


@pytest.mark.own_servers
@pytest.mark.parametrize("mode", StopMode)
def test_databases_are_made_and_dropped_although_the_server_was_restarted_meanwhile(
    agentrun_servers: Servers, mode: StopMode
) -> None:
    assert agentrun_servers.embedded is not None
    first = agentrun_servers.create_database()
    agentrun_servers.embedded.postgres.restart(mode)
    second = agentrun_servers.create_database()
    with psycopg.connect(second) as connection:
        assert connection.execute("SELECT count(*) FROM agentrun.runs").fetchone() == (0,)
    agentrun_servers.embedded.postgres.restart(mode)
    for url in (first, second):
        agentrun_servers.drop_database(url)
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(url)


def test_a_session_holds_one_connection_however_many_databases_it_makes(shared_servers: Servers) -> None:
    def held() -> int:
        with psycopg.connect(shared_servers.database_url) as connection:
            asked = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid != pg_backend_pid()"
            )
            return (asked.fetchone() or (0,))[0]

    for _ in range(3):
        shared_servers.drop_database(shared_servers.create_database())
    assert held() == 1
