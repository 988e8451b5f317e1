"""Coarse operators of an accelerator, each defined by a Lift expression.

After "Towards Mapping Lift to Deep Neural Network Accelerators" (Mogers et al., HiPEAC EDLA 2019):
an operator is written for any size (`VVAdd4096`); a machine has it at one size (`VVAdd32`), and
rules split the one into the other. Its meaning is the oracle: both directions, expanding an
operator and recognizing one, are rules made from this table.

    VVAdd VVSub VVMul VVMax   [t]n, [t]n -> [t]n          VVRelu VVTanh VVSigm   [t]n -> [t]n
    MMAdd                     [[t]n]m, [[t]n]m -> [[t]n]m
    MVAdd                     [[t]n]m, [t]n -> [[t]n]m    the vector is added to every row
    MVMul                     [[t]n]m, [t]n -> [t]m       sums in the dtype of the operands
    MMMul                     [[t]n]m, [[t]k]n -> [[t]k]m
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import InputError
from tilewright.expr.nodes import Expr, const
from tilewright.lift.lambdas import applied, key
from tilewright.lift.match import device_name
from tilewright.lift.nodes import (
    Builtin,
    DeviceOp,
    Join,
    Lambda,
    Literal,
    Map,
    Param,
    Reduce,
    Term,
    Transpose,
    Zip,
    as_fun,
)
from tilewright.lift.types import Array, Scalar, Type

BINARY: Mapping[str, str] = {
    "VVAdd": "add",
    "VVSub": "sub",
    "VVMul": "mul",
    "VVMax": "max",
}
UNARY: Mapping[str, str] = {"VVRelu": "relu", "VVTanh": "tanh", "VVSigm": "sigmoid"}


@dataclass(frozen=True, slots=True)
class Schema:
    """An operator for every size: the types of its operands, by size, and its meaning on them."""

    name: str
    sizes: int
    operands: Callable[..., tuple[Type, ...]]
    meaning: Callable[..., Term]

    def at(self, *sizes: Expr) -> DeviceOp:
        """The operator at sizes that may be holes: a pattern, whose name has no size yet."""
        params = tuple(Param(f"x{i}", t) for i, t in enumerate(self.operands(*sizes)))
        meaning = Lambda(params, applied(self.meaning(*params)))
        return DeviceOp(self.name, sizes, meaning)  # type: ignore[arg-type]


def operator(name: str, dtype: DType, *sizes: int) -> DeviceOp:
    """`operator("MVMul", float32, 128, 64)`, to be applied to its operands.

    Raises InputError for an unknown name or a wrong number of sizes.
    """
    table = operators(dtype)
    if name not in table:
        raise InputError(
            f"there is no operator {name!r}",
            hint=f"known: {', '.join(table)}",
            where="device",
        )
    schema = table[name]
    if len(sizes) != schema.sizes:
        raise InputError(
            f"{name} has {schema.sizes} sizes, not {len(sizes)}",
            where="device",
            hint="give one number per size of the operator",
        )
    general = schema.at(*map(const, sizes))
    return DeviceOp(device_name(name, sizes), sizes, key(general.meaning))


def operators(dtype: DType) -> Mapping[str, Schema]:
    """The operators on this dtype, by name."""
    scalar = Scalar(dtype)

    def vec(n: Expr) -> Type:
        return Array(scalar, n)

    def mat(m: Expr, n: Expr) -> Type:
        return Array(vec(n), m)

    zero = Literal(0.0 if dtype.is_float else 0, dtype)
    unary = {name: f for name, f in UNARY.items() if dtype.is_float or f == "relu"}
    found = [
        *(_pointwise(name, f, vec, count=2) for name, f in BINARY.items()),
        *(_pointwise(name, f, vec, count=1) for name, f in unary.items()),
        Schema(
            "MMAdd",
            sizes=2,
            operands=lambda m, n: (mat(m, n), mat(m, n)),
            meaning=_matrix_sum,
        ),
        Schema(
            "MVAdd",
            sizes=2,
            operands=lambda m, n: (mat(m, n), vec(n)),
            meaning=lambda matrix, v: _over(matrix, lambda r: _sum(r, v)),
        ),
        Schema(
            "MVMul",
            sizes=2,
            operands=lambda m, n: (mat(m, n), vec(n)),
            meaning=lambda matrix, v: _matrix_vector(matrix, v, zero),
        ),
        Schema(
            "MMMul",
            sizes=3,
            operands=lambda m, n, k: (mat(m, n), mat(n, k)),
            meaning=lambda a, b: _matrix_product(a, b, zero),
        ),
    ]
    return {schema.name: schema for schema in found}


_ADD = Builtin("add")
_MUL = Builtin("mul")


def _pointwise(
    name: str,
    f: str,
    vec: Callable[[Expr], Type],
    count: int,
) -> Schema:
    op = Map(Builtin(f))

    def meaning(*operands: Term) -> Term:
        if count == 1:
            return operands[0] | op
        return Zip()(*operands) | op

    return Schema(name, 1, lambda n: (vec(n),) * count, meaning)


def _over(array: Term, f: Callable[..., Term]) -> Term:
    return array | Map(as_fun(f))


def _sum(u: Term, v: Term) -> Term:
    return Zip()(u, v) | Map(_ADD)


def _matrix_sum(a: Term, b: Term) -> Term:
    return _over(Zip()(a, b), _sum)


def _dot(row: Term, v: Term, zero: Term) -> Term:
    return Zip()(row, v) | Map(_MUL) | Reduce(_ADD, zero)


def _matrix_vector(matrix: Term, v: Term, zero: Term) -> Term:
    return _over(matrix, lambda r: _dot(r, v, zero)) | Join()


def _matrix_product(a: Term, b: Term, zero: Term) -> Term:
    columns = b | Transpose()

    def row_times_columns(row: Term) -> Term:
        return _over(columns, lambda c: _dot(c, row, zero)) | Join()

    return _over(a, row_times_columns)
