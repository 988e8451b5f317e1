"""The adjoint of Computations: gradients of their inputs from gradients of their results.

For each access, every point contributes the result's gradient times the derivative of the value
with respect to that access (`expr/partials.py`) to the gradient of the element that is read. If the
index is invertible, this is a Computation again:

    y[i] = sum_k x[s*i + k] * w[k]     dx[p] = sum_k (dy[(p-k)/s] * w[k] where s divides p-k)
                                       dw[k] = sum_i dy[i] * x[s*i + k]

Otherwise (an index read from memory, a remainder) it is a `ScatterAdd`, whose adjoint gathers what
flows to the elements that it adds to. A maximum divides its gradient evenly among equal elements;
argmax passes it to the element that it names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from functools import reduce

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import UnsupportedError
from tilewright.compute.gathered import Contribution, gathered, is_affine
from tilewright.compute.nodes import CC, PS, PW, Computation, Dim, Output
from tilewright.compute.reducer import arg_reducer, reducer
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Cast,
    Eq,
    Expr,
    Load,
    Select,
    Var,
    const,
)
from tilewright.expr.partials import Cases, accumulator, partials, times
from tilewright.expr.simplify import simplify
from tilewright.ir.node import Node, postorder, substitute


@dataclass(frozen=True, eq=False, slots=True)
class ScatterAdd:
    """A tensor of zeros to which contributions are added, in order."""

    name: str
    tensor: Buffer
    parts: tuple[Contribution, ...]

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The tensors read, each once."""
        roots = [
            root
            for part in self.parts
            for root in (*part.read.index, *(e for c, v in part.cases for e in (*c, v)))
        ]
        loads = (n for r in roots for n in postorder(r) if isinstance(n, Load))
        return tuple(dict.fromkeys(load.buffer for load in loads))


Step = Computation | ScatterAdd


def adjoint(
    steps: Sequence[Step],
    flows: Mapping[Buffer, Buffer],
    results: Mapping[Buffer, Buffer],
    known: Collection[Buffer] = (),
) -> list[Step]:
    """Steps that compute `results`, the gradients of some inputs of `steps`.

    flows: the gradient tensors of results of `steps`. known: tensors defined by `steps` that
    already exist; others that the adjoint needs are recomputed. Raises UnsupportedError if an
    operator or a function has no derivative.
    """
    needed = set(results)
    for s in steps:
        if not needed.isdisjoint(s.inputs):
            needed |= set(written(s))
    walk = _BackwardWalk(dict(flows))
    for s in reversed(steps):
        walk.back(s, needed)
    for tensor, result in results.items():
        walk.finish(tensor, result)
    again = [s for s in steps if not any(t in known for t in written(s))]
    return _live([*again, *walk.steps], set(results.values()))


def _live(
    steps: Sequence[Step],
    wanted: set[Buffer],
) -> list[Step]:
    """The steps that the wanted tensors depend on."""
    kept: list[Step] = []
    for s in reversed(steps):
        if not wanted.isdisjoint(written(s)):
            kept.append(s)
            wanted = wanted | set(s.inputs)
    return kept[::-1]


def written(s: Step) -> tuple[Buffer, ...]:
    """The tensors that a step makes."""
    if isinstance(s, ScatterAdd):
        return (s.tensor,)
    return tuple(o.tensor for o in s.outputs)


