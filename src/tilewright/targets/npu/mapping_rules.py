"""The rules of a machine: Lift's device rules, and rules for its other operators.

Lift has operators on vectors and products of matrices, recognized, split into equal tiles, padded
and placed in memories (`notation.lift.rules.device`). Added here, as more rows of the same kind:
four operators, unequal splits (`cut`: 160 is 128 and 32), operands that are one element many times
(`spread`), and what a machine without a subtraction does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from tilewright.base.dtypes import float32
from tilewright.expr.nodes import Expr, Mul, Sub, const
from tilewright.lift import rules as lift_rules
from tilewright.lift.conditions import SideCondition, at_most, number, positive
from tilewright.lift.device import Schema, operators
from tilewright.lift.lambdas import applied
from tilewright.lift.match import size_holes
from tilewright.lift.nodes import (
    Apply,
    Builtin,
    Concat,
    Drop,
    Fill,
    Fun,
    Join,
    Literal,
    Map,
    PadConstant,
    Param,
    Reduce,
    Split,
    Take,
    Term,
    Zip,
)
from tilewright.lift.rule import Rule
from tilewright.lift.rules import device as lift_device
from tilewright.lift.rules.device import q
from tilewright.lift.rules.vocabulary import fn, k, m, n, p, term
from tilewright.lift.types import Array, Scalar, Type
from tilewright.targets.npu.machine import BINARY, REDUCTIONS, UNARY

(r,) = size_holes("r")
_0 = const(0)
_F32 = Scalar(float32)
_ZERO = Literal(0.0, float32)
_REORDERED = "sums are taken in another order"
_FUNCTIONS = {"VVAdd": "add", "VVSub": "sub", "VVMul": "mul", "VVMax": "max"}
# What a reduction starts with; padding does not change it.
_REDUCTIONS = {
    "VReduceAdd": (Builtin("add"), _ZERO),
    "VReduceMax": (Builtin("max"), Literal(float("-inf"), float32)),
}


def _vector(size: Expr) -> Type:
    return Array(_F32, size)


@lru_cache(maxsize=1)
def schemas() -> Mapping[str, Schema]:
    """All operators by name: Lift's, exponentials, reciprocals and reductions."""
    found = dict(operators(float32))
    exp = Map(Builtin("exp"))
    one = Literal(1.0, float32)
    recip = Map(fn(lambda x: Builtin("div")(one, x)))
    found["VVExp"] = Schema(
        name="VVExp",
        sizes=1,
        operands=lambda s: (_vector(s),),
        meaning=lambda x: x | exp,
    )
    found["VVRecip"] = Schema(
        name="VVRecip",
        sizes=1,
        operands=lambda s: (_vector(s),),
        meaning=lambda x: x | recip,
    )
    for name, (f, init) in _REDUCTIONS.items():
        reduce = Reduce(f, init)
        found[name] = Schema(
            name=name,
            sizes=1,
            operands=lambda s: (_vector(s),),
            meaning=lambda x, r=reduce: x | r,
        )
    return found


