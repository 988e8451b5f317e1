"""reverse_compute_at: a consumer run on each part as soon as the part is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Buffer, Expr, Extent, Load, Var, const
from tilewright.loops.analysis.access import Env, accesses, environment
from tilewright.loops.analysis.effects import conflict, reads, writes
from tilewright.loops.analysis.region import Region, region, span, uncovered
from tilewright.loops.analysis.terms import variables
from tilewright.loops.nodes import Alloc, Block, For, Kernel, Stmt, block
from tilewright.loops.walk import StatementPlace, loops_of
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import check_axes, check_kinds, check_repeatable
from tilewright.schedule.registry import primitive
from tilewright.schedule.slice_nest import restrict_to_boxes
from tilewright.schedule.staging import used_as_index

_VERB = "reverse_compute_at"


def _error(buffer: str, message: str, hint: str) -> ScheduleError:
    return ScheduleError(f"{_VERB}: {message}", where=f"buffer {buffer}", hint=hint)


@dataclass(frozen=True, slots=True)
class _Sides:
    """A sequence `home` with the producer's nest, statements in between, and the consumer's.

    path: from the producer's nest (included) to the loop in it (not included).
    """

    home: StatementPlace
    producer: Stmt
    path: tuple[Stmt, ...]
    between: tuple[Stmt, ...]
    consumer: Stmt


@primitive
def reverse_compute_at(kernel: Kernel, buffer: str, loop: str) -> tuple[Kernel, None]:
    """Run the nest that consumes what a loop computes inside it, on the part just computed.

    args: a buffer that the consumer writes, which names its nest; the producer's loop.
    requires: the consumer follows the loop's nest in one sequence and shares nothing else with it
        or with what stands in between (initializations in between move ahead of both); every loop
        of the nest down to this one runs, and where it runs more than once, selects a part of what
        is computed, in one dimension each, and nothing outside the loop adds to it; the consumer
        reads each of these dimensions at one of its own loops, all its writes are inside these, and
        their iterations do not depend on one another; the parts cover all iterations, and where
        parts overlap, each is computed wholly in its own iteration, and the consumer only stores.
    A loop of the consumer runs over the part; a guard is left where that may leave its range.
    cache_write then shrinks the buffer in between to the part.
    before: for o: for i in 8: T[o*8 + i] = f(o*8 + i)
            for j: D[j] = g(T[j])
    after:  for o: { for i in 8: T[o*8 + i] = f(o*8 + i)
                     for j in 8: D[o*8 + j] = g(T[o*8 + j]) }
    """
    f, place = tree.find_loop(kernel, loop, _VERB)
    out, _ = tree.find_buffer(kernel, buffer, _VERB)
    sides = _sides(out, f, place)
    ahead = _check_separate(out, sides)
    env = environment(kernel.body)
    loops = [x for x in (*sides.path, f) if isinstance(x, For)]
    _check_runs(out, loops)
    moving = {x.var for x in loops if x.trips != 1}
    shared = writes(sides.producer) & reads(sides.consumer)
    boxes = {}
    for b in sorted(shared, key=lambda b: b.name):
        boxes[b] = _part(b, f, sides, moving, env)
    consumer = sides.consumer
    moved, starts = restrict_to_boxes(kernel, consumer, boxes, _VERB, updates=True)
    inner_env = env | environment(moved)
    repeats = _check_covered(out, consumer, starts, moving, inner_env)
    if repeats:
        _check_repeatable(kernel, boxes, f, repeats, sides.consumer)

    inner = For(f.var, f.extent, f.kind, block(f.body, moved))
    nest = edit.put(
        kernel.with_body(sides.producer), StatementPlace(f, sides.path), inner
    ).body
    assert isinstance(sides.home.stmt, Block)
    rest: list[Stmt] = []
    for s in sides.home.stmt.stmts:
        if s is sides.producer:
            rest += [*ahead, nest]
        elif s is not sides.consumer and s not in ahead:
            rest.append(s)
    result = edit.put(kernel, sides.home, block(*rest))
    names = [x.var.name for x in (*loops, *loops_of(moved))]
    check_kinds(result, names, _VERB, "move it before the loops get their kinds")
    check_axes(result, _VERB)
    return result, None


def _sides(out: Buffer, f: For, place: StatementPlace) -> _Sides:
    """The innermost sequence with a consumer of the loop's nest that writes `out`."""
    path = (*place.above, f)
    for depth in reversed(range(len(place.above))):
        home = path[depth]
        producer = path[depth + 1]
        if not isinstance(home, Block):
            continue
        at = home.stmts.index(producer)
        made = writes(producer)
        for n, s in enumerate(home.stmts[at + 1 :], at + 1):
            if out in writes(s) and reads(s) & made:
                inside = path[depth + 1 : -1]
                odd = next(
                    (x for x in inside if not isinstance(x, For | Block | Alloc)), None
                )
                if odd is not None:
                    break
                between = home.stmts[at + 1 : n]
                return _Sides(
                    StatementPlace(home, path[:depth]), producer, inside, between, s
                )
    raise _error(
        out.name,
        f"no nest that writes it follows that of loop {f.var.name} and reads what this computes",
        "name the loop of a nest before the consumer in the same sequence",
    )


