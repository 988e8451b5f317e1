"""gradient: derivatives of tensor expressions by tensors, as tensor expressions.

Reverse mode: the adjoint of a tensor is the sum, over all its readers, of the reader's adjoint
times the reader's derivative. If a reader's index into the tensor consists of the reader's axes,
each once, this is a compute that sums over the other axes; otherwise a nest that adds each product
to its element (a Script).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.compute.nodes import CC, PW
from tilewright.compute.reducer import Reducer, arg_reducer, reducer
from tilewright.expr.nodes import (
    INDEX,
    Add,
    Cast,
    Eq,
    Expr,
    Load,
    Select,
    Var,
    as_expr,
    const,
)
from tilewright.expr.partials import Cases, partials, times, where_equal
from tilewright.ir.node import Node, postorder, substitute
from tilewright.lang.te.syntax.nodes import (
    Axis,
    Compute,
    Extent,
    Placeholder,
    Script,
    Tensor,
)
from tilewright.lang.te.syntax.program import order
from tilewright.loops.nodes import For, If, Stmt, Store, Update, block

Slope = Callable[[Cases], Cases]


def gradient(
    output: Tensor, inputs: Sequence[Tensor] | Tensor, head: Tensor | None = None
) -> list[Tensor]:
    """The derivatives of `output` by each of `inputs`, times `head`.

    head: of the shape `(*prefix, *output.shape)`; None: the identity, so that the result is the
    Jacobian, of the shape `(*output.shape, *input.shape)`. Each result has the shape
    `(*prefix, *input.shape)`. All maximal elements of a max receive its gradient; for an
    argmax, the one that it names does. Raises InputError for shapes that do not match,
    UnsupportedError for operations without a derivative.
    """
    wanted = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    for t in (output, *wanted):
        if not isinstance(t, Tensor) or not t.dtype.is_float:
            raise InputError(
                f"{t!r} is not a tensor of floats",
                where="gradient",
                hint="only floats have derivatives: cast it before",
            )
    start = _identity(output) if head is None else head
    rank = start.ndim - output.ndim
    if rank < 0 or start.shape[rank:] != output.shape:
        raise InputError(
            f"the head {start!r} does not end with the shape of {output!r}",
            where="gradient",
            hint="its shape is (*prefix, *output.shape)",
        )
    walk = _Walk(start.shape[:rank], {output: [start]})
    ops = order([output])
    needed = _depending(ops, set(wanted))
    for op in reversed(ops):
        if not needed.isdisjoint(op.outputs) and not isinstance(op, Placeholder):
            walk.back(op, needed)
    return [walk.flow(t) for t in wanted]


def _depending(ops: Sequence[object], wanted: set[Tensor]) -> set[Tensor]:
    """The tensors that are, or depend on, the wanted ones."""
    found = set(wanted)
    for op in ops:
        if not found.isdisjoint(op.inputs):  # type: ignore[attr-defined]
            found |= set(op.outputs)  # type: ignore[attr-defined]
    return found


def _identity(output: Tensor) -> Tensor:
    axis = _axes((*output.shape, *output.shape), "i")
    pairs = zip(axis[: output.ndim], axis[output.ndim :], strict=True)
    value: Expr = const(1.0, output.dtype)
    for a, b in pairs:
        value = Select(a.eq(b), value, const(0.0, output.dtype))
    return _made(f"d{output.name}", axis, (), value)


def _axes(shape: Sequence[Extent], prefix: str, combine: str = CC) -> tuple[Axis, ...]:
    return tuple(
        Axis(f"{prefix}{n}", INDEX, 0, e, combine) for n, e in enumerate(shape)
    )


def _made(
    name: str,
    axis: tuple[Axis, ...],
    reduced: tuple[Axis, ...],
    value: Expr,
    by: str = "add",
) -> Tensor:
    """A tensor of a value, or of its sum (or another reduction) over the reduced axes."""
    shape = tuple(a.extent for a in axis)
    tensor = Tensor(name, shape, value.dtype)  # type: ignore[arg-type]
    op = reducer(by, value.dtype) if reduced else None
    tensor.op = Compute(name, axis, reduced, (value,), op, (), (tensor,))
    return tensor


def _again(op: Compute, name: str, value: Expr, by: str) -> Tensor:
    """Another value of the axes of an operation, reduced unchanged."""
    old = (*op.axis, *op.reduce_axis)
    new = tuple(Axis(a.name, INDEX, a.low, a.extent, a.combine) for a in old)
    env: dict[Node, Node] = dict(zip(old, new, strict=True))
    rank = len(op.axis)
    return _made(name, new[:rank], new[rank:], substitute(value, env), by)


def _is(found: Reducer, name: str) -> bool:
    one = len(found.dtypes) == 1
    return one and found.does_as(reducer(name, found.dtypes[0]))


def _is_arg(found: Reducer, name: str) -> bool:
    two = len(found.dtypes) == 2
    return two and found.does_as(arg_reducer(name, found.dtypes[0], found.dtypes[1]))


@dataclass(slots=True)
class _Walk:
    """What flows to each tensor: parts of a sum, each of the shape `(*prefix, *tensor.shape)`."""

    prefix: tuple[Extent, ...]
    parts: dict[Tensor, list[Tensor]] = field(default_factory=dict)

    def flow(self, tensor: Tensor) -> Tensor:
        """All that flows to a tensor."""
        found = self.parts.get(tensor, [])
        if len(found) == 1:
            return found[0]
        axis = _axes((*self.prefix, *tensor.shape), "i")
        value: Expr = const(0.0, tensor.dtype)
        for n, part in enumerate(found):
            value = part.at(axis) if n == 0 else value + part.at(axis)
        total = _made(f"d{tensor.name}", axis, (), value)
        self.parts[tensor] = [total]
        return total

    def back(self, op: object, needed: set[Tensor]) -> None:
        """What flows to the inputs of an operation."""
        if not isinstance(op, Compute) or op.scanned:
            raise UnsupportedError(
                f"{getattr(op, 'name', op)} has no derivative here",
                where="gradient",
                hint="a compute of values, or of their sum, max or min, has one",
            )
        slope = self.slope(op)
        for value, made in zip(op.values, op.outputs, strict=True):
            if made not in self.parts:
                continue
            for tensor in (t for t in op.inputs if t in needed):
                self.through(op, (value, made), tensor, slope)

    def slope(self, op: Compute) -> Slope:
        """What a reduction makes of the derivative of the value that it reduces."""
        known = op.reducer
        if known is None or _is(known, "add"):
            return lambda cases: cases
        if _is(known, "mul"):
            factor = self.others(op)
            return lambda cases: times(cases, factor)
        decides = 0 if _is(known, "max") or _is(known, "min") else 1
        if decides and not (_is_arg(known, "argmax") or _is_arg(known, "argmin")):
            raise UnsupportedError(
                f"{op.name} reduces by {known}, which has no derivative here",
                where="gradient",
                hint="sum, prod, max, min, argmax and argmin have one",
            )
        found = op.outputs[decides].at(op.axis)
        return lambda cases: where_equal(cases, op.values[decides], found)

    def others(self, op: Compute) -> Expr:
        """The product of all factors of an element but this one, which may be 0 as others may."""
        [value] = op.values
        is_zero = Eq(value, const(0.0, value.dtype))
        rest = Select(is_zero, const(1.0, value.dtype), value)
        one, none = const(1), const(0)
        product = _again(op, f"{op.name}.rest", rest, "mul")
        zeros = _again(op, f"{op.name}.zeros", Select(is_zero, one, none), "add")
        left = zeros.at(op.axis) - Select(is_zero, one, none)
        nothing = const(0.0, value.dtype)
        return Select(Eq(left, none), product.at(op.axis) / rest, nothing)

    def through(
        self, op: Compute, of: tuple[Expr, Tensor], tensor: Tensor, slope: Slope
    ) -> None:
        """What flows from one result of an operation to one tensor that it reads."""
        value, made = of
        scattered: list[tuple[Load, Cases]] = []
        reads = dict.fromkeys(n for n in postorder(value) if isinstance(n, Load))
        for load in (x for x in reads if x.buffer is tensor.buffer):
            cases = slope(partials(value, load))
            if not cases:
                continue
            if _is_selection(op, load, tensor):
                part = self.gathered(op, made, tensor, (load, cases))
                self.parts.setdefault(tensor, []).append(part)
            else:
                scattered.append((load, cases))
        if scattered:
            part = self.added(op, made, tensor, scattered)
            self.parts.setdefault(tensor, []).append(part)

    def gathered(
        self, op: Compute, made: Tensor, tensor: Tensor, read: tuple[Load, Cases]
    ) -> Tensor:
        """A compute over the tensor's elements: the sum over the axes that do not choose them."""
        load, cases = read
        before = _axes(self.prefix, "p")
        after = _axes(tensor.shape, "i")
        env: dict[Node, Node] = dict(zip(load.index, after, strict=True))
        rest = [a for a in (*op.axis, *op.reduce_axis) if a not in env]
        reduced = tuple(Axis(a.name, INDEX, a.low, a.extent, PW) for a in rest)
        env |= zip(rest, reduced, strict=True)
        flow = self.flow(made)
        total: Expr | None = None
        for conditions, p in cases.items():
            term: Expr = flow.at((*before, *op.axis)) * _as(p, flow)
            for condition in reversed(conditions):
                term = Select(condition, term, const(0.0, flow.dtype))
            total = term if total is None else total + term
        assert total is not None
        value = _as(substitute(total, env), tensor)
        return _made(_name(made, tensor), (*before, *after), reduced, value)

    def added(
        self,
        op: Compute,
        made: Tensor,
        tensor: Tensor,
        reads: Sequence[tuple[Load, Cases]],
    ) -> Tensor:
        """Zeros, to which each point of the operation adds what flows to the elements it reads."""
        name = _name(made, tensor)
        shape = (*self.prefix, *tensor.shape)
        result = Tensor(name, shape, tensor.dtype)
        zeros = tuple(Var(f"{name}.z{n}", INDEX) for n in range(len(shape)))
        start: Stmt = Store(result.buffer, zeros, const(0.0, tensor.dtype))
        start = _nest(zeros, shape, start)
        axes = (*op.axis, *op.reduce_axis)
        before = tuple(Var(f"{name}.p{n}", INDEX) for n in range(len(self.prefix)))
        loops = tuple(Var(f"{name}.{a.name}", INDEX) for a in axes)
        env: dict[Node, Node] = {
            a: v if a.low == 0 else Add(v, as_expr(a.low, INDEX))
            for a, v in zip(axes, loops, strict=True)
        }
        flow = self.flow(made)
        point = tuple(substitute(a, env) for a in op.axis)
        add = reducer("add", tensor.dtype)
        steps: list[Stmt] = []
        for load, cases in reads:
            place = (*before, *(substitute(i, env) for i in load.index))
            for conditions, p in cases.items():
                term = flow.at((*before, *point)) * _as(substitute(p, env), flow)
                step: Stmt = Update(
                    (result.buffer,), (place,), (_as(term, tensor),), add
                )
                for condition in reversed(conditions):
                    step = If(substitute(condition, env), step, None)
                steps.append(step)
        extents = (*self.prefix, *(a.extent for a in axes))
        nest = _nest((*before, *loops), extents, block(*steps))  # type: ignore[arg-type]
        op_axes = _axes(self.prefix, "p") + tuple(
            Axis(a.name, INDEX, 0, a.extent, CC) for a in axes
        )
        names = tuple(v.name for v in (*before, *loops))
        result.op = Script(name, block(start, nest), op_axes, (), names, (result,))
        return result


def _is_selection(op: Compute, load: Load, tensor: Tensor) -> bool:
    """Whether an index is axes of the operation, each once, that go over all of the tensor."""
    axes = (*op.axis, *op.reduce_axis)
    if len(set(load.index)) != len(load.index):
        return False
    return all(
        isinstance(i, Axis) and i in axes and (i.low, i.extent) == (0, n)
        for i, n in zip(load.index, tensor.shape, strict=True)
    )


def _nest(loops: Sequence[Var], shape: Sequence[Extent], body: Stmt) -> Stmt:
    for v, extent in zip(reversed(loops), reversed(shape), strict=True):
        body = For(v, as_expr(extent, INDEX), "serial", body)
    return body


def _as(value: Expr, tensor: Tensor) -> Expr:
    """A value in the dtype of a tensor."""
    return value if value.dtype is tensor.dtype else Cast(value, tensor.dtype)


def _name(made: Tensor, tensor: Tensor) -> str:
    return f"d{made.name}_d{tensor.name}"
