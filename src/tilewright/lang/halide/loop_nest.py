"""print_loop_nest: a scheduled kernel in the words of Halide's own."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.lang.halide.placing import Replay
from tilewright.loops.access import writes
from tilewright.loops.nodes import Alloc, Block, For, If, Stmt, Store, Update
from tilewright.schedule import tree

_KINDS = {"serial": "for", "vector": "vectorized", "unroll": "unrolled", "parallel": "parallel"}


def show(state: Replay) -> str:
    """One line per loop (`for y in [0, 9]:`) and definition, with what is produced where."""
    return "\n".join(_Text(state).lines(state.schedule.kernel.body, 0, None))


class _Text:
    def __init__(self, state: Replay) -> None:
        self.owner = {b.name: f for f, buffers in state.lowered.buffers.items() for b in buffers}
        for f, copies in state.buffers.items():
            self.owner |= {name: f for copy in copies for name in copy}
        self.vars = {loop: var for n in state.nests for var, loop in n.loops.items()}

    def lines(self, s: Stmt, depth: int, producing: str | None) -> Iterator[str]:
        pad = "  " * depth
        made = self._made(s)
        if made is not None and made != producing and not isinstance(s, Block | Alloc):
            yield f"{pad}produce {made}:"
            yield from self.lines(s, depth + 1, made)
        elif isinstance(s, For):
            last = (s.trips or 1) - 1
            name = self.vars.get(s.var.name, s.var.name)
            yield f"{pad}{_KINDS.get(s.kind, s.kind)} {name} in [0, {last}]:"
            yield from self.lines(s.body, depth + 1, producing)
        elif isinstance(s, Alloc):
            sizes = ", ".join(map(str, reversed(s.buffer.shape)))
            yield f"{pad}store {s.buffer.name}[{sizes}]:"
            yield from self.lines(s.body, depth + 1, producing)
        elif isinstance(s, Store | Update):
            yield f"{pad}{made or producing}(...) = ..."
        else:
            inner = depth + 1 if isinstance(s, If) else depth
            if isinstance(s, If):
                yield f"{pad}if ...:"
            for part in tree.below(s):
                yield from self.lines(part, inner, producing)

    def _made(self, s: Stmt) -> str | None:
        """The Func whose values the statement makes, if it is only one."""
        found = {self.owner[b.name].name() for b in writes(s) if b.name in self.owner}
        return found.pop() if len(found) == 1 else None
