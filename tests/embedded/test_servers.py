"""What one embedded server promises: it serves, it forgets nothing it should keep, it can be broken on purpose."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from agentrun.embedded import Embedded, EmbeddedError, EmbeddedMissing, EmbeddedPostgres, EmbeddedRedis, StopMode
from agentrun.embedded import programs as programs_module


def one(url: str, query: str) -> object:
    with psycopg.connect(url, connect_timeout=10) as connection:
        row = connection.execute(query).fetchone()  # type: ignore[arg-type]
        return row[0] if row else None


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, connect_timeout=10) as connection:
        for statement in statements:
            connection.execute(statement)  # type: ignore[arg-type]


@pytest.fixture
def client(servers: Embedded):
    servers.redis.start()
    with redis.from_url(servers.broker_url) as client:
        yield client


def test_both_serve_at_their_urls(servers: Embedded, client: redis.Redis) -> None:
    assert one(servers.database_url, "SELECT current_setting('server_version_num')::int / 10000") == 18
    assert one(servers.database_url, "SELECT current_database()") == "agentrun"
    assert client.ping()


def test_nobody_gets_in_without_the_password(servers: Embedded) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(servers.database_url.replace(servers.database_url.split(":")[2].split("@")[0], "wrong"))
    stranger = redis.Redis(port=servers.redis.port, retry=Retry(NoBackoff(), 0))
    with stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()


def test_a_commit_is_never_lost_to_the_settings(servers: Embedded, client: redis.Redis) -> None:
    assert one(servers.database_url, "SHOW synchronous_commit") == "on"
    assert one(servers.database_url, "SHOW max_connections") == "200"
    assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    assert client.config_get("appendonly") == {"appendonly": "no"}


def test_the_terminal_cannot_interrupt_the_servers(servers: Embedded) -> None:
    pids = [servers.postgres.start().pid, servers.redis.start().pid]
    assert all(pid and os.getsid(pid) == pid for pid in pids)


@pytest.mark.parametrize("end", ["fast", "immediate", "kill"])
def test_committed_rows_survive_every_end_of_postgres(servers: Embedded, end: str) -> None:
    url = servers.database_url
    execute(url, "DROP TABLE IF EXISTS kept", "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (1)")
    first = servers.postgres.pid
    if end == "kill":
        servers.postgres.kill()
        assert servers.postgres.pid is None
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
        servers.postgres.start()
    else:
        servers.postgres.restart(StopMode[end.upper()])
    assert servers.postgres.pid != first
    assert servers.database_url == url
    assert one(url, "SELECT n FROM kept") == 1


def test_an_immediate_stop_is_a_crash_to_connected_clients(servers: Embedded) -> None:
    with psycopg.connect(servers.database_url) as connection:
        connection.execute("SELECT 1")
        servers.postgres.restart(StopMode.IMMEDIATE)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_an_ephemeral_redis_forgets_at_a_stop(servers: Embedded, client: redis.Redis) -> None:
    url = servers.broker_url
    client.set("key", "value")
    servers.redis.restart()
    assert servers.broker_url == url
    assert client.get("key") is None


def test_an_ephemeral_redis_remembers_what_was_saved_once(servers: Embedded, client: redis.Redis) -> None:
    client.set("key", "value")
    servers.redis.save()
    servers.redis.stop()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    servers.redis.start()
    assert client.get("key") == b"value"
    servers.redis.kill()
    servers.redis.start()
    assert client.get("key") is None


def test_flushall_forgets_all_databases(servers: Embedded, client: redis.Redis) -> None:
    client.set("key", "value")
    with redis.from_url(servers.broker_url, db=3) as other:
        other.set("key", "value")
        servers.redis.flushall()
        assert client.get("key") is other.get("key") is None


def test_a_paused_server_accepts_and_never_answers(servers: Embedded) -> None:
    with psycopg.connect(servers.database_url) as connection:
        servers.postgres.pause()
        servers.redis.pause()
        answered = threading.Event()
        waiting = threading.Thread(target=lambda: (connection.execute("SELECT 1"), answered.set()))
        waiting.start()
        with redis.from_url(servers.broker_url, socket_timeout=0.3) as client, pytest.raises(redis.TimeoutError):
            client.ping()
        assert not answered.is_set()
        servers.redis.resume()
        servers.postgres.resume()
        waiting.join(10)
        assert answered.is_set()


def test_a_backend_that_ends_while_it_is_signalled_disturbs_nothing(
    servers: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait(20)
    with monkeypatch.context() as patched:
        patched.setattr(servers.postgres, "_backends", lambda: [ended.pid])
        servers.postgres.pause()
        servers.postgres.resume()
    assert one(servers.database_url, "SELECT 1") == 1


def test_instances_do_not_know_of_each_other(servers: Embedded) -> None:
    with Embedded.temporary(postgres_settings={"max_connections": "20"}) as others:
        assert others.postgres.port != servers.postgres.port
        execute(others.database_url, "CREATE TABLE elsewhere ()")
        assert one(others.database_url, "SHOW max_connections") == "20"
        assert one(servers.database_url, "SELECT to_regclass('elsewhere')") is None


def test_a_taken_port_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = EmbeddedRedis(tmp_path / "redis", port=port, ephemeral=True)
        with pytest.raises(EmbeddedError, match=f"port {port} on 127.0.0.1 is in use"), server:
            pass
        assert server.pid is None


def test_a_server_that_cannot_start_shows_its_log(servers: Embedded) -> None:
    broken = EmbeddedPostgres(
        programs_module.scratch_path("broken"), ephemeral=True, settings={"shared_buffers": "plenty"}
    )
    with pytest.raises(EmbeddedError, match="invalid value for parameter"):
        broken.start()
    broken.close()
    assert not broken.directory.exists()


@pytest.mark.parametrize(
    ("server", "variable"), [(EmbeddedPostgres, "AGENTRUN_DATABASE_URL"), (EmbeddedRedis, "AGENTRUN_BROKER_URL")]
)
def test_a_missing_package_names_the_extra_and_the_variable(
    server: type[EmbeddedPostgres | EmbeddedRedis], variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedMissing, match=rf"agentrun\[embedded\].*{variable}"):
        server(tmp_path)
