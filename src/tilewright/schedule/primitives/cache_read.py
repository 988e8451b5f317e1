"""cache_read: stage the region read from a buffer, optionally with padding."""

from __future__ import annotations

from math import gcd
from typing import Any

from tilewright.base.names import fresh
from tilewright.compute.guards import conjuncts
from tilewright.expr.affine import Affine, affine
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import Buffer, Const, Expr, Le, Load, Lt, Select, const
from tilewright.expr.simplify import simplify
from tilewright.ir.node import postorder, substitute
from tilewright.loops.analysis.access import (
    Env,
    Index,
    accesses_of,
    environment,
)
from tilewright.loops.analysis.effects import writes
from tilewright.loops.analysis.region import region
from tilewright.loops.nodes import Alloc, Kernel, Stmt, Store, block
from tilewright.loops.scopes import Scope
from tilewright.loops.walk import StatementPlace, names_of
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import check_kinds, refuse_buffer
from tilewright.schedule.primitives.cache_write import body_of
from tilewright.schedule.registry import primitive_with
from tilewright.schedule.staging import (
    StatementRange,
    after_writes,
    guarded,
    sweep,
    within,
)


@primitive_with(options=["pad", "name"])
def cache_read(
    kernel: Kernel,
    buffer: str,
    loop: str | None = None,
    scope: Scope = "stack",
    pad: bool = False,
    name: str | None = None,
) -> tuple[Kernel, str]:
    """Copy the region of `buffer` that one iteration reads into its own buffer; its name.

    args: the buffer; the loop in whose body to stage it (None: as far out as its value is final);
        scope and name (default `<buffer>.local`, with pad `<buffer>.pad`) of the new buffer. pad:
        also hold the values outside `buffer` that guarded reads `Select(guard, b[i], c)` give,
        so that these become plain reads: the padding of a convolution.
    requires: the body does not write the buffer, nor do other iterations of a loop around that may
        run at the same time write what is copied, which is the box around all that the body reads.
        The region has constant extents (bounds). pad: every guard says exactly that the index is
        inside the buffer, over the values it takes, and all name one constant c; every unguarded
        read is inside.
    The loops of the copy are `<new>.r<dimension>`.
    before: for i: for k in 3: y[i] += select(0 <= i+k-1 < n, x[i+k-1], 0)
    after:  for r in n+2: x.pad[r] = select(0 <= r-1 < n, x[r-1], 0)
            for i: for k in 3: y[i] += x.pad[i+k]
    """
    old, alloc = tree.find_buffer(kernel, buffer, "cache_read")
    part = _read_part(kernel, old, alloc, loop)
    body = part.body
    found = accesses_of(body, old)
    env = environment(kernel.body)
    box = region(old, found, env, "cache_read", clip=not pad)
    taken = names_of(kernel)
    suffix = ".pad" if pad else ".local"
    new = Buffer(fresh(taken, name or buffer + suffix), box.shape, old.dtype, scope)
    padded, outside = _guarded_reads(body, old, env) if pad else ({}, None)
    values: dict[Any, Any] = {
        select: Load(new, box.local(load.index)) for select, load in padded.items()
    }

    def stage(local: Index) -> Stmt:
        point = box.point(local)
        value: Expr = Load(old, point)
        if not pad:
            return guarded(point, old, env, Store(new, local, value))
        condition = within(point, old, env)
        if condition is not None and outside is not None:
            value = Select(condition, value, outside)
        return Store(new, local, value)

    def from_copy(index: Index) -> tuple[Buffer, Index]:
        return new, box.local(index)

    inner = edit.rewrite(body, env, values, {old: from_copy})
    copy = sweep(f"{new.name}.r", box.shape, taken, env, stage)
    result = part.put(kernel, Alloc(new, block(copy, inner)))
    _check_around(result, part, old, alloc)
    return result, new.name


def _read_part(
    kernel: Kernel, old: Buffer, alloc: StatementPlace | None, loop: str | None
) -> StatementRange:
    """The statements that will read the copy: a loop body, or everything after `old` is final."""
    if loop is None:
        part = after_writes(kernel, old, alloc, "cache_read")
    else:
        f, place = tree.find_loop(kernel, loop, "cache_read")
        part = body_of("cache_read", f, place, old.name, alloc)
    found = accesses_of(part.body, old)
    if not found or any(a.writes for a in found):
        raise refuse_buffer(
            "cache_read",
            old.name,
            "it is written there" if found else "it is not read there",
            "cache_write stages writes" if found else "name a loop that reads it",
        )
    return part


def _check_around(
    kernel: Kernel,
    part: StatementRange,
    old: Buffer,
    alloc: StatementPlace | None,
) -> None:
    """No other iteration that may run at the same time writes what a copy reads."""
    shared = part.place.loops[0 if alloc is None else len(alloc.loops) :]
    around = [f.var.name for f in shared if old in writes(f)]
    check_kinds(kernel, around, "cache_read", "stage it before the loop gets its kind")


