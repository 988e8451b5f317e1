"""The loads of an expression, each with the conditions under which it is performed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.expr.bounds import Env, refine, within
from tilewright.expr.intervals import Interval
from tilewright.expr.nodes import Expr, Load, Select, Var
from tilewright.ir.node import Node, postorder

Guard = tuple[Expr, bool]

# Sets of conditions distinguished for each select of an expression. A chain of selects needs one
# for each; a deep expression with shared parts has more paths than anybody can walk.
CASES_PER_SELECT = 4


@dataclass(frozen=True, eq=False, slots=True)
class Read:
    """A load, the conditions that hold (or not) where it is performed, and their bounds."""

    load: Load
    guards: tuple[Guard, ...]
    ranges: dict[Any, Interval]


def reads(
    roots: tuple[Expr, ...],
    env: Env,
    guards: tuple[Guard, ...] = (),
) -> Iterator[Read]:
    """Every load below `roots`, once per set of conditions around it, inner loads first.

    Takes time linear in the distinct nodes: beyond CASES_PER_SELECT sets of conditions for each
    select, a load comes with `guards` and the innermost condition around it only.
    """
    nodes = dict.fromkeys(n for e in roots for n in postorder(e))
    selects = sum(isinstance(n, Select) for n in nodes)
    walk = _Walk((guards, dict(env)), _above_loads(nodes), CASES_PER_SELECT * selects)
    for e in roots:
        yield from walk.below(e, *walk.outside)


def _above_loads(nodes: Iterable[Node]) -> set[Node]:
    """Those of `nodes`, which come children first, that are loads or have one below them."""
    found: set[Node] = set()
    for node in nodes:
        if isinstance(node, Load) or any(c in found for c in node.children()):
            found.add(node)
    return found


class _Walk:
    """One walk from roots down to loads, each node once per set of conditions.

    outside: the conditions around the roots, and their bounds. reading: the nodes with a load at
    or below them. cases: how many more selects are distinguished by all conditions around them.
    """

    def __init__(
        self,
        outside: tuple[tuple[Guard, ...], dict[Any, Interval]],
        reading: set[Node],
        cases: int,
    ) -> None:
        self.outside = outside
        self.reading = reading
        self.cases = cases
        self.seen: set[tuple[Expr, tuple[Guard, ...]]] = set()

    def below(
        self,
        e: Expr,
        guards: tuple[Guard, ...],
        ranges: dict[Any, Interval],
    ) -> Iterator[Read]:
        if e not in self.reading or (e, guards) in self.seen:
            return
        self.seen.add((e, guards))
        if isinstance(e, Select):
            yield from self.below(e.condition, guards, ranges)
            self.cases -= 1
            if self.cases < 0:
                guards, ranges = self.outside
            for arm, holds in ((e.then, True), (e.otherwise, False)):
                if arm in self.reading:
                    chosen = (*guards, (e.condition, holds))
                    known = refine(ranges, e.condition, holds)
                    yield from self.below(arm, chosen, known)
            return
        children: Any = e.children()
        for child in children:
            yield from self.below(child, guards, ranges)
        if isinstance(e, Load):
            yield Read(e, guards, ranges)


class Anywhere:
    """Which terms may be computed anywhere inside the loops that give `ranges`.

    precondition of a term: each of its loads is inside its buffer by `ranges`, or by them and
    the condition of one select of the term, in whose arm it is.
    """

    def __init__(self, ranges: Env) -> None:
        self.ranges = ranges
        self.known: dict[Node, bool] = {}

    def __call__(self, e: Expr) -> bool:
        for node in postorder(e):
            if node not in self.known:
                self.known[node] = self._of(node)
        return self.known[e]

    def shared(self, e: Select) -> Iterator[Expr]:
        """The largest terms of both arms of `e` that may be computed before its condition.

        Computed so, they are computed once; in a deep term, each arm would compute them again.
        """
        then = set(postorder(e.then))
        waiting: list[Any] = [e.otherwise]
        seen: set[Node] = set()
        while waiting:
            node = waiting.pop()
            if node in seen or not node.children():
                continue
            seen.add(node)
            if node in then and self(node):
                yield node
            else:
                waiting += node.children()

    def _of(self, node: Node) -> bool:
        if isinstance(node, Select) and self.known[node.condition]:
            return all(
                self.known[arm] or self._inside(arm, node.condition, holds)
                for arm, holds in ((node.then, True), (node.otherwise, False))
            )
        if isinstance(node, Load) and not is_inside(node, self.ranges):
            return False
        return all(self.known[c] for c in node.children())

    def _inside(self, arm: Expr, condition: Expr, holds: bool) -> bool:
        """Whether the loads of an arm are inside their buffers where it is chosen."""
        ranges = refine(self.ranges, condition, holds)
        return all(is_inside(load, ranges) for load in loads(arm))


def is_inside(load: Load, ranges: Env) -> bool:
    """Whether every index of a load is proven inside its buffer."""
    places = zip(load.index, load.buffer.extents, strict=True)
    return all(within(index, extent, ranges) for index, extent in places)


def variables(e: Expr) -> Iterator[Var]:
    """The distinct variables of an expression."""
    return (n for n in postorder(e) if isinstance(n, Var))


@lru_cache(maxsize=1 << 12)
def loads(e: Expr) -> tuple[Load, ...]:
    """The distinct loads in an expression, those in indices included."""
    return tuple([n for n in postorder(e) if isinstance(n, Load)])


def reads_memory(e: Expr) -> bool:
    """Whether a load occurs in the expression."""
    return bool(loads(e))
