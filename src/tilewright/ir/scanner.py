"""A scanner of words, numbers and marks in a line of text, for parsers of our printers' output."""

from __future__ import annotations

import re
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError

_TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<number>(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|(?:inf|nan)\b|(?:inf|nan)(?=_))(?:_[a-z]\w*)?)
  | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<word>[^\W\d][\w.]*)
  | (?P<comment>\#.*)
  | (?P<mark><<|>>|<=|==|!=|//|->|\S)
  )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text; after `#` there is none.

    kind: number, text, word, mark, or end. start: its place in the line.
    """

    kind: str
    text: str
    start: int


class Scanner:
    """The tokens of a text from left to right.

    where: the place of the text, for errors. Every method raises InputError (TW-SYNTAX) for an
    unexpected token, naming what was expected and found.
    """

    def __init__(self, text: str, where: str) -> None:
        self.where = where
        self.tokens = _tokens(text)
        self.position = 0

    @property
    def next(self) -> Token:
        """The current token."""
        return self.tokens[self.position]

    def at(self, text: str) -> bool:
        """Whether this word or mark is the current token."""
        return self.next.text == text and self.next.kind in ("word", "mark")

    def accept(self, text: str) -> bool:
        """Skip this word or mark if it is the current token."""
        found = self.at(text)
        self.position += found
        return found

    def expect(self, *texts: str) -> None:
        """Go past these words and marks."""
        for text in texts:
            if not self.accept(text):
                raise self.wrong(repr(text))

    def take(self, kind: str, what: str = "") -> str:
        """Go past a token of this kind; its text."""
        token = self.next
        if token.kind != kind:
            raise self.wrong(what or f"a {kind}")
        self.position += 1
        return token.text

    def end(self) -> None:
        """Expect that nothing follows."""
        if self.next.kind != "end":
            raise self.wrong("the end of the line")

    def wrong(self, expected: str) -> InputError:
        """The error at the current position."""
        found = self.next
        shown = "the end" if found.kind == "end" else repr(found.text)
        return self.refusal(
            f"expected {expected}, found {shown} in column {found.start + 1}"
        )

    def refusal(self, message: str) -> InputError:
        """The error for a text that has no meaning."""
        return InputError(
            message,
            code="TW-SYNTAX",
            where=self.where,
            hint="give the text as it was printed",
        )


def _tokens(text: str) -> list[Token]:
    found: list[Token] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        assert match is not None and match.lastgroup is not None, (
            "a mark is any character"
        )
        if match.lastgroup != "comment":
            start = match.start(match.lastgroup)
            found.append(Token(match.lastgroup, match[match.lastgroup], start))
        position = match.end()
    return [*found, Token("end", "", end)]
