"""An open plan from the plans of several sizes, where these differ in nothing but numbers.

A number that differs is taken for a sum of terms (`size_terms`: sizes, and floors of them), through
the first plans, and a constant that differs for the leading corner of the largest one: the
positions or the mask of the longest sequence begin with those of a shorter one. That is a guess: `equal` says whether the open
plan at some sizes is what planning gives for them, and only sizes for which it has said so may run
the open plan's code.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import mul
from typing import Any

from tilewright.base.errors import UnsupportedError, VerifyError
from tilewright.compute.canonical import canonical
from tilewright.compute.guards import Ranges, conjuncts, inside, keeps_inside, loads
from tilewright.compute.nodes import CC, Computation, Output
from tilewright.compute.reducer import Reducer
from tilewright.compute.transforms import environment, map_outputs
from tilewright.driver.size_terms import Basis, Extents, Term, Terms
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.nodes import (
    INDEX,
    And,
    Buffer,
    Cast,
    Const,
    Expr,
    Extent,
    Select,
    Var,
)
from tilewright.expr.simplify import simplify
from tilewright.graph.nodes import Graph, Value
from tilewright.ir.node import Node, transform
from tilewright.loops.nodes import For, Kernel, Stmt, for_sizes
from tilewright.plan.nodes import FusionGroup, OpenExtent, Plan, Step
from tilewright.plan.open_extents import at
from tilewright.plan.verify import verify



def generalize(
    plans: Sequence[Plan],
    points: Sequence[Extents],
    graph: Graph,
    bounds: Mapping[str, tuple[int, int]],
    terms: Terms | None = None,
) -> Plan:
    """The open plan of which `plans` are those at `points`.

    points: one, for each dimension as many as it has terms that differ from the first in that one
    alone, and any others; constants that differ are corners of the last one's. graph: its inputs
    name the dimensions. bounds: of each dimension the least and the most. terms: of each dimension
    those that occur; None: itself. Raises UnsupportedError naming the step or tensor in which the
    plans differ by more than numbers.
    """
    sizes = {name: Var(name, INDEX) for name in bounds}
    known = terms or {name: (Term(name),) for name in bounds}
    together = _Together(Basis.of(points, known), sizes)
    if any(len(p.steps) != len(plans[0].steps) for p in plans):
        raise _differs(f"plan {graph.name}", "the number of steps")
    ends = [(*p.graph.inputs, *used_constants(p), *p.graph.outputs) for p in plans]
    if len({len(found) for found in ends}) > 1:
        raise _differs(f"plan {graph.name}", "the number of constants")
    values: dict[Value, Buffer] = {}
    known: dict[Value, Value] = {}
    constants: dict[Value, Any] = {}
    for found in zip(*ends, strict=True):
        pairs = zip(plans, found, strict=True)
        buffers = tuple(_buffer_of(p, v) for p, v in pairs)
        if found[0] in plans[0].graph.constants:
            arrays = [p.graph.constants[v] for p, v in zip(plans, found, strict=True)]
            constants[found[0]] = together.constant(buffers, arrays)
        b = together.buffer(buffers)
        shape = tuple(e if isinstance(e, int) else str(e) for e in b.extents)
        value = known.setdefault(found[0], replace(found[0], shape=shape))
        values[value] = b
    steps = tuple(together.step(s) for s in zip(*(p.steps for p in plans), strict=True))
    first = plans[0].graph
    inputs, outputs = (
        tuple(known[v] for v in ends) for ends in (first.inputs, first.outputs)
    )
    constants = {known[v]: a for v, a in constants.items()}
    data = {values[v]: a for v, a in constants.items()}
    opened = tuple(
        OpenExtent(sizes[name], *bounds[name], _source(values, inputs, sizes[name]))
        for name in bounds
    )
    made = Graph(first.name, inputs, outputs, (), constants)
    return Plan(made, steps, values, data, open=opened)


def equal(plan: Plan, extents: Extents, fixed: Plan) -> bool:
    """Whether the open plan at these extents and the other plan are the same but for names."""
    here = _at(plan, extents, fixed)
    if not all(isinstance(s, FusionGroup) for s in fixed.steps):
        return False
    texts = {_text(p) for p in (here, fixed)}
    mine, others = (
        [p.graph.constants[v] for v in used_constants(p)] for p in (here, fixed)
    )
    if len(texts) > 1 or len(mine) != len(others):
        return False
    pairs = zip(mine, others, strict=True)
    return all(a.shape == b.shape and is_corner(a, b) for a, b in pairs)


def is_corner(part: Any, whole: Any) -> bool:
    """Whether an array is another one, bit for bit, up to its own extents."""
    if part.dtype != whole.dtype or part.ndim != whole.ndim:
        return False
    corner = whole[tuple(map(slice, part.shape))]
    return bool(corner.shape == part.shape and corner.tobytes() == part.tobytes())


def _at(plan: Plan, extents: Extents, fixed: Plan) -> Plan:
    """The open plan at extents, with as much of its constants as the other plan has."""
    sizes = {e.size: extents[e.size.name] for e in plan.open}
    copies = {}
    for v, w in zip(used_constants(plan), used_constants(fixed), strict=False):
        b, shape = plan.buffers[v], fixed.buffers[w].shape
        # Another rank is another constant, and the plans differ.
        if b.static and b.shape != shape and len(b.shape) == len(shape):
            copies[b] = Buffer(b.name, shape, b.dtype, b.scope)
    return at(plan, sizes, copies)


def difference(plan: Plan, extents: Extents, fixed: Plan) -> str:
    """The first step of a plan at some sizes that is not the open plan's there, by name."""
    try:
        here = _at(plan, extents, fixed)
        verify(here)
    except VerifyError as error:
        return str(error)
    for mine, other in zip(here.steps, fixed.steps, strict=False):
        pair = [_step_text(s) for s in (mine, other)]
        if len(set(pair)) > 1:
            return f"step {mine.name}"
    return "the steps" if len(here.steps) != len(fixed.steps) else "a constant"


