"""What `agentrun up` does with a child that cannot live."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentrun.cli import children as module
from agentrun.cli.children import Child, Children
from agentrun.core.errors import ConfigurationError
from agentrun.testing import until
from tests.cli.conftest import Cli


@pytest.fixture
def keeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Children]]:
    """Children that are restarted without a pause."""
    monkeypatch.setattr(module, "SHORTEST_PAUSE", 0.0)
    made: list[Children] = []
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)

    def start(script: str, said: list[str]) -> Children:
        child = Child("beat", (sys.executable, "-S", "-c", script), os.environ)
        made.append(Children([child], say=said.append, lock=lock))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.stop(5)
        each.close()
    os.close(lock)


def test_up_gives_up_where_a_child_is_used_wrongly_each_time(keeping: Callable[..., Children]) -> None:
    said: list[str] = []
    with pytest.raises(ConfigurationError, match=r"beat ended at once 3 times, with code 2"):
        keeping("raise SystemExit(2)", said).keep(lambda: None)
    assert len(said) == 2, "it was tried again twice"


def test_any_other_end_is_tried_again(keeping: Callable[..., Children]) -> None:
    said: list[str] = []
    kept = keeping("raise SystemExit(1)", said)
    thread = threading.Thread(target=kept.keep, args=(lambda: None,))
    thread.start()
    until(lambda: len(said) > 3)
    kept.signalled(signal.SIGTERM)
    thread.join()


def test_a_level_that_celery_does_not_know_is_wrong_usage(cli: Cli) -> None:
    said = cli("up", "-l", "LOUD", env={"AGENTRUN_IMPORTS": "no.such.module"})
    assert (said.code, "'LOUD'" in said.err, "WARNING" in said.err.upper()) == (2, True, True)
    said = cli("up", "-l", "warning", env={"AGENTRUN_IMPORTS": "no.such.module"})
    assert said.code == 3, "in any case of letters, it is the next thing that is wrong"
