"""Layers of quantized networks as Computations in the machine's layout, channels in tiles.

    data    int8 [C/B, H, W, B]        a matrix product: [K/B, M, 1, B], or dense with M = 1
    weights int8 [O/B, C/B, KH, KW, B out, B in]
    bias    int32 [O/B, B]

B is the machine's BLOCK, 16 by default. Where its tiles have several rows, BATCH images are
computed together: the last dimensions of data and bias are [BATCH, B], the rows of a bias alike.
Where its data or weights have fewer bits, so do their dtypes here, and the result is one of data.

A layer is exact in integers:

    y = clip((((sum + bias) >> before) * factor + residual * r) >> shift, low, high)

where low is 0 with ReLU, else the least number of the result's dtype, high is the largest one
without a bound, and the bias holds the half that rounds to nearest. The factor is a constant, or a
tensor like the bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from tilewright.base.dataclass import dataclass
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
from tilewright.targets.vta.config import VTAConfig
from tilewright.targets.vta.fields import DEFAULT
from tilewright.targets.vta.intrinsics import INP, WGT, elements
from tilewright.targets.vta.requantize import FACTORS


@dataclass(frozen=True, slots=True)
class Requantize:
    """From sums to bytes. residual: the factor of a second operand, None without one. factor: that
    of the sums, None for one per channel. high: the largest result; what the machine cannot store
    is cut off at its own largest number.

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
    """A convolution or the windows of pooling; channels are whole tiles (pad with zeros).

    size: height and width of the image. kernel, stride, dilation, pads: the same, for both. ends:
    padding after the image if it is not `pads`; negative for rows that no window reaches.
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
        if min(self.inputs, self.outputs, *self.out_size) < 1:
            raise InputError(
                f"{self} has {self.inputs} and {self.outputs} channels and {self.out_size} points",
                where="Convolution",
                hint="let the window fit into the padded image",
            )

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the result."""
        if self.ends is None:
            ends = self.pads
        else:
            ends = self.ends
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
        """Height and width of the area that the windows cover, including padding."""
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
class LayerProgram:
    """Computations in order, and the caller's buffers: inputs first, then the output.

    config: the machine that determines layout and dtypes.
    """

    name: str
    computations: tuple[Computation, ...]
    params: tuple[Buffer, ...]
    config: VTAConfig = DEFAULT


def convolution(
    c: Convolution, q: Requantize, name: str = "conv", config: VTAConfig = DEFAULT
) -> LayerProgram:
    """The Computations of a convolution with what follows it.

    params: x, w, then bias, factors and residual as far as there are any, and y. Raises InputError
    for channels that are not whole tiles, as the other layers.
    """
    of = elements(config)
    tile = config.tile
    ct = _tiles(c.inputs, config)
    ot = _tiles(c.outputs, config)
    x = Buffer("x", (ct, *c.size, *tile), of[INP].dtype)
    w = Buffer("w", (ot, ct, *c.kernel, *of[WGT].shape), of[WGT].dtype)
    acc = Buffer("acc", (ot, *c.out_size, *tile), int32)

    high, _ = c.out_size
    _, wide = c.reach
    rows = Buffer("rows", (ct, high, wide, *tile), x.dtype)
    # Rows that windows of one point pass over are not loaded.
    skips = c.kernel == (1, 1) and c.stride[0] > 1

    def product(*v: Expr) -> Expr:
        o, i, j, *batch, lane, k, di, dj, depth = v
        row, column = c.place((i, j), (di, dj))
        left = (
            rows[(k, i, column, *batch, depth)]
            if skips
            else _image(x, c, k, (row, column), (*batch, depth))
        )
        return Cast(left, int32) * Cast(w[o, k, di, dj, lane, depth], int32)

    before = map_(
        "rows",
        rows,
        lambda k, i, j, *lanes: _image(x, c, k, (i * c.stride[0], j), lanes),
    )
    sums = reduce_(name, acc, (ct, *c.kernel, config.BLOCK), "add", product)
    after, more, y = requantized(acc, q, config)
    made = (*([before] if skips else []), sums, *after)
    return LayerProgram(name, made, (x, w, *more, y), config)


def _tiles(channels: int, config: VTAConfig) -> int:
    """How many tiles a number of channels are."""
    count, rest = divmod(channels, config.BLOCK)
    if rest:
        raise InputError(
            f"{channels} channels are not whole tiles of {config.BLOCK}",
            where="layer",
            hint=f"fill up channels to multiples of {config.BLOCK} with zeros",
        )
    return count