def _check_separate(out: Buffer, sides: _Sides) -> list[Stmt]:
    """The statements in between that must come before the consumer, which then come first."""
    lost = writes(sides.consumer) & (reads(sides.producer) | writes(sides.producer))
    if lost:
        raise _error(
            out.name,
            f"both nests use {sorted(b.name for b in lost)}, which the consumer writes",
            "stage it first (cache_write)",
        )
    ahead: list[Stmt] = []
    passed: list[Stmt] = [sides.producer]
    for s in sides.between:
        if not conflict(s, sides.consumer):
            passed.append(s)
            continue
        held = {b for x in passed for b in conflict(x, s)}
        if held:
            raise _error(
                out.name,
                f"a statement in between uses {sorted(b.name for b in held)} and cannot come first",
                "move that statement too, beforehand",
            )
        ahead.append(s)
    return ahead


def _check_runs(out: Buffer, loops: Sequence[For]) -> None:
    """Every loop that the consumer comes into runs: the bounds of one that never does are none."""
    for f in loops:
        if tree.trips(f, _VERB) == 0:
            what = f"loop {f.var.name} has no iterations, in which the consumer would never run"
            raise _error(out.name, what, "leave the consumer where it is")


def _part(
    b: Buffer,
    f: For,
    sides: _Sides,
    moving: set[Var],
    env: Env,
) -> Region:
    """The box of `b` that one iteration of `f` computes, whole where it is always the same."""
    inside = [a for a in accesses(f.body) if a.buffer is b and a.writes]
    total = sum(a.buffer is b and a.writes for a in accesses(sides.producer))
    if len(inside) != total:
        raise _error(
            b.name,
            f"it is also written outside loop {f.var.name}",
            "name a loop around all that computes it",
        )
    box = region(b, inside, env, _VERB)
    base: list[Expr] = []
    shape: list[Extent] = []
    used: list[Expr] = []
    for start, size, extent in zip(box.base, box.shape, b.extents, strict=True):
        selects = variables(start) & moving
        used += selects
        base.append(start if selects else const(0))
        shape.append(size if selects else extent)
    again = sorted(v.name for v in moving - set(used))
    if again or len(used) != len(set(used)):
        what = f"loop {again[0]} computes" if again else "several dimensions select"
        raise _error(
            b.name,
            f"{what} the same part again, so that it is not final in loop {f.var.name}",
            "name a loop outside the reduction, or reorder them",
        )
    return Region(tuple(base), tuple(shape))


def _check_covered(
    out: Buffer, consumer: Stmt, starts: Mapping[Var, Expr], moving: set[Var], env: Env
) -> list[For]:
    """The loops whose parts run some iterations more than once; each iteration must run."""
    repeats: list[For] = []
    for f in loops_of(consumer):
        at = starts.get(f.var)
        if at is None:
            continue
        vars_ = {v for v in variables(at) if isinstance(v, Var)}
        found = span(at, vars_, env)
        reads_memory = any(isinstance(v, Load) for v in variables(at))
        own_vars = vars_ <= moving | {f.var}
        if found is None or found.base.terms or reads_memory or not own_vars:
            raise _not_covered(out, f, "is not known to be covered")
        lo = found.lo + found.base.const
        hi = found.hi + found.base.const
        if not found.dense or lo > 0 or hi < tree.trips(f, _VERB) - 1:
            raise _not_covered(out, f, "is not covered")
        if prod((env[v][1] or 0) + 1 for v in vars_) != hi - lo + 1:
            repeats.append(f)
    written = [a for a in accesses(consumer) if a.writes]
    chains = {tuple(f for f in a.loops if f.var in starts) for a in written}
    used: list[Expr] = []
    for f in next(iter(chains)):
        used += variables(starts[f.var]) & moving
    each_once = len(used) == len(set(used)) and set(used) == moving
    if len(chains) != 1 or not each_once:
        raise _error(
            out.name,
            f"the parts do not say when {written[0]} is to be written",
            "decompose, inline or fission the consumer first, so that it is one nest",
        )
    return repeats


def _not_covered(out: Buffer, f: For, what: str) -> ScheduleError:
    return _error(
        out.name,
        f"loop {f.var.name} {what} by the parts that are computed",
        "name a loop of a nest that computes all the consumer reads",
    )


def _check_repeatable(
    kernel: Kernel,
    boxes: Mapping[Buffer, Region],
    f: For,
    repeats: Sequence[For],
    consumer: Stmt,
) -> None:
    """Where parts overlap: each is computed wholly in one iteration, and used again harmlessly."""
    env = environment(kernel.body)
    hint = "split the producer with another tail, or decompose the consumer's reduction"
    for b in boxes:
        found = uncovered(f.body, b, env, writes_too=True)
        if found is not None or used_as_index(consumer, b):
            what = (
                "it is used as an index"
                if found is None
                else f"{found} is not computed there"
            )
            raise _error(
                b.name,
                f"the parts overlap, and {what} before it is final",
                hint,
            )
    for x in repeats:
        check_repeatable(
            kernel, x, _VERB, "parts overlap, which repeats iterations", hint
        )
