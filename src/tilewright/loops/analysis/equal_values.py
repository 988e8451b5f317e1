"""Stores that write the same value to an element every time: halos that are recomputed.

The condition. A Store `b[e1, ..., en] = v` inside a loop always writes the same value to the
element (E1, ..., En) if every variable bound by the loop or a loop inside it can be eliminated:
each ek is linear in some variable with factor 1 or -1, which is replaced by `Ek - (the rest of ek)`
everywhere; then v, in normal form, contains none of these variables, and reads no buffer that the
loop writes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, Var
from tilewright.ir.node import postorder, substitute, transform
from tilewright.loops.analysis.access import Access
from tilewright.loops.nodes import Store


def stores_one_value(
    a: Access, outside: Collection[Var], written: Collection[Buffer]
) -> bool:
    """Whether iterations of a loop that store the same element store the same value there.

    a: a store in the loop. outside: the variables of the loops around it, alike in all iterations.
    written: the buffers that the loop writes.
    """
    store = a.place.stmt
    if not isinstance(store, Store):
        return False
    fixed: set[Any] = {*outside}
    known: dict[Any, Any] = {}
    for axis, index in enumerate(store.index):
        form = affine(_normal(substitute(index, known)))
        varying = (t for t in form.terms if isinstance(t[0], Var) and t[0] not in fixed)
        v, c = next((t for t in varying if abs(t[1]) == 1), (None, 0))
        if v is None:
            if _varies(to_expr(form), fixed):
                return False
            continue
        element = Var(f"element{axis}", INDEX)
        fixed.add(element)
        rest = form - Affine(((v, c),), 0)
        found = Affine(((element, 1),), 0) - rest
        solved: dict[Any, Any] = {v: to_expr(found.scaled(c))}
        known = {u: substitute(e, solved) for u, e in known.items()} | solved
    value = _normal(substitute(store.value, known))
    loads = (n for n in postorder(value) if isinstance(n, Load))
    return not _varies(value, fixed) and not any(n.buffer in written for n in loads)


def _varies(e: Expr, fixed: Collection[Var]) -> bool:
    return any(isinstance(n, Var) and n not in fixed for n in postorder(e))


def _normal(e: Expr) -> Expr:
    """The expression with every index in it in linear form."""

    def linear(node: Expr) -> Expr:
        return to_expr(affine(node)) if node.dtype is INDEX else node

    return transform(e, linear)  # type: ignore[no-any-return]
