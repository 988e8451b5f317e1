"""Sizes in an exported program: checked as text before sympy evaluates them.

    expr = "Symbol('s0', positive=True, integer=True)" | Integer(4) | Rational(1, 2) | true | oo
         | Add(expr, ...) | Mul(expr, ...) | FloorDiv(expr, expr) | Pow(expr, Integer(2)) | ...

This is the output of `sympy.srepr` and nothing else of Python: no operators, no attributes, and
only the listed names. Every accepted expression is a call of listed constructors on numbers and
symbols. Numbers and powers must be small, since sympy computes them.
"""

from __future__ import annotations

import ast
import re
from typing import Final

from tilewright.base.errors import ModelError

SYMBOL: Final = re.compile(r"[a-z]{1,6}[0-9]{1,5}")
_LONGEST: Final = 20_000
_DEEPEST: Final = 60
_LARGEST: Final = 1 << 64
_LARGEST_POWER: Final = 8

_NAMES: Final = frozenset({"true", "false", "oo", "int_oo", "zoo", "nan"})
_FUNCTIONS: Final = frozenset(
    "Add Mul Max Min Abs floor ceiling Mod PythonMod FloorDiv CleanDiv CeilDiv "
    "ModularIndexing Where IntTrueDiv FloatTrueDiv ToFloat TruncToInt TruncToFloat FloorToInt "
    "CeilToInt RoundToInt RoundDecimal Identity And Or Not Equality Unequality GreaterThan "
    "LessThan StrictGreaterThan StrictLessThan Piecewise ExprCondPair Tuple "
    "IsNonOverlappingAndDenseIndicator".split()
)
_NUMBERS: Final = frozenset({"Integer", "Rational", "Float"})
_POWERS: Final = frozenset({"Pow", "PowByNatural", "FloatPow"})
_ASSUMPTIONS: Final = frozenset(
    {"positive", "integer", "nonnegative", "nonzero", "real", "zero", "precision"}
)


def check(text: str) -> None:
    """Raise ModelError unless `text` is an expression of the grammar above."""
    if len(text) > _LONGEST:
        raise _refused(text)
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise _refused(text) from None
    if not _is_expression(tree, 0, _LARGEST_POWER):
        raise _refused(text)


def _is_expression(node: ast.expr, depth: int, power: int) -> bool:
    if depth > _DEEPEST:
        return False
    if isinstance(node, ast.Name):
        return node.id in _NAMES
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    name = node.func.id
    if not all(_is_assumption(k) for k in node.keywords):
        return False
    if name == "Symbol":
        return len(node.args) == 1 and _is_symbol(node.args[0])
    if node.keywords and name not in _NUMBERS:
        return False
    if name in _NUMBERS:
        return 1 <= len(node.args) <= 2 and all(map(_is_number, node.args))
    if name in _POWERS:
        exponent = _exponent(node)
        # Nested powers are bounded as a whole.
        return 0 < exponent <= power and _is_expression(
            node.args[0], depth + 1, power // exponent
        )
    return name in _FUNCTIONS and all(
        _is_expression(a, depth + 1, power) for a in node.args
    )


def _exponent(node: ast.Call) -> int:
    """The exponent of a power, if it is a number, without its sign; otherwise 0."""
    if len(node.args) != 2 or not isinstance(node.args[1], ast.Call):
        return 0
    call = node.args[1]
    if (
        not isinstance(call.func, ast.Name)
        or call.func.id != "Integer"
        or len(call.args) != 1
    ):
        return 0
    number = call.args[0]
    if isinstance(number, ast.UnaryOp) and isinstance(number.op, ast.USub):
        number = number.operand
    if not isinstance(number, ast.Constant) or type(number.value) is not int:
        return 0
    return number.value


def _is_symbol(node: ast.expr) -> bool:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    return SYMBOL.fullmatch(node.value) is not None


def _is_number(node: ast.expr) -> bool:
    """A number with a sign, or a number as text, which is how srepr prints floats."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    if not isinstance(node, ast.Constant):
        return False
    value = node.value
    if isinstance(value, str):
        return re.fullmatch(r"-?[0-9.]{1,30}(e[-+]?[0-9]{1,3})?", value) is not None
    return (type(value) is int or type(value) is float) and abs(value) <= _LARGEST


def _is_assumption(keyword: ast.keyword) -> bool:
    if keyword.arg not in _ASSUMPTIONS or not isinstance(keyword.value, ast.Constant):
        return False
    value = keyword.value.value
    return type(value) is bool or (keyword.arg == "precision" and value in range(1, 65))


def _refused(text: str) -> ModelError:
    return ModelError(
        f"the size {text[:80]!r} is not an expression of PyTorch's exporter",
        hint="The file is damaged, or crafted to run code",
    )