def _step_text(step: Step) -> str:
    if not isinstance(step, FusionGroup):
        return step.name
    return canonical(_programs(step), (*step.reads, *step.writes))


def used_constants(plan: Plan) -> list[Value]:
    """The constants that a step reads or that are results, in the order of the graph."""
    used = {b for s in plan.steps for b in s.reads} | set(plan.results)
    return [v for v in plan.graph.constants if plan.buffers.get(v) in used]


def _text(plan: Plan) -> str:
    """All that a plan computes: its groups in order, on inputs, constants and results."""
    graph = plan.graph
    known = (*graph.inputs, *used_constants(plan), *graph.outputs)
    ends = [plan.buffers[v] for v in known]
    programs = [program for g in plan.groups for program in _programs(g)]
    counts = [len(g.computations) for g in plan.groups]
    return f"{counts} {len(graph.inputs)}\n{canonical(programs, ends)}"


def _programs(group: FusionGroup) -> list[Computation | Node]:
    """What a group computes, with folded numbers: of a size that has a value they are no single
    constant."""
    if group.kernel is not None:
        return [transform(group.kernel.body, _folded)]
    return [_simple(c) for c in group.computations if not _is_empty(c)]


def _is_empty(c: Computation) -> bool:
    """Whether it writes nothing: a side of a border that some sizes do not have."""
    return any(d.size == 0 and d.combine == CC for d in c.dims)


def _simple(c: Computation) -> Computation:
    """Without conditions that always hold, which some sizes have and others do not."""
    env = environment(c.dims)
    return replace(c, outputs=map_outputs(c, lambda e: simplify(e, env)))


def _folded(node: Any) -> Node:
    """A statement with simple expressions."""
    return node if isinstance(node, Expr) else node.map(_simplest)


def _simplest(node: Any) -> Any:
    return simplify(node, {}) if isinstance(node, Expr) else node


def _buffer_of(plan: Plan, v: Value) -> Buffer:
    if v not in plan.buffers:
        raise _differs(f"tensor {v.name!r}", "it has no memory of its own")
    return plan.buffers[v]


def _source(
    values: Mapping[Value, Buffer], inputs: Sequence[Value], size: Var
) -> tuple[Value, int]:
    for v in inputs:
        for axis, extent in enumerate(values[v].extents):
            if extent is size:
                return v, axis
    raise _differs(f"size {size.name}", "no input has it as an extent by itself")


def _differs(where: str, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"one kernel for a range of sizes is not possible: {what}",
        where=where,
        hint="name the values that calls may have, at most 16: dims={'batch': [1, 8, 64]}",
    )


