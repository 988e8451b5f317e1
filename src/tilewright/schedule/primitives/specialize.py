"""specialize: a copy of a program for when a condition holds."""

from __future__ import annotations

from typing import Any

from tilewright.base.errors import InputError
from tilewright.compute.guards import conjuncts
from tilewright.expr.affine import affine, to_expr
from tilewright.expr.bounds import lasting, proves, refine
from tilewright.expr.nodes import Buffer, Const, Eq, Expr, Load, Var
from tilewright.expr.simplify import simplify
from tilewright.ir.node import postorder
from tilewright.loops.analysis.access import Env, environment
from tilewright.loops.analysis.effects import writes
from tilewright.loops.analysis.terms import loads, variables
from tilewright.loops.nodes import SIZE, Alloc, For, If, Kernel, Stmt
from tilewright.loops.walk import StatementPlace, loops_of, names_of, walk
from tilewright.schedule import edit, tree
from tilewright.schedule.conditions import parse_condition
from tilewright.schedule.legality import check_kinds, refuse
from tilewright.schedule.registry import primitive
from tilewright.schedule.simplify_guards import simplify_guards
from tilewright.schedule.staging import in_sizes, within


@primitive
def specialize(
    kernel: Kernel, condition: str, loop: str | None = None
) -> tuple[Kernel, tuple[str, ...]]:
    """Run a copy of a program without its guards where a condition holds; the copy's loops.

    args: the condition as text, over loop variables and elements of buffers, such as
        "mm.i.o < 3 and flag[0] == 1"; the loop whose body to copy (None: the innermost loop of
        the condition; the whole program if it has none).
    requires: all that the condition names is bound around that body, elements of buffers are
        inside them (bounds), and the bounds of the variables do not decide it; the loops around
        that are not serial may still run together (overlapping tiles store equal values by one
        Store, not by two; no iteration writes what the condition of another one reads).
    Both arms compute the same, each without the guards that bounds decide under the condition or
    its opposite; in the copy, sizes that the condition sets equal to numbers are these. The names
    in the copy carry the suffix `.s`, and it can be scheduled differently.
    before: for i: B(i)                                                specialize('i < 8')
    after:  for i: if i < 8: B'(i) else: B(i)
    """
    shown = loop or condition
    test = _parsed(condition, kernel, shown)
    named = {v.name for v in variables(test) if isinstance(v, Var)}
    place = _place(kernel, named, loop)
    env = environment(kernel.body)
    _check_reads(test, place, kernel, env, shown)
    known = proves(test, env)
    if known is not None:
        raise refuse(
            "specialize",
            shown,
            f"{test!r} is always {known}",
            "take a condition that may change",
        )
    body = place.stmt
    copy, table = edit.renamed(body, names_of(kernel), ".s")
    copy = _with_numbers(copy, test, kernel)
    env |= environment(copy)
    tested = {x.buffer for x in loads(test)}
    changed = tested & writes(body)
    inside = refine(env, test)
    outside = refine(env, test, False)
    if changed:
        inside = lasting(inside)
        outside = lasting(outside)
    new = If(test, simplify_guards(copy, inside), simplify_guards(body, outside))
    result = edit.put(kernel, place, new)
    around = [f.var.name for f in place.loops if tested & writes(f)]
    check_kinds(
        result,
        around,
        "specialize",
        "specialize before the loop gets its kind",
    )
    made = {f.var.name for f in loops_of(new.then)}
    return result, tuple(n for n in table.values() if n in made)


def _parsed(condition: str, kernel: Kernel, shown: str) -> Expr:
    """The condition over the names of the kernel."""
    try:
        return parse_condition(condition, _names(kernel))
    except InputError as error:
        raise refuse(
            "specialize",
            shown,
            error.message,
            "such as 'mm.i == 0'",
        ) from None


def _with_numbers(copy: Stmt, test: Expr, kernel: Kernel) -> Stmt:
    """The copy with numbers for the sizes that `test` sets equal to some."""
    numbers: dict[Any, Any] = {}
    for part in conjuncts(test):
        if isinstance(part, Eq) and part.lhs in kernel.sizes:
            if isinstance(part.rhs, Const):
                numbers[part.lhs] = part.rhs
    if not numbers:
        return copy

    def counted(f: For) -> Stmt:
        extent = to_expr(affine(simplify(f.extent, {})))
        return For(f.var, extent, f.kind, f.body)

    loops = {f.var: counted for f in loops_of(copy)}
    changed: Stmt = edit.rewrite(copy, {}, numbers, fors=loops)
    return changed


def _names(kernel: Kernel) -> dict[str, Var | Buffer]:
    """What a condition may name: every loop and buffer of the program."""
    found: dict[str, Var | Buffer] = {b.name: b for b in kernel.params}
    for p in walk(kernel.body):
        if isinstance(p.stmt, Alloc):
            found[p.stmt.buffer.name] = p.stmt.buffer
    found |= {f.var.name: f.var for f in loops_of(kernel.body)}
    return found


def _place(kernel: Kernel, named: set[str], loop: str | None) -> StatementPlace:
    """The body to copy: of the loop, or of the innermost loop that the condition names."""
    if not named and loop is None:
        return StatementPlace(*in_sizes(kernel))
    found = [
        tree.find_loop(kernel, n, "specialize", sizes=True)
        for n in (named if loop is None else [loop])
    ]
    f, place = max(found, key=lambda x: len(x[1].above))
    around = {x.var.name for x in (*place.loops, f)}
    if not named <= around:
        raise refuse(
            "specialize",
            f.var.name,
            f"{', '.join(sorted(named - around))} of the condition is not around its body",
            "name a loop inside all of those in the condition",
        )
    if f.kind == SIZE:  # a call has all of its sizes before anything runs
        return StatementPlace(*in_sizes(kernel))
    return StatementPlace(f.body, (*place.above, f))


def _check_reads(
    test: Expr, place: StatementPlace, kernel: Kernel, env: Env, shown: str
) -> None:
    exist = {s.buffer for s in place.above if isinstance(s, Alloc)}
    exist |= set(kernel.params)
    for x in postorder(test):
        if not isinstance(x, Load):
            continue
        if x.buffer not in exist or within(x.index, x.buffer, env) is not None:
            raise refuse(
                "specialize",
                shown,
                f"{x!r} is not known to exist where the condition is tested",
                "name a loop in the scope of the buffer, and an index inside it",
            )
