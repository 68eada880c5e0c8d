from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from agentrun.embedded import EmbeddedPostgres
from examples.support_desk import shop
from examples.support_desk.shop import Connection


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database of our own, on the configured server or an embedded one: a team's may hold a schema called `shop`."""
    with contextlib.ExitStack() as undo:
        url = os.environ.get("AGENTRUN_TEST_DATABASE_URL") or _embedded(undo, tmp_path_factory.mktemp("shop"))
        name = f"agentrun_shop_{uuid.uuid4().hex[:12]}"
        with shop.connect(url) as server:
            server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            yield make_conninfo(url, dbname=name)
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _embedded(undo: contextlib.ExitStack, directory: Path) -> str:
    server = EmbeddedPostgres(directory, ephemeral=True)
    undo.callback(server.close)
    server.start()
    return server.url


@pytest.fixture
def shop_url(server_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh shop, also for whoever connects by the environment."""
    with shop.connect(server_url) as connection:
        shop.drop_shop(connection)
        shop.create_shop(connection)
    monkeypatch.setenv(shop.URL_VARIABLE, server_url)
    return server_url


@pytest.fixture
def connection(shop_url: str) -> Iterator[Connection]:
    with shop.connect(shop_url) as connection:
        yield connection
