"""What all commands share: how an error ends them, and the options that have the same name everywhere."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Generator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from agentrun.cli import screen
from agentrun.core.errors import AgentrunError
from agentrun.store.troubles import explained

AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable: JSON on stdout.")]
Payloads = Annotated[bool, typer.Option("--payloads", help="Show requests and results too; they may be private.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or the start of it (8 characters or more).")]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", help="Every namespace of the database.")]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who does this, for the run's story.")]


_TAKES_NOTHING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What a file or terminal answers that takes no output. A closed pipe is silent: whoever reads has enough."""


class Commands(TyperGroup):
    """The command line: a refusal ends with its class's exit code and one paragraph on stderr, never a traceback."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Read the arguments; the version and the help are printed here."""
        with _ending():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; turn what it raises into its ending."""
        with _ending():
            returned = super().invoke(ctx)
            sys.stdout.flush()
            return returned


@contextlib.contextmanager
def _ending() -> Generator[None]:
    try:
        yield
    except AgentrunError as error:
        _end(str(error), error.exit_code)
    except TimeoutError as error:
        _end(str(error), AgentrunError.exit_code)
    except OSError as error:
        if error.errno not in _TAKES_NOTHING:
            raise
        screen.forget_stdout()
        why = "stdout is closed" if error.errno == errno.EBADF else error.strerror
        _end(f"the output cannot be written: {why}", AgentrunError.exit_code)
    except Exception as error:
        known = explained(error)
        if known is None:
            raise
        _end(str(known), known.exit_code)


def _end(message: str, code: int) -> None:
    screen.refuse(message)
    raise typer.Exit(code) from None