@dataclass(slots=True)
class _BackwardWalk:
    """Backwards from the results. flows: completed gradients; parts: their summands."""

    flows: dict[Buffer, Buffer]
    parts: dict[Buffer, list[Contribution]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def flow(
        self,
        tensor: Buffer,
    ) -> Buffer | None:
        """What flows to a tensor; None where nothing does."""
        if tensor not in self.flows and tensor in self.parts:
            total = _like(tensor, f"d_{tensor.name}")
            self.finish(tensor, total)
            self.flows[tensor] = total
        return self.flows.get(tensor)

    def finish(
        self,
        tensor: Buffer,
        out: Buffer,
    ) -> None:
        """Write the sum of the contributions to a tensor."""
        place = tuple(Var(f"p{n}", INDEX) for n in range(len(out.shape)))
        terms: list[Expr] = []
        sums: list[tuple[tuple[Dim, ...], Expr]] = []
        scattered: list[Contribution] = []
        for part in self.parts.get(tensor, []):
            if not is_affine(part):
                scattered.append(part)
                continue
            rest, value = gathered(part, place)
            if rest:
                sums.append((rest, value))
            else:
                terms.append(value)
        if len(sums) == 1 and not terms and not scattered:
            self.steps.append(_sum(out, place, *sums[0]))
            return
        fits = out.dtype is accumulator(out.dtype)
        if scattered and fits and not terms and not sums:
            self.steps.append(ScatterAdd(out.name, out, tuple(scattered)))
            return
        for n, (rest, value) in enumerate(sums):
            made = _like(out, f"{out.name}_{n}")
            self.steps.append(_sum(made, place, rest, value))
            terms.append(made[place])
        if scattered:
            made = _like(out, f"{out.name}_scattered")
            self.steps.append(ScatterAdd(made.name, made, tuple(scattered)))
            terms.append(made[place])
        zero: Expr = const(0.0, out.dtype)
        total = reduce(lambda a, b: a + _cast(b, a.dtype), terms) if terms else zero
        self.steps.append(_sum(out, place, (), total))

    def back(
        self,
        s: Step,
        needed: Collection[Buffer],
    ) -> None:
        """What flows to the inputs of a step from its results."""
        if isinstance(s, ScatterAdd):
            self._back_from_scattered(s, needed)
        else:
            self._back_from_computed(s, needed)

    def _back_from_scattered(
        self,
        s: ScatterAdd,
        needed: Collection[Buffer],
    ) -> None:
        flow = self.flow(s.tensor)
        if flow is None:
            return
        for part in s.parts:
            arrived = flow[part.read.index]
            for conditions, value in part.cases:
                for load in _reads(value, needed):
                    cases = partials(value, load)
                    self._add(load, part.dims, arrived, conditions, cases)

    def _back_from_computed(
        self,
        s: Computation,
        needed: Collection[Buffer],
    ) -> None:
        flows = [self.flow(o.tensor) for o in s.outputs]
        if all(f is None for f in flows):
            return
        slopes = _Slopes(s, self.steps)
        for n, (o, flow) in enumerate(zip(s.outputs, flows, strict=True)):
            if flow is None:
                continue
            for load in _reads(o.value, needed):
                cases = partials(o.value, load)
                if cases:
                    where, cases = slopes.through(n, cases)
                    arrived = slopes.flow(n, flow)
                    self._add(load, s.dims, arrived, where, cases)

    def _add(
        self,
        load: Load,
        over: Sequence[Dim],
        flow: Expr,
        where: tuple[Expr, ...],
        cases: Cases,
    ) -> None:
        if not cases:
            return
        dims = tuple(Dim(d.var, d.size) for d in over)
        values = tuple(
            ((*where, *conditions), _cast(flow, p.dtype) * p)
            for conditions, p in cases.items()
        )
        part = Contribution(load, dims, flow, values)
        self.parts.setdefault(load.buffer, []).append(part)


def _reads(value: Expr, needed: Collection[Buffer]) -> list[Load]:
    """The accesses to floats that are needed, each once."""
    loads = dict.fromkeys(x for x in postorder(value) if isinstance(x, Load))
    return [x for x in loads if x.buffer in needed and x.dtype.is_float]


@dataclass(slots=True)
class _Slopes:
    """The derivative through a reduction, from those of its operands; new steps are added to
    `steps`."""

    step: Computation
    steps: list[Step]
    _made: dict[str, Buffer] = field(default_factory=dict)

    def flow(
        self,
        n: int,
        flow: Buffer,
    ) -> Expr:
        """What flows to the value of output `n` at a point."""
        o = self.step.outputs[n]
        if not any(d.combine == PS for d in self.step.dims):
            return flow[o.index]
        return self._scanned(o, flow)[o.index]

    def through(
        self,
        n: int,
        cases: Cases,
    ) -> tuple[tuple[Expr, ...], Cases]:
        """The conditions under which, and the derivatives with which, a value takes part."""
        known = self.step.reducer
        if known is None or _does(self.step, "add"):
            return (), cases
        if any(d.combine == PS for d in self.step.dims):
            self._refuse()
        if _does(self.step, "mul"):
            return (), times(cases, self._others())
        if _does(self.step, "max", "min", "max_number"):
            o = self.step.outputs[0]
            exact = self._exact()
            chosen = Eq(o.value, exact[o.index])
            ties = self._ties(chosen)
            return (chosen,), times(cases, 1.0 / ties[o.index])
        if n != 0 or not _names_an_element(self.step):
            self._refuse()
        o = self.step.outputs[1]
        named = _cast(o.tensor[o.index], o.value.dtype)
        return (Eq(o.value, named),), cases

    def _refuse(self) -> None:
        raise UnsupportedError(
            f"{self.step.name} combines by {self.step.reducer}, which has no derivative here",
            hint="add, mul, max, min, argmax and argmin over points, and running sums, have one",
        )

    def _again(
        self,
        name: str,
        value: Expr,
        by: str,
    ) -> Buffer:
        """Another value, reduced over the same points."""
        if name not in self._made:
            o = self.step.outputs[0]
            made = Buffer(f"{o.tensor.name}_{name}", o.tensor.shape, value.dtype)
            self._made[name] = made
            outputs = (Output(made, o.index, value),)
            op = reducer(by, value.dtype)
            self.steps.append(Computation(made.name, self.step.dims, outputs, op))
        return self._made[name]

    def _exact(self) -> Buffer:
        """The extreme element unchanged: one that was rounded may equal none."""
        [o] = self.step.outputs
        if o.tensor.dtype is o.value.dtype:
            return o.tensor
        names = ("max", "min", "max_number")
        by = next(name for name in names if _does(self.step, name))
        return self._again("exact", o.value, by)

    def _ties(
        self,
        chosen: Expr,
    ) -> Buffer:
        """How many elements are the extreme one."""
        dtype = self.step.outputs[0].value.dtype
        one = const(1.0, dtype)
        none = const(0.0, dtype)
        value = Select(chosen, one, none)
        return self._again("ties", value, "add")

    def _others(self) -> Expr:
        """The product of all factors but this one, which may be 0 as others may."""
        [o] = self.step.outputs
        dtype = o.value.dtype
        none = const(0.0, dtype)
        one = const(1.0, dtype)
        is_zero = Eq(o.value, none)
        rest = Select(is_zero, one, o.value)
        count = Select(is_zero, one, none)
        product = self._again("rest", rest, "mul")
        zeros = self._again("zeros", count, "add")
        others = zeros[o.index] - count
        quotient = product[o.index] / rest
        return Select(Eq(others, none), quotient, none)

    def _scanned(
        self,
        o: Output,
        flow: Buffer,
    ) -> Buffer:
        """The running sum of the gradient, from the last element of the scan to the first."""
        scans = [d for d in self.step.dims if d.combine == PS]
        if len(scans) != 1 or any(d.combine == PW for d in self.step.dims):
            self._refuse()
        if "scanned" not in self._made:
            [d] = scans
            back: dict[Node, Node] = {d.var: const(d.extent - 1) - d.var}
            index = tuple(simplify(substitute(i, back)) for i in o.index)
            made = _like(flow, f"{flow.name}_scanned")
            self._made["scanned"] = made
            value = _cast(flow[index], made.dtype)
            outputs = (Output(made, index, value),)
            op = reducer("add", made.dtype)
            self.steps.append(Computation(made.name, self.step.dims, outputs, op))
        return self._made["scanned"]


def _does(
    s: Computation,
    *names: str,
) -> bool:
    known = s.reducer
    if known is None or len(known.dtypes) != 1:
        return False
    return any(known.does_as(reducer(name, known.dtypes[0])) for name in names)


def _names_an_element(s: Computation) -> bool:
    known = s.reducer
    if known is None or len(known.dtypes) != 2:
        return False
    return any(
        known.does_as(arg_reducer(name, *known.dtypes, last))
        for name in ("argmax", "argmin")
        for last in (False, True)
    )


def _sum(
    out: Buffer,
    place: Sequence[Var],
    rest: tuple[Dim, ...],
    value: Expr,
) -> Computation:
    """`out[place]` is the sum of a value over the other dimensions, if there are any."""
    dims = tuple(Dim(v, n, CC) for v, n in zip(place, out.shape, strict=True))
    op = reducer("add", value.dtype) if rest else None
    if op is None:
        value = _cast(value, out.dtype)
    outputs = (Output(out, tuple(place), value),)
    return Computation(out.name, (*dims, *rest), outputs, op)


def _like(
    b: Buffer,
    name: str,
) -> Buffer:
    return Buffer(name, b.shape, accumulator(b.dtype))


def _cast(
    e: Expr,
    dtype: DType,
) -> Expr:
    return e if e.dtype is dtype else Cast(e, dtype)
