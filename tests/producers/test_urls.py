"""A client without URLs: it connects to nothing, and says what there is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu.transport import TRANSPORT_ALIASES

from agentrun import AsyncClient, Client, ConfigurationError, Settings
from agentrun.broker.urls import KNOWN, require_usable
from agentrun.embedded.home import Home

URLS = ("postgresql://agentrun:s3cr3t@127.0.0.1:5/agentrun", "redis://:s3cr3t@127.0.0.1:6/0")


@pytest.fixture(params=[Client, AsyncClient])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A client of either kind, of a user whose state is in a folder of the test's own."""
    monkeypatch.setenv("AGENTRUN_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return request.param


@pytest.fixture
def up(make: Any, tmp_path: Path) -> Iterator[Home]:
    """What `agentrun up` keeps while it runs."""
    home = Home(tmp_path / "state")
    home.enter()
    home.announce(*URLS)
    yield home
    home.leave()


@pytest.mark.usefixtures("up")
def test_a_client_without_urls_tells_of_an_up_that_runs_here_and_keeps_its_passwords(make: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    said = str(refused.value)
    assert said.startswith("AGENTRUN_DATABASE_URL and AGENTRUN_BROKER_URL are not set. Your `agentrun up` runs here")
    assert f"(process {os.getpid()})" in said
    assert 'run `eval "$(agentrun up)"` in its shell' in said
    assert "s3cr3t" not in said


@pytest.mark.usefixtures("up")
@pytest.mark.parametrize(("given", "missing"), [("database_url", "BROKER_URL"), ("broker_url", "DATABASE_URL")])
def test_half_of_one_installation_is_not_made_whole_by_another(
    make: Callable[..., Any], given: str, missing: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^AGENTRUN_{missing} is not set; set it, for example"):
        make(**{given: URLS[given == "broker_url"]})


def test_a_client_without_urls_names_one_where_nothing_runs(make: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"^AGENTRUN_BROKER_URL is not set; set it, for example"):
        make()


def test_an_up_that_has_ended_is_not_told_of(make: Callable[..., Any], up: Home) -> None:
    up.leave()
    with pytest.raises(ConfigurationError, match=r"^AGENTRUN_BROKER_URL is not set"):
        make()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everybody's folders")
@pytest.mark.usefixtures("up")
def test_another_users_state_is_none_of_ours(make: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "state" / "lock").chmod(0)
    with pytest.raises(ConfigurationError, match=r"^AGENTRUN_BROKER_URL is not set"):
        make()


NO_BROKERS = {
    "foo": "is no URL: it begins with no scheme",
    "localhost:6379": "is no URL",
    "redis:/x": "is no URL",
    "://s3cr3t": "is no URL",
    "foo://u:s3cr3t@h": "the scheme `foo`",
    "reddis://u:s3cr3t@h": "did you mean redis://",
    "valkey://h": "did you mean redis://",
    "unix:///tmp/x": r"did you mean redis\+socket://",
    "http://h": "Celery knows no broker by that",
}


@pytest.mark.parametrize(("url", "says"), NO_BROKERS.items())
def test_a_broker_that_there_cannot_be_is_refused_before_anything_is_stored(
    make: Callable[..., Any], url: str, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says) as refused:
        make(database_url=URLS[0], broker_url=url)
    assert "AGENTRUN_BROKER_URL" in str(refused.value)
    assert "s3cr3t" not in str(refused.value)


def test_every_broker_that_celery_knows_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    urls = [f"{name}://h" for name in TRANSPORT_ALIASES]
    for url in (*urls, "REDIS://h", "redis+socket:///tmp/x", "sqla+sqlite:///x", "redis://a;redis://b", None):
        require_usable(url)
    monkeypatch.setitem(TRANSPORT_ALIASES, "ours", "our.transport:Transport")
    require_usable("ours://h")
    assert {*KNOWN} <= {name.lower() for name in TRANSPORT_ALIASES}


NO_DATABASES = {
    "mysql://u:s3cr3t@h/x": "its scheme is `mysql`",
    "s3cr3t@h/x": "it begins with no scheme",
    "u:s3cr3t@h": "it begins with no scheme",
    "u:s3cr3t@h://x": "it begins with no scheme",
    "host=h password=s3cr3t": "it begins with no scheme",
}


@pytest.mark.parametrize("setting", ["database_url", "direct_database_url"])
@pytest.mark.parametrize(("url", "says"), NO_DATABASES.items())
def test_a_database_of_another_make_is_refused_when_a_client_is_made(
    make: Callable[..., Any], setting: str, url: str, says: str
) -> None:
    urls = {"database_url": URLS[0], "broker_url": URLS[1]} | {setting: url}
    with pytest.raises(ConfigurationError, match=says) as refused:
        make(settings=Settings(**urls))
    assert str(refused.value).startswith(f"AGENTRUN_{setting.upper()} must be postgresql://user@host:port/name, but ")
    assert "s3cr3t" not in str(refused.value)