@dataclass(eq=False, slots=True)
class _Together:
    """Reads several plans at once: the same place in each is one thing in the open plan."""

    basis: Basis
    sizes: Mapping[str, Var]
    buffers: dict[tuple[Buffer, ...], Buffer] = field(default_factory=dict)
    known: dict[tuple[Hashable, ...], Any] = field(default_factory=dict)
    where: str = ""
    ranges: tuple[Ranges, ...] = ()
    range: Ranges = field(default_factory=dict)

    def step(self, steps: tuple[Any, ...]) -> FusionGroup:
        first: FusionGroup = steps[0]
        self.where = f"step {first.name}"
        if not all(isinstance(s, FusionGroup) for s in steps):
            raise _differs(self.where, "it is not a kernel of the host")
        self._require({s.kernel is None for s in steps}, "whether it is a loop program")
        if first.kernel is not None:
            return replace(first, kernel=self.kernel([s.kernel for s in steps]))
        self._require(
            {len(s.computations) for s in steps}, "the number of Computations"
        )
        made = map(self.computation, zip(*(s.computations for s in steps), strict=True))
        return replace(first, computations=tuple(made))

    def kernel(self, found: Sequence[Kernel]) -> Kernel:
        """One Kernel for all sizes; what is noted of loops is that of the first one's."""
        first = found[0]
        self._require({len(k.params) for k in found}, "the number of tensors")
        by_place = zip(*(k.params for k in found), strict=True)
        known = dict(zip(first.params, map(self.buffer, by_place), strict=True))
        body: Stmt = self.expr(tuple(k.body for k in found))
        return replace(
            first,
            params=tuple(known.values()),
            outputs=tuple(known[b] for b in first.outputs),
            body=for_sizes(self.sizes.values(), body),
        )

    def computation(self, found: tuple[Computation, ...]) -> Computation:
        first = found[0]
        what = "the form of its loops"
        self._require({tuple(d.combine for d in c.dims) for c in found}, what)
        self._require({len(c.outputs) for c in found}, what)
        dims = []
        for ds in zip(*(c.dims for c in found), strict=True):
            self.known[tuple(d.var for d in ds)] = ds[0].var
            dims.append(replace(ds[0], size=self.extent(tuple(d.extent for d in ds))))
        self.ranges = tuple(environment(c.dims) for c in found)
        self.range = environment(dims)
        outputs = []
        for os in zip(*(c.outputs for c in found), strict=True):
            index = tuple(map(self.expr, zip(*(o.index for o in os), strict=True)))
            tensor = self.buffer(tuple(o.tensor for o in os))
            outputs.append(Output(tensor, index, self.expr(tuple(o.value for o in os))))
        return replace(first, dims=tuple(dims), outputs=tuple(outputs))

    def constant(self, found: tuple[Buffer, ...], arrays: Sequence[Any]) -> Any:
        """The array of a constant: of those that differ the last, if all are its corners."""
        first, *_, last = *arrays, arrays[-1]
        if all(a is first for a in arrays) or not all(
            is_corner(a, last) for a in arrays
        ):
            return first
        b = found[-1]
        self.buffers[found] = Buffer(found[0].name, b.shape, b.dtype, b.scope)
        return last

    def buffer(self, found: tuple[Buffer, ...]) -> Buffer:
        if found not in self.buffers:
            self._require(
                {(b.dtype, b.scope, len(b.extents)) for b in found}, "a tensor"
            )
            extents = tuple(
                map(self.extent, zip(*(b.shape for b in found), strict=True))
            )
            b = found[0]
            self.buffers[found] = Buffer(b.name, extents, b.dtype, b.scope)
        return self.buffers[found]

    def extent(self, found: tuple[int, ...]) -> Extent:
        """The function of the sizes that has these values at the points."""
        count = self._count(found)
        return int(count.value.real) if isinstance(count, Const) else count

    def expr(self, found: tuple[Any, ...]) -> Any:
        """One node, or field of one, for the same place in all plans."""
        if not isinstance(found[0], Node):
            return self._expr(found)
        if found not in self.known:
            self.known[found] = self._expr(found)
        return self.known[found]

    def _expr(self, found: tuple[Any, ...]) -> Any:
        first = found[0]
        if any(isinstance(n, Select) for n in found):
            guarded = self._guarded(found)
            if guarded is not None:
                return guarded
        if len({type(n) for n in found}) > 1:
            return self._linear(found)
        match first:
            case Buffer():
                return self.buffer(found)
            case Const():
                return self._const(found)
            case Var():
                raise _differs(self.where, f"the variable {first.name}")
            case For():
                self.known[tuple(f.var for f in found)] = first.var
            case Reducer():
                return first
            case tuple():
                self._require({len(n) for n in found}, "an expression")
                return tuple(map(self.expr, zip(*found, strict=True)))
        if not isinstance(first, Node):
            self._require(set(found), "an expression")
            return first
        fields = (tuple(getattr(n, f) for n in found) for f in first._fields)
        return type(first)(*map(self.expr, fields))

    def _guarded(self, found: tuple[Any, ...]) -> Expr | None:
        """Reads under the conditions of the ends that some size's windows reach beyond; None where
        the reads are under the same ones at all sizes, or under others."""
        selects = [n for n in found if isinstance(n, Select)]
        counts = {len(conjuncts(s.condition)) for s in selects}
        outside = {s.otherwise for s in selects}
        if len(selects) == len(found) and len(counts) == 1 or len(outside) > 1:
            return None
        pairs = zip(found, self.ranges, strict=False)
        if not all(keeps_inside(n, r) for n, r in pairs if isinstance(n, Select)):
            return None
        then = self.expr(tuple(n.then if isinstance(n, Select) else n for n in found))
        known = (c for load in loads(then) for c in inside(load, self.range))
        return Select(reduce(And, dict.fromkeys(known)), then, *outside)

    def _linear(self, found: tuple[Any, ...]) -> Expr:
        """A sum of which one number is 0 at some sizes."""
        what = "an expression"
        self._require({isinstance(n, Expr) and n.dtype is INDEX for n in found} | {True}, what)
        forms = [affine(n) for n in found]
        self._require({tuple(c for _, c in form.terms) for form in forms}, what)
        atoms = zip(*((a for a, _ in form.terms) for form in forms), strict=True)
        terms = zip(map(self.expr, atoms), (c for _, c in forms[0].terms), strict=True)
        number = self._count(tuple(form.const for form in forms))
        return to_expr(Affine(tuple(terms), 0) + affine(number))

    def _const(self, found: tuple[Const, ...]) -> Expr:
        first = found[0]
        if all(n is first for n in found):
            return first
        values = [complex(n.value) for n in found]
        if any(v.imag or not v.real.is_integer() for v in values):
            raise _differs(self.where, f"the constant {first.value} depends on a size")
        numbers = tuple(int(v.real) for v in values)
        if first.type is INDEX:
            return self._count(numbers)
        return Cast(self._count(numbers), first.type)

    def _count(self, found: tuple[int, ...]) -> Expr:
        """A number of elements, as a mean divides by it: a sum of terms, or a product of sums."""
        factors = self.basis.factors(found)
        if factors is None:
            raise _differs(self.where, f"{list(found)} is no sum of sizes")
        points = self.basis.points
        form = _Sum.through(factors, points[0], found[0])
        if all(form.at(p) == n for p, n in zip(points, found, strict=True)):
            return self._expr_of(form)
        parts = form.by_size(points[0])
        factor, rest = divmod(found[0], math.prod(p.at(points[0]) for p in parts) or 1)
        products = (factor * math.prod(p.at(point) for p in parts) for point in points)
        if rest or tuple(products) != found:
            raise _differs(self.where, f"{list(found)} is no sum or product of sizes")
        whole = reduce(mul, map(self._expr_of, parts))
        return whole if factor == 1 else whole * factor

    def _expr_of(self, form: _Sum) -> Expr:
        terms = ((t.expr(self.sizes[t.size]), c) for t, c in form.factors.items())
        return to_expr(Affine(tuple(terms), form.constant))

    def _require(self, found: set[Any], what: str) -> None:
        if len(found) > 1:
            raise _differs(self.where, f"{what} depends on a size")


@dataclass(frozen=True, eq=False, slots=True)
class _Sum:
    """A sum of terms with these factors, and a constant."""

    factors: Mapping[Term, int]
    constant: int

    @classmethod
    def through(cls, factors: Mapping[Term, Any], point: Extents, value: int) -> _Sum:
        """The one with a value at a point."""
        whole = {t: int(c) for t, c in factors.items()}
        return cls(whole, value - sum(c * t.at(point) for t, c in whole.items()))

    def at(self, extents: Extents) -> int:
        """The sum at these sizes."""
        return self.constant + sum(c * t.at(extents) for t, c in self.factors.items())

    def by_size(self, start: Extents) -> list[_Sum]:
        """For each size the sum along it from the start on, without a common factor."""
        found = []
        for size in dict.fromkeys(t.size for t in self.factors):
            own = {t: c for t, c in self.factors.items() if t.size == size}
            line = _Sum.through(own, start, self.at(start))
            common = math.gcd(line.constant, *own.values())
            parts = {t: c // common for t, c in own.items()}
            found.append(_Sum(parts, line.constant // common))
        return found
