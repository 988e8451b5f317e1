"""Decompositions that PyTorch lacks, or that end in primitives without a rule.

Each is a function of tensors with the operator's arguments and results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

_MEAN: Final = 1
_BAGS: Final = (0, _MEAN)  # modes of bags of embeddings that have a derivative here
# By the operators' names.
DECOMPOSITIONS: Final[dict[str, Callable[..., Any]]] = {}


def _decomposes(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        DECOMPOSITIONS.update(dict.fromkeys(names, function))
        return function

    return register


@_decomposes("aten.rrelu_with_noise_functional.default")
def _rrelu(
    x: Any,
    noise: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    """Slopes are drawn between bounds where x is not positive; the second result has them."""
    import torch

    if not training:
        return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise.clone()
    drawn = torch.rand_like(x) * (upper - lower) + lower
    slope = torch.where(x <= 0, drawn, 1)
    return x * slope, slope


@_decomposes("aten.nextafter.default")
def _nextafter(x: Any, towards: Any) -> Any:
    """The bits of a float, as an integer, count the floats from zero outwards."""
    import torch

    x, towards = torch.broadcast_tensors(x, towards)
    integer = _integer(x.dtype)
    outwards = (towards > x) == (x > 0)
    bits = x.view(integer)
    stepped = torch.where(outwards, bits + 1, bits - 1).view(x.dtype)
    least = torch.ones_like(x, dtype=integer).view(x.dtype)
    moved = torch.where(x == 0, torch.copysign(least, towards), stepped)
    kept = torch.where(x == towards, towards, moved)
    return torch.where(x.isnan() | towards.isnan(), math.nan, kept)


@_decomposes("aten.frexp.Tensor")
def _frexp(x: Any) -> Any:
    """The exponent field of a float's bits; subnormal ones are scaled to be normal first.

    Zeros, infinities and NaN are their own mantissas, with exponent 0.
    """
    import torch

    if x.dtype in (torch.float16, torch.bfloat16):
        mantissa, exponent = _frexp(x.float())
        return mantissa.to(x.dtype), exponent
    about = torch.finfo(x.dtype)
    digits = round(-math.log2(about.eps))
    field = (1 << (about.bits - 1 - digits)) - 1
    half = field // 2 - 1  # the field of floats between 0.5 and 1
    small = x.abs() < about.smallest_normal
    scaled = torch.where(small, x * 2.0 ** (digits + 1), x)
    bits = scaled.view(_integer(x.dtype))
    exponent = ((bits >> digits) & field) - half
    exponent = torch.where(small, exponent - (digits + 1), exponent)
    fraction = bits & ~(field << digits)
    mantissa = (fraction | (half << digits)).view(x.dtype)
    whole = x.isfinite() & (x != 0)
    mantissa = torch.where(whole, mantissa, x)
    exponent = torch.where(whole, exponent, 0)
    return mantissa, exponent.int()


def _integer(dtype: Any) -> Any:
    """The signed integers that have as many bits as the float type."""
    import torch

    return {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]


@_decomposes("aten.fractional_max_pool2d.default", "aten.fractional_max_pool3d.default")
def _fractional_pool(
    x: Any, kernel: Sequence[int], size: Sequence[int], samples: Any
) -> Any:
    """The greatest of each window, and its place in the plane (the channel's elements in order).

    samples: batch x channels x axes, in [0, 1). They place the windows: those of planes by the
    last axis first, as PyTorch does; those of volumes by the first.
    """
    import torch

    count = len(kernel)
    if x.dim() == count + 1:
        parts = _fractional_pool(x[None], kernel, size, samples)
        return tuple(p[0] for p in parts)
    given = list(samples.unbind(-1))
    if count == 2:
        given.reverse()
    extents = x.shape[2:]
    places: Any = 0
    for axis, (n, k, out, drawn) in enumerate(
        zip(extents, kernel, size, given, strict=True)
    ):
        starts = _starts(n - k, out, drawn)
        along = starts[..., None] + torch.arange(k)  # batch x channels x out x k
        shape = [1] * (2 * count)
        shape[axis] = out
        shape[count + axis] = k
        along = along.reshape([*along.shape[:2], *shape])
        places = places * n + along
    inner = math.prod(kernel)
    places = places.reshape([*x.shape[:2], -1, inner])
    windows = x.flatten(2).gather(2, places.flatten(2))
    windows = windows.reshape(places.shape)
    best, which = windows.max(-1)
    found = places.gather(-1, which[..., None]).squeeze(-1)
    ends = [*x.shape[:2], *size]
    return best.reshape(ends), found.reshape(ends)


def _starts(last: Any, count: int, drawn: Any) -> Any:
    """Where windows start along an axis: batch x channels x count; the last one at `last`."""
    import torch

    steps = torch.arange(count, dtype=drawn.dtype)
    stride = drawn.new_full((), last) / max(count - 1, 1)  # rounded as PyTorch does
    drawn = drawn[..., None]
    ahead = (drawn * stride).long()
    starts = ((steps + drawn) * stride).long() - ahead
    return torch.where(steps == count - 1, last, starts)


@_decomposes(
    "aten.fractional_max_pool2d_backward.default",
    "aten.fractional_max_pool3d_backward.default",
)
def _fractional_gradient(
    gradient: Any, x: Any, kernel: Sequence[int], size: Sequence[int], places: Any
) -> Any:
    """Each element of the gradient goes to the place that the maximum came from."""
    lead = x.dim() - len(kernel)
    flat = x.new_zeros(x.flatten(lead).shape)
    found = flat.scatter_add(lead, places.flatten(lead), gradient.flatten(lead))
    return found.reshape(x.shape)


@_decomposes("aten._weight_norm_interface.default")
def _weight_norm(v: Any, g: Any, dim: int = 0) -> tuple[Any, Any]:
    """`g * v / norms`, and the norms, of `v` over all axes but `dim`; those of short floats wide.

    PyTorch 2.13's decomposition takes one norm of a whole vector, where each element has its own.
    """
    import torch

    short = v.dtype in (torch.float16, torch.bfloat16)
    wide = torch.float32 if short else v.dtype
    rows = v.to(wide)
    factors = g.to(wide)
    others = [a for a in range(v.dim()) if a != dim]
    if others:
        norms = torch.linalg.vector_norm(rows, 2, others, keepdim=True)
    else:
        norms = rows.abs()
    scale = factors / norms
    found = rows * scale
    return found.to(v.dtype), norms


@_decomposes("aten._weight_norm_interface_backward.default")
def _weight_norm_gradient(
    gradient: Any, v: Any, g: Any, norms: Any, dim: int
) -> tuple[Any, Any]:
    """Of `g * v / norms`, with the norms of `v` over all axes but `dim`."""
    others = [a for a in range(v.dim()) if a != dim]
    # Wide, as the norms of short floats are.
    wide = norms.dtype
    given = gradient.to(wide)
    rows = v.to(wide)
    factors = g.to(wide)
    along = given * rows
    if others:  # a sum over no axes would be one over all of them
        along = along.sum(others, keepdim=True)
    along = along / norms
    parallel = rows * (along / norms)
    across = given - parallel
    scale = factors / norms
    found = scale * across
    return found.to(v.dtype), along.to(g.dtype)


@_decomposes("aten._trilinear.default")
def _trilinear(
    a: Any,
    b: Any,
    c: Any,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Any:
    """The sum, over some axes, of products of three tensors, each without the axes `expand`.

    As two products of matrices: of `nn.Bilinear`, no tensor has all of the axes.
    """
    import torch

    axes = range(a.dim() + len(expand1))
    operands: list[Any] = []
    for tensor, missing in ((a, expand1), (b, expand2), (c, expand3)):
        present = [n for n in axes if n not in missing]
        operands += [tensor, present]
    left = [n for n in axes if n not in sumdim]
    return torch.einsum(*operands, left)


@_decomposes("aten._embedding_bag.default")
def _embedding_bag(weight: Any, indices: Any, offsets: Any, *how: Any) -> Any:
    """Sums and means of rows of a table, which are trained; their gradient needs nothing else.

    Maxima, sparse gradients, and gradients by frequency keep PyTorch's kernels.
    """
    import torch

    # mode, sparse, per_sample_weights, include_last_offset and padding_idx follow.
    by_frequency, mode, sparse = [*how, *(False, 0, False)[len(how) :]][:3]
    if mode not in _BAGS or sparse or by_frequency:
        return NotImplemented
    found = torch.ops.aten._embedding_bag_forward_only(weight, indices, offsets, *how)
    nothing = indices.new_zeros(0)
    return found[0], nothing, nothing, nothing


@_decomposes("aten._embedding_bag_backward.default")
def _embedding_bag_gradient(
    gradient: Any,
    indices: Any,
    offsets: Any,
    bags: Any,
    sizes: Any,
    places: Any,
    rows: Any,
    by_frequency: bool,
    mode: int,
    sparse: bool,
    factors: Any,
    padding: int = -1,
) -> Any:
    """Each row of the table gets the gradients of the bags it is in; `padding` is in none."""
    if mode not in _BAGS or sparse or by_frequency:
        return NotImplemented
    bag = _bag_of_each(indices, offsets)
    share = (indices != padding).to(gradient.dtype)
    if mode == _MEAN:
        held = gradient.new_zeros(gradient.shape[0]).index_add(0, bag, share)
        share = share / held.clamp(min=1)[bag]
    if factors is not None:
        share = share * factors
    parts = gradient[bag] * share[:, None]
    table = gradient.new_zeros(rows, gradient.shape[1])
    return table.index_add(0, indices, parts)


@_decomposes("aten._embedding_bag_per_sample_weights_backward.default")
def _factors_of_bags(
    gradient: Any,
    weight: Any,
    indices: Any,
    offsets: Any,
    bags: Any,
    mode: int,
    padding: int = -1,
) -> Any:
    """Of the factors of rows in sums: the product of each row and its bag's gradient."""
    bag = _bag_of_each(indices, offsets)
    products = gradient[bag] * weight[indices]
    counted = indices != padding
    return products.sum(-1) * counted


def _bag_of_each(indices: Any, offsets: Any) -> Any:
    """For each index the last bag that starts at or before it."""
    import torch

    counted = torch.arange(indices.shape[0], dtype=offsets.dtype)
    return torch.searchsorted(offsets, counted, right=True) - 1
