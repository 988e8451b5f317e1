"""Open extents: sizes of a plan known only at run time, within bounds stated in the plan.

An extent of a tensor in an open plan is a number or an expression of such sizes. `at` sets their
values and returns an ordinary plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, UnsupportedError, VerifyError
from tilewright.compute.nodes import Computation, Output, sizes_of
from tilewright.expr.affine import affine
from tilewright.expr.nodes import INDEX, Buffer, Extent, Load, Var, as_expr, const
from tilewright.expr.simplify import simplify
from tilewright.graph.nodes import Graph
from tilewright.ir.node import Node, substitute, transform
from tilewright.loops import sizes as kernels
from tilewright.loops.passes.on_buffers import on_buffers
from tilewright.plan.nodes import (
    HOST,
    Branch,
    DeviceCopy,
    FusionGroup,
    Loop,
    OpenExtent,
    Plan,
    Step,
)

Sizes = Mapping[Var, int]


@dataclass(eq=False, slots=True)
class Resized:
    """Buffers, Computations and Kernels at given sizes; each buffer has one copy.

    sizes may gain entries between uses, as counts become known. Raises InputError (TW-SIZE) for a
    size without a value.
    """

    sizes: dict[Var, int]
    copies: dict[Buffer, Buffer]

    def buffer(
        self,
        b: Buffer,
    ) -> Buffer:
        """The buffer with numbers as extents; itself if they are numbers already."""
        if b in self.copies:
            return self.copies[b]
        if b not in self.copies:
            if b.static:
                return b
            shape = tuple(kernels.at(e, self.sizes) for e in b.extents)
            self.copies[b] = Buffer(b.name, shape, b.dtype, b.scope)
        return self.copies[b]

    def array(
        self,
        b: Buffer | None,
        whole: Any,
    ) -> Any:
        """The part of a constant that its copy holds, from the start of each axis."""
        if b not in self.copies:
            return whole
        return whole[tuple(map(slice, self.copies[b].shape))]

    def computation(
        self,
        c: Computation,
    ) -> Computation:
        """The Computation with sizes as numbers, on the copies of its tensors."""
        if not (c.sizes or c.free):
            return c
        dims = tuple(replace(d, size=kernels.at(d.size, self.sizes)) for d in c.dims)
        outputs = []
        for o in c.outputs:
            index = tuple(map(self._expr, o.index))
            outputs.append(Output(self.buffer(o.tensor), index, self._expr(o.value)))
        return replace(c, dims=dims, outputs=tuple(outputs))

    def group(
        self,
        group: FusionGroup,
    ) -> FusionGroup:
        """The group with its Computations or its Kernel at these sizes."""
        if group.kernel is None:
            made = tuple(map(self.computation, group.computations))
            return replace(group, computations=made)
        used = {v: self.sizes[v] for v in group.kernel.sizes if v in self.sizes}
        if not used:
            return group
        kernel = kernels.with_sizes(group.kernel, used)
        # Copies are shared across the plan: a tensor is the same buffer in all its groups.
        known = dict(
            zip(
                kernel.params,
                map(self.buffer, group.kernel.params),
                strict=True,
            )
        )
        return replace(group, kernel=on_buffers(kernel, known))

    def step(
        self,
        step: Step,
    ) -> Step:
        """The step on the copies of its tensors."""
        match step:
            case FusionGroup():
                return self.group(step)
            case DeviceCopy():
                return DeviceCopy(self.buffer(step.source), self.buffer(step.target))
            case Loop() | Branch():
                raise UnsupportedError(
                    "loops and branches are not supported in open plans",
                    where=step.name,
                )
        reads, writes = (tuple(map(self.buffer, e)) for e in (step.reads, step.writes))
        return replace(step, reads=reads, writes=writes)

    def _expr(
        self,
        root: Any,
    ) -> Any:
        values: dict[Any, Any] = {v: const(n, INDEX) for v, n in self.sizes.items()}

        def moved(
            node: Node,
        ) -> Node:
            if isinstance(node, Load):
                return Load(self.buffer(node.buffer), node.index)
            return node

        # Fold: analyses recognize a divisor as a number only if it is a constant.
        return simplify(transform(substitute(root, values), moved), {})


def at(
    plan: Plan,
    sizes: Sizes,
    copies: Mapping[Buffer, Buffer] = MappingProxyType({}),
) -> Plan:
    """The plan with a value for every open extent.

    copies: tensors to use instead, such as parts of constants that are larger than needed. Raises
    InputError (TW-SIZE) naming a size without a value or out of bounds.
    """
    if not plan.open:
        return plan
    for extent in plan.open:
        if extent.size not in sizes:
            raise InputError(
                f"the size {extent.size.name} has no value",
                code="TW-SIZE",
                where=f"plan {plan.graph.name}",
            )
        check_bounds(plan, extent, sizes[extent.size])
    made = Resized(dict(sizes), dict(copies))
    names = {e.size.name: sizes[e.size] for e in plan.open}
    values = {v: replace(v, shape=_shape(v, names, plan, made)) for v in plan.buffers}
    inputs, outputs = (
        tuple(values.get(v, v) for v in ends)
        for ends in (plan.graph.inputs, plan.graph.outputs)
    )
    constants = {
        values.get(v, v): made.array(plan.buffers.get(v), a)
        for v, a in plan.graph.constants.items()
    }
    graph = Graph(plan.graph.name, inputs, outputs, (), constants)
    return Plan(
        graph,
        tuple(map(made.step, plan.steps)),
        {values[v]: made.buffer(b) for v, b in plan.buffers.items()},
        {made.buffer(b): made.array(b, a) for b, a in plan.data.items()},
        {made.buffer(b): d for b, d in plan.devices.items()},
    )


def _shape(
    v: Any,
    names: Mapping[str, int],
    plan: Plan,
    made: Resized,
) -> Any:
    """A value's shape in numbers: by the names of sizes, else as in its buffer."""
    open_ends = plan.buffers[v] not in made.copies or not plan.buffers[v].static
    if (
        open_ends
        and v.shape is not None
        and all(isinstance(d, int) or d in names for d in v.shape)
    ):
        return tuple(d if isinstance(d, int) else names[d] for d in v.shape)
    return made.buffer(plan.buffers[v]).shape


