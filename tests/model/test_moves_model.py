"""A model of the moves against the real database: any interleaving of segments, zombies, reapers, cancels, operators.

Every statement is predicted by `shadow`; what it refuses must have changed nothing at all.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import Moves

SHRINK = "AGENTRUN_TEST_MODEL_SHRINK" in os.environ
"""Looking for the shortest counterexample takes minutes; what is found first is short enough to read."""

EXAMPLES = int(os.environ.get("AGENTRUN_TEST_MODEL_EXAMPLES", "60"))


@pytest.mark.slow
@pytest.mark.flaky(reruns=0)  # another interleaving would hide this one
@pytest.mark.timeout(max(120, 2 * EXAMPLES))
def test_no_interleaving_of_moves_breaks_a_promise(database_url: str) -> None:
    """One live epoch, one start per unrepeatable write, final is final, running if and only if leased."""
    bounded = settings(
        max_examples=EXAMPLES,
        stateful_step_count=40,
        deadline=None,
        database=None,
        phases=list(Phase) if SHRINK else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(type("Moves", (Moves,), {"url": database_url}), settings=bounded)
