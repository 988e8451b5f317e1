"""The sizes of a kernel known only at run time: what they are for shapes, and giving them values.

A size is known if some parameter has an extent that is the size alone, or the size plus a number;
every other extent is then checked against its value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tilewright.base.errors import InputError, UnsupportedError
from tilewright.expr.affine import affine
from tilewright.expr.nodes import (
    INDEX,
    MAX_SIZE,
    Add,
    Binary,
    Buffer,
    Extent,
    FloorDiv,
    Load,
    Max,
    Min,
    Mod,
    Mul,
    Neg,
    Sub,
    Var,
    as_expr,
    const,
)
from tilewright.expr.simplify import simplify
from tilewright.ir.node import Node, postorder, substitute, transform
from tilewright.loops.nodes import (
    SIZE,
    Alloc,
    For,
    Kernel,
    Stmt,
    Store,
    Update,
    for_sizes,
)
from tilewright.runtime.formulas import Formula

Sizes = Mapping[Var, int]


def at(extent: Extent, sizes: Sizes) -> int:
    """An extent at these sizes. Raises InputError for a size without a value."""
    if isinstance(extent, int):
        return extent
    value = simplify(substitute(extent, {v: const(n) for v, n in sizes.items()}), {})
    form = affine(value)
    if not form.is_const:
        raise InputError(
            f"the size {extent!r} is not known",
            code="TW-SIZE",
            hint="give a value to each of its sizes",
        )
    return form.const


def formula(extent: Extent) -> Formula:
    """An extent as data, for who has no compiler; see `runtime.formulas`.

    Raises UnsupportedError for an operation that formulas do not have.
    """
    if isinstance(extent, int):
        return extent
    form = affine(extent)
    if form.is_const:
        return form.const
    match extent:
        case Var(name=name):
            return name
        case Neg():
            return ["-", 0, formula(extent.value)]
        case Binary(lhs=lhs, rhs=rhs):
            for kind, name in _OPERATIONS.items():
                if isinstance(extent, kind):
                    return [name, formula(lhs), formula(rhs)]
    raise UnsupportedError(f"the extent {extent!r} is not a formula of sizes")


_OPERATIONS: Final[Mapping[type[Binary], str]] = {
    Add: "+",
    Sub: "-",
    Mul: "*",
    FloorDiv: "//",
    Mod: "%",
    Min: "min",
    Max: "max",
}


def solve(kernel: Kernel, shapes: Sequence[Sequence[int]]) -> dict[Var, int]:
    """The sizes that a kernel has on arrays of these shapes, of its first parameters at least.

    Raises InputError (TW-SHAPE) naming the array and the dimension that does not fit.
    """
    sizes: dict[Var, int] = {}
    known: list[tuple[Var, int, int]] = []  # bare sizes count first
    for b, shape in zip(kernel.params, shapes, strict=False):
        if len(shape) != len(b.extents):
            raise InputError(
                f"expected {len(b.extents)} dimensions, got {len(shape)}",
                code="TW-SHAPE",
                where=f"{kernel.name}: {b!r}",
            )
        for extent, found in zip(b.extents, shape, strict=True):
            size, more = _alone(extent)
            if size is not None:
                known.append((size, more, int(found)))
    for size, more, found in sorted(known, key=lambda x: x[1] != 0):
        sizes.setdefault(size, found - more)
    for b, shape in zip(kernel.params, shapes, strict=False):
        for axis, (extent, found) in enumerate(zip(b.extents, shape, strict=True)):
            _check(kernel, b, axis, (extent, found), sizes)
    return sizes


def _check(
    kernel: Kernel, b: Buffer, axis: int, pair: tuple[Extent, int], sizes: Sizes
) -> None:
    extent, found = pair
    expected = at(extent, sizes)
    where = f"{kernel.name}: dimension {axis} of {b!r}"
    size = _alone(extent)[0]
    if size is not None and sizes[size] < 0:
        raise InputError(
            f"expected at least {found - sizes[size]}, got {found}",
            code="TW-SHAPE",
            where=where,
        )
    if found != expected:
        known = ", ".join(f"{v.name} = {n}" for v, n in sizes.items())
        raise InputError(
            f"expected {expected}{f' where {known}' if known else ''}, got {found}",
            code="TW-SHAPE",
            where=where,
            hint="one size has one value in all arrays of a call",
        )
    if not isinstance(extent, int) and found >= MAX_SIZE:
        raise InputError(
            f"expected less than {MAX_SIZE}, got {found}", code="TW-SHAPE", where=where
        )


def unknown(kernel: Kernel) -> list[Var]:
    """The sizes that are not a bare extent of any parameter, so that no call determines them."""
    known = {_alone(e)[0] for b in kernel.params for e in b.extents}
    return [v for v in kernel.sizes if v not in known]


def _alone(extent: Extent) -> tuple[Var | None, int]:
    """The size of an extent that is `size + number`, with the number."""
    form = affine(as_expr(extent, INDEX))
    if len(form.terms) == 1:
        atom, times = form.terms[0]
        if isinstance(atom, Var) and times == 1:
            return atom, form.const
    return None, 0


def with_sizes(kernel: Kernel, sizes: Sizes) -> Kernel:
    """The kernel for given values of some of its sizes, on buffers of these shapes.

    Raises InputError for a value that no array can have.
    """
    for v, n in sizes.items():
        if not 0 <= n < MAX_SIZE:
            raise InputError(
                f"the size {v.name} is {n}",
                code="TW-SIZE",
                hint="0 or more, below 2**31",
            )
    copies: dict[Buffer, Buffer] = {b: _sized(b, sizes) for b in kernel.params}
    for node in postorder(kernel.body):
        if isinstance(node, Alloc):
            copies[node.buffer] = _sized(node.buffer, sizes)
    body: Any = kernel.body
    while isinstance(body, For) and body.kind == SIZE:
        body = body.body
    values: dict[Any, Any] = {v: const(n, INDEX) for v, n in sizes.items()}
    body = transform(substitute(body, values), lambda n: _moved(n, copies))
    left = [v for v in kernel.sizes if v not in sizes]
    return Kernel(
        kernel.name,
        tuple(copies[b] for b in kernel.params),
        tuple(copies[b] for b in kernel.outputs),
        for_sizes(left, body),
        kernel.notes,
    )


def _sized(b: Buffer, sizes: Sizes) -> Buffer:
    if b.static:
        return b
    values: dict[Any, Any] = {v: const(n, INDEX) for v, n in sizes.items()}
    extents: list[Extent] = []
    for e in b.extents:
        if not isinstance(e, int):
            form = affine(simplify(substitute(e, values), {}))
            e = form.const if form.is_const else substitute(e, values)
        extents.append(e)
    return Buffer(b.name, tuple(extents), b.dtype, b.scope, b.swizzle)


def _moved(node: Node, copies: Mapping[Buffer, Buffer]) -> Node:
    """A statement or load on the copies of its buffers."""
    match node:
        case Load():
            return Load(copies[node.buffer], node.index)
        case Store():
            return Store(copies[node.buffer], node.index, node.value)
        case Update():
            buffers = tuple(copies[b] for b in node.buffers)
            return Update(buffers, node.indices, node.values, node.reducer)
        case Alloc():
            return Alloc(copies[node.buffer], node.body)
    return node


def statement(kernel: Kernel) -> Stmt:
    """What runs for each choice of the sizes."""
    s = kernel.body
    while isinstance(s, For) and s.kind == SIZE:
        s = s.body
    return s


def with_statement(kernel: Kernel, stmt: Stmt) -> Kernel:
    """The kernel with another statement that runs for each choice of the sizes."""

    def around(s: Stmt) -> Stmt:
        if isinstance(s, For) and s.kind == SIZE:
            return For(s.var, s.extent, SIZE, around(s.body))
        return stmt

    return kernel.with_body(around(kernel.body))
