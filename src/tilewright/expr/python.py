"""Expressions as Python text that builds them, and back without trusting the text.

`evaluate(show(e), scope() | names)` is `e` itself, node for node; the printed forms of the
notations use it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.expr import nodes as n
from tilewright.expr.functions import FUNCTIONS
from tilewright.expr.nodes import Const, Expr, as_expr, const
from tilewright.expr.printer import INFIX
from tilewright.ir.node import Node

MAX_WRITTEN = (
    20_000  # nodes of one text, shared parts counted as often as they are written
)

_UNARY, _ATOM, _COMPARE = 8, 9, 1
# Python asks the right operand of these where the left one is a number.
_REFLECTED = (n.Add, n.Sub, n.Mul, n.Div, n.Lt, n.Le)
_CALLED: dict[type[Expr], str] = {
    n.Min: "min",
    n.Max: "max",
    n.Rem: "rem",
    n.Eq: "eq",
    n.Ne: "ne",
    n.Shl: "shl",
    n.Shr: "shr",
}
_OPERATORS = {t: row for t, row in INFIX.items() if t not in _CALLED}


# -- to text


def show(
    e: Expr,
    names: Mapping[Node, str] | None = None,
) -> str:
    """Python text whose value is `e`; `names` are the words for subexpressions and variables.

    Raises UnsupportedError if sharing makes the text too long.
    """
    return _Writer(names or {}).text(e, 0)


def dtype_name(dtype: DType) -> str:
    """The name of a dtype in `scope()`: its own, but `bool_`."""
    return "bool_" if dtype.is_bool else dtype.name


class _Writer:
    def __init__(self, names: Mapping[Node, str]) -> None:
        self.names = names
        self.room = MAX_WRITTEN

    def text(self, e: Expr, tightness: int) -> str:
        """`e`, in parentheses if it binds less than `tightness`."""
        self.room -= 1
        if self.room < 0:
            raise UnsupportedError(
                f"the expression is longer than {MAX_WRITTEN} nodes in writing"
            )
        if e in self.names:
            return self.names[e]
        body, own = self._body(e)
        return f"({body})" if own < tightness else body

    def _body(self, e: Expr) -> tuple[str, int]:
        if isinstance(e, n.Binary):
            return self._binary(e)
        match e:
            case n.Const():
                return f"const({_number(e)}, {dtype_name(e.type)})", _ATOM
            case n.Var():
                return e.name, _ATOM
            case n.Neg():
                return f"-{self.text(e.value, _UNARY)}", _UNARY
            case n.Not():
                return f"~{self.text(e.value, _UNARY)}", _UNARY
            case n.Call():
                return f"{e.function}({self._list(e.args)})", _ATOM
            case n.Cast():
                return f"cast({self.text(e.value, 0)}, {dtype_name(e.type)})", _ATOM
            case n.Bitcast():
                return f"bitcast({self.text(e.value, 0)}, {dtype_name(e.type)})", _ATOM
            case n.Select():
                arms = self._pair(e.then, e.otherwise)
                return f"select({self.text(e.condition, 0)}, {', '.join(arms)})", _ATOM
            case n.Load():
                return f"{e.buffer.name}[{self._list(e.index)}]", _ATOM
        raise UnsupportedError(f"{type(e).__name__} has no form in Python")

    def _binary(self, e: n.Binary) -> tuple[str, int]:
        if type(e) in _CALLED:
            return f"{_CALLED[type(e)]}({', '.join(self._pair(e.lhs, e.rhs))})", _ATOM
        word, own = _OPERATORS[type(e)]
        left = own + 1 if own == _COMPARE else own
        reflected = isinstance(e, _REFLECTED)
        lhs, rhs = self._pair(e.lhs, e.rhs, reflected, (left, own + 1))
        return f"{lhs} {word} {rhs}", own

    def _pair(
        self,
        a: Expr,
        b: Expr,
        both: bool = True,
        tight: tuple[int, int] = (0, 0),
    ) -> tuple[str, str]:
        """Two operands of one dtype: a constant is a number where the other tells the dtype."""
        if isinstance(b, Const) and a.dtype is b.type:
            return self.text(a, tight[0]), _number(b)
        if (
            isinstance(a, Const)
            and not isinstance(b, Const)
            and both
            and a.type is b.dtype
        ):
            return _number(a), self.text(b, tight[1])
        return self.text(a, tight[0]), self.text(b, tight[1])

    def _list(self, items: tuple[Expr, ...]) -> str:
        return ", ".join(self.text(i, 0) for i in items)


def _number(e: Const) -> str:
    return repr(e.value)


# -- the names that texts are made of


def _typed(
    f: Callable[[Expr, Expr], Expr], text: str | None = None
) -> Callable[[Any, Any], Any]:
    """`f` of two operands, one of which may be a number. text: the docstring of the function."""

    def apply(a: Any, b: Any) -> Expr:
        known = a if isinstance(a, Expr) else b
        if not isinstance(known, Expr):
            raise InputError(
                f"{a!r} and {b!r} are both numbers",
                hint="one of them has to be an expression, which says the dtype",
            )
        return f(
            as_expr(a, known.dtype),
            as_expr(b, known.dtype),
        )

    apply.__doc__ = text
    return apply


def select(
    condition: Expr,
    then: Any,
    otherwise: Any,
) -> Expr:
    """`then` where the condition holds, else `otherwise`; one of the two may be a number."""
    return _typed(lambda a, b: n.Select(condition, a, b))(then, otherwise)  # type: ignore[no-any-return]


def cast(value: Expr, dtype: Any) -> Expr:
    """`value` converted to a dtype; itself if it has it."""
    to = dtypes.dtype_of(dtype)
    if value.dtype is to:
        return value
    return n.Cast(value, to)


def _call(name: str) -> Callable[..., Expr]:
    def apply(*args: Expr) -> Expr:
        return n.Call(name, args)

    apply.__name__ = name
    apply.__doc__ = f"`{name}` of expressions of one dtype."
    return apply


FUNCTION_NAMES: Mapping[str, Callable[..., Any]] = {
    **{name: _call(name) for name in FUNCTIONS},
    **{
        word: _typed(
            kind, f"{kind.__name__} of `a` and `b`, one of which may be a number."
        )
        for kind, word in _CALLED.items()
    },
    "select": select,
    "cast": cast,
    "bitcast": n.Bitcast,
    "const": const,
}


def scope() -> dict[str, Any]:
    """Every name that `show` may write, except buffers and variables."""
    types = {dtype_name(t): t for t in dtypes.ALL}
    # A notation adds its own functions when it is imported.
    added = {name: _call(name) for name in FUNCTIONS if name not in FUNCTION_NAMES}
    return {
        **types,
        **added,
        **FUNCTION_NAMES,
        "inf": float("inf"),
        "nan": float("nan"),
    }


# -- from text

_ALLOWED = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Tuple, ast.List),
    *(
        ast.BinOp,
        ast.UnaryOp,
        ast.Compare,
        ast.Call,
        ast.keyword,
        ast.Subscript,
        ast.Slice,
    ),
    *(ast.Lambda, ast.arguments, ast.arg),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.MatMult),
    *(ast.BitAnd, ast.BitOr, ast.BitXor, ast.RShift, ast.Invert, ast.USub),
    *(ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)

_APPLIED = (
    type(None),
    ast.Name,
    ast.Call,
    ast.Subscript,
)  # of others Python itself warns


def _applied(node: ast.AST) -> ast.expr | None:
    """What a call calls or a subscript takes an element of."""
    match node:
        case ast.Call(func=f):
            return f
        case ast.Subscript(value=v):
            return v
    return None


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression over `names` alone.

    Only calls, lambdas, subscripts, tuples, lists, numbers, words and the operators that
    expressions have are accepted: no attribute, no power, no comprehension. Raises InputError
    (TW-SYNTAX) for anything else.
    """
    try:
        tree = ast.parse(as_text(text).strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _refusal(f"this is not an expression: {error}") from None
    bound = {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    for node in ast.walk(tree):
        at = f"line {getattr(node, 'lineno', 1)}"
        if not isinstance(node, _ALLOWED):
            what = type(node).__name__
            hint = (
                "write calls, lambdas, subscripts, tuples, lists, numbers and operators"
            )
            raise _refusal(f"{what} is not allowed in a printed form", at, hint)
        if not isinstance(_applied(node), _APPLIED):
            hint = "call or index a word, a call or a subscript"
            raise _refusal("only what has a name is applied", at, hint)
        if isinstance(node, ast.Name) and node.id not in bound and node.id not in names:
            hint = "the notation's own words and the parameters of lambdas are known"
            raise _refusal(f"unknown name {node.id!r}", at, hint)
    try:
        code = compile(tree, "<printed form>", "eval")
        return eval(code, {"__builtins__": {}, **names})
    except (
        SyntaxError,
        TypeError,
        ValueError,
        KeyError,
        IndexError,
        ZeroDivisionError,
        NameError,
    ) as error:
        raise _refusal(f"this has no meaning: {error}") from error


def as_text(given: Any) -> str:
    """`given`, if it is text. Raises InputError (TW-SYNTAX) for anything else."""
    if isinstance(given, str):
        return given
    shown = repr(given)
    shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
    raise _refusal(
        f"expected the text of a printed form, found {shown} ({type(given).__name__})",
        hint="give the text that show() returned",
    )


def _refusal(
    message: str,
    where: str = "printed form",
    hint: str = "write it as show() prints it",
) -> InputError:
    return InputError(
        message,
        code="TW-SYNTAX",
        where=where,
        hint=hint,
    )