def _image(
    x: Buffer,
    c: Convolution,
    channel: Expr,
    point: Sequence[Expr],
    lanes: Sequence[Expr],
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
    load: Expr = x[(channel, *place, *lanes)]
    if wide:
        load = Cast(load, int32)
    if not guards:
        return load
    return Select(reduce(And, guards), load, const(outside, load.dtype))


def pooling(
    c: Convolution,
    name: str = "pool",
    outside: int = -128,
    config: VTAConfig = DEFAULT,
) -> LayerProgram:
    """The largest of every window. params: x and y.

    outside: the value around the image; 0, which is faster, for bytes that are not negative.
    """
    ct = _tiles(c.inputs, config)
    tile = config.tile
    data = elements(config)[INP].dtype
    x = Buffer("x", (ct, *c.size, *tile), data)
    y = Buffer("y", (ct, *c.out_size, *tile), data)
    pooled = Buffer("pooled", y.shape, int32)
    wide, widen = _widened(x, c, outside)
    most = reduce_(
        name,
        pooled,
        c.kernel,
        "max",
        lambda k, i, j, *v: wide[(k, *c.place((i, j), v[-2:]), *v[:-2])],
    )
    narrow = map_("narrow", y, lambda *v: Cast(pooled[v], data))
    return LayerProgram(name, (widen, most, narrow), (x, y), config)


def depthwise(
    c: Convolution,
    q: Requantize,
    name: str = "depthwise",
    config: VTAConfig = DEFAULT,
) -> LayerProgram:
    """A depthwise convolution, on the ALU; weights int8 [C/B, KH, KW, B].

    params: x, w, then bias, factors and residual as far as there are any, and y. The rows of the
    weights' tiles are alike.
    """
    ct = _tiles(c.inputs, config)
    tile = config.tile
    x = Buffer("x", (ct, *c.size, *tile), elements(config)[INP].dtype)
    w = Buffer("w", (ct, *c.kernel, *tile), int8)
    weights = Buffer("weights", w.shape, int32)
    terms = Buffer("terms", (ct, *c.out_size, *c.kernel, *tile), int32)
    acc = Buffer("acc", (ct, *c.out_size, *tile), int32)
    wide, widen = _widened(x, c)

    def term(k: Expr, i: Expr, j: Expr, di: Expr, dj: Expr, *lanes: Expr) -> Expr:
        factor = weights[(k, di, dj, *lanes)]
        return wide[(k, *c.place((i, j), (di, dj)), *lanes)] * factor

    made = (
        widen,
        map_("weights", weights, lambda *v: Cast(w[v], int32)),
        map_("terms", terms, term),
        reduce_(
            name,
            acc,
            c.kernel,
            "add",
            lambda k, i, j, *v: terms[(k, i, j, *v[-2:], *v[:-2])],
        ),
    )
    after, more, y = requantized(acc, q, config)
    return LayerProgram(name, (*made, *after), (x, w, *more, y), config)


def _widened(x: Buffer, c: Convolution, outside: int = 0) -> tuple[Buffer, Computation]:
    """An image as accumulators, with the padding around."""
    wide = Buffer("image", (x.shape[0], *c.reach, *x.shape[3:]), int32)
    return wide, map_(
        "image",
        wide,
        lambda k, i, j, *lanes: _image(x, c, k, (i, j), lanes, True, outside),
    )


def requantized(
    acc: Buffer, q: Requantize, config: VTAConfig
) -> tuple[tuple[Computation, ...], tuple[Buffer, ...], Buffer]:
    """What follows sums: the Computations, their further inputs, and the result."""
    stored = elements(config)[INP].dtype
    y = Buffer("y", acc.shape, stored)
    bias = Buffer("bias", (acc.shape[0], *config.tile), int32)
    residual = Buffer("residual", acc.shape, stored)
    factors = Buffer("factors", bias.shape, int32)
    wide = Buffer("wide", acc.shape, int32)
    made: list[Computation] = []
    given = {bias: q.bias, factors: q.factor is None, residual: q.residual is not None}
    more = tuple(b for b, there in given.items() if there)
    if q.residual is not None:
        made.append(map_("widen", wide, lambda *v: Cast(residual[v], int32)))

    def value(*v: Expr) -> Expr:
        e: Expr = acc[v]
        channel = v[0], *v[3:]
        if q.bias:
            e = e + bias[channel]
        if q.before:
            e = Shr(e, const(q.before, int32))
        if q.factor is None:
            e = Mul(e, factors[channel])
        else:
            e = _times(e, q.factor)
        if q.residual is not None:
            e = e + _times(wide[v], q.residual)
        e = Shr(e, const(q.shift, int32))
        low = const(0 if q.relu else int(stored.min), int32)
        high = const(min(q.high, int(stored.max)), int32)
        return Cast(Min(Max(e, low), high), stored)

    made.append(map_("requantize", y, value))
    return tuple(made), more, y


def _is_power(factor: int) -> bool:
    if not (0 < factor < 1 << 31):
        return False
    return factor & (factor - 1) == 0


def _times(e: Expr, factor: int) -> Expr:
    """A product; by a power of two it is a shift, which real hardware has too."""
    if _is_power(factor):
        if factor > 1:
            return Shl(e, const(factor.bit_length() - 1, int32))
        return e
    return Mul(e, const(factor, int32))
