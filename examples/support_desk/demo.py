"""`make demo`: an agent works through customer mails, loses its worker to SIGKILL in the middle, and nothing is lost.

It owns the order of events and what is shown of them. Servers and processes are `stage`'s, the proof is `report`'s.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from uuid import UUID

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from agentrun import AgentrunError, Client
from examples.support_desk.agent import NAME
from examples.support_desk.audit import Audit, audit
from examples.support_desk.colleague import decide, show_inbox
from examples.support_desk.lines import Snapshot, line, snapshot
from examples.support_desk.mails import MAILS, Mail, MailFileError, read_mails
from examples.support_desk.models import DemoModelError, choose_model
from examples.support_desk.report import Report, show
from examples.support_desk.shop import connect
from examples.support_desk.stage import Process, ShopInUse, Stage, stage

WORKER = ("worker", "-P", "threads", "-c", "3", "-l", "INFO", "--without-mingle", "--without-gossip")
LONGEST_WAIT = 300.0
LOOK_SECONDS = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """0 when everything held, 1 when something did not, 2 for bad input, 130 after Ctrl-C."""
    options = _options(argv)
    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        mails, choice = read_mails(options.mails), choose_model()
    except (MailFileError, DemoModelError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    console.print(f"[bold]A support desk[/]: {len(mails)} customer mails, one durable run each, on {choice.label}.")
    try:
        with console.status("starting PostgreSQL and Redis"), stage() as staged:
            return Demo(console, staged, mails).run()
    except (AgentrunError, ShopInUse) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        console.print("[yellow]stopped; everything that was started is gone[/]")
        return 130


class Demo:
    """One showing."""

    def __init__(self, console: Console, staged: Stage, mails: Sequence[Mail]) -> None:
        self._console, self._stage, self._mails = console, staged, mails
        self._client = Client(settings=staged.settings)
        self._runs: list[UUID] = []
        self._decided = 0

    def run(self) -> int:
        """Enqueue, kill, recover, decide, prove."""
        with self._client, self._stage.process("beat", "beat", "-s", str(self._stage.logs / "schedule")):
            self._console.print(f"Enqueueing {len(self._mails)} runs; two workers take three at a time each.")
            self._runs = [
                self._client.enqueue(NAME, {"prompt": mail.as_prompt()}, idempotency_key=mail.id)
                for mail in self._mails
            ]
            with self._stage.process("worker-1", *WORKER) as first, self._stage.process("worker-2", *WORKER) as second:
                before, refunds, killed_at = self._until_the_middle(first)
                self._watch("the other worker", self._settled, second)
                self._until_all_is_decided(second)
            return self._proof(before, refunds, killed_at)

    def _until_the_middle(self, worker: Process) -> tuple[Snapshot, int, datetime | None]:
        """SIGKILL once money has moved and other runs are in the middle of their work."""
        self._watch("two workers", lambda: self._in_the_middle(worker) or self._settled(), worker)
        if self._settled():
            return {}, self._books().refunds, None
        # Asked before, so that nothing which the kill brought about is older than it.
        killed_at = self._now()
        worker.kill()
        before, refunds = snapshot(self._client, self._runs), self._books().refunds
        steps = sum(map(len, before.values()))
        self._console.print(
            f"[bold red]SIGKILL[/] to one worker, with {len(self._held_by(worker))} runs in the middle: "
            f"{steps} steps are in the journal, {refunds} refunds in the books."
        )
        return before, refunds, killed_at

    def _until_all_is_decided(self, worker: Process) -> None:
        """A colleague works through the inbox, until no run asks any more."""
        while waiting := self._client.inbox(kind="approval"):
            show_inbox(self._console, waiting, dict(zip(self._runs, self._mails, strict=True)))
            self._decided += decide(self._console, self._client, waiting, earlier=self._decided)
            self._watch("after the decisions", self._settled, worker)

    def _in_the_middle(self, worker: Process) -> bool:
        """A third of the runs is done, a refund is given, and the worker has runs with recorded steps in its hands."""
        if self._count("completed") < len(self._runs) // 3 or not self._books().refunds:
            return False
        held = self._held_by(worker)
        return sum(bool(self._client.steps(run_id)) for run_id in held) >= min(2, len(self._runs))

    def _held_by(self, worker: Process) -> list[UUID]:
        running = self._client.list(status="running", limit=1000)
        return [run.id for run in running if (run.claimed_by or "").endswith(f":{worker.popen.pid}")]

    def _proof(self, before: Snapshot, refunds: int, killed_at: datetime | None) -> int:
        lines = [
            line(self._client, mail, run_id, before, killed_at)
            for mail, run_id in zip(self._mails, self._runs, strict=True)
        ]
        report = Report(
            lines=lines,
            audit=self._books(),
            refunds_before_kill=refunds,
            killed=killed_at is not None,
            decided=self._decided,
        )
        return show(report, self._console)

    # ---- looking

    def _watch(self, name: str, done: Callable[[], bool], worker: Process) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=self._console, transient=True) as progress:
            shown = progress.add_task(f"{name} starts", total=len(self._runs))
            ends = time.monotonic() + LONGEST_WAIT
            while not done():
                if not worker.alive or time.monotonic() > ends:
                    raise AgentrunError(f"{name} does not get on; the end of its log:\n{_tail(worker.log)}")
                running, finished = self._count("running"), self._finished()
                progress.update(shown, completed=finished, description=f"{name}: {running} runs at work")
                time.sleep(LOOK_SECONDS)

    def _settled(self) -> bool:
        """Nothing is at work: every run has ended, or waits for a person."""
        return self._finished() + self._count("waiting") == len(self._runs)

    def _finished(self) -> int:
        return sum(self._count(status) for status in ("completed", "failed", "cancelled"))

    def _count(self, status: str) -> int:
        return len(self._client.list(status=status, limit=1000))

    def _books(self) -> Audit:
        with connect(self._stage.settings.require_database()) as shop:
            return audit(shop)

    def _now(self) -> datetime:
        with connect(self._stage.settings.require_database()) as shop:
            row = shop.execute("SELECT now() AS now").fetchone()
            assert row is not None
            return row["now"]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--mails", type=Path, default=MAILS, help="a mail file of your own: .jsonl, .txt or .mbox")
    return parser.parse_args(argv)


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


if __name__ == "__main__":
    sys.exit(main())
