"""rotate: the first statements of the next iteration before the last ones of this one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

from tilewright.expr.affine import affine
from tilewright.expr.bounds import proves, refine
from tilewright.expr.nodes import And, Buffer, Expr, Le, Lt, const
from tilewright.ir.node import substitute
from tilewright.loops.analysis.access import Env, environment
from tilewright.loops.analysis.dependence import can_delay
from tilewright.loops.analysis.effects import reads, writes
from tilewright.loops.analysis.terms import loads, variables
from tilewright.loops.nodes import For, If, Kernel, Stmt, block
from tilewright.loops.nodes import loop as loop_of
from tilewright.loops.walk import loops_of, names_of
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import because, check_one_place, refuse
from tilewright.schedule.primitives.annotate import check_unmarked
from tilewright.schedule.primitives.pipeline import inside, sequence
from tilewright.schedule.registry import primitive
from tilewright.schedule.simplify_guards import simplify_guards


@primitive
def rotate(
    kernel: Kernel, loop: str, start: int, stop: int, to: int
) -> tuple[Kernel, None]:
    """Run statements of the next iteration of a loop before the last ones of this one.

    args: the loop; of the statements of its body, in order (allocations do not count), the first
        one that moves, the one behind the last one that does, and the one of the iteration before
        that they come in front of.
    requires: a serial loop of constant extent, of one iteration or more; 0 <= start < stop <= to;
        around the body no other condition than comparisons of indices that, if they hold in an
        iteration, held in the one before; a statement that moves conflicts neither with those of
        the iteration before from `to` on (lemma, else isl), nor with those of its own before
        `start`, and these use no buffer of the body that it uses; each buffer of the body is
        allocated in one place.
    The buffers of the body that the moved statements use are allocated around the loop. What the
    first iteration needs is written out before it (suffix `.pro`).
    before: for i in n: alloc b: { b = load(i); use(i, b); store(i) }        rotate('i', 0, 1, 2)
    after:  alloc b: { b = load(0)
                       for i in n: { use(i, b); if i + 1 < n: b = load(i + 1); store(i) } }
    """
    f, place = tree.find_loop(kernel, loop, "rotate")
    n = tree.trips(f, "rotate")
    if f.kind != "serial" or n < 1:
        what = f"the loop is {f.kind}, of {n} iterations"
        raise refuse("rotate", loop, what, "rotate a serial loop of one or more")
    guards, inner = guarded_body(f.body)
    body = sequence(inner)
    if not 0 <= start < stop <= to <= len(body.stmts):
        raise refuse(
            "rotate",
            loop,
            f"({start}, {stop}, {to}) are not in order among its {len(body.stmts)} statements",
            "name the first that moves, the one behind the last, and the one that they precede",
        )
    moved = body.stmts[start:stop]
    own = [b for b in body.buffers if any(b in _used(s) for s in moved)]
    check_unmarked(kernel, [g.var.name for s in moved for g in loops_of(s)], "rotate")
    for b in body.buffers:
        check_one_place(f, b, "rotate")
    _check_guards(f, guards)
    for s in moved:
        _check_order(kernel, f, s, body.stmts[:start], own, 0)
        _check_order(kernel, f, s, body.stmts[to:], own, 1)
    env = environment(kernel.body)
    first = _at(block(*moved), f, guards, const(0), env)
    first, _ = edit.renamed(first, names_of(kernel), ".pro")
    later = _at(block(*moved), f, (*guards, f.var < n), f.var + 1, env)
    rest = (*body.stmts[:start], *body.stmts[stop:to], later, *body.stmts[to:])
    around = [b for b in body.buffers if b not in own]
    steady = _within(guards, inside(around, block(*rest)))
    whole = block(first, loop_of(f.var, n, steady))
    return edit.put(kernel, place, inside(own, whole)), None


def guarded_body(s: Stmt) -> tuple[tuple[Expr, ...], Stmt]:
    """The conditions around all of a body, and what they are around."""
    found: list[Expr] = []
    while isinstance(s, If) and s.otherwise is None:
        found.append(s.condition)
        s = s.then
    return tuple(found), s


def _within(guards: Sequence[Expr], s: Stmt) -> Stmt:
    return If(reduce(And, guards), s, None) if guards else s


def _used(s: Stmt) -> frozenset[Buffer]:
    return reads(s) | writes(s)


def _at(s: Stmt, f: For, guards: Sequence[Expr], iteration: Expr, env: Env) -> Stmt:
    """A statement of the body in another iteration, where there is such an iteration."""
    values: dict[Any, Any] = {f.var: iteration}
    needed = [substitute(g, values) for g in guards]
    for g in tuple(needed):
        others = [x for x in needed if x is not g]
        if others and proves(g, refine(env, reduce(And, others))):
            needed = others
    made = edit.tidy_comparisons(edit.rewrite(s, env, values), env)
    made = _within(needed, made)
    return simplify_guards(made, env)


def _check_guards(f: For, guards: Sequence[Expr]) -> None:
    """Require that what holds in an iteration held in the one before."""
    for part in _parts(guards):
        if f.var not in variables(part) and not loads(part):
            continue
        if isinstance(part, Lt | Le) and not loads(part):
            form = affine(part.lhs) - affine(part.rhs)
            hidden = any(f.var in variables(a) for a, _ in form.terms if a is not f.var)
            if not hidden and form.coefficient(f.var) >= 0:
                continue
        raise refuse(
            "rotate",
            f.var.name,
            f"{part!r} around its body may hold after it did not",
            "rotate a loop whose conditions cut off its end, as split leaves them",
        )


def _parts(guards: Sequence[Expr]) -> Iterator[Expr]:
    for g in guards:
        if isinstance(g, And):
            yield from _parts((g.lhs, g.rhs))
        else:
            yield g


def _check_order(
    kernel: Kernel,
    f: For,
    moved: Stmt,
    others: Sequence[Stmt],
    own: Sequence[Buffer],
    later: int,
) -> None:
    """Require that a moved statement has no conflict with others, of its own iteration or of so
    many before it."""
    for s in others:
        both = [b for b in own if b in _used(s)]
        verdict = can_delay(kernel, f, s, moved, (later, later))
        if both:
            reason = f"both use {both[0].name}, which an iteration has for itself"
        elif not verdict:
            reason = because(verdict)
        else:
            continue
        line = repr(s).splitlines()[0]
        raise refuse(
            "rotate",
            f.var.name,
            f"a statement that moves would run before `{line}`, which it must follow: {reason}",
            "move it less far, or what comes before it too",
        )
