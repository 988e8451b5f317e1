"""Expressions to OpenCL C: one rule per node; what several places use becomes a constant.

Indices are int64 and are computed in `int` where their bounds prove that this is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import CompileError
from tilewright.expr import nodes
from tilewright.expr.affine import affine, to_expr
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import INDEX, Binary, Expr, Load, Select, Var
from tilewright.expr.reads import Anywhere
from tilewright.ir.node import postorder
from tilewright.targets.opencl.functions import function
from tilewright.targets.opencl.text import FunctionText
from tilewright.targets.opencl.types import (
    NARROW,
    held,
    literal,
    unsigned,
    whole,
)

_INT: Final = (-(1 << 31), (1 << 31) - 1)
_NARROWER: Final = ("bool", "char", "uchar", "short", "ushort", "int")
LONGEST: Final = 160  # letters of one expression: compilers limit how deep texts nest


@dataclass(frozen=True, slots=True)
class EmittedValue:
    """An expression of OpenCL C and its type."""

    text: str
    type: str


class OpenCLExpressions(FunctionText):
    """Adds the values of expressions to text.

    ranges: of variables, and what conditions around say. values: of variables and of expressions,
    in scopes, the innermost last.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ranges: dict[Any, Any] = {}
        self.values: list[dict[Expr, EmittedValue]] = [{}]
        self._uses: Counter[Any] = Counter()
        self._anywhere = Anywhere(self.ranges)
        self._certain: dict[Any, frozenset[Any]] = {}

    @contextmanager
    def statement(self, *roots: Expr) -> Iterator[None]:
        """While the values of a statement with these expressions are emitted."""
        self._uses = Counter()
        for node in dict.fromkeys(n for e in roots for n in postorder(e)):
            self._uses.update(node.children())
        self._uses.update(roots)
        self._certain.clear()
        self._anywhere = Anywhere(self.ranges)
        with self.scope():
            yield

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Names that are known in here only."""
        self.values.append({})
        try:
            yield
        finally:
            self.values.pop()

    def value(self, e: Expr) -> EmittedValue:
        """The value of `e`, in its held type; an index may be `int` or `long`."""
        for scope in reversed(self.values):
            if e in scope:
                return scope[e]
        if isinstance(e, nodes.Const):
            return self._constant(e)
        rule = _RULES.get(type(e))
        if rule is None:
            what = f"variable {e.name}" if isinstance(e, Var) else type(e).__name__
            raise CompileError(
                f"{what} has no OpenCL code", code="TW-OPERATION", where=str(e)
            )
        made = rule(self, e)
        if self._uses[e] > 1 or len(made.text) > LONGEST:
            made = self.named(made)
            self.values[-1][e] = made
        return made

    def named(self, value: EmittedValue) -> EmittedValue:
        """A value as its own constant."""
        name = self.fresh("t")
        self.line(f"const {value.type} {name} = {bare(value.text)};")
        return EmittedValue(name, value.type)

    def as_type(self, e: Expr, type: str) -> str:
        """The value of an index in one of the two types of indices."""
        found = self.value(e)
        return found.text if found.type == type else f"({type}){found.text}"

    def index_type(self, e: Expr) -> str:
        """The type of an index by its bounds."""
        return "int" if self._is_in(_INT, e) else "long"

    def _is_in(self, limits: tuple[int, int], e: Expr) -> bool:
        low, high = bounds(e, self.ranges)
        if low is None or high is None:
            return False
        return limits[0] <= low and high <= limits[1]

    # -- rules

    def _constant(self, e: nodes.Const) -> EmittedValue:
        if e.dtype is INDEX:
            type = self.index_type(e)
            return EmittedValue(whole(int(e.value.real), type), type)
        return EmittedValue(literal(e.value, e.dtype), held(e.dtype))

    def _rounded(self, text: str, dtype: DType) -> EmittedValue:
        """What was computed for a float, rounded to it."""
        if dtype.name in NARROW:
            text = f"{self.helpers.whole('tw_' + NARROW[dtype.name])}({bare(text)})"
        return EmittedValue(text, held(dtype))

    def _arithmetic(self, e: Binary) -> EmittedValue:
        dtype, sign = e.dtype, _SIGNS[type(e)]
        if dtype is INDEX:
            return self._index(e, sign)
        a, b = self.value(e.lhs).text, self.value(e.rhs).text
        if dtype.is_float:
            return self._rounded(f"({a} {sign} {b})", dtype)
        if dtype.is_bool:
            raise CompileError(f"{type(e).__name__} of bool has no OpenCL code")
        own = held(dtype)
        wide = unsigned(own)
        if own == wide:
            return EmittedValue(f"({a} {sign} {b})", own)
        return EmittedValue(f"({own})(({wide}){a} {sign} ({wide}){b})", own)

    def _index(self, e: Binary, sign: str) -> EmittedValue:
        """Arithmetic on indices: it wraps around only where bounds do not exclude that."""
        if self._is_short(e):
            a, b = self.as_type(e.lhs, "int"), self.as_type(e.rhs, "int")
            return EmittedValue(f"({a} {sign} {b})", "int")
        a, b = self.as_type(e.lhs, "long"), self.as_type(e.rhs, "long")
        if all(self._is_in(_INT, x) for x in (e.lhs, e.rhs)):  # which 64 bits hold
            return EmittedValue(f"({a} {sign} {b})", "long")
        return EmittedValue(f"(long)((ulong){a} {sign} (ulong){b})", "long")

    def _is_short(self, e: Binary) -> bool:
        """Whether an operation on indices is the same in 32 bits."""
        return all(self._is_in(_INT, x) for x in (e, e.lhs, e.rhs))

    def _division(self, e: Binary) -> EmittedValue:
        name = _DIVISIONS[type(e)]
        dtype = e.dtype
        a, b = self.value(e.lhs), self.value(e.rhs)
        if dtype.is_float and name in ("div", "rem"):
            text = (
                f"({a.text} / {b.text})"
                if name == "div"
                else f"fmod({bare(a.text)}, {bare(b.text)})"
            )
            return self._rounded(text, dtype)
        if dtype is INDEX:
            type_ = "int" if self._is_short(e) else "long"
            if self._is_natural(e):
                sign = "/" if name in ("div", "floordiv") else "%"
                left, right = self.as_type(e.lhs, type_), self.as_type(e.rhs, type_)
                return EmittedValue(f"({left} {sign} {right})", type_)
        else:
            type_ = held(dtype)
        called = self.helpers.binary(name, type_)
        left, right = a.text, b.text
        if dtype is INDEX:
            left, right = self.as_type(e.lhs, type_), self.as_type(e.rhs, type_)
        text = f"{called}({bare(left)}, {bare(right)})"
        return (
            self._rounded(text, dtype) if dtype.is_float else EmittedValue(text, type_)
        )

    def _is_natural(self, e: Binary) -> bool:
        """Whether nothing is negative and the divisor is not 0: C's own division is right."""
        low, least = (bounds(x, self.ranges)[0] for x in (e.lhs, e.rhs))
        return low is not None and low >= 0 and least is not None and least > 0

    def _extreme(self, e: Binary) -> EmittedValue:
        name = "max" if isinstance(e, nodes.Max) else "min"
        a, b = self.value(e.lhs), self.value(e.rhs)
        if e.dtype.is_float:
            called = self.helpers.binary(name, a.type)
            return EmittedValue(f"{called}({bare(a.text)}, {bare(b.text)})", a.type)
        if e.dtype.is_bool:
            sign = "||" if name == "max" else "&&"
            return EmittedValue(f"({a.text} {sign} {b.text})", "bool")
        type = a.type if a.type == b.type else "long"
        left, right = (
            (self.as_type(x, type) if e.dtype is INDEX else self.value(x).text)
            for x in (e.lhs, e.rhs)
        )
        return EmittedValue(f"{name}({bare(left)}, {bare(right)})", type)

    def _bits(self, e: Binary) -> EmittedValue:
        a, b = self.value(e.lhs), self.value(e.rhs)
        if e.dtype.is_bool:
            return EmittedValue(f"({a.text} {_LOGICAL[type(e)]} {b.text})", "bool")
        own = a.type if a.type == b.type else "long"
        sign = _BITWISE[type(e)]
        if e.dtype is INDEX:
            text = f"({self.as_type(e.lhs, own)} {sign} {self.as_type(e.rhs, own)})"
            return EmittedValue(text, own)
        return EmittedValue(f"({own})({a.text} {sign} {b.text})", own)

    def _shift(self, e: Binary) -> EmittedValue:
        name = "shl" if isinstance(e, nodes.Shl) else "shr"
        own = held(e.dtype)
        called = self.helpers.binary(name, own)
        a, b = self.value(e.lhs).text, self.value(e.rhs).text
        return EmittedValue(f"{called}({bare(a)}, {bare(b)})", own)

    def _compare(self, e: Binary) -> EmittedValue:
        a, b = self.value(e.lhs).text, self.value(e.rhs).text
        return EmittedValue(f"({a} {_SIGNS[type(e)]} {b})", "bool")

    def _negation(self, e: nodes.Neg) -> EmittedValue:
        found = self.value(e.value)
        if e.dtype.is_float:
            return EmittedValue(f"(-{found.text})", found.type)
        if e.dtype is INDEX and found.type == "int":
            return EmittedValue(f"(-(long){found.text})", "long")
        wide = unsigned(found.type)
        return EmittedValue(f"({found.type})(0 - ({wide}){found.text})", found.type)

    def _inversion(self, e: nodes.Not) -> EmittedValue:
        found = self.value(e.value)
        if e.dtype.is_bool:
            return EmittedValue(f"(!{found.text})", "bool")
        return EmittedValue(f"({found.type})(~{found.text})", found.type)

    def _cast(self, e: nodes.Cast) -> EmittedValue:
        source, target = e.value.dtype, e.type
        found = self.value(e.value)
        own = held(target)
        if target.is_bool:
            return EmittedValue(f"({found.text} != 0)", own)
        if target.is_int and source.is_float:
            called = self.helpers.to_integer(own, found.type)
            return EmittedValue(f"{called}({bare(found.text)})", own)
        if target is INDEX and own != found.type and found.type in _NARROWER:
            return EmittedValue(f"(int){found.text}", "int")
        if target.is_int:
            return (
                found
                if found.type == own
                else EmittedValue(f"({own}){found.text}", own)
            )
        if target.name == "float16" and found.type == "double":
            called = self.helpers.whole("tw_half_of_double")
            return EmittedValue(f"{called}({bare(found.text)})", own)
        text = found.text if found.type == own else f"({own}){found.text}"
        return (
            EmittedValue(text, own) if source is target else self._rounded(text, target)
        )

    def _bitcast(self, e: nodes.Bitcast) -> EmittedValue:
        source, target = e.value.dtype, e.type
        text, type = self.value(e.value).text, held(source)
        if source is INDEX:
            text = self.as_type(e.value, "long")
        if source.name in NARROW:
            called = self.helpers.whole(f"tw_to_{NARROW[source.name]}")
            text, type = f"{called}({bare(text)})", "ushort"
        if target.name in NARROW:
            called = self.helpers.whole(f"tw_from_{NARROW[target.name]}")
            return EmittedValue(f"{called}((ushort){text})", "float")
        own = held(target)
        if type == "bool" or own == "bool":
            raise CompileError(f"a bitcast of {source} to {target} has no OpenCL code")
        return EmittedValue(f"as_{own}({bare(text)})" if type != own else text, own)

    def _select(self, e: Select) -> EmittedValue:
        condition = self.value(e.condition)
        if self._anywhere(e.then) and self._anywhere(e.otherwise):
            then, otherwise = self.value(e.then), self.value(e.otherwise)
            type = then.type if then.type == otherwise.type else "long"
            chosen = f"({condition.text} ? {then.text} : {otherwise.text})"
            # C promotes narrower types to int.
            narrow = type in ("char", "uchar", "short", "ushort")
            return EmittedValue(f"({type}){chosen}" if narrow else chosen, type)
        for shared in self._before(e):
            self.value(shared)
        type = self.index_type(e) if e.dtype is INDEX else held(e.dtype)
        name = self.fresh("t")
        self.line(f"{type} {name};")
        condition = self.value(e.condition)
        with self.braces(f"if ({bare(condition.text)})"):
            self._assigned(name, type, e.then)
        with self.braces("else"):
            self._assigned(name, type, e.otherwise)
        return EmittedValue(name, type)

    def _before(self, e: Select) -> Iterator[Expr]:
        """What both arms use, and may be computed before it is known which one is chosen."""
        certain = self._certainly(e.then) & self._certainly(e.otherwise)
        yield from (n for n in postorder(e.then) if n in certain and self._uses[n] > 1)
        yield from self._anywhere.shared(e)

    def _certainly(self, root: Expr) -> frozenset[Expr]:
        """The expressions that are computed whenever `root` is, on any arm."""
        for e in postorder(root):
            if e in self._certain:
                continue
            parts: list[Any] = list(e.children())
            found = frozenset((e,))
            if isinstance(e, Select):
                parts = [e.condition]
                found |= self._certain[e.then] & self._certain[e.otherwise]
            self._certain[e] = found.union(*(self._certain[c] for c in parts))
        return self._certain[root]

    def _assigned(self, name: str, type: str, e: Expr) -> None:
        with self.scope():
            found = self.value(e)
            self.line(
                f"{name} = {bare(found.text)};"
                if found.type == type
                else f"{name} = ({type}){found.text};"
            )

    def _call(self, e: nodes.Call) -> EmittedValue:
        operands = [bare(self.value(a).text) for a in e.args]
        if e.args[0].dtype is INDEX:
            operands = [bare(self.as_type(a, "long")) for a in e.args]
        text = function(self.helpers, e, operands)
        if e.dtype.is_float:
            return self._rounded(text, e.dtype)
        return EmittedValue(text, held(e.dtype))

    # -- memory

    def _load(self, e: Load) -> EmittedValue:
        dtype = e.buffer.dtype
        if 0 in e.buffer.extents:
            return EmittedValue(literal(0, dtype), held(dtype))
        safe = []
        for part, extent in zip(e.index, e.buffer.shape, strict=True):
            ok = self.checked(e.buffer, part, extent)
            if ok is None:
                safe.append(part)
                continue
            found = self.value(part)
            inside = Var("checked", INDEX)
            self.values[-1][inside] = self.named(
                EmittedValue(f"({ok} ? {found.text} : 0)", found.type)
            )
            self.ranges[inside] = (0, extent - 1)
            safe.append(inside)
        text = f"{self.buffers[e.buffer]}[{self.address(e.buffer, safe)}]"
        return self.element(text, dtype)

    def checked(self, buffer: nodes.Buffer, part: Expr, extent: int) -> str | None:
        """The name of the truth that an index which data decides is inside, told if it is not.

        None for an index that is proven to be inside, or that the program promises to be.
        """
        raise NotImplementedError

    def element(self, text: str, dtype: DType) -> EmittedValue:
        """An element in memory as a value."""
        if dtype.is_bool:
            return EmittedValue(f"({text} != 0)", "bool")
        if dtype.name in NARROW:
            called = self.helpers.whole(f"tw_from_{NARROW[dtype.name]}")
            return EmittedValue(f"{called}({text})", "float")
        return EmittedValue(text, held(dtype))

    def stored(self, value: EmittedValue, dtype: DType) -> str:
        """A value as an element in memory."""
        if dtype.name in NARROW:
            called = self.helpers.whole(f"tw_to_{NARROW[dtype.name]}")
            return f"{called}({bare(value.text)})"
        return bare(value.text)

    def address(self, buffer: nodes.Buffer, index: list[Expr]) -> str:
        """The number of an element."""
        total: Expr = nodes.const(0)
        for part, stride in zip(index, buffer.strides, strict=True):
            total = total + part * stride
        return bare(self.value(to_expr(affine(total))).text)


