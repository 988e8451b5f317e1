"""Einsum: one reduction per pair of operands, from left to right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr
from tilewright.graph.ops.broadcasting import element, wide, wide_dtype, widened
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import CHANGES_AXES

Buffers = Sequence[Buffer]


@dataclass(frozen=True)
class Equation:
    """One letter per axis of each operand and of the result, and the extent of each letter.

    The axes of an ellipsis have digits as letters, counted from the last.
    """

    operands: tuple[str, ...]
    result: str
    extents: dict[str, int]


def parse(call: OpCall) -> Equation:
    """Parse the equation and make it explicit. Raises ModelError if the operands do not fit."""
    text = "".join(str(call.attr("equation", "")).split())
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != call.arity:
        raise call.error(
            f"equation {text!r} has {len(terms)} operands, got {call.arity}"
        )
    shapes = [call.shape(n) for n in range(call.arity)]
    pairs = zip(terms, shapes, strict=True)
    operands = [_letters(call, term, len(shape)) for term, shape in pairs]
    letters = "".join(operands)
    axes_of_dots = {c for c in letters if c.isdigit()}
    dots = "".join(sorted(axes_of_dots, reverse=True))
    if arrow:
        result = right.replace("...", dots)
    else:
        once = [c for c in set(letters) - axes_of_dots if letters.count(c) == 1]
        result = dots + "".join(sorted(once))
    extents: dict[str, int] = {}
    for operand, shape in zip(operands, shapes, strict=True):
        for c, n in zip(operand, shape, strict=True):
            known = extents.setdefault(c, n)
            if known == 1:
                extents[c] = n
            elif n not in (1, known):
                raise call.error(f"equation {text!r}: {c!r} is both {known} and {n}")
    if len(set(result)) < len(result):
        raise call.error(f"equation {text!r}: the result repeats a letter")
    if not set(result) <= set(extents):
        raise call.error(
            f"equation {text!r}: the result has letters that no operand has"
        )
    return Equation(tuple(operands), result, extents)


def _letters(call: OpCall, term: str, rank: int) -> str:
    named = term.replace("...", "")
    count = rank - len(named)
    if count < 0 or (count and "..." not in term) or count > 10:
        raise call.error(f"term {term!r} does not fit {rank} axes")
    return term.replace("...", "".join(str(n) for n in reversed(range(count))))


def _compute(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    equation = parse(call)
    out = outputs[0]
    dtype = wide_dtype(out.dtype)
    found = []
    current = inputs[0]
    letters = equation.operands[0]
    rest = list(zip(inputs[1:], equation.operands[1:], strict=True))
    for n, (right, right_letters) in enumerate(rest):
        later = set(equation.result).union(*(t for _, t in rest[n + 1 :]))
        both = "".join(dict.fromkeys(letters + right_letters))
        last = n == len(rest) - 1
        if last:
            kept = equation.result
        else:
            kept = "".join(c for c in both if c in later)
        target = out if last else _buffer(f"{call.name}_{n}", kept, equation, dtype)
        pair = [(current, letters), (right, right_letters)]
        found.append(_contract(f"{call.name}_{n}", target, kept, pair, equation))
        current = target
        letters = kept
    if not rest:
        found.append(
            _contract(call.name, out, equation.result, [(current, letters)], equation)
        )
    return found


def _buffer(
    name: str,
    letters: str,
    equation: Equation,
    dtype: Any,
) -> Buffer:
    return Buffer(name, tuple(equation.extents[c] for c in letters), dtype)


def _contract(
    name: str,
    out: Buffer,
    kept: str,
    operands: list[tuple[Buffer, str]],
    equation: Equation,
) -> Computation:
    """out[kept] = sum over all other letters of the product of the operands."""
    letters = dict.fromkeys("".join(t for _, t in operands))
    summed = [c for c in letters if c not in kept]

    def value(*i: Any) -> Expr:
        place = dict(zip([*kept, *summed], i, strict=True))
        factors = []
        for x, axes in operands:
            index = tuple(place[c] for c in axes)
            factors.append(wide(element(x, index)))
        return math.prod(factors[1:], start=factors[0])

    if not summed:
        return map_(name, out, lambda *i: cast(value(*i), out.dtype))
    return reduce_(name, out, [equation.extents[c] for c in summed], "add", value)


def _type(call: OpCall) -> Sequence[Type]:
    equation = parse(call)
    return call.result(equation.extents[c] for c in equation.result)


def _arrays(call: OpCall, *operands: Array) -> list[Array]:
    equation = call.attr("equation")
    found = np.einsum(
        equation, *(widened(x) for x in operands), optimize=len(operands) > 2
    )
    return [np.asarray(found).astype(operands[0].dtype)]


def _flops(call: OpCall) -> int:
    return call.arity * math.prod(parse(call).extents.values())


register(
    OpDef(
        "Einsum",
        _type,
        since=12,
        compute=_compute,
        reference=_arrays,
        flops=_flops,
        traits=CHANGES_AXES,
    )
)
