"""Settings that are given in code are checked as those of the environment are, and tell nobody a password."""

from __future__ import annotations

from typing import Any

import pytest

from agentrun import Client, ConfigurationError, Settings

SECRET = {"database_url": "postgresql://u:s3cr3t@h/d", "broker_url": "redis://:s3cr3t@h/0", "web_token": "s3cr3t"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"lease_second": 60}, "Settings has no `lease_second`; did you mean `lease_seconds`?"),
        ({"AGENTRUN_NAMESPACE": "a"}, "Settings has no `AGENTRUN_NAMESPACE`; did you mean `namespace`?"),
        ({"zz": 1}, "Settings has no `zz`; see docs/reference/settings.md"),
    ],
)
def test_a_misspelt_setting_in_code_is_refused_as_a_misspelt_variable_is(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings(**given)
    assert str(refused.value) == says


def test_settings_may_be_printed_without_telling_a_password() -> None:
    settings = Settings(**SECRET, direct_database_url=SECRET["database_url"])
    assert "s3cr3t" not in f"{settings!r} {settings}"
    assert "s3cr3t" in settings.require_database()


def test_what_overrides_given_settings_is_checked_as_they_are() -> None:
    settings = Settings(**SECRET, lease_seconds=4, imports="a,b")
    with pytest.raises(ConfigurationError, match="AGENTRUN_NAMESPACE"):
        Client(settings=settings, namespace="Team A")
    wrong: Any = {"lease_seconds": 60}
    with pytest.raises(ConfigurationError, match="settings must be a Settings"):
        Client(settings=wrong)
    with Client(settings=settings, namespace="team") as client:
        assert client.settings.model_dump() == settings.model_dump() | {"namespace": "team"}
