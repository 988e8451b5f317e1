"""A canonical text of Computations: equal for equal programs, whatever their names are.

It is the key of the kernel cache, and identifies equal kernels in a model. So programs with equal
texts must be equal up to names: the text contains everything that determines a program's results,

    of a buffer     its place among the parameters or the order of first use, dtype, shape, scope
    of a dimension  variable, extent, how it combines
    of an operator  what it computes, from which identity, whether it commutes; not its name
    of an output    buffer, index, value
    of a node       class and every field; constants by type and bits: 0.0 is not -0.0, nor True 1
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compute.nodes import Computation
from tilewright.compute.reducer import Reducer
from tilewright.expr.nodes import Buffer, Extent, Var
from tilewright.ir.node import Node, exact, unseen


class _Text:
    """Numbers nodes, variables and buffers in order of first appearance."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.nodes: dict[Node, int] = {}
        self._seen: set[Node] = set()
        self.buffers: dict[Buffer, int] = {}
        self.reducers: dict[Reducer, int] = {}

    def buffer(self, b: Buffer) -> str:
        if b not in self.buffers:
            self.buffers[b] = len(self.buffers)
            extents = ", ".join(map(self.extent, b.extents))
            self.lines.append(f"b{self.buffers[b]}: {b.dtype}[{extents}] {b.scope}")
        return f"b{self.buffers[b]}"

    def extent(self, n: Extent) -> str:
        return str(n) if isinstance(n, int) else self.expr(n)

    def expr(self, root: Node) -> str:
        for node in unseen(root, self._seen):
            parts = [self._field(getattr(node, f)) for f in node._fields]
            if isinstance(node, Var):
                parts = [str(node.type)]
            text = f"{type(node).__name__}({', '.join(parts)})"
            self.nodes[node] = len(self.nodes)
            self.lines.append(f"e{self.nodes[node]} = {text}")
        return f"e{self.nodes[root]}"

    def _field(self, value: object) -> str:
        if isinstance(value, Node):
            return f"e{self.nodes[value]}"
        if isinstance(value, Buffer):
            return self.buffer(value)
        if isinstance(value, Reducer):
            return self.reducer(value)
        if isinstance(value, tuple):
            return "(" + " ".join(self._field(v) for v in value) + ")"
        if isinstance(value, float | complex):
            return str(exact(value))
        return repr(value)

    def reducer(self, op: Reducer | None) -> str:
        if op is None:
            return "map"
        if op not in self.reducers:
            expressions = (*op.lhs, *op.rhs, *op.result, *op.identity)
            parts = [self.expr(e) for e in expressions]
            self.reducers[op] = len(self.reducers)
            self.lines.append(f"r{self.reducers[op]} = {op.commutative} {parts}")
        return f"r{self.reducers[op]}"


def canonical_tree(
    root: Node,
    params: Sequence[Buffer],
) -> str:
    """The text of one tree of nodes, such as the body of a loop program over `params`."""
    return canonical([root], params)


def canonical(
    programs: Sequence[Computation | Node],
    params: Sequence[Buffer],
) -> str:
    """The text of Computations, and of trees of nodes among them, such as the bodies of loops.

    `params` fixes the order of the interface. Tags take part by their `repr`.
    """
    text = _Text()
    for b in params:
        text.buffer(b)
    for c in programs:
        if isinstance(c, Node):
            root = text.expr(c)
            text.lines.append(root)
            continue
        dims = " ".join(
            f"{text.expr(d.var)}:{text.extent(d.size)}:{d.combine}" for d in c.dims
        )
        text.lines.append(
            f"for {dims} {text.reducer(c.reducer)} {sorted(c.tags.items())}"
        )
        for o in c.outputs:
            index = [text.expr(i) for i in o.index]
            text.lines.append(f"{text.buffer(o.tensor)}{index} = {text.expr(o.value)}")
    return "\n".join(text.lines)