@lru_cache(maxsize=64)
def rules(chip: int) -> Mapping[str, Rule]:
    """All rules by name. chip: numbers that results may take on the chip."""
    base = lift_device.rules(lift_device.Accelerator(0, 0, 0, chip * float32.bits // 8))
    found = [
        *(rule for name in (*UNARY, *REDUCTIONS) if name not in operators(float32)
          for rule in _meaning(schemas()[name])),
        *(_cut(schemas()[name]) for name in (*BINARY, *UNARY)),
        *(rule for name in ("VVExp", "VVRecip") for rule in _pad(schemas()[name])),
        *(rule for name in REDUCTIONS for rule in _reductions(name)),
        *_products(),
        *_pieces(),
        *_others(),
    ]  # fmt: skip
    return {**lift_rules.RULES, **base, **{rule.name: rule for rule in found}}


def _whole(schema: Schema, *sizes: Expr) -> tuple[tuple[Param, ...], Term]:
    """Holes for the operands, and the operator on them."""
    operands = tuple(term(f"x{i}", t) for i, t in enumerate(schema.operands(*sizes)))
    return operands, Apply(schema.at(*sizes), operands)


def _meaning(schema: Schema) -> tuple[Rule, Rule]:
    operands, whole = _whole(schema, n)
    meaning = applied(schema.meaning(*operands))
    return (
        Rule(f"expand-{schema.name}", whole, meaning),
        Rule(f"recognize-{schema.name}", meaning, whole, (number(n),)),
    )


def _proper(size: Expr) -> tuple[SideCondition, ...]:
    """p is a part of the size."""
    return positive(p), positive(Sub(size, p))


def _cut(schema: Schema) -> Rule:
    """p elements, and the others."""
    operands, whole = _whole(schema, n)
    first = Apply(schema.at(p), tuple(x | Take(p) for x in operands))
    others = Apply(schema.at(Sub(n, p)), tuple(x | Drop(p) for x in operands))
    return Rule(f"cut-{schema.name}", whole, Concat()(first, others), _proper(n))


def _pad(schema: Schema) -> tuple[Rule, ...]:
    operands, whole = _whole(schema, n)
    longer = tuple(x | PadConstant(_0, Sub(p, n), _ZERO) for x in operands)
    right = Apply(schema.at(p), longer) | Take(n)
    return (Rule(f"pad-{schema.name}", whole, right, (at_most(n, p),)),)


def _reductions(name: str) -> tuple[Rule, ...]:
    """Of p elements and of the others, combined; longer by what does not change it."""
    schema, (_, init) = schemas()[name], _REDUCTIONS[name]
    combine = schemas()[{"VReduceAdd": "VVAdd", "VReduceMax": "VVMax"}[name]].at(
        const(1)
    )
    (x,), whole = _whole(schema, n)
    first = schema.at(p)(x | Take(p))
    others = schema.at(Sub(n, p))(x | Drop(p))
    reason = "the sum is taken in another order"
    return (
        Rule(f"cut-{name}", whole, combine(first, others), _proper(n), reason),
        Rule(f"pad-{name}", whole, schema.at(p)(x | PadConstant(_0, Sub(p, n), init)),
             (at_most(n, p),)),
    )  # fmt: skip


def _products() -> tuple[Rule, ...]:
    """Matrix products: rows, columns, and all three sizes of a product of matrices."""
    return (*_vector_products(), *_matrix_sums(), *_matrix_products())


def _vector_products() -> tuple[Rule, ...]:
    """Those of a matrix and a vector."""
    product = schemas()["MVMul"]
    (w, v), whole = _whole(product, m, n)
    upper = product.at(p, n)(w | Take(p), v)
    lower = product.at(Sub(m, p), n)(w | Drop(p), v)
    left = product.at(m, p)(w | Map(Take(p)), v | Take(p))
    right = product.at(m, Sub(n, p))(w | Map(Drop(p)), v | Drop(p))
    added = schemas()["VVAdd"].at(m)(left, right)
    matrix = _larger(w, (m, n), (p, q))
    vector = v | PadConstant(_0, Sub(q, n), _ZERO)
    padded = product.at(p, q)(matrix, vector) | Take(m)
    fits = (at_most(m, p), at_most(n, q))
    return (
        Rule("cut-MVMul-rows", whole, Concat()(upper, lower), _proper(m)),
        Rule("cut-MVMul-columns", whole, added, _proper(n), _REORDERED),
        Rule("pad-MVMul", whole, padded, fits),
    )


def _matrix_sums() -> tuple[Rule, ...]:
    """Sums of matrices, and of a matrix and a vector."""
    add = schemas()["MVAdd"]
    (u, w), added = _whole(schemas()["MMAdd"], m, n)
    (t, bias), biased = _whole(add, m, n)
    flat = schemas()["VVAdd"].at(Mul(m, n))(u | Join(), w | Join())
    matrix = _larger(t, (m, n), (p, q))
    vector = bias | PadConstant(_0, Sub(q, n), _ZERO)
    padded = add.at(p, q)(matrix, vector)
    fits = (at_most(m, p), at_most(n, q))
    return (
        Rule("flat-MMAdd", added, flat | Split(n)),
        Rule("pad-MVAdd", biased, padded | Take(m) | Map(Take(n)), fits),
    )


def _matrix_products() -> tuple[Rule, ...]:
    """Those of two matrices."""
    product = schemas()["MMMul"]
    (x, y), whole = _whole(product, m, n, k)
    upper = product.at(p, n, k)(x | Take(p), y)
    lower = product.at(Sub(m, p), n, k)(x | Drop(p), y)
    early = product.at(m, p, k)(x | Map(Take(p)), y | Take(p))
    late = product.at(m, Sub(n, p), k)(x | Map(Drop(p)), y | Drop(p))
    added = schemas()["MMAdd"].at(m, k)(early, late)
    left = product.at(m, n, p)(x, y | Map(Take(p)))
    right = product.at(m, n, Sub(k, p))(x, y | Map(Drop(p)))
    joined = fn(lambda one, other: Concat()(one, other))
    beside = Zip()(left, right) | Map(joined)
    first = _larger(x, (m, n), (p, q))
    second = _larger(y, (n, k), (q, r))
    padded = product.at(p, q, r)(first, second)
    fits = (at_most(m, p), at_most(n, q), at_most(k, r))
    return (
        Rule("cut-MMMul-rows", whole, Concat()(upper, lower), _proper(m)),
        Rule("cut-MMMul-inner", whole, added, _proper(n), _REORDERED),
        Rule("cut-MMMul-columns", whole, beside, _proper(k)),
        Rule("pad-MMMul", whole, padded | Take(m) | Map(Take(k)), fits),
    )


def _larger(matrix: Term, sizes: tuple[Expr, Expr], to: tuple[Expr, Expr]) -> Term:
    """With zeros to the right and below."""
    (height, width), (rows, columns) = sizes, to
    wider = matrix | Map(PadConstant(_0, Sub(columns, width), _ZERO))
    return wider | PadConstant(_0, Sub(rows, height), Fill(_ZERO, columns))


def _pieces() -> tuple[Rule, ...]:
    """Parts of a concatenation are parts of its pieces."""
    xs = term("xs", _vector(n))
    ys = term("ys", _vector(m))
    both = Concat()(xs, ys)
    rows, s, row = (
        term("rows", Array(_vector(n), m)),
        term("s", _F32),
        term("row", _vector(n)),
    )
    return (
        Rule("pad-none", xs | PadConstant(_0, _0, s), xs),
        Rule("pad-none-in-rows", rows | Map(PadConstant(_0, _0, s)), rows),
        Rule("pad-no-rows", rows | PadConstant(_0, _0, row), rows),
        Rule("take-in-first", both | Take(k), xs | Take(k), (at_most(k, n),)),
        Rule("take-into-second", both | Take(k), Concat()(xs, ys | Take(Sub(k, n))),
             (at_most(n, k),)),
        Rule("drop-in-first", both | Drop(k), Concat()(xs | Drop(k), ys), (at_most(k, n),)),
        Rule("drop-into-second", both | Drop(k), ys | Drop(Sub(k, n)), (at_most(n, k),)),
    )  # fmt: skip


def _others() -> tuple[Rule, ...]:
    """One element many times, and operators in terms of others."""
    xs = term("xs", _vector(n))
    s = term("s", _F32)
    sub = schemas()["VVSub"]
    (x, y), difference = _whole(sub, n)
    table = schemas()
    found = [
        Rule("vvsub-as-vvadd", difference,
             table["VVAdd"].at(n)(x, table["VVMul"].at(n)(y, Fill(Literal(-1.0, float32), n)))),
    ]  # fmt: skip
    for name, f in _FUNCTIONS.items():
        op = Builtin(f)
        whole = table[name].at(n)
        last = _with(op, s, left=False)
        first = _with(op, s, left=True)
        found += [
            Rule(f"spread-{name}", xs | Map(last), whole(xs, Fill(s, n)), (number(n),)),
            Rule(
                f"spread-{name}-left",
                xs | Map(first),
                whole(Fill(s, n), xs),
                (number(n),),
            ),
        ]
    return tuple(found)


def _with(op: Builtin, s: Term, left: bool) -> Fun:
    """The scalar function with `s` as one of its operands."""
    if left:
        return fn(lambda e: op(s, e))
    return fn(lambda e: op(e, s))
