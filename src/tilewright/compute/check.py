"""The invariants of Computations as a table of checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from math import gcd
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import VerifyError
from tilewright.base.text import plural
from tilewright.compute.isl import (
    Domain,
    IslLimitReached,
    IslTranslator,
    greatest,
    sample,
)
from tilewright.compute.nodes import CC, PS, PW, Computation, Dim, Output
from tilewright.compute.transforms import environment
from tilewright.expr.affine import affine, to_expr
from tilewright.expr.bounds import within
from tilewright.expr.nodes import (
    INDEX,
    MAX_SIZE,
    Buffer,
    Expr,
    Extent,
    Var,
    as_expr,
)
from tilewright.expr.printer import show
from tilewright.expr.reads import Guard, reads, reads_memory, variables

Check = Callable[[Computation], Iterator[str]]

_UNBOUNDED = (
    1 << 64
)  # more than any int64, for the size of a dimension known only at run time


def check(c: Computation) -> None:
    """Raise VerifyError with the code of the first broken invariant; the message names the part."""
    for code, row in CHECKS.items():
        for message in row(c):
            raise VerifyError(message, code=code, where=f"computation {c.name}")


# -- dimensions and operator


def _dims(c: Computation) -> Iterator[str]:
    seen: set[Var] = set()
    for d in c.dims:
        if d.combine not in (CC, PW, PS):
            yield f"dimension {d.var.name} combines by {d.combine!r}, not by cc, pw or ps"
        if d.static and d.extent < 0:
            yield f"dimension {d.var.name} has the extent {d.extent}"
        if d.var.dtype is not INDEX:
            yield f"dimension {d.var.name} is {d.var.dtype}, not {INDEX}"
        if d.var in seen:
            yield f"dimension {d.var.name} occurs twice"
        seen.add(d.var)


def _bound(c: Computation) -> Iterator[str]:
    known = {d.var for d in c.dims} | set(c.sizes)
    for o in c.outputs:
        for e in (*o.index, o.value):
            for v in variables(e):
                if v not in known:
                    yield f"{v.name} in {o.tensor.name} is not a dimension"


def _operator(c: Computation) -> Iterator[str]:
    combined = c.combined_dims
    if c.reducer is None:
        if combined:
            yield f"dimension {combined[0].var.name} is {combined[0].combine}, without a reducer"
        return
    if len(c.outputs) != len(c.reducer.dtypes):
        yield (
            f"{c.reducer} has {plural(len(c.reducer.dtypes), 'component')}, "
            f"the computation {plural(len(c.outputs), 'output')}"
        )
    wide = [d for d in combined if _several(d)]
    scan_then_reduce = [d.combine for d in wide] == [PS, PW]
    if len(wide) > 1 and not c.reducer.commutative and not scan_then_reduce:
        names = ", ".join(d.var.name for d in wide)
        yield f"{c.reducer} does not commute, but combines several dimensions: {names}"


def _outputs(c: Computation) -> Iterator[str]:
    if not c.outputs:
        yield "there is no output"


# -- types


def _types(c: Computation) -> Iterator[str]:
    for n, o in enumerate(c.outputs):
        if c.reducer is None:
            expected = o.tensor.dtype
        else:
            expected = c.reducer.dtypes[n]
        what = o.tensor.name if c.reducer is None else f"the operand of {c.reducer}"
        if o.value.dtype is not expected:
            yield f"the value for {o.tensor.name} is {o.value.dtype}, {what} {expected}; cast it"
        if len(o.index) != len(o.tensor.extents):
            yield f"{o.tensor!r} is indexed with {len(o.index)} expressions"
    every = [(o.tensor, o.index) for o in c.outputs]
    every += [(a.buffer, a.index) for a in c.accesses]
    for b, index in every:
        for i in index:
            if i.dtype is not INDEX:
                yield f"the index {show(i)} of {b.name} is {i.dtype}, not {INDEX}"


# -- views


def _out_view(c: Computation) -> Iterator[str]:
    reduced = {d.var for d in c.dims if d.combine == PW}
    for o in c.outputs:
        for i in o.index:
            for v in variables(i):
                if v in reduced:
                    yield f"{o.tensor.name} is indexed by {v.name}, which is reduced"
            if reads_memory(i):
                yield f"{o.tensor.name} is written at an index that depends on data: {show(i)}"


@dataclass(frozen=True, slots=True)
class UnprovenAccess:
    """An access that is not proven inside its tensor.

    index: of dimension `axis`, whose extent is `extent`. low, high: bounds of its values where it
    is evaluated, None if unknown.
    """

    tensor: Buffer
    axis: int
    index: Expr
    low: int | None
    high: int | None

    @property
    def extent(self) -> Extent:
        """Of the tensor along that axis."""
        return self.tensor.extents[self.axis]

    @property
    def last(self) -> Extent:
        """The last index of the tensor along that axis."""
        if isinstance(self.extent, int):
            return self.extent - 1
        return to_expr(affine(self.extent - 1))


def leaving(c: Computation) -> Iterator[UnprovenAccess]:
    """Accesses of the points of `c` that may be outside their tensors.

    An index that is read from memory is left out: code checks it where it is used.
    """
    if any(d.size == 0 for d in c.dims):
        return
    env = environment(c.dims)
    for o in c.outputs:
        yield from _leaving(c, o.tensor, o.index, (), env)
    values = tuple(o.value for o in c.outputs)
    for r in reads(values, env):
        load = r.load
        yield from _leaving(c, load.buffer, load.index, r.guards, r.ranges)


def _inside(c: Computation) -> Iterator[str]:
    for x in leaving(c):
        yield (
            f"index {show(x.index)} of dimension {x.axis} of {x.tensor.name} "
            f"leaves 0..{x.last}"
        )


def _guarded(
    c: Computation,
    i: Expr,
    guards: tuple[Guard, ...],
) -> tuple[Domain, str]:
    """The points at which the guards hold, and the index over them."""
    domain = Domain()
    translate = _point(c, domain)
    for condition, holds in guards:
        domain.require(translate.condition(condition, holds))
    return domain, translate.expr(i)


def _leaves(
    c: Computation,
    i: Expr,
    extent: Extent,
    guards: tuple[Guard, ...],
) -> bool:
    domain = Domain()
    translate = _point(c, domain)
    for condition, holds in guards:
        domain.require(translate.condition(condition, holds))
    text = translate.expr(i)
    past = translate.expr(as_expr(extent, INDEX))
    try:
        return sample(domain, [f"{text} < 0 or {text} >= {past}"]) is not None
    except IslLimitReached:
        return True


def _range(
    c: Computation,
    i: Expr,
    guards: tuple[Guard, ...],
) -> tuple[int | None, int | None]:
    """The least and the greatest value of an index where it is evaluated."""
    domain, text = _guarded(c, i, guards)
    try:
        low = greatest(domain, f"-({text})")
        high = greatest(domain, text)
    except IslLimitReached:
        return None, None
    return None if low is None else -low, high


def _injective(c: Computation) -> Iterator[str]:
    names = ", ".join(d.var.name for d in c.kept_dims if _several(d))
    for o in c.outputs:
        if has_own_digits(c, o):
            continue
        conflict = _conflict(c, o, o)
        if conflict is not None:
            yield f"several points of {names} write one element of {o.tensor.name}{conflict}"
    for a, b in combinations(c.outputs, 2):
        if a.tensor is not b.tensor or _are_separate(a, b):
            continue
        conflict = _conflict(c, a, b)
        if conflict is not None:
            yield f"two outputs write one element of {a.tensor.name}{conflict}"


def _leaving(
    c: Computation,
    tensor: Buffer,
    index: Sequence[Expr],
    guards: tuple[Guard, ...],
    known: Mapping[Any, tuple[int | None, int | None]],
) -> Iterator[UnprovenAccess]:
    """As `leaving`, for one access; known: bounds of the expressions in the index."""
    for axis, (i, extent) in enumerate(zip(index, tensor.extents, strict=True)):
        if within(i, extent, known):
            continue
        if reads_memory(i) or not _leaves(c, i, extent, guards):
            continue
        low, high = _range(c, i, guards)
        yield UnprovenAccess(tensor, axis, i, low, high)


def has_own_digits(c: Computation, o: Output) -> bool:
    """The lemma: each cc and ps dimension is recovered from an index alone.

    In one index, sorted by coefficient, each exceeds what all smaller ones can sum up to.
    """
    extents = {d.var: d.extent if d.static else _UNBOUNDED for d in c.dims}
    found: set[Expr] = set()
    for i in o.index:
        terms = affine(i).terms
        reach = 0
        for atom, coefficient in sorted(terms, key=lambda t: abs(t[1])):
            size = abs(coefficient)
            if atom not in extents or size <= reach:
                break
            assert isinstance(atom, Var)
            reach += size * max(extents[atom] - 1, 0)
        else:
            found.update(atom for atom, _ in terms)
    return all(d.var in found for d in c.kept_dims if _several(d))


def _several(d: Dim) -> bool:
    """Whether a dimension may have more than one point."""
    return not d.static or d.extent > 1


def _are_separate(a: Output, b: Output) -> bool:
    """The lemma: on some axis the indices differ by what no step of either makes up.

    With g the greatest common divisor of all coefficients of both (0 where there are none), the
    constants differ modulo g.
    """
    for i, j in zip(a.index, b.index, strict=True):
        one = affine(i)
        two = affine(j)
        terms = (*one.terms, *two.terms)
        step = gcd(*(coefficient for _, coefficient in terms))
        difference = one.const - two.const
        if difference % step if step else difference:
            return True
    return False


def _conflict(
    c: Computation,
    a: Output,
    b: Output,
) -> str | None:
    """Points at which `a` and `b` write one element (two points where they are one output).

    By isl, as text; None where there are none.
    """
    domain = Domain()
    one = _point(c, domain)
    two = _point(c, domain)
    for i, j in zip(a.index, b.index, strict=True):
        domain.require(f"{one.expr(i)} = {two.expr(j)}")
    kept = c.kept_dims
    wanted = "true"
    if a is b:
        different = [f"{one.names[d.var]} != {two.names[d.var]}" for d in kept]
        wanted = " or ".join(different) or "false"
    try:
        point = sample(domain, [wanted])
    except IslLimitReached:
        return ": not excluded within the operation limit"
    if point is None:
        return None
    values = dict(zip(domain.names, point, strict=True))
    shown = []
    for t in (one, two):
        place = (f"{d.var.name} = {values[t.names[d.var]]}" for d in kept)
        shown.append(", ".join(place))
    return f": at {' and at '.join(shown)}"


def _point(c: Computation, domain: Domain) -> IslTranslator:
    names = {v: domain.variable(0, MAX_SIZE - 1) for v in c.sizes}
    translate = IslTranslator(domain, names, environment(c.dims))
    for d in c.dims:
        if d.static:
            translate.names[d.var] = domain.variable(0, d.extent - 1)
        else:
            name = translate.names[d.var] = domain.variable(0)
            domain.require(f"{name} < {translate.expr(as_expr(d.size, INDEX))}")
    return translate


CHECKS: Mapping[str, Check] = {
    "TW-DIMS": _dims,
    "TW-OUTPUTS": _outputs,
    "TW-UNBOUND": _bound,
    "TW-OPERATOR": _operator,
    "TW-TYPE": _types,
    "TW-OUT-VIEW": _out_view,
    "TW-BOUNDS": _inside,
    "TW-INJECTIVE": _injective,
}
