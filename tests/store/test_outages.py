"""A server that is away is a few lines in a log, whoever notices it and however often."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from agentrun.core.errors import ConfigurationError
from agentrun.store import outages
from agentrun.store.database import Database
from agentrun.store.outages import Outage, of_postgres, without_password
from agentrun.store.reads import RUN_BY_ID
from agentrun.store.troubles import away
from agentrun.testing import until

URL = "postgresql://shop:hunter2@db.example:5432/shop?password=hunter2"
REFUSED = psycopg.OperationalError("connection failed: Connection refused\nIs the server running?")


@pytest.fixture
def outage(caplog: pytest.LogCaptureFixture) -> Iterator[Outage]:
    yield Outage("PostgreSQL", URL)
    assert "hunter2" not in caplog.text


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "agentrun.store"]


def test_an_outage_is_told_when_it_begins_and_when_it_is_over(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    outage.worked(who="heartbeat")
    for _ in range(100):
        outage.failed(REFUSED, who="heartbeat")
        outage.failed(REFUSED, who="journal")
        outage.failed(REFUSED)
    (began,) = said(caplog)
    assert began.startswith(
        "PostgreSQL at postgresql://shop@db.example:5432/shop cannot be used "
        "(OperationalError: connection failed: Connection refused); until it is back, "
    )
    outage.worked(who="heartbeat")
    outage.worked()
    assert len(said(caplog)) == 1, "the journal still waits for it"
    outage.worked(who="journal")
    outage.worked(who="journal")
    (_, over) = said(caplog)
    assert over == "PostgreSQL at postgresql://shop@db.example:5432/shop can be used again, after 0.0 s"


def test_an_outage_that_lasts_is_told_once_a_minute(
    outage: Outage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert outages.REMIND_SECONDS == 60
    with monkeypatch.context() as hurried:
        hurried.setattr(outages, "REMIND_SECONDS", 0.1)

        def three_lines() -> bool:
            outage.failed(REFUSED, who="heartbeat")
            return len(said(caplog)) == 3

        until(three_lines, 10)
    for _ in range(100):
        outage.failed(REFUSED, who="heartbeat")
    (_, *reminders) = said(caplog)
    assert len(reminders) == 2
    assert all(" still cannot be used, for " in line for line in reminders)


def test_nobody_tells_of_the_end_of_an_outage_that_only_a_closed_engine_waited_for(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    outage.failed(REFUSED, who="heartbeat")
    outage.gone("heartbeat")
    outage.worked()
    assert len(said(caplog)) == 1


def test_all_of_a_process_share_the_outage_of_a_server() -> None:
    assert of_postgres(URL) is of_postgres(URL)
    assert of_postgres(URL) is not of_postgres("postgresql://other/shop")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:secret@cache:6379/0", "redis://cache:6379/0"),
        ("postgresql://a:p@ss@db/x", "postgresql://a@db/x"),
        ("redis+socket:///run/redis.sock?virtual_host=1", "redis+socket:///run/redis.sock"),
        ("amqp://guest:guest@rabbit//", "amqp://guest@rabbit//"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_database_that_is_away_is_told_from_one_that_refuses_what_is_asked(database: Database) -> None:
    nobody = Database("postgresql://u:p@127.0.0.1:9/x")
    with pytest.raises(ConfigurationError) as refused:
        nobody.rows(RUN_BY_ID, {"run_id": None})
    assert away(refused.value)
    with database.connection() as connection:
        connection.execute("ALTER TABLE agentrun.runs RENAME TO walks")
    with pytest.raises(ConfigurationError) as other:
        database.rows(RUN_BY_ID, {"run_id": None})
    assert not away(other.value)
