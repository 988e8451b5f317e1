"""Advice on slow schedules: rules over the statements that run most often.

A rule is a function of one such statement (`ComputeStatement`) that returns what to do and why, or
None. RULES lists all rules, the most important first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from math import prod
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.text import plural
from tilewright.expr.affine import Affine, affine
from tilewright.expr.nodes import Buffer, Expr, Load, Select, Var
from tilewright.ir.node import postorder
from tilewright.loops.analysis.access import expressions
from tilewright.loops.analysis.terms import loads, variables
from tilewright.loops.nodes import Alloc, For, If, Kernel, Store, Unit, Update
from tilewright.loops.walk import StatementPlace, walk
from tilewright.runtime.instruction_mix import Mix

_MUCH: Final = 0.1  # share of all steps below which a statement is not worth a change
_SHARED_SECONDS: Final = 20e-6  # a kernel that takes longer justifies waking threads
_CHAINS: Final = 4  # independent sums that hide the latency of a fused multiply-add
_LONG: Final = 16  # steps from which the latency of a sum matters


@dataclass(frozen=True, slots=True)
class KernelRun:
    """A measured run of a kernel: threads, seconds, and the instruction mix of its inner loop."""

    threads: int
    seconds: float
    mix: Mix | None = None


@dataclass(frozen=True, eq=False)
class ComputeStatement:
    """A statement that computes, and how often it runs."""

    place: StatementPlace
    stmt: Store | Update
    steps: int
    run: KernelRun

    @property
    def loops(self) -> tuple[For, ...]:
        """The loops around it, outermost first."""
        return self.place.loops

    @property
    def name(self) -> str:
        """The names of its results."""
        return ", ".join(b.name for b, _ in self.targets)

    @cached_property
    def targets(self) -> tuple[tuple[Buffer, tuple[Expr, ...]], ...]:
        """The elements that it writes."""
        if isinstance(self.stmt, Update):
            return tuple(self.stmt.targets)
        return ((self.stmt.buffer, self.stmt.index),)

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """The elements that it reads, except the results that it updates."""
        found = (e for root in expressions(self.stmt) for e in loads(root))
        return tuple(dict.fromkeys(found))

    @cached_property
    def vector(self) -> For | None:
        """The vector loop around it."""
        return next((f for f in self.loops if f.kind == "vector"), None)

    @cached_property
    def sum_loops(self) -> tuple[For, ...]:
        """The serial loops whose iterations all update the same result."""
        if not isinstance(self.stmt, Update):
            return ()
        serial = (f for f in self.loops if f.kind == "serial")
        return tuple(f for f in serial if not self.writes_along(f))

    @property
    def sum_loop(self) -> For | None:
        """The innermost of `sum_loops`."""
        return self.sum_loops[-1] if self.sum_loops else None

    def writes_along(self, f: For) -> bool:
        """Whether each iteration of a loop writes different elements, or its own buffer."""
        inside = self.place.above[self.place.above.index(f) :]
        own = {s.buffer for s in inside if isinstance(s, Alloc)}
        return any(
            b in own or any(f.var in variables(e) for e in index)
            for b, index in self.targets
        )

    def inside(self, f: For) -> tuple[For, ...]:
        """The loops between `f` and the statement."""
        return self.loops[self.loops.index(f) + 1 :]


Rule = Callable[[ComputeStatement], str | None]


def advice(kernel: Kernel, run: KernelRun, most: int = 6) -> tuple[str, ...]:
    """At most `most` lines of advice on a kernel that was run, the most important first."""
    works = sorted(_works(kernel, run), key=lambda w: -w.steps)
    total = sum(w.steps for w in works)
    hot = [w for w in works if w.steps >= _MUCH * total]
    said = (text for rule in RULES for w in hot if (text := rule(w)) is not None)
    return tuple(dict.fromkeys(said))[:most]


def _works(kernel: Kernel, run: KernelRun) -> Iterator[ComputeStatement]:
    for place in walk(kernel.body):
        in_unit = any(isinstance(s, Unit) for s in place.above)
        if isinstance(place.stmt, Store | Update) and not in_unit:
            steps = prod(f.trips or 1 for f in place.loops)
            yield ComputeStatement(place, place.stmt, steps, run)


def step_of(buffer: Buffer, index: tuple[Expr, ...], var: Var) -> int | None:
    """The stride in elements between the accesses of successive iterations; None if it varies."""
    form = Affine((), 0)
    for part, stride in zip(index, buffer.strides, strict=True):
        form = form + affine(part).scaled(stride)
    if any(var in variables(atom) for atom, _ in form.terms if atom is not var):
        return None
    return form.coefficient(var)


def _scalar(w: ComputeStatement) -> str | None:
    """No vector loop around it."""
    if w.vector is not None or w.steps < _LONG:
        return None
    why = f"{w.name} computes one element at a time"
    for f in reversed(w.loops):
        reads = {step_of(e.buffer, e.index, f.var) for e in w.loads}
        writes = {step_of(b, index, f.var) for b, index in w.targets}
        if f.kind in ("serial", "unroll") and writes == {1} and reads <= {0, 1}:
            return f"split {f.var.name} and vectorize the inner loop, innermost: {why}"
    return (
        f"vectorize a loop of {w.name}, and copy operands that are not contiguous "
        f"along it: {why}"
    )


def _gathers(w: ComputeStatement) -> str | None:
    """A vector loop along which an operand's elements are not neighbors."""
    if w.vector is None:
        return None
    var = w.vector.var
    for e in w.loads:
        step = step_of(e.buffer, e.index, var)
        if step not in (-1, 0, 1):
            apart = "scattered" if step is None else f"{abs(step)} elements apart"
            return (
                f"vectorize a loop other than {var.name}, or read {e.buffer.name} through a copy "
                f"in that order (cache_read, or a separate stage): its elements are {apart}"
            )
    return None


