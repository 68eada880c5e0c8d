"""Reads a mail by rules: who writes, about which orders, what is wrong, and which items they name.

It owns the words that the scripted model understands (English only). It never looks anything up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.utils import parseaddr

from examples.support_desk.records import Item, Reason

FLAGS = re.IGNORECASE | re.VERBOSE
ORDER_NUMBER = re.compile(
    r"\b SO [- ]? (\d{4,6}) \b | \b order \s+ (?:number|no\.?)? \s* \#? (\d{4,6}) \b | \#(\d{4,6})\b", FLAGS
)

# The first that is found wins: a cracked thing that also came late is a cracked thing.
COMPLAINTS: dict[Reason, re.Pattern[str]] = {
    "damaged": re.compile(
        r"""\b (damaged? | broken? | broke | crack(s|ed)? | shattered | smashed | scratch(es|ed)? | in\ pieces
            | torn | dead | defect(s|ive)? | faulty | leak(s|ed|ing)? | spoiled | mouldy
            | (not|never)\ work(s|ed|ing)? | \w+n't\ work | stopped\ working) \b""",
        FLAGS,
    ),
    "wrong_item": re.compile(
        r"""\b (wrong\ (item|one|colou?r|size|model|product) | different\ (item|colou?r|size|model)
            | not\ what\ i\ ordered) \b""",
        FLAGS,
    ),
    "not_delivered": re.compile(
        r"""\b ((never|not|\w+n't)\ (yet\ )?(arrived?|received?|delivered|been\ delivered|come|came|turned\ up)
            | still\ waiting\ for | lost\ in\ the\ (mail|post)) \b""",
        FLAGS,
    ),
    "late": re.compile(
        r"\b (too\ late | (days?|weeks?)\ late | (came|arrived|was|were)\ late | late\ delivery | delayed) \b", FLAGS
    ),
    "changed_mind": re.compile(
        r"""\b (refund(s|ed|ing)? | (money|cent)\ back | return(s|ed|ing)? | send\ (it|them)\ back
            | changed\ my\ mind) \b""",
        FLAGS,
    ),
}
NO_MONEY_WANTED = re.compile(
    r"\b (don't|do\ not|not|no\ longer)\ (even\ )?(want|need|asking\ for|expect) \b [^.!?]{0,20} \b (refund|money)",
    FLAGS,
)
EVERYTHING = re.compile(r"\b (everything | all\ of\ (it|them) | (whole|entire|complete)\ order | both) \b", FLAGS)
SENTENCE_END = re.compile(r"(?<=[.!?])\s+ | \n+", FLAGS)
CLAUSE_END = re.compile(r"[,;:] | \b (?:but|however|although|while) \b", FLAGS)
NAMES_NOTHING = {"and", "box", "for", "from", "pack", "pair", "piece", "set", "the", "with"}


@dataclass(frozen=True)
class Reading:
    """What the rules see in a mail. Mind that `text` is subject and body."""

    sender: str
    address: str
    text: str
    order_ids: tuple[str, ...]

    def reason(self, order_id: str | None = None) -> Reason | None:
        """What is wrong, or None when nobody asks for money: a question, a remark, a thank you."""
        if NO_MONEY_WANTED.search(self.text):
            return None
        about = self._about(order_id)
        return next((reason for reason, words in COMPLAINTS.items() if words.search(about)), None)

    def items(self, items: Sequence[Item], reason: Reason | None) -> list[Item]:
        """The items that the complaint names, else those that the mail names, else none."""
        complaint = COMPLAINTS[reason].search if reason else None
        clauses = [clause for clause in self._clauses() if complaint and complaint(clause)]
        return _named(items, " ".join(clauses)) or _named(items, self.text)

    @property
    def means_everything(self) -> bool:
        return EVERYTHING.search(self.text) is not None

    def _about(self, order_id: str | None) -> str:
        """With several orders in one mail, only the sentences that name this one speak of it."""
        if order_id is None or len(self.order_ids) < 2:
            return self.text
        sentences = [part for part in SENTENCE_END.split(self.text) if order_id in _order_ids(part)]
        return " ".join(sentences)

    def _clauses(self) -> Iterator[str]:
        for sentence in SENTENCE_END.split(self.text):
            yield from CLAUSE_END.split(sentence)


def read(prompt: str) -> Reading:
    """Read a prompt made by `Mail.as_prompt`; a text without its header lines is all body."""
    header, _, body = prompt.partition("\n\n")
    lines = dict(line.split(": ", 1) for line in header.splitlines() if ": " in line)
    name, address = parseaddr(lines.get("From", ""))
    text = f"{lines.get('Subject', '')}\n{body}" if "From" in lines else prompt
    return Reading(sender=name or "customer", address=address.lower(), text=text, order_ids=_order_ids(text))


def _order_ids(text: str) -> tuple[str, ...]:
    found = (f"SO-{next(filter(None, match.groups()))}" for match in ORDER_NUMBER.finditer(text))
    return tuple(dict.fromkeys(found))


def _named(items: Sequence[Item], text: str) -> list[Item]:
    """The items of which a word stands in the text that no other item of the order shares."""
    spoken = _words(text)
    titles = {item.sku: _words(item.title) for item in items}
    return [item for item in items if _own_words(item.sku, titles) & spoken]


def _own_words(sku: str, titles: dict[str, set[str]]) -> set[str]:
    others = (words for other, words in titles.items() if other != sku)
    return titles[sku].difference(*others)


def _words(text: str) -> set[str]:
    return {word.rstrip("s") for word in re.findall(r"[^\W\d_]{3,}", text.lower())} - NAMES_NOTHING
