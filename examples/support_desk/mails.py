"""Reads customer mails from a file: JSON lines, plain text, or a mail program's mbox.

It owns the mail's shape and the file formats. Whatever is wrong with a file is one `MailFileError`.
"""

from __future__ import annotations

import contextlib
import email
import email.policy
import html
import json
import mailbox
import re
from collections.abc import Callable, Iterable
from email.message import EmailMessage
from email.utils import parseaddr
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

MAILS = Path(__file__).parent / "mails.jsonl"
Text = Annotated[str, StringConstraints(strip_whitespace=True)]


class MailFileError(ValueError):
    """A mail file that cannot be used: which file, where in it, and what to change."""

    def __init__(self, path: Path, problem: str, where: str = "") -> None:
        self.path = path
        super().__init__(f"`{path}`{', ' + where if where else ''}: {problem}")


def _has_address(sender: str) -> str:
    if "@" not in parseaddr(sender)[1]:
        raise ValueError(f"`{sender}` holds no mail address")
    return sender


class Mail(BaseModel):
    """One customer's mail. `sender` is an address, with or without a name: `Ada Byron <ada@example.com>`."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    id: Text = Field(min_length=1)
    sender: Annotated[Text, AfterValidator(_has_address)] = Field(validation_alias="from")
    subject: Text = ""
    body: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=20_000)]

    @property
    def address(self) -> str:
        return parseaddr(self.sender)[1].lower()

    @property
    def name(self) -> str:
        return parseaddr(self.sender)[0] or self.address

    def as_prompt(self) -> str:
        """The mail as the agent reads it."""
        return f"From: {self.sender}\nSubject: {self.subject}\n\n{self.body}"


def read_mails(path: Path = MAILS) -> list[Mail]:
    """The mails of a `.jsonl`, `.txt` or `.mbox` file, in its order; a mail without an `id` is numbered.

    - `.jsonl`: one object a line, with `from` and `body`, and if you like `subject` and `id`.
    - `.txt`: mails with a line of `---` between them; each has `From:` and `Subject:` lines, an empty line, the text.
    - `.mbox`: as mail programs export it.

    Raises `MailFileError` when there is no such file, its ending is unknown, it holds no mail, a mail cannot be read
    (with its line or number), or two mails have the same `id`.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise MailFileError(path, f"a mail file ends in {', '.join(READERS)}; rename or convert it")
    if not path.is_file():
        raise MailFileError(path, "there is no such file; check the path")
    mails = [_mail(path, where, fields, number) for number, (where, fields) in enumerate(reader(path), 1)]
    if not mails:
        raise MailFileError(path, "it holds no mail; put at least one in")
    _refuse_twins(path, mails)
    return mails


Found = Iterable[tuple[str, dict[str, Any]]]


def _jsonl(path: Path) -> Found:
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        where = f"line {number}"
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise MailFileError(path, f"not JSON ({error.msg} at column {error.colno})", where) from None
        if not isinstance(value, dict):
            raise MailFileError(path, 'expected an object like {"from": "…", "body": "…"}', where)
        yield where, cast("dict[str, Any]", value)


def _txt(path: Path) -> Found:
    chunks = re.split(r"^-{3,}\s*$", _text(path), flags=re.MULTILINE)
    for number, chunk in enumerate((chunk for chunk in chunks if chunk.strip()), 1):
        message = email.message_from_string(chunk.lstrip(), policy=email.policy.default)
        yield f"mail {number}", _fields(message)


def _mbox(path: Path) -> Found:
    with contextlib.closing(mailbox.mbox(path, factory=None, create=False)) as box:
        for number, raw in enumerate(box, 1):
            yield f"mail {number}", _fields(email.message_from_bytes(raw.as_bytes(), policy=email.policy.default))


READERS: dict[str, Callable[[Path], Found]] = {".jsonl": _jsonl, ".txt": _txt, ".mbox": _mbox}


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MailFileError(path, f"not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def _fields(message: EmailMessage) -> dict[str, Any]:
    part = message.get_body(("plain", "html"))
    body = part.get_content() if part is not None else ""
    if part is not None and part.get_content_subtype() == "html":
        body = html.unescape(re.sub(r"<[^>]*>", " ", body))
    found: dict[str, Any] = {"subject": str(message.get("Subject", "")), "body": body}
    return found if message["From"] is None else {**found, "from": str(message["From"])}


def _mail(path: Path, where: str, fields: dict[str, Any], number: int) -> Mail:
    try:
        return Mail.model_validate({"id": f"mail-{number:02}", **fields})
    except ValidationError as error:
        first = error.errors()[0]
        raise MailFileError(path, f"`{first['loc'][0]}`: {first['msg']}", where) from None


def _refuse_twins(path: Path, mails: list[Mail]) -> None:
    seen: set[str] = set()
    for mail in mails:
        if mail.id in seen:
            raise MailFileError(path, f"two mails have the id `{mail.id}`; give each its own, or leave them out")
        seen.add(mail.id)
