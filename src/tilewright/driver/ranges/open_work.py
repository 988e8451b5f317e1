"""The floating-point operations of the kernels of an open plan, as formulas of its sizes.

Operators count them at one choice of the sizes. A kernel has a number at other sizes in proportion
to the work of its loops before any schedule.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from tilewright.driver.build_kernel import arithmetic
from tilewright.expr.nodes import Extent, Var
from tilewright.ir.node import postorder
from tilewright.loops.nodes import (
    Alloc,
    Block,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Unit,
    Update,
)
from tilewright.loops.sizes import formula, statement
from tilewright.plan.nodes import OpenExtent
from tilewright.runtime import formulas
from tilewright.runtime.formulas import Formula

Product = tuple[Extent, ...]


def flops_formula(kernel: Kernel, flops: int, sizes: Sequence[OpenExtent]) -> Formula:
    """`flops` of an unscheduled kernel at the sizes where they were counted, as a formula."""
    if not flops:
        return 0
    work = Counter[Product]()
    _add_work(statement(kernel), (), {e.size for e in sizes}, work)
    terms = [_tree("*", [n, *map(formula, p)]) for p, n in work.items()]
    total = _tree("+", terms)
    counted = formulas.value(total, {e.size.name: e.at_count for e in sizes})
    if not counted:
        return flops
    common = math.gcd(flops, counted)
    return ["//", ["*", flops // common, total], counted // common]


def _add_work(
    s: Stmt, around: Product, sizes: set[Var], found: Counter[Product]
) -> None:
    """Add the operations of each statement, at least one, by the loops around it.

    A loop whose extent is not a function of the sizes, and a condition, count once.
    """
    match s:
        case For():
            known = all(v in sizes for v in postorder(s.extent) if isinstance(v, Var))
            _add_work(s.body, (*around, s.count) if known else around, sizes, found)
        case Block():
            for part in s.stmts:
                _add_work(part, around, sizes, found)
        case Alloc() | Unit():
            _add_work(s.body, around, sizes, found)
        case If():
            for branch in (s.then, s.otherwise):
                if branch is not None:
                    _add_work(branch, around, sizes, found)
        case Store() | Update():
            found[around] += max(1, arithmetic(s))


def _tree(name: str, parts: Sequence[Formula]) -> Formula:
    """A sum or product of formulas, as flat as possible."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return [name, _tree(name, parts[:half]), _tree(name, parts[half:])]