def _guarded_reads(
    body: Stmt, buffer: Buffer, env: Env
) -> tuple[dict[Select, Load], Const | None]:
    """The reads `Select(inside, buffer[...], c)`, each checked, and their common c."""
    found: dict[Select, Load] = {}
    free: set[Load] = set()
    for node in postorder(body):
        if isinstance(node, Load) and node.buffer is buffer:
            free.add(node)
        elif isinstance(node, Select) and _is_guarded(node, buffer):
            assert isinstance(node.then, Load)
            found[node] = node.then
    free -= set(found.values())
    for load in free:
        if within(load.index, buffer, env) is not None:
            raise refuse_buffer(
                "cache_read",
                buffer.name,
                f"bounds do not prove that the unguarded read {load!r} is inside",
                "guard it with Select(inside, read, constant)",
            )
    for select, load in found.items():
        _check_guard(select.condition, load, env)
    constants = {s.otherwise for s in found}
    if len(constants) > 1:
        raise refuse_buffer(
            "cache_read",
            buffer.name,
            f"the guarded reads have different values outside: {sorted(map(repr, constants))}",
            "stage them one by one, each in its own loop",
        )
    outside = next(iter(constants), None)
    assert outside is None or isinstance(outside, Const)
    return found, outside


def _is_guarded(node: Select, buffer: Buffer) -> bool:
    inner = node.then
    return (
        isinstance(inner, Load)
        and inner.buffer is buffer
        and isinstance(node.otherwise, Const)
    )


def _check_guard(condition: Expr, load: Load, env: Env) -> None:
    """The guard must say `inside` for the values that the index takes, no more and no less."""
    # The index may be without the loops of one turn, the guard is then too.
    still = {}
    for v, (start, stop) in env.items():
        if start is not None and start == stop:
            still[v] = const(start)
    load = substitute(load, still)
    parts = {part: _settled(part) for part in conjuncts(substitute(condition, still))}
    if False in parts.values() and _is_outside(load):
        return
    limits = [_limit(part, load) for part, holds in parts.items() if not holds]
    for d, (i, extent) in enumerate(zip(load.index, load.buffer.shape, strict=True)):
        low, high = bounds(i, env)
        least = []
        most = []
        for n, lower, upper in limits:
            if n == d and lower is not None:
                least.append(_attained(lower, i, up=True))
            if n == d and upper is not None:
                most.append(_attained(upper, i, up=False))
        first = _attained(0, i, up=True)
        last = _attained(extent - 1, i, up=False)
        # Beyond an end of the buffer the guard must cut there, else nowhere in reach.
        below = low is None or low < first
        beyond = high is None or high > last
        lo = max(least, default=low)
        hi = min(most, default=high)
        if below:
            wrong_start = lo != first
        else:
            wrong_start = lo is not None and low is not None and lo > low
        if beyond:
            wrong_end = hi != last
        else:
            wrong_end = hi is not None and high is not None and hi < high
        if wrong_start or wrong_end:
            raise refuse_buffer(
                "cache_read",
                load.buffer.name,
                f"the guard {condition!r} of {load!r} is not the test that dimension {d} is inside",
                "only padding guards can be staged; leave pad=False",
            )


def _settled(part: Expr) -> bool | None:
    """Whether a comparison of constants holds; None for any other condition."""
    if not isinstance(part, Lt | Le):
        return None
    form = affine(part.rhs) - affine(part.lhs)
    if form.terms:
        return None
    return form.const >= isinstance(part, Lt)


def _is_outside(load: Load) -> bool:
    """Whether an index that is constant is not one of its buffer."""
    forms = zip(map(affine, load.index), load.buffer.shape, strict=True)
    return any(
        not form.terms and not 0 <= form.const < extent for form, extent in forms
    )


def _attained(limit: int, index: Expr, up: bool) -> int:
    """The nearest value not below (above) `limit` that the index's linear form can take."""
    form = affine(index)
    step = gcd(*(c for _, c in form.terms)) or 1
    if up:
        return limit + (form.const - limit) % step
    return limit - (limit - form.const) % step


def _limit(part: Expr, load: Load) -> tuple[int, int | None, int | None]:
    """A comparison as a dimension and the least or greatest index in that dimension."""
    if isinstance(part, Lt | Le):
        # form >= 0
        form = affine(simplify(part.rhs)) - affine(simplify(part.lhs))
        form = Affine(form.terms, form.const - (1 if isinstance(part, Lt) else 0))
        for d, i in enumerate(load.index):
            index = affine(simplify(i))
            ratio = _ratio(form, index)
            if ratio > 0:
                # index.terms = ratio * form.terms >= -ratio * form.const
                return d, index.const - ratio * form.const, None
            if ratio < 0:
                return d, None, index.const - ratio * form.const
    raise refuse_buffer(
        "cache_read",
        load.buffer.name,
        f"the guard {part!r} of {load!r} is not a test of one index",
        "only padding guards can be staged; leave pad=False",
    )


def _ratio(form: Affine, index: Affine) -> int:
    """r with index.terms == r * form.terms, 0 if there is none."""
    if not form.terms or len(form.terms) != len(index.terms):
        return 0
    atom, c = form.terms[0]
    r = index.coefficient(atom) // c
    if r and not (index - form.scaled(r)).terms:
        return r
    return 0
