"""Operators of backward passes; those that PyTorch decomposes have no rule here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.frontends.torch.aten.pullback import pulled_back
from tilewright.frontends.torch.aten.rules import AtenCall, Rule, rule
from tilewright.graph.nodes import Value


@dataclass(frozen=True)
class Pullback:
    """The backward operator of `forward`; arguments have the same names.

    flow: the argument with the gradient of the result. wanted: the tensors whose gradients it
    returns, in the order of its results. mask: the argument that says which of them are wanted.
    """

    operator: str
    forward: str
    wanted: tuple[str, ...] = ("self",)
    flow: str = "grad_output"
    mask: str | None = None


_ROWS: Final = (
    Pullback("avg_pool2d_backward", "avg_pool2d.default"),
    Pullback("avg_pool3d_backward", "avg_pool3d.default"),
    Pullback(
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "_scaled_dot_product_flash_attention_for_cpu.default",
        ("query", "key", "value"),
        "grad_out",
    ),
    Pullback(
        "grid_sampler_2d_backward",
        "grid_sampler_2d.default",
        ("input", "grid"),
        mask="output_mask",
    ),
    Pullback(
        "grid_sampler_3d_backward",
        "grid_sampler_3d.default",
        ("input", "grid"),
        mask="output_mask",
    ),
)


def operator_of(name: str) -> Any:
    """`aten.name`, including its overload."""
    import torch

    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def _by_row(row: Pullback) -> Rule:
    def apply(c: AtenCall) -> Value | list[Value | None]:
        forward = operator_of(row.forward)
        names = [a.name for a in forward._schema.arguments]
        arguments = {n: c[n] for n in names if n in c.arguments}
        if row.mask:
            asked = c[row.mask]
        else:
            asked = [True] * len(row.wanted)
        there = [n for n, wanted in zip(row.wanted, asked, strict=True) if wanted]
        flows = pulled_back(c, forward, arguments, row.flow, there)
        found = dict(zip(there, flows, strict=True))
        results = [found.get(n) for n in row.wanted]
        if len(results) > 1:
            return results
        return found[row.wanted[0]]

    return apply


for _row in _ROWS:
    rule(f"aten.{_row.operator}")(_by_row(_row))


@rule("aten.convolution_backward")
def _convolution(c: AtenCall) -> list[Value | None]:
    """With respect to its input, its weights, and its bias, which is added to each channel."""
    names = ("input", "weight")
    shared = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    arguments = {n: c[n] for n in (*names, *shared)}
    by_input, by_weight, by_bias = c["output_mask"]
    there = [n for n, asked in zip(names, (by_input, by_weight), strict=True) if asked]
    forward = operator_of("convolution.default")
    if there:
        flows = pulled_back(c, forward, arguments, "grad_output", there)
    else:
        flows = []
    found = dict(zip(there, flows, strict=True))
    flow = c.tensor("grad_output")
    axes = [0, *range(2, c.rank("grad_output"))]
    if by_bias:
        bias = c.op("ReduceSum", flow, c.ints(*axes), keepdims=0)
    else:
        bias = None
    return [found.get("input"), found.get("weight"), bias]


@rule(
    "aten.max_pool2d_with_indices_backward",
    "aten.max_pool3d_with_indices_backward",
    "aten.adaptive_max_pool2d_backward",
    "aten.adaptive_max_pool3d_backward",
)
def _max_pool(c: AtenCall) -> Value:
    """A maximum's gradient flows to the position of the maximum; overlapping windows add up."""
    axes = 2 if "pool2d" in c.name else 3
    x = c.tensor("self")
    rows = _rows(c, x, axes)
    zeros = c.op("Expand", c.number(0), rows)
    flow = c.tensor("grad_output")
    counts = _rows(c, flow, axes)
    places = c.op("Reshape", c.tensor("indices"), counts, allowzero=1)
    flow = c.op("Reshape", flow, counts, allowzero=1)
    found = c.op("ScatterElements", zeros, places, flow, axis=1, reduction="add")
    return c.op("Reshape", found, c.op("Shape", x), allowzero=1)


def _rows(c: AtenCall, x: Value, axes: int) -> Value:
    """The shape of `x` as a matrix: its images, and the elements of the last `axes` axes."""
    first = c.op("Shape", x, end=-axes)
    last = c.op("Shape", x, start=-axes)
    parts = [c.op("ReduceProd", n, keepdims=1) for n in (first, last)]
    return c.op("Concat", *parts, axis=0)


def _linear(operator: str, forward: str, sizes: Callable[[AtenCall], Any]) -> None:
    """Register the backward of a linear operator, which does not save its input."""

    @rule(f"aten.{operator}")
    def _apply(c: AtenCall) -> Value:
        target = operator_of(forward)
        names = [a.name for a in target._schema.arguments]
        arguments = {n: c[n] for n in names if n in c.arguments} | sizes(c)
        x = _any(c)
        arguments[names[0]] = x
        described = {names[0]: c.result}
        (found,) = pulled_back(
            c, target, arguments, "grad_output", names[:1], described
        )
        return found


def _any(c: AtenCall) -> Value:
    """A tensor in the result's shape with arbitrary elements: a linear operator's input."""
    shape = c.fixed()
    if shape is None or 0 in list(c.of("grad_output").shape):
        raise c.refuse("its extents are known only at run time, or it has no elements")
    flat = c.reshape(c.tensor("grad_output"), [-1])
    starts = c.ints(0)
    ends = c.ints(1)
    axes = c.ints(0)
    one = c.op("Slice", flat, starts, ends, axes)
    return c.op("Expand", one, c.ints(*shape))


def _pooled(c: AtenCall) -> dict[str, Any]:
    rank = c.rank("self") - (3 if "pool3d" in c.name else 2)
    return {"output_size": list(c.of("grad_output").shape)[rank:]}


for _axes in (2, 3):
    _linear(
        f"_adaptive_avg_pool{_axes}d_backward",
        f"_adaptive_avg_pool{_axes}d.default",
        _pooled,
    )
for _name in (
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
):
    _linear(f"{_name}_backward", f"{_name}.default", lambda c: {})
