"""AGENTRUN_IMPORTS: where the modules that it names are looked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LOAD = "from agentrun.runtime.kinds import registry; registry.load(('mine',)); print(registry.names())"


def loaded(folder: Path) -> subprocess.CompletedProcess[str]:
    """In a process that does not have its folder on its path, as one of the `celery` command."""
    return subprocess.run([sys.executable, "-P", "-c", LOAD], cwd=folder, capture_output=True, text=True, timeout=60)


def test_a_module_in_the_folder_where_the_process_was_started_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from agentrun import durable\n@durable('mine')\ndef mine(ctx): ...\n")
    (tmp_path / "json.py").write_text("raise SystemExit('it hides a module of everybody')\n")
    said = loaded(tmp_path)
    assert (said.stdout.strip(), said.returncode) == ("('mine',)", 0), said.stderr


def test_a_module_that_is_nowhere_is_named_with_what_to_do(tmp_path: Path) -> None:
    said = loaded(tmp_path)
    assert "AGENTRUN_IMPORTS names `mine`, which cannot be imported" in said.stderr
    assert "run from the folder that holds it, or set PYTHONPATH" in said.stderr
