"""The first runs, as they are printed: real servers, a real worker, and a real SIGKILL."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from agentrun.embedded.server import free_port
from tests.docs.pages import FIRST_RUNS, ROOT, Block, blocks_of
from tests.docs.sessions import Shell, commands_of, missing

SHORT: Mapping[str, str] = {"AGENTRUN_LEASE_SECONDS": "4", "AGENTRUN_SWEEP_SECONDS": "1"}
"""The defaults would make the test wait for half a minute; nothing else differs from what the page says."""


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Future[None]]]:
    """All first runs, side by side: they mostly wait for leases to run out."""
    with ThreadPoolExecutor(len(FIRST_RUNS)) as threads:
        yield {page: threads.submit(_session, page, tmp_path_factory.mktemp("checkout")) for page in FIRST_RUNS}


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", FIRST_RUNS)
def test_a_first_run_works_as_it_is_printed(page: str, sessions: Mapping[str, Future[None]]) -> None:
    sessions[page].result()


def _session(page: str, folder: Path) -> None:
    _check_out(folder)
    env = {**SHORT, "AGENTRUN_STATE_DIR": str(folder / "state"), "AGENTRUN_FLOWER_PORT": str(free_port())}
    with ExitStack() as undo:
        terminals: dict[str, Shell] = {}
        for block in blocks_of(ROOT / page, "python", "console"):
            if "file" in block.said:
                (folder / block.said["file"]).write_text(block.text)
            elif block.language == "console" and block.runs:
                name = block.said.get("terminal", "")
                if name not in terminals:
                    terminals[name] = Shell(folder, env)
                    undo.callback(terminals[name].close)
                _typed(block, terminals[name], stays=bool(name))


def _check_out(folder: Path) -> None:
    """What a reader has after the clone, as far as the pages use it."""
    (folder / ".venv" / "bin").mkdir(parents=True)
    activate = f'export PATH="{Path(sys.executable).parent}:$PATH"\n'
    (folder / ".venv" / "bin" / "activate").write_text(activate)


def _typed(block: Block, shell: Shell, *, stays: bool) -> None:
    for command in commands_of(block.text):
        if stays and command.expected:
            shell.type(command.text)
            shell.wait_for(command.expected, 60)
            continue
        ends = time.monotonic() + 90
        printed = shell.run(command.text, 60)
        while command.text.startswith("agentrun show") and missing(command.expected, printed):
            # A reader who is quicker than the worker looks again.
            assert time.monotonic() < ends, f"{block.where}: `{command.text}` never prints that:\n{printed}"
            time.sleep(1)
            printed = shell.run(command.text, 60)
        lost = missing(command.expected, printed)
        assert lost is None, f"{block.where}: `{command.text}` does not print {lost!r}, but:\n{printed}"


def test_the_session_tests_can_fail(tmp_path: Path) -> None:
    shell = Shell(tmp_path, os.environ)
    try:
        assert missing(["hello … again"], shell.run("echo hello, once again", 10)) is None
        assert missing(["good … bye"], shell.run("echo hello", 10)) == "good … bye"
        with pytest.raises(AssertionError, match="ended with 1"):
            shell.run("false", 10)
    finally:
        shell.close()
