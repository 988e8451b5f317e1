"""The rules of an accelerator: operators recognized, split to the sizes it has, kept on the chip.

Made for one Accelerator, from the table of operators in `device`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, float32
from tilewright.expr.nodes import Expr, Sub, const
from tilewright.lift.conditions import (
    SideCondition,
    at_most,
    divides,
    fits,
    holds,
    instruction,
    number,
    read,
    result,
)
from tilewright.lift.device import BINARY, UNARY, Schema, operators
from tilewright.lift.lambdas import applied
from tilewright.lift.match import size_holes
from tilewright.lift.nodes import (
    Apply,
    At,
    DeviceOp,
    Fill,
    Join,
    Literal,
    Map,
    MapSeq,
    PadConstant,
    Param,
    Reduce,
    Split,
    Take,
    Term,
    To,
    Transpose,
    Zip,
)
from tilewright.lift.rule import Rule
from tilewright.lift.rules.vocabulary import a, b, c, fn, fun, k, m, n, p, term
from tilewright.lift.types import Array

(q,) = size_holes("q")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An accelerator: the dtype of its operators, their sizes, the bytes of its memory.

    vector: the length of vector operators. rows, columns: the tile of the matrix-vector product.
    """

    vector: int
    rows: int
    columns: int
    chip: int
    dtype: DType = float32

    def has(self, op: DeviceOp) -> bool:
        """Whether it is one of its instructions."""
        if op.name.startswith(("VV",)):
            return op.sizes == (self.vector,)
        return op.name.startswith("MVMul") and op.sizes == (self.rows, self.columns)


def rules(machine: Accelerator) -> Mapping[str, Rule]:
    """All rules for the machine, by name."""
    table = operators(machine.dtype)
    zero = Literal(0.0 if machine.dtype.is_float else 0, machine.dtype)
    vectors = [table[name] for name in (*BINARY, *UNARY) if name in table]
    found = [
        *(rule for schema in table.values() for rule in _meaning(schema)),
        *(rule for schema in vectors for rule in _vectors(schema, zero)),
        *_matrix_vector(table, zero),
        *_matrices(table),
        *_issues(),
        *_memories(machine.chip),
    ]
    return {rule.name: rule for rule in found}


def _meaning(schema: Schema) -> tuple[Rule, Rule]:
    """An operator equals its meaning."""
    sizes = (m, n, k)[: schema.sizes]
    operands, whole = _whole(schema, *sizes)
    meaning = applied(schema.meaning(*operands))
    return (
        Rule(
            f"expand-{schema.name}",
            whole,
            meaning,
        ),
        Rule(
            f"recognize-{schema.name}",
            meaning,
            whole,
            when=tuple(number(s) for s in sizes),
        ),
    )


def _vectors(schema: Schema, zero: Term) -> tuple[Rule, Rule]:
    """Pieces of p elements; a vector of another length is made longer first."""
    operands, whole = _whole(schema, n)
    rows = tuple(x | Split(p) for x in operands)
    zipped_rows = Zip()(*rows) if len(rows) > 1 else rows[0]
    longer = tuple(x | PadConstant(_0, Sub(p, n), zero) for x in operands)
    return (
        Rule(
            f"tile-{schema.name}",
            whole,
            zipped_rows | Map(schema.at(p)) | Join(),
            when=(divides(p, n),),
        ),
        Rule(
            f"pad-{schema.name}",
            whole,
            Apply(schema.at(p), longer) | Take(n),
            when=(at_most(n, p),),
        ),
    )


