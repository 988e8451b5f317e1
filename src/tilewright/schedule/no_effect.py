"""Statements without effect: they only combine with the identity.

Each buffer that a statement allocates is tracked as one number: if all its stores and updates
produce the same number, every read of it returns that number. A reduction step whose values are the
identity of its operator has no effect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Buffer, Const, Expr, Load, const
from tilewright.expr.simplify import simplify
from tilewright.ir.node import postorder, substitute
from tilewright.loops.analysis.effects import allocated
from tilewright.loops.nodes import Stmt, Store, Update
from tilewright.loops.walk import walk

Write = Store | Update


def changes_nothing(body: Stmt, false: Collection[Expr]) -> bool:
    """Whether `body` changes nothing that outlives it if the conditions are `false`.

    False if that is unknown: 0 times an unknown value is unknown, since the value may be infinite.
    A step with the identity of a reducer counts as no step, by the law of reducers; the two may
    round differently.
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
    """Each written buffer with the number it then holds."""
    if isinstance(s, Store):
        yield s.buffer, s.value
        return
    old = tuple(Load(b, i) for b, i in s.targets)
    yield from zip(s.buffers, s.reducer.combine(old, s.values), strict=True)
