"""A product of matrices for a described VTA, written in te and scheduled by hand."""

from __future__ import annotations

import tilewright as tw
from tilewright.lang.te.schedule import Schedule
from tilewright.lang.te.syntax.nodes import Tensor
from tilewright.targets.vta import (
    ACC,
    INP,
    WGT,
    VTAConfig,
    gemm,
)
from tilewright.targets.vta.intrinsics import elements

t = tw.te


def written(config: VTAConfig, m: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A, B, P = A . B^T and C = clip(P >> 5) in tiles, of `m` rows."""
    of, tile = elements(config), config.tile
    data, weights = of[INP].dtype, of[WGT].dtype
    A = t.placeholder((m, 4, *tile), data.name, name="A")
    B = t.placeholder((4, 4, *of[WGT].shape), weights.name, name="B")
    k, d = t.reduce_axis((0, 4)), t.reduce_axis((0, config.BLOCK))

    def total(i: tw.te.Expr, j: tw.te.Expr, *v: tw.te.Expr) -> tw.te.Expr:
        *rows, o = v
        left, right = A[(i, k, *rows, d)], B[j, k, o, d]
        return t.sum(left.astype("int32") * right.astype("int32"), [k, d])

    low, high = int(data.min), int(data.max)
    P = t.compute((m, 4, *tile), total, name="P")
    C = t.compute(
        P.shape,
        lambda *v: t.max(t.min(P[v] >> 5, high), low).astype(data.name),
        name="C",
    )
    return A, B, P, C


def product(config: VTAConfig) -> tuple[Schedule, list[Tensor]]:
    """The same, scheduled by hand with two virtual threads."""
    A, B, P, C = written(config)
    s = t.create_schedule(C.op)
    AL, BL = s.cache_read(A, INP, [P]), s.cache_read(B, WGT, [P])
    s[P].set_scope(ACC)
    i, j, *inner = s[C].op.axis
    jo, ji = s[C].split(j, 2)
    s[C].reorder(jo, i, ji, *inner)
    s[C].bind(jo, "vthread")
    s[P].compute_at(s[C], jo)
    pi, pj, *lanes = s[P].op.axis
    k, d = s[P].op.reduce_axis
    ko, ki = s[P].split(k, 2)
    s[P].reorder(ko, pi, pj, ki, *lanes, d)
    s[AL].compute_at(s[P], ko)
    s[BL].compute_at(s[P], ko)
    s[P].tensorize(lanes[0], gemm(config))
    return s, [A, B, C]
