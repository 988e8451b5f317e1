"""The operands of an intrinsic in the buffers of a nest: strides, positions, memory scopes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import gcd

from tilewright.expr.affine import Affine, affine, rejoined, to_expr
from tilewright.expr.nodes import Buffer, Expr, Load, Var, const
from tilewright.expr.reads import variables
from tilewright.expr.simplify import simplify
from tilewright.ir.node import substitute
from tilewright.loops.intrinsic import Instance, Stride, TensorIntrinsic
from tilewright.loops.nodes import Operand

Index = tuple[Expr, ...]

# How far an attempt came: the form of the nest, its extents, its values, strides, the machine.
FORM, EXTENTS, VALUES, STRIDES, MACHINE = range(5)


class OperandMismatch(Exception):
    """Why a nest is not an intrinsic: what was expected and what was found."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(text)
        self.rank = rank


def operand(
    instance: Instance,
    tensor: Buffer,
    pairs: Sequence[tuple[Load, Load]],
    names: Mapping[Expr, Expr | None],
    inner: set[Var],
) -> Operand:
    """The tensor in its buffer. Raises Mismatch where its elements are not laid out as required.

    pairs: its accesses in the description, each with the one in the nest that corresponds. names:
    the loop of each dimension (None: it runs once). inner: all loops of the nest.
    """
    buffer = pairs[0][1].buffer
    if any(have.buffer is not buffer for _, have in pairs):
        raise OperandMismatch(
            VALUES, f"{tensor.name} is one tensor, found {_texts(pairs)}"
        )
    moves = [(want, _moves(have, inner)) for want, have in pairs]
    strides = _strides(instance, tensor, pairs[0], moves[0][1], names)
    for want, steps in moves:
        for dim, var in names.items():
            if var is None:
                continue
            distance = sum(
                s * affine(i).coefficient(dim)
                for s, i in zip(strides, want.index, strict=True)
            )
            if distance != steps.get(var, 0):
                raise OperandMismatch(
                    STRIDES,
                    f"along {dim!r} (loop {var!r}) {tensor.name}{_at(want.index)} moves by "
                    f"{distance} elements, found {_texts(pairs)}, which moves by "
                    f"{steps.get(var, 0)}",
                )
    bases = [_base(have, inner) for _, have in pairs]
    if any(b != bases[0] for b in bases):
        raise OperandMismatch(
            VALUES, f"{tensor.name} is read at one place, found {_texts(pairs)}"
        )
    _check_alignment(instance.intrinsic, tensor, buffer, bases[0])
    return Operand(buffer, bases[0], strides)


def _texts(pairs: Sequence[tuple[Load, Load]]) -> str:
    return " and ".join(dict.fromkeys(repr(have) for _, have in pairs))


def _at(index: Index) -> str:
    return f"[{', '.join(map(repr, index))}]"


@lru_cache(maxsize=4096)
def position(buffer: Buffer, index: Index) -> Affine:
    """The flat position of an access in its buffer."""
    total = Affine((), 0)
    for i, stride in zip(index, buffer.strides, strict=True):
        total = total + affine(i).scaled(stride)
    return rejoined(total)


def _moves(load: Load, inner: set[Var]) -> dict[Expr, int]:
    """By how many elements an access moves with each loop of the nest."""
    moves: dict[Expr, int] = {}
    for atom, c in position(load.buffer, load.index).terms:
        if atom in inner:
            moves[atom] = c
        elif any(v in inner for v in variables(atom)):
            raise OperandMismatch(
                STRIDES, f"the index of {load!r} is not linear in {atom!r}"
            )
    return moves


def _base(load: Load, inner: set[Var]) -> Index:
    """The index of the first element: all loops of the nest at 0."""
    env: dict[object, object] = dict.fromkeys(inner, const(0))
    return tuple(to_expr(affine(simplify(substitute(i, env)))) for i in load.index)


