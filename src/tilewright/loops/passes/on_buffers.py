"""A Kernel on other buffers of the same shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright.expr.nodes import Buffer, Load
from tilewright.ir.node import transform
from tilewright.loops.nodes import Alloc, Kernel, Operand, Store, Update


def on_buffers(kernel: Kernel, names: Mapping[Buffer, Buffer]) -> Kernel:
    """The kernel with some of its buffers replaced.

    requires: a buffer and what replaces it have one shape and one dtype.
    """

    def step(node: Any) -> Any:
        match node:
            case Load() | Store() | Operand() | Alloc() if node.buffer in names:
                return node.replace(buffer=names[node.buffer])
            case Update():
                return node.replace(
                    buffers=tuple(names.get(b, b) for b in node.buffers)
                )
        return node

    return replace(
        kernel,
        params=tuple(names.get(b, b) for b in kernel.params),
        outputs=tuple(names.get(b, b) for b in kernel.outputs),
        body=transform(kernel.body, step),
    )
