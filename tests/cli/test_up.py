"""`agentrun up` as its users have it: real processes, in a folder that is no checkout, on servers of its own."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import psutil
import pytest

from agentrun import Client, Run
from agentrun.embedded import EmbeddedPostgres
from agentrun.embedded.server import free_port, is_free
from agentrun.testing import until
from agentrun.testing.nodes import Guard
from tests.cli.conftest import BODIES, shell

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300)]

START_SECONDS = 60.0


class Upped:
    """A running `agentrun up --json`: what it announced, and its lines so far."""

    def __init__(self, state: Path, guard: Guard, root: Path, *arguments: str, env: Mapping[str, str] = {}) -> None:
        self.env = {
            "AGENTRUN_STATE_DIR": str(state),
            "AGENTRUN_IMPORTS": BODIES,
            "AGENTRUN_LEASE_SECONDS": "3",
            "AGENTRUN_SWEEP_SECONDS": "1",
            "AGENTRUN_BACKOFF_BASE_SECONDS": "0.2",
            # The usual one may be taken between the look at it and Flower's start, by another test's.
            "AGENTRUN_FLOWER_PORT": str(free_port()),
            "PYTHONPATH": str(root),
            **env,
        }
        self.cwd = state.parent
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agentrun.cli", "up", "--json", "-c", "8", *arguments],
            env={**os.environ, **self.env},
            cwd=self.cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        guard.watch(self.process.pid)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert first, "\n".join(self.lines)
        self.said: dict[str, Any] = json.loads(first)

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(line.rstrip() for line in iter(self.process.stderr.readline, ""))

    def tells(self, words: str, timeout: float = START_SECONDS) -> None:
        until(lambda: any(words in line for line in self.lines), timeout, tell=lambda: "\n".join(self.lines[-40:]))

    def client(self) -> Client:
        return Client(database_url=self.said["database_url"], broker_url=self.said["broker_url"])

    def shell(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another shell of the same user, without any URL."""
        return shell(*arguments, env=self.env, cwd=self.cwd)

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def close(self) -> None:
        """Kill what is left of it."""
        if self.process.poll() is None:
            for each in [*self.descendants(), self.process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        self.process.wait(30)
        self._reader.join(30)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def one(self, word: str) -> psutil.Process:
        """The one descendant with this word in its command line."""

        def found() -> list[psutil.Process]:
            return [each for each in self.descendants() if any(word in part for part in each.cmdline())]

        (process,) = until(found, tolerate=psutil.NoSuchProcess)  # PostgreSQL's come and go
        return process


Start = Callable[..., Upped]


@pytest.fixture
def up(tmp_path: Path, process_guard: Guard, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts `agentrun up`; whatever is left of it is killed."""
    with starting(tmp_path / "state", process_guard, request.config.rootpath) as start:
        yield start


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, process_guard: Guard, request: pytest.FixtureRequest
) -> Iterator[Start]:
    """Starts the one that tests share."""
    with starting(tmp_path_factory.mktemp("up") / "state", process_guard, request.config.rootpath) as start:
        yield start


@pytest.fixture(scope="module")
def running() -> list[Upped]:
    """Those that were shared, the last one at the end."""
    return []


@pytest.fixture
def upped(shared: Start, running: list[Upped]) -> Upped:
    """One that runs: the shared one, or another where a test has ended that."""
    if not running or running[-1].process.poll() is not None:
        running.append(shared())
        running[-1].tells("ready.")
    return running[-1]


@contextlib.contextmanager
def starting(state: Path, guard: Guard, root: Path) -> Iterator[Start]:
    started: list[Upped] = []

    def start(*arguments: str, env: Mapping[str, str] = {}) -> Upped:
        started.append(Upped(state, guard, root, *arguments, env=env))
        return started[-1]

    try:
        yield start
    finally:
        for each in started:
            each.close()
            guard.forget(each.process.pid)
        if started and os.geteuid() == 0:  # as root the data may lie elsewhere
            shutil.rmtree(EmbeddedPostgres(state / "postgres").directory, ignore_errors=True)


def get(url: str, credentials: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url)
    if credentials is not None:
        request.add_header("Authorization", f"Basic {base64.b64encode(credentials.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def wakes_in(flower: Mapping[str, str]) -> list[dict[str, Any]]:
    """The rows of Flower's table, as its page asks for them."""
    columns = {"draw": 1, "start": 0, "length": 100, "search[value]": "", "order[0][column]": 0}
    query = urlencode(columns | {"columns[0][data]": "received", "order[0][dir]": "desc"})
    status, text = get(f"{flower['url']}/tasks/datatable?{query}", f"{flower['user']}:{flower['password']}")
    assert status == 200, text
    return [row for row in json.loads(text)["data"] if row["name"] == "agentrun.wake"]


def test_up_executes_what_another_shell_enqueues_and_shows_it_in_flower(upped: Upped) -> None:
    enqueued = upped.shell("enqueue", "render", '{"width": 6, "height": 7}', "--wait", "--json", "--payloads")
    assert enqueued.returncode == 0, enqueued.stderr
    run = json.loads(enqueued.stdout)
    assert (run["status"], run["result"], run["queue"]) == ("completed", 42, "gpu")
    assert f"using the servers of `agentrun up` (process {upped.process.pid})" in enqueued.stderr
    assert upped.said["queues"] == ["agentrun", "agentrun.system", "gpu"]

    flower = upped.said["flower"]
    assert urlsplit(flower["url"]).hostname == "127.0.0.1"
    until(lambda: get(f"{flower['url']}/healthcheck")[0] == 200, 60, tolerate=OSError)
    for page in ("/", "/tasks", "/tasks/datatable", "/api/tasks", "/workers"):
        assert get(flower["url"] + page)[0] == 401, page
        assert get(flower["url"] + page, "agentrun:wrong")[0] == 401, page
    # Flower sees only what happens while it listens.
    with upped.client() as client:
        greeted = client.enqueue("greet", "bob")

    def shown() -> list[dict[str, Any]]:
        return [row for row in wakes_in(flower) if row["kwargs"] == "greet (enqueue)" and row["state"] == "SUCCESS"]

    wake = until(shown, 60, tell=lambda: wakes_in(flower))[0]
    assert (wake["args"], wake["result"]) == (str(greeted), "completed (1 step done, 0 replayed)")


def test_a_second_up_finds_the_first_and_says_so(upped: Upped) -> None:
    second = upped.shell("up")
    assert second.returncode == 1
    assert f"already up in `{upped.said['state_dir']}` (process {upped.process.pid})" in second.stderr
    assert f"AGENTRUN_DATABASE_URL={upped.said['database_url']}" in second.stdout
    assert f"AGENTRUN_BROKER_URL={upped.said['broker_url']}" in second.stdout
    assert upped.process.poll() is None


def test_a_program_without_urls_is_told_of_it_and_of_the_line_that_connects_it(upped: Upped) -> None:
    """And is not connected silently."""
    program = "from agentrun import Client; print(Client().settings.database_url)"
    unset = {f"AGENTRUN_{name}": None for name in ("DATABASE_URL", "BROKER_URL", "NAMESPACE")}
    env = {name: value for name, value in {**os.environ, **upped.env, **unset}.items() if value is not None}

    def ran(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=env, cwd=upped.cwd, capture_output=True, text=True, timeout=60, check=False)

    refused = ran(sys.executable, "-c", program)
    assert refused.returncode == 1
    error = refused.stderr.splitlines()[-1]
    assert "AGENTRUN_DATABASE_URL and AGENTRUN_BROKER_URL are not set. Your `agentrun up` runs here" in error
    assert f"(process {upped.process.pid})" in error
    assert upped.said["database_url"] not in refused.stderr
    (line,) = [part for part in error.split("`") if part.startswith("eval ")]
    shown = ran(
        "sh", "-c", f'agentrun() {{ {sys.executable} -m agentrun.cli "$@"; }}; {line}; {sys.executable} -c "{program}"'
    )
    assert shown.stdout.splitlines() == [upped.said["database_url"]], shown.stderr


def test_what_dies_is_started_again(upped: Upped) -> None:
    with upped.client() as client:
        run_id = client.enqueue("linger", 3.0)
        until(lambda: len(client.steps(run_id)) >= 3, 30)
        upped.one("agentrun@").kill()
        upped.tells("worker ended by SIGKILL; it starts again in 1 s")
        run = client.wait(run_id, timeout=60)
        assert (run.status, run.crash_count) == ("completed", 1)
    upped.one("valkey-server").kill()
    upped.tells("the embedded Redis ended without being told to; it runs again")
    with upped.client() as client:
        assert client.wait(client.enqueue("greet", "bob"), timeout=60).result == "hello bob"


def test_ctrl_c_hands_runs_back_frees_everything_and_the_next_up_goes_on(
    upped: Upped, shared: Start, running: list[Upped]
) -> None:
    with upped.client() as client:
        run_id = client.enqueue("linger", 4.0)
        until(lambda: len(client.steps(run_id)) >= 3, 30)
    descendants = upped.descendants()
    assert upped.interrupt() == 0
    assert not [each for each in descendants if each.is_running()]
    for url in (upped.said["database_url"], upped.said["broker_url"], upped.said["flower"]["url"]):
        assert is_free(urlsplit(url).port or 0)
    assert upped.lines[-1] == "everything has stopped"

    running.append(shared())
    assert running[-1].said["database_url"] == upped.said["database_url"]
    with running[-1].client() as client:
        run = client.wait(run_id, timeout=90)
        types = [str(event.type) for event in client.events(run_id)]
    assert (run.status, run.crash_count) == ("completed", 0)
    assert "handed_back" in types
    assert types.count("step_completed") == 40, "no step was done twice, none left out"


def test_a_killed_up_leaves_nothing_behind(upped: Upped) -> None:
    descendants = upped.descendants()
    assert len(descendants) > 5
    upped.process.kill()
    until(lambda: not [each for each in descendants if alive(each)], 30, tell=lambda: descendants)


def test_servers_that_are_set_are_used_and_left_alone(up: Start, database_url: str, broker_url: str) -> None:
    upped = up("--no-flower", env={"AGENTRUN_DATABASE_URL": database_url, "AGENTRUN_BROKER_URL": broker_url})
    assert (upped.said["database_url"], upped.said["broker_url"]) == (database_url, broker_url)
    upped.tells("ready.")
    with upped.client() as client:
        assert client.wait(client.enqueue("greet", "bob"), timeout=60).result == "hello bob"
        assert upped.interrupt(signal.SIGTERM) == 0
        run: Run = client.list()[0]
        assert run.status == "completed", "the database is still there"


def test_without_the_broker_that_is_set_nothing_starts(up: Start, tmp_path: Path) -> None:
    env = {"AGENTRUN_STATE_DIR": str(tmp_path / "state"), "AGENTRUN_BROKER_URL": "redis://127.0.0.1:1/0"}
    said = shell("up", env=env, cwd=tmp_path)
    assert said.returncode == 3
    assert "AGENTRUN_BROKER_URL cannot be reached" in said.stderr
    assert not (tmp_path / "state").exists()


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
