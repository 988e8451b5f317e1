"""The algebra of expressions: one row per rule, in the order in which they are tried.

Normal form: constants are on the right; a sum leans left and ends in its constant; `x - c` is
`x + (-c)`; index products are distributed over sums with constant factors; a comparison of indices
with a constant is `x < c` or `c <= x`. Sorts (see `expr.patterns`) say on which dtypes a row holds.

Tests check every row on small integers and prove it; a row with a function on its right, or one
that a prover cannot treat, says why it is right.
"""

from __future__ import annotations

from tilewright.expr import sums
from tilewright.expr.fold import fold
from tilewright.expr.nodes import (
    Add,
    And,
    Binary,
    Bitcast,
    Call,
    Cast,
    Div,
    Eq,
    Expr,
    FloorDiv,
    Le,
    Lt,
    Max,
    Min,
    Mod,
    Mul,
    Ne,
    Neg,
    Not,
    Or,
    Rem,
    Select,
    Shl,
    Shr,
    Sub,
    Xor,
    const,
)
from tilewright.expr.patterns import ANY, BOOL, FAMILY, FLOAT, IDX, INT, divides, holes
from tilewright.ir.rewrite import Rule, RuleSet

x, y, z = holes("x y z", INT)
(t,) = holes("t", INT, "term")
c, d = holes("c d", INT, "const")
i, j, k = holes("i j k", IDX)
s, w = holes("s w", IDX, "term")
a, b, m, n, h = holes("a b m n h", IDX, "const")
p, q, r = holes("p q r", BOOL)
(pt,) = holes("p", BOOL, "term")
(pc,) = holes("c", BOOL, "const")
u, v, o = holes("u v o", ANY)
e, f = holes("e f", ANY, "const")
fx, fy = holes("x y", FLOAT)
(ft,) = holes("t", FLOAT, "term")
(fc,) = holes("c", FLOAT, "const")
TRUE = const(True, BOOL)
FALSE = const(False, BOOL)
ZERO = const(0, INT)

_BINARY: tuple[type[Binary], ...] = (
    Add, Sub, Mul, Div, FloorDiv, Mod, Rem, Min, Max, And, Or, Xor, Shl, Shr, Lt, Le, Eq, Ne,
)  # fmt: skip
_UNARY: tuple[type[Neg | Not], ...] = (Neg, Not)
_WITH_DATA: tuple[type[Expr], ...] = (Call, Cast, Bitcast)
_TABLE = "expr.fold is the interpreter itself, or compared with it"


def _fold(
    kind: type[Expr],
    left: Expr | type[Expr],
) -> Rule:
    return Rule(f"fold-{kind.__name__.lower()}", left, fold, reason=_TABLE)


FOLD = RuleSet(
    "fold",
    (
        *(_fold(kind, kind(e, f)) for kind in _BINARY),
        *(_fold(kind, kind(e)) for kind in _UNARY),
        *(_fold(kind, kind) for kind in _WITH_DATA),
    ),
    FAMILY,
)

