"""split: the iterations of a loop in tiles."""

from __future__ import annotations

from typing import Any, Literal

from tilewright.base.dataclass import dataclass
from tilewright.base.names import fresh
from tilewright.expr.affine import Affine, affine, quotient, to_expr
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import INDEX, Expr, Overlap, Var
from tilewright.expr.reads import reads_memory
from tilewright.loops.analysis.access import Env, environment
from tilewright.loops.nodes import For, If, Kernel, Stmt, block
from tilewright.loops.nodes import loop as loop_of
from tilewright.loops.walk import names_of
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
    requires: n does not depend on data; 1 <= factor, and, where n is constant, factor <= n (guard:
        any factor); and
        exact: factor divides n (of an n that is not constant, each of its terms);
        guard: nothing more, since the order of iterations stays;
        cut: n is not negative, and the loops around that are not serial may still run together
            (overlapping tiles store equal values by one Store, not by two);
        overlap: n is constant, the loop is serial, and running an iteration x again after any
            others gives the same memory. Formally, with W(x), R(x) what x writes and reads of the
            buffers that outlive it:
            x != y implies W(x) disjoint from W(y) and from R(y), and each element of R(x) & W(x) is
            stored by x before x reads or updates it.
    before: for v in n: B(v)
    after, exact:   for o in n/f: for i in f: B(o*f + i)
    after, guard:   for o in ceil(n/f): for i in f: if o*f + i < n: B(o*f + i)
    after, overlap: for o in ceil(n/f): for i in f: B(overlap(o*f, n-f) + i)
                    whose value is min(o*f, n-f)
    after, cut:     for o in n//f: for i in f: B(o*f + i); for t in n%f: B'(n//f*f + t)
        where B' is a copy whose loops and buffers carry the suffix `.t`; `<loop>.t` is returned
        as the third name.
    """
    f, place = tree.find_loop(kernel, loop, "split")
    check_unmarked(kernel, (loop,), "split")
    _check(kernel, f, factor, tail)
    taken = names_of(kernel)
    outer = Var(fresh(taken, f"{loop}.o"), INDEX)
    inner = Var(fresh(taken, f"{loop}.i"), INDEX)
    env = environment(kernel.body)
    extent = _Extent(affine(f.extent), factor)
    whole = extent.whole
    if extent.tiles.is_const:
        env[outer] = (0, max(extent.tiles.const - 1, 0))
    env[inner] = (0, factor - 1)
    start: Expr = outer * factor
    if tail == "overlap" and not whole:
        last = affine(f.extent) + Affine((), -factor)
        start = Overlap(start, to_expr(last))
    count = extent.full if tail == "cut" else extent.tiles
    body: Stmt = edit.rewrite(f.body, env, {f.var: start + inner})
    if tail == "guard" and not whole:
        body = If(start + inner < f.extent, body, None)
    tile = loop_of(inner, factor, body)
    new: Stmt = loop_of(outer, to_expr(count), tile, f.kind)
    result: tuple[str, ...] = (outer.name, inner.name)
    if tail == "cut" and not whole:
        rest, rest_name = _remainder(f, extent, env, taken)
        new = block(new, rest)
        result = (*result, rest_name)
    return edit.put(kernel, place, new), result


@dataclass(frozen=True, slots=True)
class _Extent:
    """A number of iterations in tiles of `factor`; an expression where it is not constant."""

    form: Affine
    factor: int

    @property
    def whole(self) -> bool:
        """Whether the factor is known to divide it."""
        parts = (self.form.const, *(c for _, c in self.form.terms))
        return all(c % self.factor == 0 for c in parts)

    @property
    def full(self) -> Affine:
        """The number of full tiles."""
        return quotient(self.form, self.factor)

    @property
    def tiles(self) -> Affine:
        """The number of tiles; the last one may be partial."""
        return quotient(self.form + Affine((), self.factor - 1), self.factor)

    @property
    def rest(self) -> Affine:
        """The iterations beyond the full tiles."""
        return self.form - self.full.scaled(self.factor)


def _check(
    kernel: Kernel,
    f: For,
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
    if f.trips is None:
        _check_varying(kernel, f, factor, tail)
        return
    n = f.trips
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


def _check_varying(kernel: Kernel, f: For, factor: int, tail: Tail) -> None:
    """As `_check`, of a loop whose number of iterations is not constant."""
    name = f.var.name
    if factor < 1:
        raise refuse("split", name, f"factor {factor} is not positive", "1 or more")
    if reads_memory(f.extent):
        raise refuse(
            "split",
            name,
            f"the extent {f.extent!r} depends on data",
            "split a loop whose extent only sizes and loops around decide",
        )
    if tail == "exact" and not _Extent(affine(f.extent), factor).whole:
        raise refuse(
            "split",
            name,
            f"{factor} is not known to divide {f.extent!r} iterations",
            "take tail='guard' or 'cut'",
        )
    if tail == "overlap":
        raise refuse(
            "split",
            name,
            f"there may be less than {factor} of its {f.extent!r} iterations",
            "take tail='guard' or 'cut'",
        )
    low, _ = bounds(f.extent, environment(kernel.body))
    if tail == "cut" and (low is None or low < 0):
        raise refuse(
            "split",
            name,
            f"the extent {f.extent!r} may be negative, and has no remainder then",
            "take tail='guard'",
        )


def _remainder(f: For, extent: _Extent, env: Env, taken: set[str]) -> tuple[Stmt, str]:
    copy, table = edit.renamed(f, taken, ".t")
    assert isinstance(copy, For)
    env = env | environment(copy)
    if extent.rest.is_const:
        env[copy.var] = (0, extent.rest.const - 1)
    done = to_expr(extent.full.scaled(extent.factor))
    shifted: dict[Any, Any] = {copy.var: copy.var + done}
    body = edit.rewrite(copy.body, env, shifted)
    remainder = loop_of(copy.var, to_expr(extent.rest), body, f.kind)
    return remainder, table[f.var.name]
