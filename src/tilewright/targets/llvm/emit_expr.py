"""Expressions to values: one rule per node, each value computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.base.errors import CompileError, UnsupportedError
from tilewright.expr import nodes
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.bounds import bounds
from tilewright.expr.functions import FUNCTIONS
from tilewright.expr.nodes import (
    INDEX,
    And,
    Binary,
    Bitcast,
    Call,
    Cast,
    Const,
    Expr,
    FloorDiv,
    Load,
    Mod,
    Neg,
    Not,
    Select,
    Var,
)
from tilewright.targets.llvm.emit_casts import cast, of_few_bits
from tilewright.targets.llvm.emit_functions import NATIVE
from tilewright.targets.llvm.emit_memory import MemoryEmitter, weaker
from tilewright.targets.llvm.emit_rounding import dequantized, to_float
from tilewright.targets.llvm.emit_text import (
    LlvmValue,
    int_vector,
    integer,
    real,
    splat_constant,
)
from tilewright.targets.llvm.emit_types import constant, memory_type
from tilewright.targets.llvm.expansions import Expansion, expansion
from tilewright.targets.llvm.processor import AVX512
from tilewright.targets.llvm.value_numbering import NumberingScope

_DIVISIONS = (FloorDiv, Mod, nodes.Div, nodes.Rem)


class Expressions(MemoryEmitter):
    """Adds `value` to memory access."""

    def value(self, e: Expr) -> LlvmValue:
        """The cached value of `e`: a scalar if it is the same in every lane, else a vector."""
        if isinstance(e, Const):
            return constant(e.value, e.dtype)
        if self.guard is None:
            guard, known = None, self.lookup(e)
        else:
            guard, _ = self.guarded(self.info(e))
            known = self._known(e, guard)
        if known is not None:
            return known
        key = e if guard is None else (e, guard)
        rule = _RULES.get(type(e))
        if rule is None:
            if isinstance(e, Var):
                raise CompileError(f"variable {e.name} is not bound", code="TW-UNBOUND")
            raise UnsupportedError(
                f"no native code for {type(e).__name__}", code="TW-OPERATION"
            )
        _, info = self.guarded(self.info(e))
        return self.new(key, info, lambda: rule(self, e))

    def _known(self, e: Expr, guard: Expr | None) -> LlvmValue | None:
        """The value of `e` if it was computed under `guard` or under a condition that this
        implies."""
        for permission in weaker(guard):
            found = self.lookup(e if permission is None else (e, permission))
            if found is not None:
                return found
        return None

    def wide(self, e: Expr, lanes: int) -> LlvmValue:
        """`value(e)` in every one of `lanes` lanes; the splat is shared by its users."""
        v = self.value(e)
        if v.lanes == lanes:
            return v
        if v.const is not None:
            return splat_constant(v, lanes)
        guard, info = self.guarded(self.info(e))
        return self.cached(
            ("splat", e, guard, lanes), info, lambda: self.splat(v, lanes)
        )

    def together(self, *operands: Expr) -> list[LlvmValue]:
        """The operands' values with one number of lanes, constants left scalar."""
        values = [self.value(e) for e in operands]
        lanes = max((v.lanes for v in values), default=1)
        return [
            v if v.const is not None else self.wide(e, lanes)
            for e, v in zip(operands, values, strict=True)
        ]

    def _binary(self, e: Binary) -> LlvmValue:
        a, b = self.together(e.lhs, e.rhs)
        limit = (
            self._limit(e)
            if isinstance(e, _DIVISIONS) and e.lhs.dtype is INDEX
            else None
        )
        return self.ops.binary(type(e), a, b, e.lhs.dtype, limit)

    def _division(self, e: Binary) -> LlvmValue:
        """A division of indices; for a uniform base plus constants per lane only the base is
        divided."""
        found = None
        if self.vector is not None and e.dtype is INDEX:
            found = self.lanes_of(e, *self.vector)
        if found is None:
            return self._binary(e)
        base = to_expr(found.base)
        if isinstance(base, Const):
            return int_vector([int(base.value.real) + n for n in found.steps])
        return self.binary("add", self.value(base), int_vector(list(found.steps)))

    def _limit(self, e: Binary) -> int | None:
        """The greatest value of both operands, if they are known not to be negative."""
        (low, high), (least, most) = (bounds(x, self.ranges) for x in (e.lhs, e.rhs))
        if low is None or least is None or low < 0 or least < 0:
            return None
        if high is not None and most is not None:
            return max(high, most)
        return 1 << 63

    def comparison(self, e: Binary) -> LlvmValue:
        """A comparison; of lane numbers with something uniform, in 32 bits (masks of tails).

        `lhs < rhs` is `rest < -c * lane` where lhs - rhs = c * lane + rest; to saturate `rest`
        keeps the order.
        """
        if self.vector is None or e.lhs.dtype is not INDEX:
            return self._binary(e)
        lane, lanes = self.vector
        form = affine(e.lhs) - affine(e.rhs)
        c = form.coefficient(lane)
        rest = form - Affine(((lane, c),), 0)
        if (
            not c
            or abs(c) > 1 << 16
            or any(lane in self.info(a).vars for a, _ in rest.terms)
        ):
            return self._binary(e)
        uniform = self.value(to_expr(rest))
        if uniform.lanes > 1:
            return self._binary(e)
        edge = 1 << 30
        uniform = self.pair(
            "smin", self.pair("smax", uniform, integer(-edge)), integer(edge)
        )
        low = self.splat(self.convert("trunc", uniform, "i32"), lanes)
        op = "slt" if isinstance(e, nodes.Lt) else "sle"
        bound = int_vector([-c * n for n in range(lanes)], "i32")
        return self.compare(f"icmp {op}", low, bound)

    def _select(self, e: Select) -> LlvmValue:
        condition = self.value(e.condition)
        if condition.const is not None:
            return self.value(e.then if condition.const else e.otherwise)
        if self.info(e.then).risky and self.info(e.otherwise).risky:
            for shared in self.anywhere.shared(e):
                self.value(shared)
        outside = self._outside(e.then, e.otherwise)
        then = self._arm(e.then, e.condition, outside)
        if then.lanes >= condition.lanes and outside is not None:
            return then
        otherwise = self._arm(e.otherwise, Not(e.condition))
        lanes = max(condition.lanes, then.lanes, otherwise.lanes)
        if condition.lanes > 1:
            condition = self.wide(e.condition, lanes)
        return self.select(
            condition, self.splat(then, lanes), self.splat(otherwise, lanes)
        )

    def _arm(
        self, arm: Expr, condition: Expr, outside: LlvmValue | None = None
    ) -> LlvmValue:
        if not self.info(arm).risky:
            return self.value(arm)
        outer = self.guard
        if outer is None:
            self.guard = condition
        else:
            self.guard = And(outer, condition)
        try:
            if (
                isinstance(arm, Load)
                and outside is not None
                and outside.text not in _ZEROS
            ):
                return self.load(arm, outside)
            return self.value(arm)
        finally:
            self.guard = outer

    def _outside(self, arm: Expr, otherwise: Expr) -> LlvmValue | None:
        """The constant `otherwise` if a masked load can produce it where the mask is false
        (padding).

        requires: the arm is not loaded yet. A value loaded under fewer conditions, such as by the
        condition itself, holds the element even where the condition is false.
        """
        if not (
            isinstance(arm, Load)
            and isinstance(otherwise, Const)
            and self.info(arm).risky
        ):
            return None
        if self._known(arm, self.guard) is not None:
            return None
        held = constant(otherwise.value, otherwise.dtype)
        dtype = otherwise.dtype
        as_stored = held.type == memory_type(dtype)
        zero = held.text in _ZEROS and dtype.name != "float8_e8m0fnu"
        return held if as_stored or zero else None

    def _subtract(self, e: Binary) -> LlvmValue:
        found = dequantized(e, self.machine)
        if found is None:
            return of_few_bits(self, e) or self._binary(e)
        return to_float(self.ops, self.value(found[0].value), *found)

    def _call(self, e: Call) -> LlvmValue:
        own = FUNCTIONS[e.function].llvm
        if own:
            return self.own_function(e, own)
        dtype = e.args[0].dtype
        native = NATIVE.get(e.function)
        if native is not None:
            return native(self.ops, self.together(*e.args), dtype)
        rewrite = expansion(e.function, dtype.name, self.machine.has(AVX512))
        if rewrite is not None:
            return self._expanded(e, rewrite)
        if dtype.is_float and dtype.bits < 32:
            wide = Call(e.function, tuple(Cast(a, dtypes.float32) for a in e.args))
            return self.value(Cast(wide, e.dtype))
        raise UnsupportedError(
            f"the function {e.function} has no native code for dtype {dtype}",
            code="TW-FUNCTION",
            items=(f"{e.function}({dtype})",),
        )

    def own_function(self, e: Call, text: str) -> LlvmValue:
        """A function of the user's own, which is called for each lane."""
        self.own[e.function] = text
        type = memory_type(e.dtype)
        args = self.together(*e.args)
        lanes = max((v.lanes for v in args), default=1)
        result = LlvmValue("poison", type, lanes)
        for n in range(lanes):
            passed = ", ".join(self.lane(v, n).typed for v in args)
            one = self.ins(f"call {type} @{e.function}({passed})", type)
            result = one if lanes == 1 else self.insert(result, one, n)
        return result

    def _expanded(self, e: Call, rewrite: Expansion) -> LlvmValue:
        """The expansion on parameters, in its own scope, in which they are the arguments' values.

        So no `Select` of the expansion guards the loads of an argument, and the text is built once
        per function and constant argument. Contraction would break the exact sums and products of
        expansions.
        """
        formal, body = _template(
            rewrite, tuple(a if isinstance(a, Const) else a.dtype for a in e.args)
        )
        scope = NumberingScope(bound=set(formal))
        for parameter, value in zip(formal, self.together(*e.args), strict=True):
            if isinstance(parameter, Var):
                scope.values[parameter] = value
        flags, self.ops.flags = self.ops.flags, ""
        self.scopes.append(scope)
        try:
            return self.value(body)
        finally:
            self.scopes.pop()
            self.ops.flags = flags


