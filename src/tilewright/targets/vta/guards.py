"""Padding: the iterations of each loop for which a condition holds."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.base.errors import CompileError
from tilewright.compute.guards import conjuncts
from tilewright.expr.affine import affine
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import Expr, Le, Lt, Var
from tilewright.expr.reads import variables
from tilewright.targets.vta.pieces import Values, linear

Ranges = dict[Var, tuple[int, int]]


def box_of(
    condition: Expr | None, loops: Mapping[Var, int], values: Values, where: str
) -> Ranges | None:
    """The iterations of each loop in which a condition holds, except loops that it does not depend
    on.

    None if it never holds. Raises CompileError unless the condition is a box: a conjunction of
    comparisons of one loop each.
    """
    found: Ranges = {}
    for part in conjuncts(condition) if condition is not None else ():
        if all(v in values for v in variables(part)):
            known = {v: values[v] for v in variables(part)}
            if not evaluate(part, known):
                return None
            continue
        if not isinstance(part, Lt | Le):
            raise _no_box(part, where)
        # constant + step * turn >= 0
        constant, steps = linear(affine(part.rhs) - affine(part.lhs), values, where)
        constant -= isinstance(part, Lt)
        if len(steps) != 1 or not set(steps) <= set(loops):
            raise _no_box(part, where)
        ((v, step),) = steps.items()
        low, high = found.get(v, (0, loops[v]))
        if step > 0:
            low = max(low, -(constant // step))
        else:
            high = min(high, constant // -step + 1)
        found[v] = min(low, loops[v]), max(high, 0)
    return found


def _no_box(part: Expr, where: str) -> CompileError:
    return CompileError(
        f"the padding `{part!r}` is not a bound of one loop",
        code="TW-VTA-PADDING",
        where=where,
        hint="pad by comparisons of one index each, joined with all_of or &",
    )
