"""Regions: the box of a buffer that one iteration of a loop touches, by affine bounds.

A box has one `IndexInterval` per dimension: a base that depends on variables bound outside, and a
constant extent that the loops inside sweep; where that is not constant, it is the whole dimension.
Terms that are not linear (the `min` of an overlapping tile) are atoms: part of the base if they
depend on outside variables only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.bounds import Env as Ranges
from tilewright.expr.bounds import bounds, proves
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Const,
    Expr,
    Extent,
    Load,
    Min,
    Var,
    as_expr,
    const,
)
from tilewright.expr.simplify import simplify
from tilewright.ir.node import substitute
from tilewright.loops.analysis.access import (
    Access,
    Env,
    Index,
    accesses_of,
)
from tilewright.loops.analysis.terms import variables
from tilewright.loops.nodes import For, If, Stmt, While


@dataclass(frozen=True, slots=True)
class IndexInterval:
    """The values `base + lo .. base + hi` of one index; `dense`: each of them occurs."""

    base: Affine
    lo: int
    hi: int
    dense: bool


def span(
    e: Expr, inner: Collection[Expr], env: Env, wide: bool = False
) -> IndexInterval | None:
    """The values of an index while the variables `inner` run; None if they are unbounded.

    wide: nonlinear terms may have a moving base too, as (8*o + i) // 2 has 4*o; then the bounds
    need not be attained.
    """
    form = affine(e)
    base: list[tuple[Expr, int]] = []
    swept: list[tuple[Expr, int]] = []
    for atom, c in form.terms:
        used = variables(atom)
        if any(v in inner or isinstance(v, Load) for v in used):
            swept.append((atom, c))
        else:
            base.append((atom, c))
    if not swept:
        return IndexInterval(form, 0, 0, True)
    whole = Affine(tuple(swept), 0)
    lo, hi = bounds(to_expr(whole), env)
    first = _first(whole, inner) if wide else None
    if first is not None:
        low, high = bounds(to_expr(whole - first), env)
        is_narrower = (
            lo is None
            or hi is None
            or (low is not None and high is not None and high - low < hi - lo)
        )
        if low is not None and high is not None and is_narrower:
            start = affine(simplify(to_expr(first), env))
            start = Affine(tuple(base), form.const) + start
            return IndexInterval(start, low, high, dense=False)
    if lo is None or hi is None:
        return None
    return IndexInterval(Affine(tuple(base), form.const), lo, hi, _gapless(swept, env))


def _first(form: Affine, inner: Collection[Expr]) -> Affine | None:
    """A form where `inner` are 0, as in (8*o + i) // 2; None if no more than they vary in it."""
    used = [v for atom, _ in form.terms for v in variables(atom)]
    if any(isinstance(v, Load) for v in used) or all(v in inner for v in used):
        return None
    return affine(substitute(to_expr(form), dict.fromkeys(inner, const(0))))


_UNKNOWN_STEP = 1 << 62


def _gapless(terms: Sequence[tuple[Expr, int]], env: Env) -> bool:
    """Whether a sum of independent terms takes every value between its bounds."""
    by_step = []
    for atom, c in terms:
        gap = _step(atom, env)
        step = _UNKNOWN_STEP if gap is None else gap * abs(c)
        by_step.append((step, atom, abs(c)))
    reach = 0
    for step, atom, factor in sorted(by_step, key=lambda t: t[0]):
        lo, hi = bounds(atom, env)
        if lo is None or hi is None or step > reach + 1:
            return False
        reach += (hi - lo) * factor
    seen = [v for atom, _ in terms for v in variables(atom)]
    return len(seen) == len(set(seen))


def _step(atom: Expr, env: Env) -> int | None:
    """The largest gap between neighboring values of an atom."""
    if isinstance(atom, Var):
        return 1
    if isinstance(atom, Min) and isinstance(atom.rhs, Const):
        form = affine(atom.lhs)
        if len(form.terms) == 1 and isinstance(form.terms[0][0], Var):
            return abs(form.terms[0][1])
    return None


@dataclass(frozen=True, slots=True)
class Region:
    """A box of a buffer: `base[d] .. base[d] + shape[d] - 1` in each dimension."""

    base: Index
    shape: tuple[Extent, ...]

    def local(self, index: Index) -> Index:
        """An index of the whole buffer as an index of the box."""
        return tuple(
            to_expr(affine(i) - affine(b))
            for i, b in zip(index, self.base, strict=True)
        )

    def point(self, local: Sequence[Expr]) -> Index:
        """An index of the box as an index of the whole buffer."""
        return tuple(
            to_expr(affine(b) + affine(i))
            for b, i in zip(self.base, local, strict=True)
        )


