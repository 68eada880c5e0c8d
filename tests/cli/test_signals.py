"""Which signals `agentrun up` hears."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from agentrun.cli.up import _signals_to


@pytest.fixture
def ignored() -> Iterator[None]:
    """As a shell script starts what it puts into the background, and as `nohup` does."""
    numbers = (signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("ignored")
def test_up_hears_ctrl_c_even_in_the_background_of_a_script_and_no_hangup_under_nohup() -> None:
    heard: list[int] = []
    with _signals_to(lambda number, _: heard.append(number)):
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.raise_signal(number)
    assert heard == [signal.SIGINT, signal.SIGTERM]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
