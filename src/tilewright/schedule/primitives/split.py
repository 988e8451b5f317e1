"""split: the iterations of a loop in tiles."""

from __future__ import annotations

from typing import Any, Literal

from tilewright.base.names import fresh
from tilewright.expr.nodes import INDEX, Expr, Overlap, Var, const
from tilewright.loops.analysis.access import Env, environment
from tilewright.loops.nodes import For, If, Kernel, Stmt, block
from tilewright.loops.nodes import loop as loop_of
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import check_repeatable, refuse
from tilewright.schedule.primitives.annotate import check_unmarked
from tilewright.schedule.registry import primitive_with

Tail = Literal["exact", "guard", "overlap", "cut"]


_OTHER_TAILS = "take tail='guard' or 'cut', or decompose the reduction after the split"


@primitive_with(options=["tail"])
def split(
    kernel: Kernel, loop: str, factor: int, tail: Tail = "exact"
) -> tuple[Kernel, tuple[str, ...]]:
    """Run a loop of n iterations as tiles of `factor`; returns `<loop>.o`, `<loop>.i`.

    args: the loop, serial or parallel (the outer loop stays parallel); the size of a tile; what to
        do where `factor` does not divide n (where it does, all four are the same).
    requires: n is constant and 1 <= factor <= n (guard: any factor), and
        exact: factor divides n;
        guard: nothing more, since the order of iterations stays;
        cut: the loops around that are not serial may still run together (overlapping tiles store
            equal values by one Store, not by two);
        overlap: the loop is serial, and running an iteration x again after any others gives the
            same memory. Formally, with W(x), R(x) what x writes and reads of the buffers that
            outlive it:
            x != y implies W(x) disjoint from W(y) and from R(y), and each element of R(x) & W(x) is
            stored by x before x reads or updates it.
    before: for v in n: B(v)
    after, exact:   for o in n/f: for i in f: B(o*f + i)
    after, guard:   for o in ceil(n/f): for i in f: if o*f + i < n: B(o*f + i)
    after, overlap: for o in ceil(n/f): for i in f: B(overlap(o*f, n-f) + i)
                    whose value is min(o*f, n-f)
    after, cut:     for o in n//f: for i in f: B(o*f + i); for t in n%f: B'(n - n%f + t)
        where B' is a copy whose loops and buffers carry the suffix `.t`; `<loop>.t` is returned
        as the third name.
    """
    f, place = tree.find_loop(kernel, loop, "split")
    n = tree.trips(f, "split")
    check_unmarked(kernel, (loop,), "split")
    _check(kernel, f, n, factor, tail)
    taken = tree.names(kernel)
    outer = Var(fresh(taken, f"{loop}.o"), INDEX)
    inner = Var(fresh(taken, f"{loop}.i"), INDEX)
    env = environment(kernel.body)
    tiles = -(-n // factor)
    env[outer] = (0, max(tiles - 1, 0))
    env[inner] = (0, factor - 1)
    start: Expr = outer * factor
    if tail == "overlap" and n % factor:
        start = Overlap(start, const(n - factor))
    count = n // factor if tail == "cut" else tiles
    body: Stmt = edit.rewrite(f.body, env, {f.var: start + inner})
    if tail == "guard" and n % factor:
        body = If(start + inner < n, body, None)
    new: Stmt = loop_of(outer, count, loop_of(inner, factor, body), f.kind)
    result: tuple[str, ...] = (outer.name, inner.name)
    if tail == "cut" and n % factor:
        rest, rest_name = _remainder(f, n, factor, env, taken)
        new = block(new, rest)
        result = (*result, rest_name)
    return edit.put(kernel, place, new), result


def _check(
    kernel: Kernel,
    f: For,
    n: int,
    factor: int,
    tail: Tail,
) -> None:
    name = f.var.name
    if tail not in ("exact", "guard", "overlap", "cut"):
        raise refuse(
            "split",
            name,
            f"unknown tail {tail!r}",
            "exact, guard, overlap or cut",
        )
    if f.kind not in ("serial", "parallel"):
        raise refuse(
            "split",
            name,
            f"the loop is {f.kind} already",
            "split before vectorize/unroll",
        )
    if factor < 1 or (factor > n and tail != "guard"):
        raise refuse(
            "split",
            name,
            f"factor {factor} is not in 1..{n}",
            f"take a factor of at most {n}",
        )
    if n % factor and tail == "exact":
        divisors = [d for d in range(1, n + 1) if n % d == 0 and d <= 4 * factor]
        raise refuse(
            "split",
            name,
            f"{factor} does not divide its {n} iterations",
            f"take one of {divisors}, or tail='guard', 'overlap' or 'cut'",
        )
    if n % factor and tail == "overlap":
        if f.kind != "serial":
            raise refuse(
                "split",
                name,
                "repeated iterations may run at once",
                "split first, then parallel",
            )
        check_repeatable(
            kernel, f, "split", "overlapping tiles repeat iterations", _OTHER_TAILS
        )


def _remainder(
    f: For, n: int, factor: int, env: Env, taken: set[str]
) -> tuple[Stmt, str]:
    copy, table = edit.renamed(f, taken, ".t")
    assert isinstance(copy, For)
    left = n % factor
    env = env | environment(copy)
    env[copy.var] = (0, left - 1)
    shifted: dict[Any, Any] = {copy.var: copy.var + (n - left)}
    body = edit.rewrite(copy.body, env, shifted)
    remainder = loop_of(copy.var, left, body, f.kind)
    return remainder, table[f.var.name]
