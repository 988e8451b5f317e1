"""Operations in order, as Computations and as the default Kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, VerifyError
from tilewright.base.names import fresh
from tilewright.compute.check import check
from tilewright.compute.nodes import Computation, Dim, Output, sizes_of
from tilewright.expr.affine import affine, to_expr
from tilewright.expr.nodes import (
    INDEX,
    Add,
    Buffer,
    Expr,
    Extent,
    Load,
    Var,
    as_expr,
    const,
)
from tilewright.expr.simplify import simplify
from tilewright.ir.node import Node, substitute, transform
from tilewright.lang.te.syntax.nodes import (
    Axis,
    Compute,
    Op,
    Placeholder,
    Recurrence,
    Script,
    Tensor,
    TensorBuffer,
    read_tensors,
)
from tilewright.loops.lower import lower as plain_nests
from tilewright.loops.nodes import Alloc, Kernel, Stmt, block, for_sizes, loop
from tilewright.loops.sizes import statement
from tilewright.schedule import edit

Sizes = Mapping[Var, int]


def order(outputs: Iterable[Tensor]) -> list[Op]:
    """The operations that `outputs` need, each after those it reads."""
    found: dict[Op, None] = {}
    stack: list[tuple[Op, bool]] = [(t.op, False) for t in reversed(list(outputs))]
    while stack:
        op, ready = stack.pop()
        if op in found:
            continue
        if ready:
            found[op] = None
        else:
            stack.append((op, True))
            stack.extend(
                (t.op, False) for t in reversed(op.inputs) if t.op not in found
            )
    return list(found)


def sizes_of_ops(ops: Iterable[Op]) -> list[Var]:
    """The sizes made by `var` that the operations depend on, in order of first use."""
    found: dict[Var, None] = {}
    for op in ops:
        roots: list[Any] = [e for t in op.outputs for e in t.shape]
        if isinstance(op, Compute):
            roots += [e for a in op.reduce_axis for e in (a.low, a.extent)]
        if isinstance(op, Recurrence):
            found |= dict.fromkeys(sizes_of_ops(op.steps))
        found |= dict.fromkeys(sizes_of(roots))
    return list(found)


@dataclass(slots=True)
class ProgramNames:
    """Tensors and sizes as one program has them: unique names, numbers for the sizes given."""

    sizes: Sizes = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    buffers: dict[Tensor, Buffer] = field(default_factory=dict)

    def extent(self, value: Any) -> Extent:
        """A size with the values given. Raises InputError for one that is negative."""
        if isinstance(value, int):
            return value
        known = substitute(value, {v: const(n) for v, n in self.sizes.items()})
        form = affine(simplify(known, {}))
        if not form.is_const:
            return to_expr(form)
        if form.const < 0:
            raise InputError(
                f"the size {value!r} is {form.const}",
                where="lower",
                hint="sizes are 0 or more",
            )
        return form.const

    def buffer(self, tensor: Tensor) -> Buffer:
        """The tensor's own buffer, or one with these sizes and its own name."""
        if tensor not in self.buffers:
            name = fresh(self.names, tensor.name)
            made: Buffer = tensor.buffer
            if name != tensor.name or not tensor.static:
                shape = tuple(self.extent(e) for e in tensor.shape)
                made = Buffer(name, shape, tensor.dtype, tensor.buffer.scope)
            self.buffers[tensor] = made
        return self.buffers[tensor]

    def expr(self, e: Expr, env: Mapping[Node, Expr]) -> Expr:
        """An expression of this program, with variables replaced."""
        mapping: dict[Any, Any] = {v: const(n) for v, n in self.sizes.items()} | dict(
            env
        )
        moved = bool(self.sizes) or any(not isinstance(v, Var) for v in env.values())

        def load(node: Node) -> Node:
            if not isinstance(node, Load) or not isinstance(node.buffer, TensorBuffer):
                return node
            if moved:
                index = tuple(to_expr(affine(i)) for i in node.index)
            else:
                index = node.index
            buffer = self.buffer(node.buffer.tensor)
            if (buffer, index) != (node.buffer, node.index):
                return Load(buffer, index)
            return node

        return transform(substitute(e, mapping), load)  # type: ignore[no-any-return]


