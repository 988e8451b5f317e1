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


ComplexResult = Complex | Value | list[Complex] | None
ComplexRule = Callable[[AtenCall], ComplexResult]

_RULES: Final[dict[str, ComplexRule]] = {}
# Operators that treat real and imaginary parts alike, and which of their arguments have both.
_LINEAR: Final[dict[tuple[str, ...], str]] = {
    ("self",): (
        "view reshape _unsafe_view flatten unflatten unsqueeze squeeze permute transpose t "
        "expand select slice clone contiguous alias detach lift_fresh_copy flip roll unfold "
        "diagonal index _unsafe_index index_select gather sum mean cumsum split split_with_sizes "
        "split_with_sizes_copy unbind repeat as_strided "
        "tril triu zero zeros zeros_like new_zeros empty empty_like new_empty "
        "empty_strided new_empty_strided"
    ),
    (
        "self",
        "src",
    ): "slice_scatter select_scatter diagonal_scatter scatter_add copy as_strided_scatter",
    ("self", "src", "value"): "scatter",
    ("self", "values"): "index_put _unsafe_index_put",
    ("self", "source"): "put",
    ("self", "other"): "where",
    ("self", "value"): "constant_pad_nd masked_fill fill",
    ("tensors",): "cat stack",
    ("fill_value",): "full full_like new_full",
    ("s",): "scalar_tensor",
}
_WHOLE: Final = {
    f"aten.{name}": arguments
    for arguments, names in _LINEAR.items()
    for name in names.split()
}


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
    if packet in _WHOLE:
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


def _by_parts(c: AtenCall) -> Complex | list[Complex]:
    """The rule for real tensors applied to each part."""
    apply = rule_of(c.target)
    packet = c.name.rpartition(".")[0]
    assert apply is not None
    if c.has("reduce"):
        raise c.refuse("it multiplies complex numbers")

    def part(imaginary: bool) -> list[Value]:
        arguments = {
            name: _part(c, x, imaginary and name in _WHOLE[packet])
            for name, x in c.arguments.items()
        }
        found: Result = apply(
            AtenCall(
                c.build,
                c.node,
                c.target,
                arguments,
                c.given,
            )
        )
        values = found if isinstance(found, list | tuple) else [found]
        return [v for v in values if isinstance(v, Value)]

    real = part(imaginary=False)
    imag = part(imaginary=True)
    found = list(map(Complex, real, imag))
    return found if isinstance(c.node.meta["val"], list | tuple) else found[0]


def _part(c: AtenCall, x: Any, imaginary: bool) -> Any:
    """One part of an argument: of real tensors and numbers, the imaginary one is zero."""
    if isinstance(x, list | tuple):
        return [_part(c, e, imaginary) for e in x]
    if isinstance(x, Complex | complex):
        return x.imag if imaginary else x.real
    if not imaginary or x is None:
        return x
    if isinstance(x, Value):
        return zeros(c, x)
    return 0


def zeros(c: AtenCall, like: Value) -> Value:
    """Zeros in a tensor's shape, whatever it holds."""
    none = c.number(0, like.dtype)
    shape = c.op("Shape", like)
    return c.op("Expand", none, shape)


@complex_rule("aten.sym_size")
def _extent(c: AtenCall) -> Value:
    """That of either part."""
    apply = rule_of(c.target)
    assert apply is not None
    real = {**c.arguments, "self": c["self"].real}
    found = apply(AtenCall(c.build, c.node, c.target, real, c.given))
    assert isinstance(found, Value)
    return found


@complex_rule("aten._assert_tensor_metadata")
def _checked(c: AtenCall) -> None:
    """An assertion of PyTorch about a program; computes nothing."""


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
