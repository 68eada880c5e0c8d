from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from examples.support_desk.agent import Decision
from examples.support_desk.audit import Audit, Large
from examples.support_desk.report import Line, Report, Said, checks, exit_code, show

BOOKS = Audit(
    refunds=1,
    cents=8990,
    attempts=2,
    keys=1,
    repeated=1,
    refused=0,
    cut_off=0,
    doubled_orders=(),
    runs_that_asked_afresh=(),
    cents_by_run={"run-1": 8990},
)
PAID = Line(
    mail_id="mail-01",
    customer="Maja [bold]",
    run_id="run-1",
    status="completed",
    decision=Decision(action="refunded", order_id="SO-10401", refund_cents=8990, reply="Here you are."),
    executed=8,
    replayed=5,
    segments=2,
    taken_over_after_seconds=3.2,
)
CALM = Line(
    mail_id="mail-02",
    customer="Tom",
    run_id="run-2",
    status="completed",
    decision=Decision(action="answered", reply="Hello."),
    executed=3,
    replayed=0,
    segments=1,
)
GOOD = Report(lines=[PAID, CALM], audit=BOOKS, refunds_before_kill=1, killed=True)
UNAPPROVED = Large(order_id="SO-10407", approved_by=None, asked_by="run-1")
APPROVED, REJECTED = Said(approved=True, by="mira"), Said(approved=False, by="mira")
ASKED = replace(
    GOOD,
    lines=[replace(PAID, said=(APPROVED,)), CALM],
    audit=replace(BOOKS, large=(replace(UNAPPROVED, approved_by="mira"),)),
    decided=1,
)


def test_a_report_says_who_decided():
    console = Console(record=True, width=140)

    assert show(ASKED, console) == 0
    assert "mail-01 approved by mira" in console.export_text()


def test_a_good_report_exits_with_zero_and_shows_every_mail():
    console = Console(record=True, width=140)

    assert show(GOOD, console) == 0
    text = console.export_text()
    for words in (
        "mail-01",
        "Maja [bold]",
        "refunded",
        "89.90 EUR",
        "3.2 s",
        "mail-02",
        "no refund happened twice",
    ):
        assert words in text
    assert "BROKEN" not in text


@pytest.mark.parametrize(
    ("bad", "evidence"),
    [
        (replace(GOOD, lines=[]), "0 of 0"),
        (replace(GOOD, lines=[PAID, replace(CALM, status="failed", decision=None)]), "mail-02 is failed"),
        (replace(GOOD, killed=False), "nothing was left"),
        (replace(GOOD, lines=[replace(PAID, taken_over_after_seconds=None), CALM]), "0 runs taken over"),
        (replace(GOOD, lines=[replace(PAID, executed_twice=("model:1",)), CALM]), "mail-01: model:1"),
        (replace(GOOD, audit=replace(BOOKS, doubled_orders=("SO-10401",))), "SO-10401 was paid twice"),
        (replace(GOOD, audit=replace(BOOKS, runs_that_asked_afresh=("run-1",))), "run-1 asked again"),
        (replace(GOOD, audit=replace(BOOKS, large=(UNAPPROVED,))), "SO-10407 was paid above the limit"),
        (replace(ASKED, lines=[PAID, CALM], decided=0), "SO-10407 was paid above the limit"),
        (replace(ASKED, lines=[replace(PAID, said=(REJECTED,)), CALM]), "SO-10407 was paid above the limit"),
        (replace(ASKED, decided=2), "2 decisions were made, 1 are on record"),
        (replace(GOOD, audit=replace(BOOKS, cents_by_run={})), "promises 89.90 EUR, the shop paid 0.00 EUR"),
    ],
)
def test_each_broken_promise_is_named_and_exits_with_one(bad: Report, evidence: str):
    console = Console(record=True, width=200)

    assert show(bad, console) == 1
    assert evidence in console.export_text()
    assert sum(not check.holds for check in checks(bad)) >= 1


def test_no_checks_prove_nothing():
    assert exit_code([]) == 1