def computation(
    op: Compute, scope: ProgramNames | None = None, name: str | None = None
) -> Computation:
    """The Computation of one operation, to be printed in other notations.

    op: `tensor.op` of a `compute`. scope: the buffers and sizes of a program that it is part of.
    name: of the Computation; the operation's by default. Raises InputError where an access leaves
    its tensor.
    """
    scope = scope or ProgramNames()
    dims, env = _dims(op, scope)
    return _checked(op, dims, env, scope, name or op.name, ())


def check_sizes(op: Compute, bounds: bool = True) -> None:
    """Check what `computation` checks.

    bounds: whether accesses are, too; a step of a recurrence is right only from its first time on.
    Those that depend on sizes made by `var` are checked when the program is lowered.
    """
    bounds = bounds and not sizes_of_ops([op]) and all(t.static for t in op.inputs)
    try:
        computation(op)
    except InputError as error:
        if bounds or error.code != "TW-BOUNDS":
            raise


def _dims(op: Compute, scope: ProgramNames) -> tuple[list[Dim], dict[Node, Expr]]:
    taken: set[str] = set()
    dims: list[Dim] = []
    env: dict[Node, Expr] = {}
    for a in (*op.axis, *op.reduce_axis):
        v = Var(fresh(taken, a.name), INDEX)
        dims.append(Dim(v, scope.extent(a.extent), op.combine(a)))
        env[a] = _shifted(v, a.low, scope)
    return dims, env


def _shifted(v: Var, low: Any, scope: ProgramNames) -> Expr:
    start = scope.extent(low)
    if start == 0:
        return v
    return Add(v, as_expr(start, INDEX))


def _checked(
    op: Compute,
    dims: Sequence[Dim],
    env: Mapping[Node, Expr],
    scope: ProgramNames,
    name: str,
    free: Sequence[Dim],
) -> Computation:
    index = tuple(scope.expr(a, env) for a in op.axis)
    values = [scope.expr(v, env) for v in op.values]
    outputs = tuple(
        Output(scope.buffer(t), index, v)
        for t, v in zip(op.outputs, values, strict=True)
    )
    try:
        check(Computation(name, (*free, *dims), outputs, op.reducer))
    except VerifyError as error:
        raise InputError(
            error.message, code=error.code, where=f"compute {op.name}", hint=error.hint
        ) from None
    return Computation(name, tuple(dims), outputs, op.reducer)


@dataclass(frozen=True, slots=True)
class PlainProgram:
    """A plain Kernel, and the locations of operations in it.

    loops: the loop of each operation's axis (axes with one iteration have none). computations: of
    each operation in order, except recurrences, which have none.
    """

    kernel: Kernel
    computations: tuple[Computation, ...]
    buffers: Mapping[Tensor, Buffer]
    loops: Mapping[tuple[Op, Axis], str]


def lower(
    name: str,
    ops: Sequence[Op],
    params: Sequence[Tensor],
    outputs: Sequence[Tensor],
    sizes: Sizes | None = None,
) -> PlainProgram:
    """Each operation as its own nest, in order; loops are named `<operation>.<axis>`.

    params: the caller's tensors, inputs first; the others are allocated. sizes: values of some of
    the sizes made by `var`; the kernel is for all values of the others. Raises InputError for
    accesses that may leave a tensor.
    """
    scope = ProgramNames(sizes or {})
    for t in params:
        scope.buffer(t)
    writer = _Writer(scope, set(params))
    for op in ops:
        writer.op(op)
    buffers = [scope.buffer(t) for t in params]
    results = [scope.buffer(t) for t in outputs]
    every = sizes_of_ops([*(t.op for t in params), *ops])
    body = for_sizes((v for v in every if v not in scope.sizes), writer.body())
    kernel = Kernel(name, tuple(buffers), tuple(results), body)
    return PlainProgram(kernel, tuple(writer.computations), scope.buffers, writer.loops)


