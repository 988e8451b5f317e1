"""A direct convolution: padded input staged, weights packed, register tile and epilogue."""

from __future__ import annotations

import pytest

from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import map_, padded, reduce_
from tilewright.expr.nodes import Buffer, Max, const
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule

f32 = dtypes.float32


def conv(
    h: int,
    w: int,
    ic: int,
    oc: int,
    stride: int,
    pad: int = 1,
    r: int = 3,
    dilation: int = 1,
) -> Kernel:
    reach = 2 * pad - dilation * (r - 1) - 1
    oh, ow = (h + reach) // stride + 1, (w + reach) // stride + 1
    x, weight = Buffer("X", (1, h, w, ic), f32), Buffer("W", (oc, ic, r, r), f32)
    bias, skip = Buffer("bias", (oc,), f32), Buffer("skip", (1, oh, ow, oc), f32)
    c, y = Buffer("C", (1, oh, ow, oc), f32), Buffer("Y", (1, oh, ow, oc), f32)

    def term(n, oh, ow, oc, kh, kw, ic):
        at = (
            n,
            oh * stride + kh * dilation - pad,
            ow * stride + kw * dilation - pad,
            ic,
        )
        return padded(x, at, 0.0) * weight[oc, ic, kh, kw]

    product = reduce_("conv", c, (r, r, ic), "add", term)
    tail = map_(
        "tail",
        y,
        lambda n, oh, ow, oc: Max(
            c[n, oh, ow, oc] + bias[oc] + skip[n, oh, ow, oc], const(0.0, f32)
        ),
    )
    return lower("conv", [product, tail], [x, weight, bias, skip, y], [y])


def tiled(kernel: Kernel, rows: int, cols: int, lanes: int, vectors: int) -> Schedule:
    s = Schedule(kernel)
    xp = s.cache_read("X", pad=True, scope="global")
    oco, oci = s.split("tail.oc", lanes * vectors, tail="overlap")
    oho, ohi = s.split("tail.oh", rows, tail="overlap")
    owo, owi = s.split("tail.ow", cols, tail="overlap")
    s.reorder(oco, oho, owo, ohi, owi, oci)
    s.parallel(oco)
    s.compute_at("C", owo, "register")
    init = s.decompose_reduction("C", "conv.oh")
    band = ["conv.kh", "conv.kw", "conv.ic", "conv.oh", "conv.ow", "conv.oc"]
    s.reorder(*band)
    s.pack("W", oco, "conv.kh", "conv.kw", "conv.ic", "conv.oc")
    assert xp == "X.pad"
    for f in (oci, "conv.oc", init[-1]):
        outer, inner = s.split(f, lanes)
        s.vectorize(inner)
        s.unroll(outer)
    for f in (owi, ohi, "conv.ow", "conv.oh", *init[:-1]):
        s.unroll(f)
    return s


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("rows, cols", [(1, 3), (2, 2)])
def test_tiled_conv(stride, rows, cols, check_same):
    kernel = conv(7, 9, 3, 9, stride)
    s = tiled(kernel, rows, cols, lanes=4, vectors=2)
    # Where the padding is staged, terms 0*w are added in both; the order of kh, kw, ic is kept.
    check_same(kernel, s, exact=True)
    text = repr(s.kernel)
    assert (
        "select" in text.split("for tail")[0]
        and "select" not in text.split("for tail", 1)[1]
    )


def test_padding_staged_per_tile(check_same):
    kernel = conv(7, 9, 3, 4, 2)
    s = Schedule(kernel)
    oho, _ = s.split("conv.oh", 2, tail="guard")
    s.cache_read("X", oho, pad=True)
    check_same(kernel, s, exact=True)


def test_stride_beyond_the_kernel(check_same):
    kernel = conv(7, 9, 2, 4, 3, pad=0, r=1)
    s = Schedule(kernel)
    s.cache_read("X", "conv.oh")
    check_same(kernel, s, exact=True)


@pytest.mark.parametrize("pad", [1, 2])
def test_padding_that_strides_jump_over(pad, check_same):
    """Stride and dilation 2 touch every other pixel: the guard's limits lie between them."""
    kernel = conv(7, 8, 2, 3, 2, pad=pad, dilation=2)
    s = Schedule(kernel)
    s.cache_read("X", pad=True)
    check_same(kernel, s, exact=True)


def test_a_guard_that_is_no_padding_is_refused():
    x, y = Buffer("X", (8,), f32), Buffer("Y", (8,), f32)
    from tilewright.expr.nodes import Select

    m = map_("m", y, lambda i: Select(i < 3, x[i], const(0.0, f32)))
    s = Schedule(lower("k", [m], [x, y], [y]))
    with pytest.raises(ScheduleError, match="not the test that dimension 0 is inside"):
        s.cache_read("X", pad=True)
