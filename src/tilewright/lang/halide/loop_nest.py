"""print_loop_nest: a scheduled kernel in Halide's own format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from tilewright.lang.halide.placing import Replay
from tilewright.loops.analysis.effects import writes
from tilewright.loops.nodes import Alloc, Block, For, If, Stmt, Store, Update
from tilewright.loops.walk import below

_KINDS = {
    "serial": "for",
    "vector": "vectorized",
    "unroll": "unrolled",
    "parallel": "parallel",
}


def show(state: Replay) -> str:
    """One line per loop (`for y in [0, 9]:`) and definition, with the places of production."""
    return "\n".join(_Text(state).lines(_parts(state.schedule.kernel.body), 0))


class _Text:
    def __init__(self, state: Replay) -> None:
        self.owner: dict[str, Any] = {}
        self.firsts: set[str] = set()
        for f, buffers in state.lowered.buffers.items():
            self.owner |= dict.fromkeys((b.name for b in buffers), f)
        for f, copies in state.buffers.items():
            for copy in copies:
                self.owner |= dict.fromkeys(copy, f)
                self.firsts.add(copy[0])
        self.vars: dict[str, str] = {}
        for nest in state.nests:
            self.vars |= {loop: var for var, loop in nest.loops.items()}

    def lines(
        self, parts: Sequence[Stmt], depth: int, producing: str | None = None
    ) -> Iterator[str]:
        """Statements in order; neighbors that make values of one Func are produced together."""
        for made, found in groupby(parts, self._made):
            several = tuple(found)
            if made is None or made == producing or isinstance(several[0], Alloc):
                yield from self._nest(several, depth, producing)
            else:
                yield f"{'  ' * depth}produce {made}:"
                yield from self._nest(several, depth + 1, made)

    def _nest(
        self, parts: Sequence[Stmt], depth: int, producing: str | None
    ) -> Iterator[str]:
        for s in parts:
            head = self._head(s)
            if head is not None:
                yield "  " * depth + head
            yield from self.lines(_below(s), depth + (head is not None), producing)

    def _head(self, s: Stmt) -> str | None:
        """The line of one statement; None if it has no separate line."""
        match s:
            case For():
                last = f"{s.extent!r} - 1" if s.trips is None else str(s.trips - 1)
                name = self.vars.get(s.var.name, s.var.name)
                return f"{_KINDS.get(s.kind, s.kind)} {name} in [0, {last}]:"
            case Alloc() if s.buffer.name in self.owner:
                sizes = ", ".join(map(str, reversed(s.buffer.shape)))
                return f"store {s.buffer.name}[{sizes}]:"
            case Store() if s.buffer.name not in self.firsts:
                return None  # the second value of a definition, or a temporary of it
            case Store() | Update():
                return f"{self._made(s)}(...) = ..."
            case If():
                return "if ...:"
        return None

    def _made(self, s: Stmt) -> str | None:
        """The Func whose values the statement makes, if it is only one."""
        written = [b.name for b in writes(s)]
        owners = {self.owner[name].name() for name in written if name in self.owner}
        return owners.pop() if len(owners) == 1 else None


def _below(s: Stmt) -> list[Stmt]:
    return [part for child in below(s) for part in _parts(child)]


def _parts(s: Stmt) -> Sequence[Stmt]:
    if isinstance(s, Block):
        return s.stmts
    return (s,)
