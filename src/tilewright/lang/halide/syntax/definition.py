"""Definition: one `f[args] = values` of a Func."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.base.dataclass import dataclass
from tilewright.compute.reducer import Reducer
from tilewright.expr import nodes
from tilewright.ir.node import Node, postorder, transform
from tilewright.lang.halide.syntax.domain import RDom
from tilewright.lang.halide.syntax.expr import Expr
from tilewright.lang.halide.syntax.image import Symbol
from tilewright.lang.halide.syntax.scatter import one_by_one

Exprs = tuple[nodes.Expr, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Definition:
    """`f[args] = values`, or with a reducer `f[args] = reducer(f[args], values)`.

    args: indices in NumPy's order. domain: the RDom of an update that has one.
    """

    args: tuple[nodes.Expr, ...]
    values: tuple[nodes.Expr, ...]
    domain: RDom | None = None
    reducer: Reducer | None = None

    @property
    def stores(self) -> list[tuple[Exprs, Exprs]]:
        """What is stored at once: the args and the values of each; several of a scatter."""
        rank = len(self.args)
        every = one_by_one((*self.args, *self.values))
        return [(both[:rank], both[rank:]) for both in every]

    @property
    def roots(self) -> Exprs:
        """Every expression of the definition."""
        conditions = () if self.domain is None else self.domain.conditions
        stored = (e for args, values in self.stores for e in (*args, *values))
        return (*dict.fromkeys(stored), *(c.node for c in conditions))

    def symbols(self) -> Iterator[Symbol]:
        """The symbols it reads, each as often as it is read."""
        for root in self.roots:
            for node in postorder(root):
                if isinstance(node, nodes.Load) and isinstance(node.buffer, Symbol):
                    yield node.buffer

    def reading(self, instead: Callable[[Symbol], Symbol]) -> Definition:
        """The definition with every symbol it reads replaced, in conditions of the RDom too."""

        def step(node: Node) -> Node:
            if isinstance(node, nodes.Load) and isinstance(node.buffer, Symbol):
                return nodes.Load(instead(node.buffer), node.index)
            return node

        args = tuple(transform(a, step) for a in self.args)
        values = tuple(transform(v, step) for v in self.values)
        domain = self.domain
        if domain is not None:
            domain = domain.under(
                [Expr(transform(c.node, step), c.dtype) for c in domain.conditions]
            )
        return Definition(args, values, domain, self.reducer)
