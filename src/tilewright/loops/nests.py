"""Writing Kernels by hand: loop nests with variable names that are unique in their kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.expr.nodes import INDEX, Buffer, Expr, Var, const
from tilewright.loops.nodes import PRODUCTS, STEPS, Kernel, Stmt, Store, loop

Body = Callable[..., Stmt]


class LoopNests:
    """The loop nests of one kernel. `notes`: which loops may run on threads, and their work."""

    def __init__(self) -> None:
        self._count = 0
        self.notes: dict[str, Mapping[str, object]] = {}

    def over(
        self,
        extents: Sequence[int],
        body: Body,
        *,
        vector: bool = False,
        unroll: bool = False,
    ) -> Stmt:
        """`body(i, j, ...)` for every point.

        vector: vectorize the innermost loop. unroll: unroll all loops.
        """
        kinds = ["unroll" if unroll else "serial"] * len(extents)
        if vector and kinds:
            kinds[-1] = "vector"
        return self._nest(extents, kinds, body)

    def rows(
        self,
        extents: Sequence[int],
        work: int,
        body: Body,
    ) -> Stmt:
        """As `over`, for independent rows of `work` steps each, which may run on threads."""
        steps = {STEPS: math.prod(extents) * work}
        return self._nest(extents, ["serial"] * len(extents), body, steps)

    def product(
        self,
        extents: Sequence[int],
        products: int,
        body: Body,
    ) -> Stmt:
        """As `over`, for sums of `products` products in total with independent outer iterations."""
        return self._nest(
            extents, ["serial"] * len(extents), body, {PRODUCTS: products}
        )

    def loop(
        self,
        extent: int,
        body: Body,
        kind: str = "serial",
    ) -> Stmt:
        """`body(i)` for i in 0 .. extent-1."""
        return self._nest([extent], [kind], body)

    def copy(self, target: Buffer, value: Callable[..., Expr]) -> Stmt:
        """`target[i...] = value(i...)` for the whole of `target`."""
        return self.over(
            target.shape, lambda *i: Store(target, i, value(*i)), vector=True
        )

    def _nest(
        self,
        extents: Sequence[int],
        kinds: Sequence[str],
        body: Body,
        note: Mapping[str, object] | None = None,
    ) -> Stmt:
        """The loop nest. note: for its outermost loop."""
        point: list[Expr] = []
        loops: list[tuple[Var, int, str]] = []
        for extent, kind in zip(extents, kinds, strict=True):
            if extent == 1:
                point.append(const(0))
                continue
            v = Var(f"i{self._count}", INDEX)
            self._count += 1
            point.append(v)
            loops.append((v, extent, kind))
        if loops and note is not None:
            self.notes[loops[0][0].name] = note
        found = body(*point)
        for v, extent, kind in reversed(loops):
            found = loop(v, extent, found, kind)
        return found


def kernel(
    name: str,
    inputs: Sequence[Buffer | None],
    outputs: Sequence[Buffer | None],
    body: Stmt,
    notes: Mapping[str, Mapping[str, object]] | None = None,
) -> Kernel:
    """A Kernel on the operands that are present, each once. notes: those of its loops."""
    written = tuple(b for b in outputs if b is not None)
    params: dict[Any, None] = dict.fromkeys(b for b in inputs if b is not None)
    return Kernel(
        name,
        (*params, *written),
        written,
        body,
        notes or {},
    )
