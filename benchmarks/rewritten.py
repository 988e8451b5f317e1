"""A Kernel written in another way: the same program to whom it runs, another text."""

from __future__ import annotations

from itertools import count
from typing import Any

from tilewright.expr.nodes import Buffer, Load, Var, var
from tilewright.ir.node import substitute, transform
from tilewright.loops.nodes import Alloc, For, Kernel, Store, Update, loop
from tilewright.loops.walk import loops_of


def renamed(kernel: Kernel) -> Kernel:
    """The kernel with new variables and buffers, whose names sort the other way round."""
    buffers: dict[Buffer, Buffer] = {}
    variables: dict[Var, Var] = {}
    for n, f in enumerate(loops_of(kernel.body)):
        variables[f.var] = var(f"loop{1000 - n}")

    def buffer(b: Buffer) -> Buffer:
        if b not in buffers:
            name = f"tensor{1000 - len(buffers)}"
            buffers[b] = Buffer(name, b.extents, b.dtype, b.scope)
        return buffers[b]

    def new(node: Any) -> Any:
        if isinstance(node, Load | Alloc):
            return node.replace(buffer=buffer(node.buffer))
        if isinstance(node, Store):
            return node.replace(buffer=buffer(node.buffer))
        if isinstance(node, Update):
            return node.replace(buffers=tuple(map(buffer, node.buffers)))
        return node

    body = transform(substitute(kernel.body, variables), new)
    params = tuple(map(buffer, kernel.params))
    outputs = tuple(map(buffer, kernel.outputs))
    return Kernel("other", params, outputs, body)


def with_trivial_loops(kernel: Kernel) -> Kernel:
    """The kernel with a loop of one trip around each of its loops and stores."""

    numbers = count()

    def new(node: Any) -> Any:
        if isinstance(node, For | Store | Update):
            return loop(var(f"once{next(numbers)}"), 1, node)
        return node

    return kernel.with_body(transform(kernel.body, new))