def _strides(
    instance: Instance,
    tensor: Buffer,
    pair: tuple[Load, Load],
    moves: Mapping[Expr, int],
    names: Mapping[Expr, Expr | None],
) -> tuple[int, ...]:
    """One stride per axis: what the call passes as it is found, the others as compact."""
    dims = instance.intrinsic.description.dims
    sizes: dict[Expr, int] = {
        d.var: n for d, n in zip(dims, instance.sizes, strict=True)
    }
    free: set[Expr] = {d.var for d in dims if d.var.name in instance.intrinsic.free}
    number = instance.intrinsic.tensors.index(tensor)
    index = pair[0].index
    strides: list[int] = []
    compact = 1
    for axis in reversed(range(len(index))):
        form = affine(index[axis])
        passed = instance.intrinsic.passes(instance.part, Stride(number, axis))
        found = _stride_of(index, axis, moves, names)
        strides.insert(0, compact if found is None else found)
        if found is not None and found != compact and not passed:
            raise OperandMismatch(
                STRIDES,
                f"{tensor.name} has stride {compact} along axis {axis}, found {found} in "
                f"{pair[1]!r}",
            )
        reach = 1 + sum(c * (sizes[atom] - 1) for atom, c in form.terms)
        own = any(atom in free for atom, _ in form.terms)
        compact *= reach if own else tensor.shape[axis]
    return tuple(strides)


def _stride_of(
    index: Index,
    axis: int,
    moves: Mapping[Expr, int],
    names: Mapping[Expr, Expr | None],
) -> int | None:
    """The stride of an axis, from a dimension that moves along this axis only; None: any."""
    for dim, c in affine(index[axis]).terms:
        var = names.get(dim)
        alone = all(
            affine(i).coefficient(dim) == 0 for n, i in enumerate(index) if n != axis
        )
        if var is not None and alone and moves.get(var, 0) % c == 0:
            return moves.get(var, 0) // c
    return None


# -- the machine


def _check_alignment(
    intrinsic: TensorIntrinsic, tensor: Buffer, buffer: Buffer, base: Index
) -> None:
    need = intrinsic.alignment.get(tensor.name, 1)
    form = position(buffer, base)
    unit = gcd(form.const, *(c for _, c in form.terms)) * buffer.dtype.itemsize
    if unit % need:
        raise OperandMismatch(
            MACHINE,
            f"{tensor.name} starts at a multiple of {need} bytes, found {buffer.name}{_at(base)}, "
            f"a multiple of {unit}",
        )


def check_separate(instance: Instance, operands: Sequence[Operand]) -> None:
    """Raise Mismatch where elements of the output may share memory, with an input or each other."""
    intrinsic = instance.intrinsic
    out = operands[-1]
    dims = intrinsic.description.dims
    sizes: dict[Expr, int] = {
        d.var: n for d, n in zip(dims, instance.sizes, strict=True)
    }
    reach = 0
    axes = zip(out.strides, intrinsic.description.outputs[0].index, strict=True)
    for stride, i in sorted(axes, key=lambda axis: axis[0]):
        last = sum(c * (sizes[atom] - 1) for atom, c in affine(i).terms)
        if last and stride <= reach:
            raise OperandMismatch(
                MACHINE,
                f"the elements of {intrinsic.tensors[-1].name} are distinct, found strides "
                f"{out.strides} in {out.buffer.name}, where they coincide",
            )
        reach += last * stride
    if any(o.buffer is operands[-1].buffer for o in operands[:-1]):
        name = operands[-1].buffer.name
        raise OperandMismatch(
            MACHINE, f"its output is separate from its inputs, found {name} as both"
        )


def check_scopes(instance: Instance, operands: Sequence[Operand]) -> None:
    """Raise Mismatch unless the machine can do it in the memories that the operands are in."""
    rows = instance.intrinsic.scopes
    have = tuple(o.buffer.scope for o in operands)
    if rows and have not in rows:
        names = [t.name for t in instance.intrinsic.tensors]
        want = " or ".join(_scopes(names, row) for row in rows)
        raise OperandMismatch(
            MACHINE,
            f"{instance.intrinsic.name} takes {want}; found {_scopes(names, have)}",
        )


def _scopes(names: Sequence[str], row: Sequence[str]) -> str:
    return ", ".join(
        f"{name} in {scope}" for name, scope in zip(names, row, strict=True)
    )
