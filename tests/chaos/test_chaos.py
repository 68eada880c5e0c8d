"""A small storm over real processes. The whole one: `make chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrun import Settings
from agentrun.testing.servers import Servers
from tests.chaos.run import chaos
from tests.chaos.storm import Plan


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.own_servers
@pytest.mark.flaky(reruns=0)  # an effect that is there twice is not tried once more
@pytest.mark.timeout(300)
def test_whatever_is_killed_flushed_or_restarted_every_effect_is_there_exactly_once(
    settings: Settings, agentrun_servers: Servers, tmp_path: Path
) -> None:
    assert agentrun_servers.embedded is not None
    plan = Plan(seed=7, runs=40, kills=5, flushes=1)
    done = chaos(plan, settings, agentrun_servers.embedded.postgres, tmp_path, print)
    assert done["effects"] == 5 * plan.runs
    assert done["events: lease_lost"] > 0, "nobody was hit: this storm proves nothing"