class _Writer:
    """The nests in order, each with the tensors it makes."""

    def __init__(self, scope: ProgramNames, known: set[Tensor]) -> None:
        self.scope = scope
        self.known = known
        self.computations: list[Computation] = []
        self.loops: dict[tuple[Op, Axis], str] = {}
        self.nests: list[tuple[Stmt, list[Tensor]]] = []
        self.taken: set[str] = set()
        self.inside: set[str] = set()  # of the loops and buffers in scripts

    def op(self, op: Op) -> None:
        match op:
            case Compute():
                c = computation(op, self.scope, fresh(self.taken, op.name))
                self.computations.append(c)
                self.nests.append((self.nest(op, c, ()), self.new(op.outputs)))
            case Recurrence():
                self.recurrence(op)
            case Script():
                self.nests.append((self.script(op), self.new(op.outputs)))
            case Placeholder():
                for t in self.new(op.outputs):
                    raise InputError(
                        f"{t.name} is read, but is not one of the arguments",
                        where="lower",
                        hint="add it to the list of arguments, before the outputs",
                    )

    def new(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        found = [t for t in tensors if t not in self.known]
        self.known.update(found)
        return found

    def nest(
        self,
        op: Compute,
        c: Computation,
        outside: Sequence[str],
    ) -> Stmt:
        """The plain nest, all of whose tensors exist around it; notes its loops."""
        buffers = [*c.inputs, *(o.tensor for o in c.outputs)]
        written = [o.tensor for o in c.outputs]
        for a, d in zip(
            (*op.axis, *op.reduce_axis)[len(outside) :], c.dims, strict=True
        ):
            if d.size != 1:
                self.loops[op, a] = f"{c.name}.{d.var.name}"
        nest = plain_nests(c.name, [c], list(dict.fromkeys(buffers)), written)
        return statement(nest)

    def script(self, op: Script) -> Stmt:
        """The statements over this program's buffers, their loops named after the operation."""
        moves: dict[Buffer, edit.Move] = {
            t.buffer: _to(self.scope.buffer(t)) for t in read_tensors([op.body])
        }
        moves |= {t.buffer: _to(self.scope.buffer(t)) for t in op.outputs}
        known = {v: const(n) for v, n in self.scope.sizes.items()}
        body = edit.rewrite(op.body, {}, known, moves)
        used = {*self.inside, *self.loops.values(), *self.scope.names}
        made, names = edit.renamed(body, used, "")
        self.inside |= set(names.values())
        self.taken |= {n.partition(".")[0] for n in names.values()}
        for axis, name in zip((*op.axis, *op.reduce_axis), op.loops, strict=True):
            self.loops[op, axis] = names[name]
        return made

    def recurrence(self, op: Recurrence) -> None:
        """The first slices copied, then a loop over the time around the nests of one step."""
        scope = self.scope
        label = fresh(self.taken, op.name)
        for init, out in zip(op.inits, op.outputs, strict=True):
            first = copy(init, out, f"{op.name}.init")
            c = computation(first, scope, fresh(self.taken, first.name))
            nest = self.nest(first, c, ())
            self.nests.append((nest, self.new((out,))))
        into: dict[Tensor, Tensor] = {}
        for tensors in (op.states, op.updates):
            into |= dict(zip(tensors, op.outputs, strict=True))
        for t, out in into.items():
            scope.buffers[t] = scope.buffer(out)
        extent = scope.extent(op.time.extent)
        at = Var(f"{label}.{op.time.name}", INDEX)
        steps = []
        made: list[Tensor] = []
        for s in op.steps:
            dims, env = _dims(s, scope)
            env[s.axis[0]] = _shifted(at, op.time.low, scope)
            name = fresh(self.taken, s.name)
            time = Dim(at, extent, "cc")
            c = _checked(s, dims[1:], env, scope, name, [time])
            steps.append(self.nest(s, c, (at.name,)))
            made += self.new(t for t in s.outputs if t not in into)
        self.loops[op, op.time] = at.name
        self.nests.append((loop(at, extent, block(*steps)), made))

    def body(self) -> Stmt:
        """The nests in order, each tensor allocated from the nest that makes it on."""
        body = block()
        for nest, made in reversed(self.nests):
            body = block(nest, body)
            for t in reversed(made):
                body = Alloc(self.scope.buffer(t), body)
        return body


def _to(buffer: Buffer) -> edit.Move:
    return lambda index: (buffer, index)


def copy(source: Tensor, target: Tensor, name: str) -> Compute:
    """`target[i, ...] = source[i, ...]` over the extents of the source."""
    axis = tuple(Axis(f"i{n}", INDEX, 0, e, "cc") for n, e in enumerate(source.shape))
    return Compute(name, axis, (), (source[axis],), None, (), (target,))