def region(
    buffer: Buffer,
    found: Sequence[Access],
    env: Env,
    primitive: str,
    clip: bool = True,
    wide: bool = False,
) -> Region:
    """The smallest box that holds every access, seen from their common root.

    clip: keep it inside the buffer (accesses beyond are guarded); otherwise the box may exceed the
    buffer (the caller fills the outside), and accesses with different bases are an error. wide: the
    box may contain elements that are not accessed, and exceed the buffer (the caller adds a guard);
    this keeps it small if bases move together without a constant distance.
    """
    base: list[Expr] = []
    shape: list[Extent] = []
    for d, extent in enumerate(buffer.extents):
        spans = []
        for a in found:
            inner = {f.var for f in a.loops}
            spans.append(span(a.index[d], inner, env, wide))
        bounded = [s for s in spans if s is not None]
        hull = _hull(bounded, env, wide) if len(bounded) == len(spans) else None
        if hull is None and not clip:
            indices = sorted({repr(a.index[d]) for a in found})
            raise ScheduleError(
                f"{primitive}: the accesses of {buffer.name} do not share one base in "
                f"dimension {d}: {', '.join(indices)}",
                where=f"buffer {buffer.name}",
                hint="stage it at a loop further in, or pack the accesses one by one",
            )
        size: Extent = extent
        first = Affine((), 0)
        if hull is not None:
            first, size = _clipped(*hull, extent, env) if clip else hull
        base.append(to_expr(first))
        shape.append(size)
    return Region(tuple(base), tuple(shape))


def _hull(
    spans: Sequence[IndexInterval], env: Env, wide: bool
) -> tuple[Affine, int] | None:
    """First value and number of values of the union, if the bases stay near one another."""
    origin = spans[0].base
    lo = spans[0].lo
    hi = spans[0].hi
    for s in spans[1:]:
        shift = s.base - origin
        least: int | None = shift.const
        most: int | None = shift.const
        if shift.terms:
            least, most = bounds(to_expr(shift), env) if wide else (None, None)
        if least is None or most is None:
            return None
        lo = min(lo, s.lo + least)
        hi = max(hi, s.hi + most)
    return Affine(origin.terms, origin.const + lo), hi - lo + 1


def _clipped(
    first: Affine, size: int, extent: Extent, env: Ranges
) -> tuple[Affine, Extent]:
    if not isinstance(extent, int) and proves(as_expr(extent, INDEX) <= size, env):
        return Affine((), 0), extent
    if first.is_const:
        lo = max(first.const, 0)
        hi = first.const + size
        if isinstance(extent, int):
            hi = min(hi, extent)
        return Affine((), lo), max(hi - lo, 1)
    if isinstance(extent, int) and size >= extent:
        return Affine((), 0), extent
    return first, size


def inside(index: Expr, extent: Extent, env: Ranges) -> Expr | None:
    """The condition `0 <= index < extent`, without the parts that bounds prove; None if nothing."""
    lo, _ = bounds(index, env)
    condition: Expr | None = None
    if lo is None or lo < 0:
        condition = const(0) <= index
    upper = index < as_expr(extent, INDEX)
    if not proves(upper, env):
        condition = upper if condition is None else condition & upper
    return condition


def uncovered(
    root: Stmt, buffer: Buffer, env: Env, writes_too: bool = False
) -> Access | None:
    """The first access of `buffer` in `root` that an earlier Store of `root` does not cover.

    None says: one run of `root` writes everything of `buffer` that it reads, first. The covering
    Store is the first access; it must sweep its box densely and without its own guard, which
    the other arm of a branch is too.
    writes_too: later writes must stay in that box as well, so that the box is wholly defined.
    """
    found = accesses_of(root, buffer)
    first = found[0]
    if first.kind != "store":
        return first
    for a in found[1:]:
        if (a.kind != "store" or writes_too) and not _covers(first, a, env):
            return a
    if not writes_too or _covers(first, first, env):
        return None
    return first


def gapless(a: Access, env: Env) -> bool:
    """Whether an access covers its whole box, seen from its root and ignoring guards."""
    mine = {f.var for f in a.loops}
    used: list[Expr] = []
    for i in a.index:
        found = span(i, mine, env)
        if found is None or not found.dense:
            return False
        used += [v for v in variables(i) if v in mine]
    return len(used) == len(set(used))


def _filled(a: Access, loops: Sequence[For]) -> set[Expr]:
    """The loops, of extents that are not constant, that are an index over a whole dimension.

    Where such a loop does not run, the dimension and so the buffer is empty.
    """
    extents = dict(zip(a.index, a.buffer.extents, strict=True))
    return {f.var for f in loops if f.trips is None and f.count is extents.get(f.var)}


def _covers(first: Access, later: Access, env: Env) -> bool:
    common = 0
    if later is not first:
        for x, y in zip(first.place.above, later.place.above):
            if x is not y:
                break
            common += 1
        if common and isinstance(first.place.above[common - 1], If):
            return False  # in the other arm, which does not run then
    own = first.place.above[common:]
    whole = _filled(first, [s for s in own if isinstance(s, For)])
    for s in own:
        is_guard = isinstance(s, If | While)
        may_not_run = isinstance(s, For) and not s.trips and s.var not in whole
        if is_guard or may_not_run:
            return False
    mine = {s.var for s in own if isinstance(s, For)}
    theirs = {s.var for s in later.place.above[common:] if isinstance(s, For)}
    used: list[Expr] = []
    for i, j in zip(first.index, later.index, strict=True):
        if i in whole:
            used.append(i)
            continue
        a = span(i, mine, env)
        b = span(j, theirs, env)
        if a is None or b is None or not a.dense:
            return False
        shift = b.base - a.base
        lo = b.lo + shift.const
        hi = b.hi + shift.const
        if shift.terms or lo < a.lo or hi > a.hi:
            return False
        used += [v for v in variables(i) if v in mine]
    return len(used) == len(set(used))
