"""Complex tensors as two real ones, as the graph has no complex operators.

Rules for complex operands are registered separately from those for real ones. Operators that only
move elements have no complex rule: the real one is applied to both parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.frontends.torch.aten.rules import AtenCall, Result, rule_of
from tilewright.graph.nodes import Value


@dataclass(frozen=True, eq=False)
class Complex:
    """A complex tensor as two parts of the same shape and type."""

    real: Value
    imag: Value


ComplexResult = Complex | Value
ComplexRule = Callable[[AtenCall], ComplexResult]

_RULES: Final[dict[str, ComplexRule]] = {}
# Operators that move elements of `self` without looking at them.
_MOVES: Final = frozenset(
    f"aten.{name}"
    for name in (
        "view reshape _unsafe_view flatten unflatten unsqueeze squeeze permute transpose t "
        "expand select slice clone contiguous alias detach lift_fresh_copy flip roll"
    ).split()
)


def complex_rule(*names: str) -> Callable[[ComplexRule], ComplexRule]:
    """Register a rule for complex operands or a complex result of an ATen operator."""

    def register(function: ComplexRule) -> ComplexRule:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


def complex_rule_of(target: Any) -> ComplexRule | None:
    """The rule for complex operands of the operator that a node calls; None if there is none."""
    rule_of(target)  # loads all rules
    packet = str(target).rpartition(".")[0]
    if packet in _MOVES:
        return _by_parts
    return _RULES.get(packet)


def is_complex(call: AtenCall) -> bool:
    """Whether an operand or the first result is complex."""
    if any(isinstance(a, Complex) for a in call.arguments.values()):
        return True
    held = call.node.meta.get("val")
    if isinstance(held, list | tuple) and held:
        first = held[0]
    else:
        first = held
    return bool(getattr(getattr(first, "dtype", None), "is_complex", False))


def apply_complex(call: AtenCall) -> ComplexResult:
    """The result of a call on complex operands. Raises UnsupportedError if there is no rule."""
    apply = complex_rule_of(call.target)
    if apply is None:
        raise call.refuse("its numbers are complex")
    return apply(call)


def _by_parts(c: AtenCall) -> Complex:
    """The rule for real tensors applied to each part."""
    apply = rule_of(c.target)
    whole = c["self"]
    assert apply is not None

    def part(x: Value) -> Value:
        arguments = {**c.arguments, "self": x}
        found: Result = apply(
            AtenCall(
                c.build,
                c.node,
                c.target,
                arguments,
                c.given,
            )
        )
        assert isinstance(found, Value)
        return found

    real = part(whole.real)
    imag = part(whole.imag)
    return Complex(
        real,
        imag,
    )


@complex_rule("aten.sym_size")
def _extent(c: AtenCall) -> Value:
    """That of either part."""
    apply = rule_of(c.target)
    assert apply is not None
    real = {**c.arguments, "self": c["self"].real}
    found = apply(AtenCall(c.build, c.node, c.target, real, c.given))
    assert isinstance(found, Value)
    return found


def in_pairs(c: AtenCall, x: Complex) -> Value:
    """Real and imaginary parts along a last axis of two."""
    parts = [c.unsqueeze(p, -1) for p in (x.real, x.imag)]
    return c.op(
        "Concat",
        *parts,
        axis=-1,
    )


def in_parts(c: AtenCall, pairs: Value) -> Complex:
    """The complex tensor of a last axis of two: the inverse of `in_pairs`."""
    parts = c.build.ops(
        "Split",
        pairs,
        count=2,
        axis=-1,
        num_outputs=2,
    )
    real, imag = (c.squeeze(p, -1) for p in parts)
    return Complex(
        real,
        imag,
    )