def bare(text: str) -> str:
    """A text without the parentheses around all of it."""
    if not text.startswith("(") or not text.endswith(")"):
        return text
    depth = 0
    for n, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and n < len(text) - 1:
            return text
    return text[1:-1]


_SIGNS: Final[Mapping[type[Expr], str]] = {
    nodes.Add: "+",
    nodes.Sub: "-",
    nodes.Mul: "*",
    nodes.Lt: "<",
    nodes.Le: "<=",
    nodes.Eq: "==",
    nodes.Ne: "!=",
}
_DIVISIONS: Final[Mapping[type[Expr], str]] = {
    nodes.Div: "div",
    nodes.FloorDiv: "floordiv",
    nodes.Mod: "mod",
    nodes.Rem: "rem",
}
_LOGICAL: Final[Mapping[type[Expr], str]] = {
    nodes.And: "&&",
    nodes.Or: "||",
    nodes.Xor: "!=",
}
_BITWISE: Final[Mapping[type[Expr], str]] = {
    nodes.And: "&",
    nodes.Or: "|",
    nodes.Xor: "^",
}
_RULES: Final[Mapping[type[Expr], Callable[[Any, Any], EmittedValue]]] = {
    **dict.fromkeys((nodes.Add, nodes.Sub, nodes.Mul), OpenCLExpressions._arithmetic),
    **dict.fromkeys(_DIVISIONS, OpenCLExpressions._division),
    **dict.fromkeys((nodes.Min, nodes.Max, nodes.Overlap), OpenCLExpressions._extreme),
    **dict.fromkeys(_BITWISE, OpenCLExpressions._bits),
    **dict.fromkeys((nodes.Shl, nodes.Shr), OpenCLExpressions._shift),
    **dict.fromkeys(
        (nodes.Lt, nodes.Le, nodes.Eq, nodes.Ne), OpenCLExpressions._compare
    ),
    nodes.Neg: OpenCLExpressions._negation,
    nodes.Not: OpenCLExpressions._inversion,
    nodes.Cast: OpenCLExpressions._cast,
    nodes.Bitcast: OpenCLExpressions._bitcast,
    nodes.Select: OpenCLExpressions._select,
    nodes.Call: OpenCLExpressions._call,
    nodes.Load: OpenCLExpressions._load,
}