# Two terms of a sum become one; also applied to terms that are not neighbors.
PAIRS = RuleSet(
    "pairs",
    (
        Rule("sub-self", x - x, ZERO),
        Rule("add-self", t + t, t * 2),
        Rule("add-mul-mul", x * c + x * d, x * (c + d)),
        Rule("add-mul-self", x * c + x, x * (c + 1)),
        Rule("add-self-mul", x + x * c, x * (c + 1)),
        Rule("sub-mul-mul", x * c - x * d, x * (c - d)),
        Rule("sub-mul-self", x * c - x, x * (c - 1)),
        Rule("sub-self-mul", x - x * c, x * (1 - c)),
        # A quotient and its remainder make the whole: split indices are joined again here.
        Rule("div-mod", (i // a) * b + i % a, i,
             when=[a.eq(b), a.ne(0)]),
        Rule("div-mod-scaled", (i // a) * b + (i % a) * m, i * m,
             when=[a.ne(0), b.eq(a * m)]),
        Rule("div-mod-part", (i // a) * b + (i // m) % b, i // m,
             when=[m > 0, b > 0, a.eq(b * m)]),
        Rule("div-mod-part-scaled", (i // a) * b + ((i // m) % n) * h, (i // m) * h,
             when=[m > 0, n > 0, a.eq(n * m), b.eq(n * h)]),
        Rule("sub-div", i - (i // a) * b, i % a,
             when=[a.eq(b), a.ne(0)]),
    ),
    FAMILY,
)  # fmt: skip

_COLLECTED = "the rules of `pairs`, on two terms of one sum; sums commute"
_collect = sums.collector(PAIRS)

SUM = RuleSet(
    "sum",
    (
        Rule("add-zero", x + 0, x),
        Rule("add-commute", c + t, t + c),
        Rule("add-const", (x + c) + d, x + (c + d)),
        Rule("sub-const", x - c, x + -c),
        Rule("const-sub", c - t, -t + c),
        Rule("add-left-const", (x + c) + t, (x + t) + c),
        Rule("sub-left-const", (x + c) - t, (x - t) + c),
        Rule("add-assoc", x + (y + z), (x + y) + z),
        Rule("add-sub-assoc", x + (y - z), (x + y) - z),
        Rule("sub-add-assoc", x - (y + z), (x - y) - z),
        Rule("sub-sub-assoc", x - (y - z), (x - y) + z),
        Rule("add-neg", x + -y, x - y),
        Rule("neg-add-term", -x + t, t - x),
        Rule("sub-neg", x - -y, x + y),
        Rule("add-negative-mul", i + j * a, i - j * -a, when=[a < 0]),
        Rule("sub-negative-mul", i - j * a, i + j * -a, when=[a < 0]),
        Rule("sub-of-add", (x + y) - y, x),
        Rule("sub-of-add-left", (x + y) - x, y),
        Rule("add-of-sub", (x - y) + y, x),
        Rule("sub-of-sub", (x - y) - x, -y),
        Rule("neg-neg", Neg(-x), x),
        Rule("neg-sub", -(x - y), y - x),
        Rule("neg-add", -(x + y), -x - y),
        Rule("neg-mul", -(x * c), x * -c),
        *PAIRS.rules,
        Rule("add-collect", Add(x, t), _collect, reason=_COLLECTED),
        Rule("sub-collect", Sub(x, t), _collect, reason=_COLLECTED),
    ),
    FAMILY,
)

PRODUCT = RuleSet(
    "product",
    (
        Rule("mul-zero", x * 0, ZERO),
        Rule("mul-one", x * 1, x),
        Rule("mul-minus-one", x * -1, -x),
        Rule("mul-commute", c * t, t * c),
        Rule("mul-const", (x * c) * d, x * (c * d)),
        Rule("mul-neg", -x * c, x * -c),
        Rule("mul-left-const", (x * c) * t, (x * t) * c),
        Rule("mul-right-const", x * (y * c), (x * y) * c),
        Rule("mul-add", (i + j) * a, i * a + j * a),
        Rule("mul-sub", (i - j) * a, i * a - j * a),
    ),
    FAMILY,
)

_SPLIT = "floor((d*x + y) / d) = x + floor(y / d) for every x, summed over the terms"

QUOTIENT = RuleSet(
    "quotient",
    (
        Rule("div-one", Div(x, const(1, INT)), x),
        Rule("div-by-zero", Div(x, ZERO), ZERO),
        Rule("rem-one", Rem(x, const(1, INT)), ZERO),
        Rule("rem-by-zero", Rem(x, ZERO), ZERO),
        Rule("floordiv-one", x // 1, x),
        Rule("floordiv-by-zero", x // 0, ZERO),
        Rule("floordiv-of-zero", ZERO // x, ZERO),
        Rule("mod-one", x % 1, ZERO),
        Rule("mod-by-zero", x % 0, ZERO),
        Rule("mod-of-zero", ZERO % x, ZERO),
        Rule("div-mul", (i * a) // b, i * (a // b),
             when=[b.ne(0), divides(b, a)]),
        Rule("div-mul-part", (i * a) // b, i // (b // a),
             when=[a > 0, b.ne(0), divides(a, b)]),
        Rule("div-div", (i // a) // b, i // (a * b),
             when=[a > 0, b > 0]),
        Rule("div-mod-zero", (i % a) // b, const(0, IDX),
             when=[a > 0, b >= a]),
        Rule("div-mod-swap", (i % a) // b, (i // b) % (a // b),
             when=[b > 0, a > 0, divides(b, a)]),
        Rule("div-add-mul", (i * a + j) // b, i * (a // b) + j // b,
             when=[b.ne(0), divides(b, a)]),
        Rule("div-add-mul-right", (j + i * a) // b, j // b + i * (a // b),
             when=[b.ne(0), divides(b, a)]),
        Rule("div-add-const", (i + a) // b, (i + a % b) // b + a // b,
             when=[b > 0, (a < 0) | (a >= b)]),
        Rule("div-div-const", (i // a + m) // b, (i + m * a) // (a * b),
             when=[a > 0, b > 0]),
        Rule("div-sum", s // a, sums.divide_sum, reason=_SPLIT),
        Rule("mod-mul", (i * a) % b, const(0, IDX),
             when=[b.ne(0), divides(b, a)]),
        Rule("mod-mul-part", (i * a) % b, (i % (b // a)) * a,
             when=[a > 0, b > 0, divides(a, b)]),
        Rule("mod-mod", (i % a) % b, i % b,
             when=[a > 0, b > 0, divides(b, a)]),
        Rule("mod-mod-small", (i % a) % b, i % a,
             when=[a > 0, b >= a]),
        Rule("mod-add-mul", (i * a + j) % b, j % b,
             when=[b.ne(0), divides(b, a)]),
        Rule("mod-add-mul-right", (j + i * a) % b, j % b,
             when=[b.ne(0), divides(b, a)]),
        Rule("mod-add-mod", (i % a + j) % b, (i + j) % b,
             when=[a > 0, b > 0, divides(b, a)]),
        Rule("mod-add-mod-right", (j + i % a) % b, (j + i) % b,
             when=[a > 0, b > 0, divides(b, a)]),
        Rule("mod-add-const", (i + a) % b, (i + a % b) % b,
             when=[b > 0, (a < 0) | (a >= b)]),
        Rule("mod-sum", s % a, sums.mod_sum, reason=_SPLIT),
    ),
    FAMILY,
)  # fmt: skip

ORDER = RuleSet(
    "order",
    (
        Rule("min-self", Min(x, x), x),
        Rule("min-commute", Min(c, t), Min(t, c)),
        Rule("min-const", Min(Min(x, c), d), Min(x, Min(c, d))),
        Rule("min-left-const", Min(Min(x, c), t), Min(Min(x, t), c)),
        Rule("min-again", Min(Min(x, y), x), Min(x, y), commute=True),
        Rule("min-of-max", Min(Max(x, y), x), x, commute=True),
        Rule("min-max-const", Min(Max(x, c), d), d,
             when=[d <= c]),
        Rule("min-shifted", Min(i + a, i + b), i + Min(a, b)),
        Rule("min-shifted-left", Min(i + a, i), i + Min(a, const(0, IDX))),
        Rule("min-shifted-right", Min(i, i + a), i + Min(a, const(0, IDX))),
        Rule("min-scaled", Min(i * a, b), Min(i, b // a) * a,
             when=[a > 1, divides(a, b)]),
        Rule("max-self", Max(x, x), x),
        Rule("max-commute", Max(c, t), Max(t, c)),
        Rule("max-const", Max(Max(x, c), d), Max(x, Max(c, d))),
        Rule("max-left-const", Max(Max(x, c), t), Max(Max(x, t), c)),
        Rule("max-again", Max(Max(x, y), x), Max(x, y), commute=True),
        Rule("max-of-min", Max(Min(x, y), x), x, commute=True),
        Rule("max-min-const", Max(Min(x, c), d), d,
             when=[c <= d]),
        Rule("max-shifted", Max(i + a, i + b), i + Max(a, b)),
        Rule("max-shifted-left", Max(i + a, i), i + Max(a, const(0, IDX))),
        Rule("max-shifted-right", Max(i, i + a), i + Max(a, const(0, IDX))),
        Rule("max-scaled", Max(i * a, b), Max(i, b // a) * a,
             when=[a > 1, divides(a, b)]),
    ),
    FAMILY,
)  # fmt: skip

COMPARE = RuleSet(
    "compare",
    (
        Rule("lt-self", Lt(u, u), FALSE),
        Rule("le-self", Le(x, x), TRUE),
        Rule("eq-self", Eq(x, x), TRUE),
        Rule("ne-self", Ne(x, x), FALSE),
        Rule("eq-commute", Eq(c, t), Eq(t, c)),
        Rule("ne-commute", Ne(c, t), Ne(t, c)),
        Rule("eq-add", Eq(x + c, d), Eq(x, d - c)),
        Rule("ne-add", Ne(x + c, d), Ne(x, d - c)),
        Rule("eq-mul", Eq(i * a, b), Eq(i, b // a),
             when=[a.ne(0), divides(a, b)]),
        Rule("ne-mul", Ne(i * a, b), Ne(i, b // a),
             when=[a.ne(0), divides(a, b)]),
        Rule("eq-mul-never", Eq(i * a, b), FALSE,
             when=[a.ne(0), (b % a).ne(0)]),
        Rule("ne-mul-never", Ne(i * a, b), TRUE,
             when=[a.ne(0), (b % a).ne(0)]),
        Rule("eq-true", p.eq(TRUE), p),
        Rule("eq-false", p.eq(FALSE), ~p),
        Rule("ne-true", p.ne(TRUE), ~p),
        Rule("ne-false", p.ne(FALSE), p),
        Rule("le-to-lt", s <= a, s < a + 1),
        Rule("lt-to-le", a < s, a + 1 <= s),
        Rule("lt-add", i + a < j, i < j + -a),
        Rule("le-add", i + a <= j, i <= j + -a),
        Rule("le-const-add", a <= i + b, a - b <= i),
        Rule("lt-same-add", i < i + a, const(0, IDX) < a),
        Rule("le-same-add", i <= i + a, const(0, IDX) <= a),
        Rule("lt-mul", i * a < b, i < -(-b // a),
             when=[a > 0]),
        Rule("le-mul", b <= i * a, -(-b // a) <= i,
             when=[a > 0]),
        Rule("lt-mul-negative", i * a < b, b // a + 1 <= i,
             when=[a < 0]),
        Rule("le-mul-negative", b <= i * a, i < b // a + 1,
             when=[a < 0]),
        Rule("lt-neg", -i < a, 1 - a <= i),
        Rule("le-neg", a <= -i, i < 1 - a),
        Rule("lt-div", i // a < b, i < a * b,
             when=[a > 0]),
        Rule("le-div", b <= i // a, a * b <= i,
             when=[a > 0]),
        Rule("lt-mod", i % a < b, TRUE,
             when=[a > 0, b >= a]),
        Rule("le-mod", b <= i % a, TRUE,
             when=[a > 0, b <= 0]),
    ),
    FAMILY,
)  # fmt: skip

LOGIC = RuleSet(
    "logic",
    (
        Rule("not-not", ~~x, x),
        Rule("not-not-bool", ~~p, p),
        Rule("not-lt", ~(x < y), y <= x),
        Rule("not-le", ~(x <= y), y < x),
        Rule("not-eq", ~Eq(u, v), Ne(u, v)),
        Rule("not-ne", ~Ne(u, v), Eq(u, v)),
        Rule("and-commute", pc & pt, pt & pc),
        Rule("and-true", p & TRUE, p),
        Rule("and-false", p & FALSE, FALSE),
        Rule("and-self", p & p, p),
        Rule("and-again", (p & q) & p, p & q, commute=True),
        Rule("and-or", (p | q) & p, p, commute=True),
        Rule("and-not", p & ~p, FALSE, commute=True),
        Rule("and-lt", (i < a) & (i < b), i < Min(a, b)),
        Rule("and-le", (a <= i) & (b <= i), Max(a, b) <= i),
        Rule("and-lt-apart", (p & (i < a)) & (i < b), p & (i < Min(a, b))),
        Rule("and-le-apart", (p & (a <= i)) & (b <= i), p & (Max(a, b) <= i)),
        Rule("and-assoc", p & (q & r), (p & q) & r),
        Rule("or-commute", pc | pt, pt | pc),
        Rule("or-true", p | TRUE, TRUE),
        Rule("or-false", p | FALSE, p),
        Rule("or-self", p | p, p),
        Rule("or-again", (p | q) | p, p | q, commute=True),
        Rule("or-and", (p & q) | p, p, commute=True),
        Rule("or-not", p | ~p, TRUE, commute=True),
        Rule("or-lt", (i < a) | (i < b), i < Max(a, b)),
        Rule("or-le", (a <= i) | (b <= i), Min(a, b) <= i),
        Rule("or-assoc", p | (q | r), (p | q) | r),
        Rule("xor-self", p ^ p, FALSE),
        Rule("xor-false", p ^ FALSE, p, commute=True),
        Rule("xor-true", p ^ TRUE, ~p, commute=True),
        Rule("bits-and-zero", x & 0, ZERO, commute=True),
        Rule("bits-and-ones", x & -1, x, commute=True),
        Rule("bits-and-self", x & x, x),
        Rule("bits-or-zero", x | 0, x, commute=True),
        Rule("bits-or-self", x | x, x),
        Rule("bits-xor-zero", x ^ 0, x, commute=True),
        Rule("bits-xor-self", x ^ x, ZERO),
        Rule("shl-zero", Shl(x, ZERO), x),
        Rule("shr-zero", Shr(x, ZERO), x),
        Rule("select-true", Select(TRUE, u, v), u),
        Rule("select-false", Select(FALSE, u, v), v),
        Rule("select-same", Select(p, u, u), u),
        Rule("select-not", Select(~p, u, v), Select(p, v, u)),
        Rule("select-then", Select(p, Select(p, u, v), o), Select(p, u, o)),
        Rule("select-otherwise", Select(p, u, Select(p, v, o)), Select(p, u, o)),
        Rule("select-bool", Select(p, TRUE, FALSE), p),
        Rule("select-bool-not", Select(p, FALSE, TRUE), ~p),
        Rule("select-min", Select(x < y, x, y), Min(x, y)),
        Rule("select-min-le", Select(x <= y, x, y), Min(x, y)),
        Rule("select-max", Select(x < y, y, x), Max(x, y)),
        Rule("select-max-le", Select(x <= y, y, x), Max(x, y)),
    ),
    FAMILY,
)

# Exact for every operand: NaN, infinities and signed zeros included. x + 0.0 is not x for -0.0.
REAL = RuleSet(
    "real",
    (
        Rule("real-add-commute", fc + ft, ft + fc),
        Rule("real-mul-commute", fc * ft, ft * fc),
        Rule("real-add-zero", fx + -0.0, fx),
        Rule("real-sub-zero", fx - 0.0, fx),
        Rule("real-mul-one", fx * 1.0, fx),
        Rule("real-div-one", fx / 1.0, fx),
        Rule("real-neg-neg", Neg(-fx), fx),
        Rule("real-add-neg", fx + -fy, fx - fy),
        Rule("real-sub-neg", fx - -fy, fx + fy),
    ),
    FAMILY,
)


def _same_cast(e: Cast) -> Expr | None:
    if e.value.dtype is e.type:
        return e.value
    return None


def _same_bits(e: Bitcast) -> Expr | None:
    if e.value.dtype is e.type:
        return e.value
    if isinstance(e.value, Bitcast):
        return Bitcast(e.value.value, e.type)
    return None


CONVERSION = RuleSet(
    "conversion",
    (
        Rule(
            "cast-same",
            Cast,
            _same_cast,
            reason="a dtype to itself is not a conversion",
        ),
        Rule(
            "bitcast-same", Bitcast, _same_bits, reason="bits are read, never changed"
        ),
    ),
    FAMILY,
)

ALGEBRA = RuleSet(
    "algebra",
    tuple(
        rule
        for group in (
            FOLD,
            SUM,
            PRODUCT,
            QUOTIENT,
            ORDER,
            COMPARE,
            LOGIC,
            REAL,
            CONVERSION,
        )
        for rule in group.rules
    ),
    FAMILY,
)
