"""Text in lines of bounded width: a part stays on one line where it fits, else it is broken."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.base.dataclass import dataclass

WIDTH = 100


class Doc:
    """A text and where it may be broken; every break is inside parentheses."""

    def flat(self) -> str:
        """On one line."""
        raise NotImplementedError

    def broken(self, width: int) -> Iterator[str]:
        """On several lines."""
        yield self.flat()

    def lines(self, width: int = WIDTH) -> list[str]:
        """One line if it fits."""
        text = self.flat()
        if len(text) <= width:
            return [text]
        return list(self.broken(width))


@dataclass(frozen=True, slots=True)
class UnbrokenText(Doc):
    """Words that stay together."""

    text: str

    def flat(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class CallText(Doc):
    """`head(args)`; with an empty head, something in parentheses."""

    head: str
    args: tuple[Doc, ...]

    def flat(self) -> str:
        return f"{self.head}({', '.join(a.flat() for a in self.args)})"

    def broken(self, width: int) -> Iterator[str]:
        yield f"{self.head}("
        for n, arg in enumerate(self.args):
            *first, last = arg.lines(width - 3)
            yield from (f"  {line}" for line in first)
            yield f"  {last}{',' if self.head or n + 1 < len(self.args) else ''}"
        yield ")"


@dataclass(frozen=True, slots=True)
class Chain(Doc):
    """`first | second | third`, or another operator."""

    operator: str
    parts: tuple[Doc, ...]

    def flat(self) -> str:
        return f" {self.operator} ".join(p.flat() for p in self.parts)

    def broken(self, width: int) -> Iterator[str]:
        yield from self.parts[0].lines(width)
        for part in self.parts[1:]:
            first, *rest = part.lines(width - len(self.operator) - 1)
            yield f"{self.operator} {first}"
            yield from rest


@dataclass(frozen=True, slots=True)
class Scoped(Doc):
    """`lambda x: body`."""

    head: str
    body: Doc

    def flat(self) -> str:
        return f"{self.head} {self.body.flat()}"

    def broken(self, width: int) -> Iterator[str]:
        yield self.head
        yield from (f"  {line}" for line in self.body.lines(width - 2))
