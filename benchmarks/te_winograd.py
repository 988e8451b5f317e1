"""A 3x3 convolution by Winograd's F(4,3): its definition, and schedules for both packages.

The weights are transformed in advance, as for constant weights. The transforms are from Lavin and
Gray 2016; the division into stages is that of TVM's `topi`: tiles of the input, their transform, a
product for each of 36 points, the inverse transform, and the tiles in their places.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.te_gemm import Program

CHANNELS = FILTERS = 64
SIDE = 64  # rows and columns, of input and output
M, ALPHA = 4, 6  # sides of a tile of the output, and of the input
TILES = SIDE // M
POINTS = TILES * TILES
ROWS, LANES = 8, 16  # a block of a product

# Y = A^T ((G g G^T) * (B^T d B)) A
B_T = np.array(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ]
)
A_T = np.array(
    [
        [1, 1, 1, 1, 1, 0],
        [0, 1, -1, 2, -2, 0],
        [0, 1, 1, 4, 4, 0],
        [0, 1, -1, 8, -8, 1],
    ]
)


def row(te: Any, values: np.ndarray[Any, Any], at: Any, element: Any) -> Any:
    """Row `at` of a constant matrix times a vector with the elements `element(k)`.

    A selection of rows, resolved when the loop of `at` is unrolled. Terms with factor 0 are left
    out: 0 times infinity would be NaN.
    """
    found: Any = None
    for n, factors in reversed(list(enumerate(values))):
        terms = [element(k) * float(f) for k, f in enumerate(factors) if f]
        total = sum(terms[1:], terms[0])
        found = total if found is None else te.if_then_else(at <= n, total, found)
    return found


def convolution(te: Any) -> dict[str, Any]:
    """The stages by name: X, U (arguments), pad, D, T, V, P, Q, Y, Z, and rc, P's sum."""
    X = te.placeholder((CHANNELS, SIDE, SIDE), name="X")
    U = te.placeholder((ALPHA, ALPHA, CHANNELS, FILTERS), name="U")
    pad = te.compute(
        (CHANNELS, SIDE + 2, SIDE + 2),
        lambda c, y, x: te.if_then_else(
            te.all(y >= 1, y <= SIDE, x >= 1, x <= SIDE), X[c, y - 1, x - 1], 0.0
        ),
        name="pad",
    )
    D = te.compute(
        (CHANNELS, ALPHA, ALPHA, POINTS),
        lambda c, e, n, p: pad[c, (p // TILES) * M + e, (p % TILES) * M + n],
        name="D",
    )
    T = te.compute(
        (CHANNELS, ALPHA, ALPHA, POINTS),
        lambda c, e, n, p: row(te, B_T, e, lambda k: D[c, k, n, p]),
        name="T",
    )
    V = te.compute(
        (ALPHA, ALPHA, CHANNELS, POINTS),
        lambda e, n, c, p: row(te, B_T, n, lambda k: T[c, e, k, p]),
        name="V",
    )
    rc = te.reduce_axis((0, CHANNELS), name="rc")
    P = te.compute(
        (ALPHA, ALPHA, FILTERS, POINTS),
        lambda e, n, k, p: te.sum(V[e, n, rc, p] * U[e, n, rc, k], axis=rc),
        name="P",
    )
    Q = te.compute(
        (FILTERS, M, ALPHA, POINTS),
        lambda k, e, n, p: row(te, A_T, e, lambda j: P[j, n, k, p]),
        name="Q",
    )
    Y = te.compute(
        (FILTERS, M, M, POINTS),
        lambda k, e, n, p: row(te, A_T, n, lambda j: Q[k, e, j, p]),
        name="Y",
    )
    Z = te.compute(
        (FILTERS, SIDE, SIDE),
        lambda k, y, x: Y[k, y % M, x % M, (y // M) * TILES + x // M],
        name="Z",
    )
    return dict(locals())


def ours(te: Any) -> tuple[list[Any], Any]:
    """Tiles, their transform by vectors, products of a block in registers, and back."""
    t = convolution(te)
    s = te.create_schedule(t["Z"].op)
    s[t["pad"]].compute_inline()
    D, T, V, P, Q, Y, Z = (t[name] for name in "DTVPQYZ")
    s[D].parallel(s[D].op.axis[0])
    s[Z].parallel(s[Z].op.axis[0])
    for first, second, axes in ((T, V, (2, 0, 1)), (Q, Y, (0, 1, 2))):
        channel, e, n = (s[second].op.axis[k] for k in axes)
        po, pi = s[second].split(s[second].op.axis[3], LANES)
        s[second].reorder(channel, po, e, n, pi)
        s[second].parallel(channel)
        s[first].compute_at(s[second], po)
        _, fe, fn, fp = s[first].op.axis
        for stage, unrolled, lanes in (
            (s[second], (e, n), pi),
            (s[first], (fe, fn), fp),
        ):
            for axis in unrolled:
                stage.unroll(axis)
            stage.vectorize(lanes)
    e, n, k, p = s[P].op.axis
    ko, ki = s[P].split(k, ROWS)
    po, pi = s[P].split(p, LANES)
    s[P].reorder(e, n, ko, po, t["rc"], ki, pi)
    s[P].unroll(ki)
    s[P].vectorize(pi)
    s[P].parallel(s[P].fuse(e, n))
    return [t["X"], t["U"], Z], s


def theirs(tvm: Any) -> tuple[list[Any], Any]:
    """The same loops."""
    t = convolution(tvm.te)
    args = [t["X"], t["U"], t["Z"]]
    s = tvm.s_tir.Schedule(tvm.te.create_prim_func(args))
    s.compute_inline(s.get_sblock("pad"))
    for name in "DZ":
        s.parallel(s.get_loops(s.get_sblock(name))[0])
    for first, second, axes in (("T", "V", (2, 0, 1)), ("Q", "Y", (0, 1, 2))):
        block, before = s.get_sblock(second), s.get_sblock(first)
        loops = s.get_loops(block)
        channel, e, n = (loops[k] for k in axes)
        po, pi = s.split(loops[3], [None, LANES])
        s.reorder(channel, po, e, n, pi)
        s.parallel(channel)
        s.compute_at(before, po)
        inner = s.get_loops(before)[-3:]
        for unrolled, lanes in (((e, n), pi), (inner[:2], inner[2])):
            for axis in unrolled:
                s.unroll(axis)
            s.vectorize(lanes)
    block = s.get_sblock("P")
    e, n, k, p, rc = s.get_loops(block)
    ko, ki = s.split(k, [None, ROWS])
    po, pi = s.split(p, [None, LANES])
    s.reorder(e, n, ko, po, rc, ki, pi)
    s.unroll(ki)
    s.vectorize(pi)
    s.parallel(s.fuse(e, n))
    s.decompose_reduction(block, rc)
    return args, s


def expected(x: np.ndarray[Any, Any], u: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same stages in float64."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (ALPHA, ALPHA), (1, 2))
    tiles = windows[:, ::M, ::M]
    v = np.einsum("ea,nb,cyxab->encyx", B_T, B_T, tiles, optimize=True)
    products = np.einsum("encyx,enck->enkyx", v, u.astype(np.float64), optimize=True)
    y: np.ndarray[Any, Any] = np.einsum(
        "ea,nb,abkyx->kyexn", A_T, A_T, products, optimize=True
    )
    return y.reshape(FILTERS, SIDE, SIDE)


PROGRAM = Program(
    "winograd",
    ours,
    theirs,
    ((CHANNELS, SIDE, SIDE), (ALPHA, ALPHA, CHANNELS, FILTERS)),
    expected,
)
