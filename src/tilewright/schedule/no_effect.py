"""Statements that change nothing: they only add what is neutral.

Each buffer that a statement allocates is followed as one number: if all its stores and updates give
one and the same number, that is what it holds wherever it is read. A step of a reduction whose
values are such numbers, those of its operator's identity, changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.expr.nodes import Buffer, Const, Expr, Load, const
from tilewright.expr.simplify import simplify
from tilewright.ir.node import postorder, substitute
from tilewright.loops.analysis.effects import allocated
from tilewright.loops.nodes import Stmt, Store, Update
from tilewright.loops.walk import walk

Write = Store | Update


def changes_nothing(body: Stmt, false: Collection[Expr]) -> bool:
    """Whether `body` leaves all that outlives it as it is wherever the conditions `false` are.

    Not where that is unknown: 0 times what is not known is not known, it may be infinite. A step by
    the identity of a reducer counts as none, by the law of reducers; rounding may tell them apart.
    """
    writes = [p.stmt for p in walk(body) if isinstance(p.stmt, Write)]
    numbers = _Numbers(allocated(body), {c: const(False, c.dtype) for c in false})
    while numbers.learn(writes):
        pass
    return not any(numbers.changes(s) for s in writes)


@dataclass
class _Numbers:
    """What the buffers of a statement's own hold.

    decided: conditions whose value is known. held: per buffer that was seen to be written, the
    number that it holds; None: several, or one that is not known.
    """

    own: Collection[Buffer]
    decided: Mapping[object, object]
    held: dict[Buffer, Const | None] = field(default_factory=dict)

    def learn(self, writes: Sequence[Write]) -> bool:
        """Follow each write once; whether that told anything new."""
        before = dict(self.held)
        for s in writes:
            for buffer, value in _results(s):
                if buffer in self.own:
                    number = self._number(value)
                    if self.held.setdefault(buffer, number) is not number:
                        self.held[buffer] = None
        return self.held != before

    def changes(self, s: Write) -> bool:
        """Whether a write may change what outlives the statement."""
        if isinstance(s, Store):
            return s.buffer not in self.own
        if all(b in self.own for b in s.buffers):
            return False
        return tuple(map(self._number, s.values)) != s.reducer.identity

    def _number(self, value: Expr) -> Const | None:
        """What a value is wherever it is computed, if that is one number."""
        env = dict(self.decided)
        for load in (n for n in postorder(value) if isinstance(n, Load)):
            number = self.held.get(load.buffer)
            if number is not None:
                env[load] = number
        found = simplify(substitute(value, env))
        return found if isinstance(found, Const) else None


def _results(s: Write) -> Iterator[tuple[Buffer, Expr]]:
    """Each buffer written with what it then holds."""
    if isinstance(s, Store):
        yield s.buffer, s.value
        return
    old = tuple(Load(b, i) for b, i in s.targets)
    yield from zip(s.buffers, s.reducer.combine(old, s.values), strict=True)
