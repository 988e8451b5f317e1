"""Makes an open plan from the plans of several sizes, if they differ only in numbers.

A number that differs becomes an affine function of the sizes, through the first plans. A constant
that differs becomes the leading corner of the largest one: the positions or the mask of the longest
sequence begin with those of a shorter one. This is a guess: `equal` checks whether the open plan at
some sizes equals their own plan, and only sizes that passed the check may run the open plan's code.
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
from tilewright.compute.nodes import Computation, Output
from tilewright.compute.reducer import Reducer
from tilewright.expr.affine import Affine, to_expr
from tilewright.expr.nodes import INDEX, Buffer, Cast, Const, Expr, Extent, Var
from tilewright.expr.simplify import simplify
from tilewright.graph.nodes import Graph, Value
from tilewright.ir.node import Node, transform
from tilewright.loops.nodes import For, Kernel, Stmt, for_sizes
from tilewright.plan.nodes import FusionGroup, OpenExtent, Plan, Step
from tilewright.plan.open_extents import at
from tilewright.plan.verify import verify

Extents = Mapping[str, int]  # of symbolic dimensions, by name


def generalize(
    plans: Sequence[Plan],
    points: Sequence[Extents],
    graph: Graph,
    bounds: Mapping[str, tuple[int, int]],
) -> Plan:
    """The open plan whose plans at `points` are `plans`.

    points: one, then for each dimension one that differs from the first only in that dimension,
    then any others; constants that differ are corners of the last one's. graph: its inputs name the
    dimensions. bounds: the least and the greatest value of each dimension. Raises UnsupportedError
    naming the step or tensor in which the plans differ by more than numbers.
    """
    sizes = {name: Var(name, INDEX) for name in bounds}
    together = _Together(points, sizes)
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
    """Whether the open plan at these extents equals the other plan, except for names."""
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
    """Whether `part` equals the leading corner of `whole`, bit for bit."""
    if part.dtype != whole.dtype or part.ndim != whole.ndim:
        return False
    corner = whole[tuple(map(slice, part.shape))]
    return bool(corner.shape == part.shape and corner.tobytes() == part.tobytes())


def _at(plan: Plan, extents: Extents, fixed: Plan) -> Plan:
    """The open plan at extents, with its constants cut to the shapes in the other plan."""
    sizes = {e.size: extents[e.size.name] for e in plan.open}
    copies = {}
    for v, w in zip(used_constants(plan), used_constants(fixed), strict=False):
        b, shape = plan.buffers[v], fixed.buffers[w].shape
        # Constants of another rank differ, and so do the plans.
        if b.static and b.shape != shape and len(b.shape) == len(shape):
            copies[b] = Buffer(b.name, shape, b.dtype, b.scope)
    return at(plan, sizes, copies)


def difference(plan: Plan, extents: Extents, fixed: Plan) -> str:
    """The name of the first step in which a plan at some sizes differs from the open plan."""
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
    """The constants that are read by a step or are results, in the order of the graph."""
    used = {b for s in plan.steps for b in s.reads} | set(plan.results)
    return [v for v in plan.graph.constants if plan.buffers.get(v) in used]


def _text(plan: Plan) -> str:
    """A text of all that a plan computes: its groups in order, on inputs, constants and results."""
    graph = plan.graph
    known = (*graph.inputs, *used_constants(plan), *graph.outputs)
    ends = [plan.buffers[v] for v in known]
    programs = [program for g in plan.groups for program in _programs(g)]
    counts = [len(g.computations) for g in plan.groups]
    return f"{counts} {len(graph.inputs)}\n{canonical(programs, ends)}"


def _programs(group: FusionGroup) -> list[Computation | Node]:
    """What a group computes, with folded expressions, which contain the values of sizes."""
    if group.kernel is not None:
        return [transform(group.kernel.body, _folded)]
    return [
        replace(c, outputs=tuple(map(_simple, c.outputs))) for c in group.computations
    ]


def _simple(o: Output) -> Output:
    index = tuple(simplify(i, {}) for i in o.index)
    return Output(o.tensor, index, simplify(o.value, {}))


def _folded(node: Any) -> Node:
    """A statement with simple expressions."""
    return node if isinstance(node, Expr) else node.map(_simplest)


def _simplest(node: Any) -> Any:
    return simplify(node, {}) if isinstance(node, Expr) else node


def _buffer_of(plan: Plan, v: Value) -> Buffer:
    if v not in plan.buffers:
        raise _differs(f"tensor {v.name!r}", "it has no memory")
    return plan.buffers[v]


def _source(
    values: Mapping[Value, Buffer], inputs: Sequence[Value], size: Var
) -> tuple[Value, int]:
    for v in inputs:
        for axis, extent in enumerate(values[v].extents):
            if extent is size:
                return v, axis
    raise _differs(f"size {size.name}", "it is not an extent of any input")


def _differs(where: str, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"one kernel for a range of sizes is not possible: {what}",
        where=where,
        hint="name the values that calls may have, at most 16: dims={'batch': [1, 8, 64]}",
    )


@dataclass(eq=False, slots=True)
class _Together:
    """Reads several plans at once: corresponding nodes become one node of the open plan."""

    points: Sequence[Extents]
    sizes: Mapping[str, Var]
    buffers: dict[tuple[Buffer, ...], Buffer] = field(default_factory=dict)
    known: dict[tuple[Hashable, ...], Any] = field(default_factory=dict)
    where: str = ""

    def step(self, steps: tuple[Any, ...]) -> FusionGroup:
        first: FusionGroup = steps[0]
        self.where = f"step {first.name}"
        if not all(isinstance(s, FusionGroup) for s in steps):
            raise _differs(self.where, "it is not a kernel on the host")
        self._require({s.kernel is None for s in steps}, "whether it is a loop program")
        if first.kernel is not None:
            return replace(first, kernel=self.kernel([s.kernel for s in steps]))
        self._require(
            {len(s.computations) for s in steps}, "the number of Computations"
        )
        made = map(self.computation, zip(*(s.computations for s in steps), strict=True))
        return replace(first, computations=tuple(made))

    def kernel(self, found: Sequence[Kernel]) -> Kernel:
        """One Kernel for all sizes; the notes on loops are those of the first kernel."""
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
        outputs = []
        for os in zip(*(c.outputs for c in found), strict=True):
            index = tuple(map(self.expr, zip(*(o.index for o in os), strict=True)))
            tensor = self.buffer(tuple(o.tensor for o in os))
            outputs.append(Output(tensor, index, self.expr(tuple(o.value for o in os))))
        return replace(first, dims=tuple(dims), outputs=tuple(outputs))

    def constant(self, found: tuple[Buffer, ...], arrays: Sequence[Any]) -> Any:
        """The array of a constant; if they differ, the last one, if all are corners of it."""
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

    def affine(self, found: tuple[int, ...]) -> Affine:
        base, start = found[0], self.points[0]
        form, lines = Affine((), base), 1 + len(self.sizes)
        for value, point in zip(found[1:lines], self.points[1:lines], strict=True):
            (name,) = (n for n in start if point[n] != start[n])
            slope, rest = divmod(value - base, point[name] - start[name])
            if rest:
                raise _differs(self.where, f"{list(found)} is not a multiple of {name}")
            term = Affine(((self.sizes[name], slope),), 0) if slope else Affine((), 0)
            form = form + term + Affine((), -slope * start[name])
        for value, point in zip(found[lines:], self.points[lines:], strict=True):
            values = (c * point[a.name] for a, c in form.terms if isinstance(a, Var))
            if form.const + sum(values) != value:
                raise _differs(self.where, f"{list(found)} is not a sum of sizes")
        return form

    def expr(self, found: tuple[Any, ...]) -> Any:
        """One node, or field of a node, for corresponding ones in all plans."""
        if not isinstance(found[0], Node):
            return self._expr(found)
        if found not in self.known:
            self.known[found] = self._expr(found)
        return self.known[found]

    def _expr(self, found: tuple[Any, ...]) -> Any:
        first = found[0]
        self._require({type(n) for n in found}, "an expression")
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
        """A number of elements, for example the divisor of a mean: a sum or a product of sizes."""
        try:
            return to_expr(self.affine(found))
        except UnsupportedError:
            start = self.points[0]
            lines = zip(self.sizes, found[1:], strict=False)
            names = [name for name, value in lines if value != found[0]]
            factor = found[0] // max(math.prod(start[n] for n in names), 1)
            products = (factor * math.prod(p[n] for n in names) for p in self.points)
            if tuple(products) != found:
                raise
        whole = reduce(mul, (self.sizes[n] for n in names))
        return whole if factor == 1 else whole * factor

    def _require(self, found: set[Any], what: str) -> None:
        if len(found) > 1:
            raise _differs(self.where, f"{what} depends on a size")