def check_bounds(
    plan: Plan,
    extent: OpenExtent,
    found: int,
) -> None:
    """Raise InputError (TW-SIZE) for a value outside the bounds of an open extent."""
    if not extent.least <= found <= extent.most:
        raise InputError(
            f"{extent.size.name} is {found}, and may be {extent.least} to {extent.most}",
            code="TW-SIZE",
            where=f"plan {plan.graph.name}: {source_text(extent)}",
            hint="give an extent within the range, or compile for a larger one",
        )


def source_text(
    extent: OpenExtent,
) -> str:
    """The source of an open extent: `x[0]`, or the name of the buffer with the count."""
    if isinstance(extent.source, Buffer):
        return extent.source.name
    value, axis = extent.source
    return f"{value.name}[{axis}]"


def input_sizes(
    plan: Plan,
    shapes: Mapping[str, Sequence[int]],
) -> dict[Var, int]:
    """The sizes determined by the shapes of the inputs, given by name.

    Raises InputError: TW-SIZE for one outside its bounds, TW-SHAPE for a missing dimension.
    """
    found: dict[Var, int] = {}
    for extent in plan.open:
        if isinstance(extent.source, Buffer):
            continue
        value, axis = extent.source
        shape = shapes.get(value.name, ())
        if axis >= len(shape):
            raise InputError(
                f"expected {value.type_text}, got the shape {list(shape)}",
                code="TW-SHAPE",
                where=f"input {value.name!r}",
            )
        first, step = source_step(plan, extent)
        number, rest = divmod(int(shape[axis]) - first, step)
        if rest:
            raise InputError(
                f"expected {first} and a multiple of {step}, got {shape[axis]}",
                code="TW-SIZE",
                where=f"plan {plan.graph.name}: {source_text(extent)}",
            )
        check_bounds(plan, extent, number)
        found[extent.size] = number
    return found


def step_of(extent: Extent, size: Var) -> tuple[int, int] | None:
    """(first, step) of an extent that is `first + step * size`; None for any other."""
    form = affine(as_expr(extent, INDEX))
    if len(form.terms) == 1 and form.terms[0][0] is size and form.terms[0][1] > 0:
        return form.const, form.terms[0][1]
    return None


def source_step(plan: Plan, e: OpenExtent) -> tuple[int, int]:
    """(first, step) of the input's extent that decides a size."""
    assert not isinstance(e.source, Buffer)
    value, axis = e.source
    found = step_of(plan.buffers[value].extents[axis], e.size)
    assert found is not None
    return found


def points(
    plan: Plan,
) -> Iterator[dict[Var, int]]:
    """Sizes at which to verify an open plan: the smallest allowed."""
    for wish in (0, 1, 2):
        yield {e.size: min(e.most, max(e.least, wish)) for e in plan.open}


def verify_open(
    plan: Plan,
) -> None:
    """Raise VerifyError for an open extent that is never known, or known too late.

    TW-PLAN-OPEN: bounds are in order; the source is an input's extent that grows with just that
    size, or an int64[1] that a step writes before any tensor of the size is used; every size is
    declared.
    """
    known = {e.size for e in plan.open if not isinstance(e.source, Buffer)}
    for e in plan.open:
        _verify_source(plan, e)
    counts = {e.source: e.size for e in plan.open if isinstance(e.source, Buffer)}
    _known(plan, [b for b in plan.given if not b.static], known, "an input or constant")
    for step in plan.steps:
        _known(plan, (*step.reads, *step.writes), known, step.name)
        if isinstance(step, FusionGroup) and step.kernel is None:
            sizes = (v for c in step.computations for v in (*c.sizes, *c.free))
            _declared(plan, sizes, known, step.name)
        known |= {counts[b] for b in step.writes if b in counts}


def _verify_source(
    plan: Plan,
    e: OpenExtent,
) -> None:
    name = e.size.name
    if not 0 <= e.least <= e.most:
        _broken(plan, f"{name} is from {e.least} to {e.most}")
    if isinstance(e.source, Buffer):
        count = e.source
        one = count.static and count.shape == (1,) and count.dtype is dtypes.int64
        if not one or plan.device_of(count) != HOST:
            _broken(
                plan, f"{count!r} cannot hold {name}: it takes an int64[1] on the host"
            )
        return
    value, axis = e.source
    b = plan.buffers.get(value)
    extents = () if b is None else b.extents
    if (
        value not in plan.graph.inputs
        or axis >= len(extents)
        or step_of(extents[axis], e.size) is None
    ):
        _broken(plan, f"{source_text(e)} is not an extent of an input that is {name}")


def _known(
    plan: Plan,
    buffers: Iterable[Buffer],
    known: set[Var],
    where: str,
) -> None:
    _declared(plan, sizes_of(e for b in buffers for e in b.extents), known, where)


def _declared(
    plan: Plan,
    sizes: Iterable[Var],
    known: set[Var],
    where: str,
) -> None:
    for v in sizes:
        if v not in known:
            _broken(plan, f"{v.name} has no value yet when it is used", where)


def _broken(
    plan: Plan,
    message: str,
    where: str = "",
) -> None:
    place = where or f"plan {plan.graph.name}"
    raise VerifyError(
        message,
        code="TW-PLAN-OPEN",
        where=place,
    )
