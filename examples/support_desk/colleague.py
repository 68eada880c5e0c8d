"""The colleague of the demo: reads what waits in the inbox, and decides.

It owns who decides what. It sees what everybody sees: the client's inbox.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.markup import escape

from agentrun import Client
from examples.support_desk.mails import Mail
from examples.support_desk.replies import money

NAME = "mira"
APPROVES = "looks right"
REJECTS = "we have to see it first; please send it in"

Waiting = Mapping[str, Any]


def show_inbox(console: Console, waiting: Sequence[Waiting], mails: Mapping[UUID, Mail]) -> None:
    """What waits, oldest first, as `agentrun inbox` would list it."""
    console.print(f"[bold]Inbox[/]: {len(waiting)} refunds above the limit wait; their runs hold no worker.")
    for wait in waiting:
        asked, mail = wait["asks"]["payload"]["arguments"], mails[wait["run_id"]]
        said = f"{mail.id}, {mail.name}: {money(asked['cents'])} for order {asked['order_id']} ({asked['reason']})"
        console.print(f"  {escape(said)}", highlight=False)


def decide(console: Console, client: Client, waiting: Sequence[Waiting], *, earlier: int) -> int:
    """Approve the first, reject the second, and so on; `earlier` is how many were decided before. Returns how many.

    Each decision is bound to the digest of what was read: had the question changed since, it would be refused.
    """
    for number, wait in enumerate(waiting, start=earlier):
        verb, comment = (client.approve, APPROVES) if number % 2 == 0 else (client.reject, REJECTS)
        verb(wait["run_id"], by=NAME, key=wait["step_key"], digest=wait["asks_digest"], comment=comment)
        word = "[green]approves[/]" if verb == client.approve else "[red]rejects[/]"
        console.print(f"  {NAME} {word} {escape(wait['asks']['question'])}", highlight=False)
    return len(waiting)