def _scatters(w: ComputeStatement) -> str | None:
    """A vector loop along which the results are not neighbors."""
    if w.vector is None:
        return None
    var = w.vector.var
    steps = [(b, step_of(b, index, var)) for b, index in w.targets]
    wide = next((b for b, step in steps if step not in (0, 1)), None)
    if wide is None:
        return None
    return (
        f"vectorize the loop of {wide.name}'s last dimension instead of {var.name}: "
        "each lane is stored separately"
    )


def _guards(w: ComputeStatement) -> str | None:
    """A condition on loop variables that is tested in each step."""
    conditions = [s.condition for s in w.place.above if isinstance(s, If)]
    for root in expressions(w.stmt):
        conditions += [n.condition for n in postorder(root) if isinstance(n, Select)]
    for condition in conditions:
        over = variables(condition)
        tested = [f for f in w.loops if f.var in over]
        if tested and not any(isinstance(e, Load) for e in over):
            return (
                f"partition_loop({tested[0].var.name!r}), or choose a factor that divides the "
                f"extent: {w.name} tests {condition!r} in each step"
            )
    return None


def _stored_sums(w: ComputeStatement) -> str | None:
    """A sum that does not keep its results in registers."""
    if w.sum_loop is None:
        return None
    why = f"each step of {w.sum_loop.var.name} loads and stores its results"
    serial = [f.var.name for f in w.inside(w.sum_loop) if f.kind == "serial"]
    if serial:
        return (
            f"unroll {', '.join(serial)}, or cache_write {w.name} and tile it to the registers: "
            f"{why}"
        )
    if w.vector is None or w.run.mix is None or not w.run.mix.stores:
        return None
    if all(b.scope == "register" for b, _ in w.targets):
        return None
    outer = w.sum_loops[0].var.name
    return f'cache_write({w.name}, "register"), computed outside {outer}: {why}'


def _waiting(w: ComputeStatement) -> str | None:
    """A sum each of whose steps waits for the previous one."""
    steps = prod(f.trips or _LONG for f in w.sum_loops)
    if w.sum_loop is None or steps < _LONG or w.vector is None:
        return None
    inner = w.inside(w.sum_loop)
    is_float = all(b.dtype.is_float for b, _ in w.targets)
    if not is_float or any(f.kind == "serial" for f in inner):
        return None
    written = (f.trips for f in inner if f.kind == "unroll" and w.writes_along(f))
    chains = prod(n or 1 for n in written)
    if chains >= _CHAINS:
        return None
    sums = "one sum" if chains == 1 else f"{chains} sums"
    return (
        f"tile {w.name} and unroll the tile inside {w.sum_loop.var.name}, or rfactor the sum: "
        f"each step waits for the previous one, with {sums} at a time"
    )


def _spills(w: ComputeStatement) -> str | None:
    """More values in the inner loop than there are registers."""
    spills = 0 if w.run.mix is None else w.run.mix.spills
    if not spills:
        return None
    those = plural(spills, "access", "accesses")
    return (
        f"use smaller unrolled tiles: the inner loop has {those} to values that do not fit "
        "into registers"
    )


def _alone(w: ComputeStatement) -> str | None:
    """No parallel loop, although there is enough work for several threads."""
    shared = any(f.kind == "parallel" for f in w.loops)
    if shared or w.run.threads < 2 or w.run.seconds < _SHARED_SECONDS:
        return None
    why = f"only one of {w.run.threads} threads computes {w.name}"
    outer = next((f for f in w.loops if w.writes_along(f)), None)
    if outer is None:
        return f"rfactor {w.name} and run its parts in parallel: {why}"
    return f"parallel({outer.var.name!r}): {why}"


RULES: Final[tuple[Rule, ...]] = (
    _scalar,
    _gathers,
    _scatters,
    _stored_sums,
    _guards,
    _waiting,
    _spills,
    _alone,
)
