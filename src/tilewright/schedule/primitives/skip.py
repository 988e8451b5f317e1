"""skip: no iterations of a loop that would change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.bounds import bounds, proves
from tilewright.expr.nodes import (
    INDEX,
    And,
    Expr,
    Le,
    Load,
    Lt,
    Select,
)
from tilewright.ir.node import postorder
from tilewright.loops.analysis.access import Env, environment, expressions
from tilewright.loops.analysis.terms import variables
from tilewright.loops.nodes import For, If, Kernel, Stmt
from tilewright.loops.walk import StatementPlace, loops_of, walk
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import refuse
from tilewright.schedule.no_effect import changes_nothing
from tilewright.schedule.registry import primitive
from tilewright.schedule.staging import within


@primitive
def skip(kernel: Kernel, loop: str) -> tuple[Kernel, None]:
    """Run the body of a loop only in iterations that may have an effect.

    args: the loop.
    requires: the body selects by comparing indices, with one another or with elements of inputs
    that the kernel does not write; such a comparison implies a condition on this loop and the loops
    around it, for all values of the inner loops; and if that condition is false, the body changes
    nothing that outlives it: it only adds the identity to reductions (`schedule/no_effect.py`).
    These conditions are tested before the body. This skips blocks of keys after the last valid one
    of a cache, and those that a causal mask hides from all rows of a block.
    before: for b: for i: s max= i + b*4 < n[0] ? x[b*4 + i] : -inf                        skip('b')
    after:  for b: if b*4 < n[0]: for i: ...
    """
    f, place = tree.find_loop(kernel, loop, "skip")
    if f.kind not in ("serial", "parallel"):
        raise refuse(
            "skip", loop, f"it is a {f.kind} loop", "skip a loop around it instead"
        )
    env = environment(kernel.body)
    found = list(_conditions(f, kernel, env))
    tests = [_test(form) for form in found if _is_needed(f.body, form, env)]
    if not tests:
        raise refuse(
            "skip",
            loop,
            "there is no condition without which its body would change nothing",
            "the body selects the identity of what it reduces by comparing indices",
        )
    body = StatementPlace(f.body, (*place.above, f))
    return edit.put(kernel, body, If(reduce(And, tests), f.body, None)), None


def _test(form: Affine) -> Expr:
    """`form <= 0`, nothing subtracted from what memory holds: that might overflow."""
    left = Affine(tuple((a, c) for a, c in form.terms if c > 0), 0)
    right = Affine(tuple((a, -c) for a, c in form.terms if c < 0), 0)
    if any(isinstance(a, Load) for a, _ in left.terms):
        return Le(to_expr(left), to_expr(right - Affine((), form.const)))
    return Le(to_expr(left + Affine((), form.const)), to_expr(right))


def _conditions(f: For, kernel: Kernel, env: Env) -> Iterator[Affine]:
    """Forms that are at most 0 wherever some comparison inside holds, each once."""
    seen: set[Expr] = set()
    for c in _comparisons(f.body):
        form = _outside(c, f.body, env)
        if form is None or not all(_exists(a, kernel, env) for a, _ in form.terms):
            continue
        test = _test(form)
        if test not in seen and proves(test, env) is None:
            seen.add(test)
            yield form


def _comparisons(body: Stmt) -> list[Le | Lt]:
    """What selects decide by, whole or as a part of a conjunction."""
    found: dict[Le | Lt, None] = {}
    for place in walk(body):
        for e in expressions(place.stmt):
            for n in postorder(e):
                if isinstance(n, Select):
                    found |= dict.fromkeys(_compared(n.condition))
    return list(found)


def _compared(condition: Expr) -> Iterator[Le | Lt]:
    for n in postorder(condition):
        if isinstance(n, Le | Lt) and n.lhs.dtype is INDEX:
            yield n


def _outside(c: Le | Lt, body: Stmt, env: Env) -> Affine | None:
    """The form of `c`, which holds where it is at most 0, as small as loops inside make it."""
    form = affine(c.lhs) - affine(c.rhs)
    least = Affine((), form.const + isinstance(c, Lt))
    inner = {f.var for f in loops_of(body)}
    for atom, factor in form.terms:
        if inner.isdisjoint(variables(atom)):
            least += Affine(((atom, factor),), 0)
            continue
        low, high = bounds(atom, env)
        end = low if factor > 0 else high
        if end is None:
            return None
        least += Affine((), factor * end)
    return least


def _exists(atom: Expr, kernel: Kernel, env: Env) -> bool:
    """Whether an atom can be computed before the body: its inputs are inputs of the kernel."""
    loads = [n for n in postorder(atom) if isinstance(n, Load)]
    return all(
        n.buffer in kernel.inputs and within(n.index, n.buffer, env) is None
        for n in loads
    )


def _is_needed(body: Stmt, form: Affine, env: Env) -> bool:
    """Whether the body changes nothing where the form is greater than 0."""
    false = []
    for c in _comparisons(body):
        other = _outside(c, body, env)
        if other is None:
            continue
        more = other - form
        if more.is_const and more.const >= 0:
            false.append(c)
    return changes_nothing(body, false)
