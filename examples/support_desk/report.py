"""Shows how the demo ended: a table with a row per mail, the checks, and the exit code that follows from them.

It owns the presentation and the checks. It gathers nothing itself: the demo hands it plain values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from examples.support_desk.agent import Decision
from examples.support_desk.audit import Audit
from examples.support_desk.replies import money

STYLES = {"refunded": "green", "refused": "yellow", "escalated": "magenta", "answered": "cyan"}


@dataclass(frozen=True, kw_only=True)
class Said:
    """One decision on one call, as the run's journal has it."""

    approved: bool
    by: str | None

    def __str__(self) -> str:
        return f"{'approved' if self.approved else 'rejected'} by {self.by or 'nobody'}"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One mail's run. `replayed` steps were recorded before its last segment and not executed again in it."""

    mail_id: str
    customer: str
    run_id: str
    status: str
    decision: Decision | None
    executed: int
    replayed: int
    segments: int
    executed_twice: tuple[str, ...] = ()
    taken_over_after_seconds: float | None = None
    said: tuple[Said, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    lines: Sequence[Line]
    audit: Audit
    refunds_before_kill: int
    killed: bool
    decided: int = 0
    """Decisions that were made from outside."""


@dataclass(frozen=True)
class Check:
    claim: str
    holds: bool
    evidence: str


def checks(report: Report) -> list[Check]:
    """What the demo promises, each with whether it holds."""
    return [
        _completed(report),
        _killed(report),
        _nothing_again(report),
        _no_refund_twice(report),
        _approved(report),
        _promises(report),
    ]


def exit_code(found: Sequence[Check]) -> int:
    """0 when every check holds, else 1. No checks prove nothing: 1."""
    return 0 if found and all(check.holds for check in found) else 1


def show(report: Report, console: Console) -> int:
    """Print the table and the checks; returns the exit code."""
    found = checks(report)
    console.print(_table(report))
    for check in found:
        mark = "[green]holds [/]" if check.holds else "[bold red]BROKEN[/]"
        console.print(f" {mark} {check.claim} [dim]({escape(check.evidence)})[/]", highlight=False)
    return exit_code(found)


def _completed(report: Report) -> Check:
    other = [f"{line.mail_id} is {line.status}" for line in report.lines if line.status != "completed"]
    done = len(report.lines) - len(other)
    evidence = "; ".join([f"{done} of {len(report.lines)}", *other])
    return Check("every run completed", bool(report.lines) and not other, evidence)


def _killed(report: Report) -> Check:
    taken = [line.taken_over_after_seconds for line in report.lines if line.taken_over_after_seconds is not None]
    if not report.killed:
        return Check(
            "the worker was killed in the middle", False, "nothing was left to kill it in: all was done before"
        )
    slowest = f", the slowest after {max(taken):.1f} s" if taken else ""
    evidence = f"{report.refunds_before_kill} refunds issued before; {len(taken)} runs taken over{slowest}"
    return Check("the worker was killed in the middle, and its runs were taken over", bool(taken), evidence)


def _nothing_again(report: Report) -> Check:
    twice = [f"{line.mail_id}: {', '.join(line.executed_twice)}" for line in report.lines if line.executed_twice]
    replayed = sum(line.replayed for line in report.lines)
    evidence = "; ".join(twice) or f"{replayed} steps replayed from the journal, none of them executed again"
    return Check("no recorded step ran again", not twice, evidence)


def _no_refund_twice(report: Report) -> Check:
    books = report.audit
    broken = [f"order {order} was paid twice" for order in books.doubled_orders]
    broken += [f"run {run} asked again under a new key" for run in books.runs_that_asked_afresh]
    counts = (
        f"{books.refunds} refunds, {money(books.cents)}; {books.attempts} attempts under {books.keys} keys:"
        f" {books.repeated} repeated, {books.refused} refused, {books.cut_off} cut off by the kill"
    )
    return Check("no refund happened twice", not broken, "; ".join(broken) or counts)


def _approved(report: Report) -> Check:
    by_run = {line.run_id: line for line in report.lines}
    broken: list[str] = []
    for refund in report.audit.large:
        line = by_run.get(refund.asked_by or "")
        if Said(approved=True, by=refund.approved_by) not in (line.said if line else ()):
            broken.append(f"order {refund.order_id} was paid above the limit, and nobody approved it")
    on_record = sum(len(line.said) for line in report.lines)
    if on_record != report.decided:
        broken.append(f"{report.decided} decisions were made, {on_record} are on record")
    evidence = "; ".join(f"{line.mail_id} {said}" for line in report.lines for said in line.said)
    return Check(
        "no refund above the limit without an approval, and every decision is on record",
        not broken,
        "; ".join(broken) or evidence or "no mail asked for one",
    )


def _promises(report: Report) -> Check:
    wrong = [
        f"{line.mail_id} promises {money(line.decision.refund_cents)}, the shop paid {money(paid)}"
        for line in report.lines
        if line.decision and line.decision.refund_cents != (paid := report.audit.cents_by_run.get(line.run_id, 0))
    ]
    return Check(
        "every reply promises what the shop really paid", not wrong, "; ".join(wrong) or "compared mail by mail"
    )


def _table(report: Report) -> Table:
    table = Table(
        title="What became of the mails",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in ("mail", "customer", "decision", "asked"):
        table.add_column(name, no_wrap=True)
    for name in ("EUR", "steps", "replayed", "takeover"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in report.lines:
        table.add_row(*_cells(line))
    return table


def _cells(line: Line) -> list[str]:
    decision, after = line.decision, line.taken_over_after_seconds
    word = f"[{STYLES[decision.action]}]{decision.action}[/]" if decision else f"[red]{line.status}[/]"
    return [
        escape(line.mail_id),
        escape(line.customer),
        word,
        escape(", ".join("yes" if said.approved else "no" for said in line.said)),
        f"{decision.refund_cents / 100:,.2f}" if decision and decision.refund_cents else "",
        str(line.executed),
        str(line.replayed) if line.replayed else "",
        "" if after is None else f"{after:.1f} s",
    ]