def _matrix_vector(table: Mapping[str, Schema], zero: Term) -> tuple[Rule, ...]:
    """Tiles of p rows and q columns; the products of columns are partial sums."""
    product = table["MVMul"]
    add = table["VVAdd"]
    (matrix, v), whole = _whole(product, m, n)
    columns = Zip()(matrix | Map(Split(q)) | Transpose(), v | Split(q))
    more_rows = PadConstant(_0, Sub(p, m), Fill(zero, n))
    more_elements = PadConstant(_0, Sub(q, n), zero)
    return (
        Rule(
            "tile-MVMul-rows",
            whole,
            matrix
            | Split(p)
            | Map(fn(lambda rows: product.at(p, n)(rows, v)))
            | Join(),
            when=(divides(p, m),),
        ),
        Rule(
            "tile-MVMul-columns",
            whole,
            columns
            | Map(fn(lambda tile, part: product.at(m, q)(tile, part)))
            | Reduce(add.at(m), Fill(zero, m))
            | At(_0),
            when=(divides(q, n),),
        ),
        Rule(
            "pad-MVMul-rows",
            whole,
            product.at(p, n)(matrix | more_rows, v) | Take(m),
            when=(at_most(m, p),),
        ),
        Rule(
            "pad-MVMul-columns",
            whole,
            product.at(m, q)(matrix | Map(more_elements), v | more_elements),
            when=(at_most(n, q),),
        ),
    )


def _matrices(table: Mapping[str, Schema]) -> tuple[Rule, ...]:
    """Operators on matrices as ones on their rows."""
    (x, y), product = _whole(table["MMMul"], m, n, k)
    (u, v), sums = _whole(table["MMAdd"], m, n)
    (w, bias), biased = _whole(table["MVAdd"], m, n)
    vector = table["MVMul"].at(k, n)
    add = table["VVAdd"].at(n)
    return (
        Rule(
            "rows-MMMul",
            product,
            x | Map(fn(lambda row: vector(y | Transpose(), row))),
        ),
        Rule(
            "rows-MMAdd",
            sums,
            Zip()(u, v) | Map(add),
        ),
        Rule(
            "rows-MVAdd",
            biased,
            w | Map(fn(lambda row: add(row, bias))),
        ),
    )


def _issues() -> tuple[Rule, ...]:
    """Which instruction runs on which element: one after the other."""
    xs = term("xs", Array(a, n))
    one = fun("f", a, b)
    then = fun("g", b, c)
    device = holds(one, (DeviceOp,))
    both = xs | Map(fn(lambda x: then(one(x))))
    return (
        Rule(
            "chain",
            xs | Map(one) | Map(then),
            both,
            when=(device, holds(then, (DeviceOp,))),
        ),
        Rule("issue", xs | Map(one), xs | MapSeq(one), when=(device, result())),
    )


def _memories(chip: int) -> tuple[Rule, ...]:
    """The destination of an instruction's result."""
    x = term("x", a)
    y = term("y", b)
    z = term("z", b)
    xs = term("xs", Array(a, n))
    one = fun("f", a, b)
    two = fun("f", a, b, c)
    fold = fun("f", b, a, b)
    on_chip = (read("chip"), fits("chip", chip))

    def stored(memory: str, *when: SideCondition) -> tuple[Rule, ...]:
        """The rules for instructions of one and of two operands."""
        return tuple(
            Rule(
                f"to-{memory}-{len(operands)}",
                f(*operands),
                To(memory, f)(*operands),
                when=(instruction(f), *when),
            )
            for f, operands in ((one, (x,)), (two, (x, y)))
        )

    reduced = Rule(
        "to-chip-reduce",
        xs | Reduce(fold, z),
        xs | To("chip", Reduce(fold, z)),
        when=(instruction(fold), *on_chip),
    )
    return (
        *stored("chip", *on_chip),
        reduced,
        *stored("dram"),
        *stored("output", result()),
    )


_0 = const(0)


def _whole(schema: Schema, *sizes: Expr) -> tuple[tuple[Param, ...], Term]:
    """Holes for the operands, and the operator on them."""
    operands = tuple(term(f"x{i}", t) for i, t in enumerate(schema.operands(*sizes)))
    return operands, Apply(schema.at(*sizes), operands)
