"""`celery -A tasks flower` with this repository's flowerconfig.py: a password always, and wakes that can be read."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from agentrun import Client, ConfigurationError
from agentrun.broker.flower import FlowerSettings, credentials, format_task
from agentrun.embedded.server import free_port
from agentrun.testing import until
from agentrun.testing.nodes import Node
from tests.cli.conftest import BODIES
from tests.cli.test_up import get, wakes_in


@pytest.fixture
def flower(start_node: Callable[..., Node], request: pytest.FixtureRequest) -> Callable[..., tuple[str, Node]]:
    """Starts Flower as in a checkout; returns its address."""

    def start(*arguments: str, env: dict[str, str] | None = None) -> tuple[str, Node]:
        port = free_port()
        conf = f"--conf={request.config.rootpath / 'flowerconfig.py'}"
        node = start_node("flower", conf, f"--port={port}", *arguments, name="flower", ready="Visit me at", env=env)
        url = f"http://127.0.0.1:{port}"
        until(lambda: get(f"{url}/healthcheck")[0] == 200, tolerate=OSError)
        return url, node

    return start


@pytest.mark.processes
def test_a_wake_is_shown_with_its_run_kind_and_outcome_to_who_has_the_password(
    flower: Callable[..., tuple[str, Node]], worker: Callable[..., Node], client: Client
) -> None:
    url, node = flower()
    said = re.search(r"user agentrun and password (\S+) \(generated", node.logs())
    assert said is not None
    for page in ("/", "/tasks", "/tasks/datatable", "/api/tasks"):
        assert get(url + page)[0] == 401, page
    started = worker(imports=[BODIES])
    until(lambda: "Events of group {task} enabled" in started.logs(), 20)
    run_id, bad = client.enqueue("greet", "bob"), client.enqueue("break", "s3cret")
    access = {"url": url, "user": "agentrun", "password": said[1]}

    def shown() -> dict[str, tuple[str, str]]:
        return {row["args"]: (row["kwargs"], row["result"]) for row in wakes_in(access) if row["state"] == "SUCCESS"}

    until(lambda: len(shown()) == 2, 20, tell=lambda: wakes_in(access))
    assert shown() == {
        str(run_id): ("greet (enqueue)", "completed (1 step done, 0 replayed)"),
        str(bad): ("break (enqueue)", "failed: not_retryable (1 step done, 0 replayed)"),
    }
    status, page = get(f"{url}/tasks", f"agentrun:{said[1]}")
    assert status == 200
    for column in ("args", "kwargs", "Result"):
        assert column in page


@pytest.mark.processes
def test_a_chosen_password_is_taken_and_not_printed(flower: Callable[..., tuple[str, Node]]) -> None:
    url, node = flower(env={"AGENTRUN_FLOWER_PASSWORD": "choose:n"})
    assert "choose:n" not in node.logs()
    assert get(f"{url}/tasks", "agentrun:choose:n")[0] == 200
    assert get(f"{url}/tasks", "agentrun:")[0] == 401


def test_flowers_own_variable_wins_over_a_generated_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRUN_FLOWER_USER", "ann")
    assert credentials(FlowerSettings(), "bob:x,eve:y") == ["bob:x", "eve:y"]
    assert credentials(FlowerSettings(password="z"), None) == ["ann:z"]
    monkeypatch.setenv("AGENTRUN_FLOWER_PORT", "many")
    with pytest.raises(ConfigurationError, match="AGENTRUN_FLOWER_PORT"):
        FlowerSettings()


WAKE, KIND = "agentrun.wake", "{'kind': 'k', 'cause': 'sweep'}"


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "result", "shown"),
    [
        (WAKE, "('x',)", KIND, "'outcome=busy run=x kind=k'", ("x", "k (sweep)", "busy")),
        (WAKE, "('x',)", "{}", None, ("x", "{}", None)),
        (WAKE, "([[[", "{'a", "'outcome", ("([[[", "{'a", "'outcome")),
        (WAKE, "('x',)", "{}", "'a sentence = of'", ("x", "{}", "'a sentence = of'")),
        ("shop.mail", "('x',)", KIND, "{'outcome': 1}", ("('x',)", KIND, "{'outcome': 1}")),
    ],
)
def test_what_is_no_readable_wake_stays_as_it_is(
    name: str, args: str, kwargs: str, result: str | None, shown: tuple[str | None, ...]
) -> None:
    task = format_task(SimpleNamespace(name=name, args=args, kwargs=kwargs, result=result))
    assert (task.args, task.kwargs, task.result) == shown