@cache
def _template(
    rewrite: Expansion, arguments: tuple[Const | DType, ...]
) -> tuple[tuple[Const | Var, ...], Expr]:
    """An expansion's parameters and its expression of them; constants remain constants."""
    formal = tuple(
        a if isinstance(a, Const) else Var(f"x{n}", a) for n, a in enumerate(arguments)
    )
    return formal, rewrite(*formal)


_ZEROS = {"0", "false", real(0.0).text}


_BINARY: tuple[type[Expr], ...] = (
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Rem),
    *(nodes.Min, nodes.Max, nodes.And, nodes.Or, nodes.Xor, nodes.Shl, nodes.Shr),
    *(nodes.Eq, nodes.Ne),
)

_RULES: Mapping[type[Expr], Callable[[Any, Any], LlvmValue]] = {
    **dict.fromkeys(_BINARY, Expressions._binary),
    nodes.Sub: Expressions._subtract,
    FloorDiv: Expressions._division,
    Mod: Expressions._division,
    nodes.Overlap: lambda x, e: x.value(nodes.Min(e.lhs, e.rhs)),
    nodes.Lt: lambda x, e: x.comparison(e),
    nodes.Le: lambda x, e: x.comparison(e),
    Neg: lambda x, e: x.ops.negate(x.value(e.value), e.dtype),
    Not: lambda x, e: x.ops.invert(x.value(e.value), e.dtype),
    Cast: cast,
    Bitcast: lambda x, e: x.ops.bitcast(x.value(e.value), e.value.dtype, e.dtype),
    Select: Expressions._select,
    Call: Expressions._call,
    Load: Expressions.load,
}
