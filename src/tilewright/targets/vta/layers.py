"""Layers of quantized networks as Computations in the machine's layout, channels in tiles.

    data    int8 [C/16, H, W, 16]        a matrix product: [1, M, 1, ...], or dense with M = 1
    weights int8 [O/16, C/16, KH, KW, 16 out, 16 in]
    bias    int32 [O/16, 16]

A layer is exact in integers:

    y = clip((((sum + bias) >> before) * factor + residual * r) >> shift, low, high)

where low is 0 with ReLU, else -128, high is 127 without a bound, and the bias holds the half that
rounds to nearest. The factor is a constant, or as the bias int32 [O/16, 16].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from tilewright.base.dtypes import int8, int32
from tilewright.base.errors import InputError
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import (
    And,
    Buffer,
    Cast,
    Expr,
    Max,
    Min,
    Mul,
    Select,
    Shl,
    Shr,
    const,
)
from tilewright.targets.vta.intrinsics import BLOCK
from tilewright.targets.vta.requantize import FACTORS


@dataclass(frozen=True, slots=True)
class Requantize:
    """From sums to bytes. residual: the factor of a second operand, None without one. factor: that
    of the sums, None for one per channel. high: the largest byte.

    Raises InputError for shifts of more than 31 bits, and for factors that are neither a constant
    of the machine nor a power of two.
    """

    shift: int
    relu: bool = False
    bias: bool = True
    residual: int | None = None
    factor: int | None = 1
    before: int = 0
    high: int = 127

    def __post_init__(self) -> None:
        if not (0 <= self.shift < 32 and 0 <= self.before < 32):
            raise InputError(
                f"shifts of {self.before} and {self.shift} bits", where="Requantize"
            )
        if not 0 <= self.high <= 127:
            raise InputError(
                f"bytes up to {self.high}, expected 0 to 127", where="Requantize"
            )
        for factor in (self.factor, self.residual):
            if factor is not None and factor not in FACTORS and not _is_power(factor):
                raise InputError(
                    f"a factor of {factor}, expected {FACTORS[0]} to {FACTORS[-1]} or a power of 2",
                    where="Requantize",
                )


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution or the windows of pooling; channels are multiples of 16 (pad with zeros).

    size: height and width of the image. kernel, stride, dilation, pads: the same, for both. ends:
    padding behind the image if it is not `pads`; negative for rows that no window reaches.
    """

    inputs: int
    outputs: int
    size: tuple[int, int]
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int] = (0, 0)
    ends: tuple[int, int] | None = None
    dilation: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        if min(*self.stride, *self.kernel, *self.dilation) < 1 or min(self.pads) < 0:
            raise InputError(f"{self} has extents below 1", where="Convolution")
        if self.inputs % BLOCK or self.outputs % BLOCK or min(self.out_size) < 1:
            raise InputError(
                f"{self} has {self.inputs} and {self.outputs} channels and {self.out_size} points",
                where="Convolution",
                hint=f"fill up channels to multiples of {BLOCK} with zeros",
            )

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the result."""
        ends = self.pads if self.ends is None else self.ends
        room = (h + p + e for h, p, e in zip(self.size, self.pads, ends, strict=True))
        rows, columns = (
            (n - (k - 1) * d - 1) // s + 1
            for n, k, d, s in zip(
                room, self.kernel, self.dilation, self.stride, strict=True
            )
        )
        return rows, columns

    @property
    def reach(self) -> tuple[int, int]:
        """Height and width of what the windows cover, padding included."""
        rows, columns = (
            (n - 1) * s + (k - 1) * d + 1
            for n, s, k, d in zip(
                self.out_size, self.stride, self.kernel, self.dilation, strict=True
            )
        )
        return rows, columns

    def place(self, point: Sequence[Expr], offset: Sequence[Expr]) -> list[Expr]:
        """Where a point's window is at an offset, counted from the padding's start."""
        return [
            i * s + o * d
            for i, s, o, d in zip(
                point, self.stride, offset, self.dilation, strict=True
            )
        ]

    @property
    def macs(self) -> int:
        """Products that it needs."""
        oh, ow = self.out_size
        return oh * ow * self.outputs * self.inputs * self.kernel[0] * self.kernel[1]


@dataclass(frozen=True, slots=True)
class Layer:
    """Computations in order, and the buffers that a caller gives: inputs first, then the output."""

    name: str
    computations: tuple[Computation, ...]
    params: tuple[Buffer, ...]


def convolution(c: Convolution, q: Requantize, name: str = "conv") -> Layer:
    """The Computations of a convolution with what follows it.

    params: x, w, then bias, factors and residual as far as there are any, and y.
    """
    ct, ot = c.inputs // BLOCK, c.outputs // BLOCK
    x = Buffer("x", (ct, *c.size, BLOCK), int8)
    w = Buffer("w", (ot, ct, *c.kernel, BLOCK, BLOCK), int8)
    acc = Buffer("acc", (ot, *c.out_size, BLOCK), int32)

    high, _ = c.out_size
    _, wide = c.reach
    rows = Buffer("rows", (ct, high, wide, BLOCK), int8)
    # Rows that windows of one point pass over are not loaded.
    skips = c.kernel == (1, 1) and c.stride[0] > 1

    def product(*v: Expr) -> Expr:
        o, i, j, lane, k, di, dj, depth = v
        row, column = c.place((i, j), (di, dj))
        left = (
            rows[k, i, column, depth]
            if skips
            else _image(x, c, k, (row, column), depth)
        )
        return Cast(left, int32) * Cast(w[o, k, di, dj, lane, depth], int32)

    before = map_(
        "rows", rows, lambda k, i, j, lane: _image(x, c, k, (i * c.stride[0], j), lane)
    )
    sums = reduce_(name, acc, (ct, *c.kernel, BLOCK), "add", product)
    after, more, y = requantized(acc, q)
    return Layer(name, (*([before] if skips else []), sums, *after), (x, w, *more, y))


def _image(
    x: Buffer,
    c: Convolution,
    channel: Expr,
    point: Sequence[Expr],
    lane: Expr,
    wide: bool = False,
    outside: int = 0,
) -> Expr:
    """A point of an image with padding around, as far as there is any; wide: as int32."""
    guards: list[Expr] = []
    place = []
    for at, pad, reach, extent in zip(point, c.pads, c.reach, c.size, strict=True):
        place.append(at - const(pad) if pad else at)
        if pad:
            guards.append(const(0) <= place[-1])
        if reach - pad > extent:
            guards.append(place[-1] < const(extent))
    load: Expr = x[channel, place[0], place[1], lane]
    load = Cast(load, int32) if wide else load
    if not guards:
        return load
    return Select(reduce(And, guards), load, const(outside, load.dtype))


def pooling(c: Convolution, name: str = "pool", outside: int = -128) -> Layer:
    """The largest of every window. params: x and y.

    outside: what stands around the image; 0, which is faster, for bytes that are not negative.
    """
    ct = c.inputs // BLOCK
    x = Buffer("x", (ct, *c.size, BLOCK), int8)
    y = Buffer("y", (ct, *c.out_size, BLOCK), int8)
    pooled = Buffer("pooled", y.shape, int32)
    wide, widen = _widened(x, c, outside)
    most = reduce_(
        name,
        pooled,
        c.kernel,
        "max",
        lambda k, i, j, lane, di, dj: wide[(k, *c.place((i, j), (di, dj)), lane)],
    )
    narrow = map_("narrow", y, lambda *v: Cast(pooled[v], int8))
    return Layer(name, (widen, most, narrow), (x, y))


def depthwise(c: Convolution, q: Requantize, name: str = "depthwise") -> Layer:
    """A convolution of each channel by itself, on the ALU; weights int8 [C/16, KH, KW, 16].

    params: x, w, then bias, factors and residual as far as there are any, and y.
    """
    ct = c.inputs // BLOCK
    x = Buffer("x", (ct, *c.size, BLOCK), int8)
    w = Buffer("w", (ct, *c.kernel, BLOCK), int8)
    weights = Buffer("weights", w.shape, int32)
    terms = Buffer("terms", (ct, *c.out_size, *c.kernel, BLOCK), int32)
    acc = Buffer("acc", (ct, *c.out_size, BLOCK), int32)
    wide, widen = _widened(x, c)

    def term(k: Expr, i: Expr, j: Expr, di: Expr, dj: Expr, lane: Expr) -> Expr:
        return wide[(k, *c.place((i, j), (di, dj)), lane)] * weights[k, di, dj, lane]

    made = (
        widen,
        map_("weights", weights, lambda *v: Cast(w[v], int32)),
        map_("terms", terms, term),
        reduce_(
            name,
            acc,
            c.kernel,
            "add",
            lambda k, i, j, lane, di, dj: terms[k, i, j, di, dj, lane],
        ),
    )
    after, more, y = requantized(acc, q)
    return Layer(name, (*made, *after), (x, w, *more, y))


def _widened(x: Buffer, c: Convolution, outside: int = 0) -> tuple[Buffer, Computation]:
    """An image as accumulators, with the padding around."""
    wide = Buffer("image", (x.shape[0], *c.reach, BLOCK), int32)
    return wide, map_(
        "image",
        wide,
        lambda k, i, j, lane: _image(x, c, k, (i, j), lane, wide=True, outside=outside),
    )


def requantized(
    acc: Buffer, q: Requantize
) -> tuple[tuple[Computation, ...], tuple[Buffer, ...], Buffer]:
    """What follows sums: the Computations, their further inputs, and the result."""
    y = Buffer("y", acc.shape, int8)
    bias = Buffer("bias", (acc.shape[0], BLOCK), int32)
    residual = Buffer("residual", acc.shape, int8)
    factors = Buffer("factors", bias.shape, int32)
    wide = Buffer("wide", acc.shape, int32)
    made: list[Computation] = []
    given = {bias: q.bias, factors: q.factor is None, residual: q.residual is not None}
    more = tuple(b for b, there in given.items() if there)
    if q.residual is not None:
        made.append(map_("widen", wide, lambda *v: Cast(residual[v], int32)))

    def value(*v: Expr) -> Expr:
        e: Expr = acc[v]
        if q.bias:
            e = e + bias[v[0], v[-1]]
        e = Shr(e, const(q.before, int32)) if q.before else e
        e = Mul(e, factors[v[0], v[-1]]) if q.factor is None else _times(e, q.factor)
        if q.residual is not None:
            e = e + _times(wide[v], q.residual)
        e = Shr(e, const(q.shift, int32))
        low = const(0 if q.relu else -128, int32)
        return Cast(Min(Max(e, low), const(q.high, int32)), int8)

    made.append(map_("requantize", y, value))
    return tuple(made), more, y


def _is_power(factor: int) -> bool:
    return 0 < factor < 1 << 31 and factor & (factor - 1) == 0


def _times(e: Expr, factor: int) -> Expr:
    """A product; by a power of two it is a shift, which real hardware has too."""
    if _is_power(factor):
        return Shl(e, const(factor.bit_length() - 1, int32)) if factor > 1 else e
    return Mul(e, const(factor, int32))
