"""Full tiles without guards, in loops whose number of iterations only a call knows.

A split with guards of n iterations tests `o*f + i < n` in every tile, but only the last one may be
cut off. A serial loop is parted at the first tile that is, a parallel one has a branch, which all
iterations of a tile take together: so no thread waits for the last tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

from tilewright.expr.affine import Affine, affine, quotient, to_expr
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import (
    INDEX,
    Expr,
    Load,
    Lt,
    Max,
    Min,
    Sub,
    Var,
    const,
)
from tilewright.expr.reads import reads_memory
from tilewright.ir.node import postorder
from tilewright.loops.analysis.access import Env, environment
from tilewright.loops.analysis.terms import variables
from tilewright.loops.nodes import WHOLE, For, If, Kernel, Stmt, block, loop
from tilewright.loops.walk import loops_of, names_of
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import check_tiles
from tilewright.schedule.simplify_guards import simplify_guards

NESTED = 2  # loops around one another that are parted: each doubles what is inside


def full_tiles(kernel: Kernel) -> Kernel:
    """`kernel`, its loops of unknown extent parted into full tiles without guards and the rest.

    Order and results stay. The full tiles keep the names of their loops and buffers; in the rest
    these carry the suffix `.rest`.
    """
    depths: dict[str, int] = {}
    for f in reversed(loops_of(kernel.body)):
        if f.trips is not None or f.kind not in ("serial", "parallel"):
            continue
        if WHOLE in kernel.notes.get(f.var.name, {}):
            continue
        inside = (depths.get(x.var.name, 0) for x in loops_of(f.body))
        depth = max(inside, default=0)
        made = _parted(kernel, f.var.name) if depth < NESTED else None
        depths[f.var.name] = depth + (made is not None)
        kernel = made or kernel
    return kernel


def _parted(kernel: Kernel, name: str) -> Kernel | None:
    f, place = tree.find_loop(kernel, name, "full_tiles")
    env = environment(kernel.body)
    found = dict(_guards(f, env))
    # An extent that is read from memory may be another one after the first part.
    if not found or reads_memory(f.extent):
        return None
    ends = list(dict.fromkeys(to_expr(form) for form in found.values()))
    full = ends[0]
    for end in ends[1:]:
        full = Min(full, end)
    if not _within(found, f, env):
        full = Max(Min(full, f.extent), const(0))
    holds: dict[Any, Any] = dict.fromkeys(found, const(True, Lt(full, full).dtype))
    whole = simplify_guards(edit.rewrite(f.body, env, holds), env)
    rest, _ = edit.renamed(f, names_of(kernel), ".rest")
    assert isinstance(rest, For)
    if f.kind == "parallel":
        other = edit.rewrite(rest.body, env, {rest.var: f.var})
        new: Stmt = For(f.var, f.extent, f.kind, If(f.var < full, whole, other))
    else:
        env |= environment(rest)
        last = edit.rewrite(rest.body, env, {rest.var: rest.var + full})
        left = to_expr(affine(Sub(f.extent, full)))
        new = block(
            loop(f.var, full, whole, f.kind), loop(rest.var, left, last, f.kind)
        )
    result = edit.put(kernel, place, new)
    check_tiles(kernel, result, "full_tiles")
    return result


def _guards(f: For, env: Env) -> Iterator[tuple[Lt, Affine]]:
    """Conditions in the loop, each with the length of the longest prefix of iterations in which it
    holds.

    `c*v + inner + rest < 0`, where `inner` has its greatest value over the inner loops and `rest`
    is loop-invariant, holds if `v < (c - 1 - inner - rest) // c`.
    """
    own = {f.var} | {x.var for x in loops_of(f.body)}
    for node in postorder(f.body):
        if not isinstance(node, Lt) or node.lhs.dtype is not INDEX:
            continue
        form = affine(node.lhs) - affine(node.rhs)
        c = form.coefficient(f.var)
        inner, rest = _divided(form, f.var, own)
        most = bounds(to_expr(inner), env)[1]
        varies = any(
            v is f.var or isinstance(v, Load)
            for atom, _ in (*inner.terms, *rest.terms)
            for v in variables(atom)
        )
        if c > 0 and rest.terms and most is not None and not varies:
            yield node, quotient(Affine((), c - 1 - most) - rest, c)


def _divided(form: Affine, var: Var, own: Set[Expr]) -> tuple[Affine, Affine]:
    """A form without the variable, as what loops inside decide and what they do not."""
    inner: list[tuple[Expr, int]] = []
    rest: list[tuple[Expr, int]] = []
    for atom, c in form.terms:
        if atom is not var:
            part = rest if variables(atom).isdisjoint(own) else inner
            part.append((atom, c))
    return Affine(tuple(inner), 0), Affine(tuple(rest), form.const)


def _within(found: dict[Lt, Affine], f: For, env: Env) -> bool:
    """Whether the prefix provably has between 0 and all iterations: a split's full tiles.

    There are `n // c` full tiles of `(n + c - 1) // c` in total, and n is not negative.
    """
    for node in found:
        form = affine(node.lhs) - affine(node.rhs)
        c = form.coefficient(f.var)
        n = Affine((), 0) - _divided(form, f.var, {f.var} | _inner(f))[1]
        least = bounds(to_expr(n), env)[0]
        tiles = to_expr(quotient(n + Affine((), c - 1), c))
        whole = to_expr(quotient(n, c))
        if to_expr(found[node]) is not whole or f.extent is not tiles:
            return False
        if least is None or least < 0:
            return False
    return True


def _inner(f: For) -> set[Expr]:
    return {x.var for x in loops_of(f.body)}
