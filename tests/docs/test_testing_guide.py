"""The files of the guide to testing are tests that pass, in a session of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from agentrun.testing.servers import BROKER_VARIABLE, DATABASE_VARIABLE, Servers
from tests.docs.pages import ROOT, blocks_of

PAGE = ROOT / "docs" / "guides" / "testing.md"
INI = """[pytest]
addopts = -p no:valkey -p no:cacheprovider -q
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""


def test_the_tests_of_the_guide_pass(tmp_path: Path, shared_servers: Servers) -> None:
    files = {block.said["file"]: block.text for block in blocks_of(PAGE, "python")}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text(INI)
    env = {
        **os.environ,
        DATABASE_VARIABLE: shared_servers.database_url,
        BROKER_VARIABLE: shared_servers.broker_url,
        "PYTHONPATH": str(ROOT),
    }
    session = subprocess.run(
        [sys.executable, "-m", "pytest", str(tmp_path)], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert session.returncode == 0, session.stdout + session.stderr
    count = sum(text.count("\ndef test_") for text in files.values())
    assert f"{count} passed" in session.stdout
