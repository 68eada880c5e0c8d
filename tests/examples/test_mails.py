from __future__ import annotations

import json
import mailbox
from pathlib import Path

import pytest

from examples.support_desk.mails import MailFileError, read_mails

TEXT = """\
From: Ada Byron <ada@example.com>
Subject: Broken

It is broken.

--- is not a border within a line
---
From: bob@example.com

No subject here.
"""


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_the_demo_has_its_mails():
    mails = read_mails()

    assert len(mails) == 15
    assert mails[0].address == "maja.lindqvist@example.com"
    assert mails[0].as_prompt().startswith("From: Maja Lindqvist <maja.lindqvist@example.com>\nSubject: Headphones")


def test_plain_text_mails_are_parted_by_a_line_of_dashes(tmp_path: Path):
    first, second = read_mails(write(tmp_path / "my.txt", TEXT))

    assert (first.id, first.name, first.subject) == ("mail-01", "Ada Byron", "Broken")
    assert first.body.endswith("--- is not a border within a line")
    assert (second.id, second.name, second.subject, second.body) == (
        "mail-02",
        "bob@example.com",
        "",
        "No subject here.",
    )


def test_an_mbox_of_a_mail_program_is_read(tmp_path: Path):
    box = mailbox.mbox(tmp_path / "export.mbox")
    html = "Subject: =?utf-8?q?caf=C3=A9?=\nFrom: bob@example.com\nContent-Type: text/html\n\n<p>Broken &amp; late</p>"
    box.add("From: Ada <ada@example.com>\nSubject: one\n\nfirst\n")
    box.add(html)
    box.close()

    first, second = read_mails(tmp_path / "export.mbox")

    assert (first.name, first.body) == ("Ada", "first")
    assert (second.subject, second.body) == ("café", "Broken & late")


def test_jsonl_mails_may_leave_out_id_and_subject(tmp_path: Path):
    line = json.dumps({"from": "a@b.c", "body": "hello", "received": "unknown fields do no harm"})

    (mail,) = read_mails(write(tmp_path / "my.jsonl", f"\n{line}\n\n"))

    assert (mail.id, mail.subject) == ("mail-01", "")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("my.csv", "a,b", "ends in .jsonl, .txt, .mbox"),
        ("my.jsonl", "", "it holds no mail"),
        ("my.txt", "---\n\n---\n", "it holds no mail"),
        ("my.mbox", "just words", "it holds no mail"),
        ("my.jsonl", '{"from": "a@b.c", "body": "x"}\n{"from": ', "line 2: not JSON"),
        ("my.jsonl", "[1]", "line 1: expected an object"),
        ("my.jsonl", '{"from": "a@b.c"}', "line 1: `body`: Field required"),
        ("my.jsonl", '{"from": "a@b.c", "body": "  "}', "line 1: `body`: String should have at least 1 character"),
        ("my.jsonl", '{"from": "nobody", "body": "x"}', "`nobody` holds no mail address"),
        ("my.jsonl", '{"id": "x", "from": "a@b.c", "body": "x"}\n' * 2, "two mails have the id `x`"),
        ("my.txt", "Subject: no sender\n\nhello", "mail 1: `from`: Field required"),
        ("my.jsonl", b'{"from": "\xff"}', "not UTF-8 text"),
    ],
)
def test_a_bad_file_is_refused_with_the_place_and_the_problem(
    tmp_path: Path, name: str, text: str | bytes, problem: str
):
    with pytest.raises(MailFileError) as caught:
        read_mails(write(tmp_path / name, text))
    assert problem in str(caught.value)
    assert name in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path):
    (tmp_path / "folder.txt").mkdir()
    for name in ("none.txt", "folder.txt"):
        with pytest.raises(MailFileError, match="no such file"):
            read_mails(tmp_path / name)
