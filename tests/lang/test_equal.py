"""One operator in several notations is one Computation: equal canonical texts, names aside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import pytest

from tilewright import halide as hl
from tilewright import mdh
from tilewright import te as t
from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, reduce_
from tilewright.compute.canonical import canonical
from tilewright.compute.nodes import PS, Computation
from tilewright.expr.nodes import Buffer, call
from tilewright.lang.halide.syntax.lower import computations
from tilewright.lang.halide.syntax.pipeline import pipeline
from tilewright.lang.mdh import add, cc, inp_view, md_hom, mul, out_view, ps, pw
from tilewright.lift.normalize import normalize
from tilewright.lift.patterns import SCOPE as L
from tilewright.lift.patterns import At, Map, Reduce, Scan, Slide, Transpose, Zip, fun

B, I, J, K, R, S = 3, 6, 7, 8, 3, 2  # noqa: E741
f32, inf = L["f32"], float("inf")


# -- each notation's way to a canonical text: inputs in order of use, then the result


def text(c: Computation) -> str:
    results = dict.fromkeys(o.tensor for o in c.outputs)
    first_use = dict.fromkeys(a.buffer for a in c.accesses)
    return canonical([c], [*first_use, *results])


def buffers(**shapes: tuple[int, ...]) -> list[Buffer]:
    return [Buffer(name, shape, float32) for name, shape in shapes.items()]


def tensors(**shapes: tuple[int, ...]) -> list[t.Tensor]:
    return [t.placeholder(shape, name=name) for name, shape in shapes.items()]


def of_te(tensor: t.Tensor) -> Computation:
    return t.computation(tensor.op)


def of_halide(f: hl.Func, *size: int) -> Computation:
    (c,), _ = computations(pipeline([f], [size]))
    return c


def images(**dimensions: int) -> list[hl.ImageParam]:
    return [hl.ImageParam(hl.Float(32), n, name) for name, n in dimensions.items()]


def of_lift(f: Callable[..., Any], *types: Any) -> Computation:
    (c,) = normalize(fun(f, *types), {}).computations
    return c


def of_mdh(out: Any, hom: Any, *accesses: Any) -> Computation:
    types = (float32,) * len(accesses)
    inputs = {f"x{n}": [a] for n, a in enumerate(accesses)}
    return out_view[float32](y=[out]) @ hom @ inp_view[types](**inputs)


# -- matrix product


def product_compute() -> Computation:
    a, b, c = buffers(a=(I, K), b=(K, J), c=(I, J))
    return reduce_("product", c, (K,), "add", lambda i, j, k: a[i, k] * b[k, j])


def product_te() -> Computation:
    a, b = tensors(a=(I, K), b=(K, J))
    k = t.reduce_axis((0, K))
    return of_te(t.compute((I, J), lambda i, j: t.sum(a[i, k] * b[k, j], axis=k)))


def product_halide() -> Computation:
    a, b = images(a=2, b=2)
    f, x, y, k = hl.Func("f"), hl.Var("x"), hl.Var("y"), hl.RDom([(0, K)], "k")
    f[x, y] += a[k, y] * b[x, k]
    return of_halide(f, J, I)


def product_mdh() -> Computation:
    hom = md_hom[I, J, K](mul, (cc, cc, pw(add)))
    return of_mdh(
        lambda i, j, k: (i, j), hom, lambda i, j, k: (i, k), lambda i, j, k: (k, j)
    )


def dot(row: Any, column: Any) -> Any:
    return At(0)(Reduce(L["add"], 0.0)(Map(L["mul"])(Zip(row, column))))


def product_lift() -> Computation:
    return of_lift(
        lambda A, B: Map(
            lambda row: Map(lambda column: dot(row, column))(Transpose(B))
        )(A),
        f32[I, K],
        f32[K, J],
    )


# -- batched product


def batched_compute() -> Computation:
    a, b, c = buffers(a=(B, I, K), b=(B, K, J), c=(B, I, J))
    return reduce_(
        "batched", c, (K,), "add", lambda n, i, j, k: a[n, i, k] * b[n, k, j]
    )


def batched_te() -> Computation:
    a, b = tensors(a=(B, I, K), b=(B, K, J))
    k = t.reduce_axis((0, K))
    return of_te(
        t.compute((B, I, J), lambda n, i, j: t.sum(a[n, i, k] * b[n, k, j], axis=k))
    )


def batched_halide() -> Computation:
    a, b = images(a=3, b=3)
    f, (x, y, n), k = hl.Func("f"), (hl.Var(v) for v in "xyn"), hl.RDom([(0, K)], "k")
    f[x, y, n] += a[k, y, n] * b[x, k, n]
    return of_halide(f, J, I, B)


def batched_mdh() -> Computation:
    hom = md_hom[B, I, J, K](mul, (cc, cc, cc, pw(add)))
    return of_mdh(
        lambda n, i, j, k: (n, i, j),
        hom,
        lambda n, i, j, k: (n, i, k),
        lambda n, i, j, k: (n, k, j),
    )


def batched_lift() -> Computation:
    def one(pair: Any) -> Any:
        return Map(
            lambda row: Map(lambda column: dot(row, column))(Transpose(pair[1]))
        )(pair[0])

    return of_lift(lambda A, B: Map(one)(Zip(A, B)), f32[B, I, K], f32[B, K, J])


# -- convolution


def convolution_compute() -> Computation:
    x, f, y = buffers(x=(I + R - 1, J + S - 1), f=(R, S), y=(I, J))
    return reduce_(
        "convolution", y, (R, S), "add", lambda p, q, r, s: x[p + r, q + s] * f[r, s]
    )


def convolution_te() -> Computation:
    x, f = tensors(x=(I + R - 1, J + S - 1), f=(R, S))
    r, s = t.reduce_axis((0, R)), t.reduce_axis((0, S))
    return of_te(
        t.compute((I, J), lambda p, q: t.sum(x[p + r, q + s] * f[r, s], axis=[r, s]))
    )


def convolution_halide() -> Computation:
    image, weight = images(image=2, weight=2)
    f, p, q, r = hl.Func("f"), hl.Var("p"), hl.Var("q"), hl.RDom([(0, S), (0, R)], "r")
    f[q, p] += image[q + r.x, p + r.y] * weight[r.x, r.y]
    return of_halide(f, J, I)


def convolution_mdh() -> Computation:
    hom = md_hom[I, J, R, S](mul, (cc, cc, pw(add), pw(add)))
    return of_mdh(
        lambda p, q, r, s: (p, q),
        hom,
        lambda p, q, r, s: (p + r, q + s),
        lambda p, q, r, s: (r, s),
    )


def convolution_lift() -> Computation:
    def at(window: Any, F: Any) -> Any:
        partial = Map(lambda rows: dot(rows[0], rows[1]))(Zip(window, F))
        return At(0)(Reduce(L["add"], 0.0)(partial))

    def windows(X: Any) -> Any:
        return Map(Transpose)(Slide(R, 1)(Map(Slide(S, 1))(X)))

    return of_lift(
        lambda X, F: Map(Map(lambda w: at(w, F)))(windows(X)),
        f32[I + R - 1, J + S - 1],
        f32[R, S],
    )


# -- softmax's parts


def maxima_compute() -> Computation:
    x, m = buffers(x=(I, J), m=(I,))
    return reduce_("maxima", m, (J,), "max", lambda i, j: x[i, j])


def maxima_te() -> Computation:
    (x,) = tensors(x=(I, J))
    j = t.reduce_axis((0, J))
    return of_te(t.compute((I,), lambda i: t.max(x[i, j], axis=j)))


def maxima_halide() -> Computation:
    (x,) = images(x=2)
    f, y, r = hl.Func("f"), hl.Var("y"), hl.RDom([(0, J)], "r")
    f[y] = -inf
    f[y] = hl.max(f[y], x[r, y])
    return of_halide(f, I)


def maxima_mdh() -> Computation:
    hom = md_hom[I, J](lambda x: x, (cc, pw(mdh.max)))
    return of_mdh(lambda i, j: i, hom, lambda i, j: (i, j))


def maxima_lift() -> Computation:
    return of_lift(
        lambda X: Map(lambda r: At(0)(Reduce(L["max"], -inf)(r)))(X), f32[I, J]
    )


def exponentials_compute() -> Computation:
    x, m, y = buffers(x=(I, J), m=(I,), y=(I, J))
    return map_("exponentials", y, lambda i, j: call("exp", x[i, j] - m[i]))


def exponentials_te() -> Computation:
    x, m = tensors(x=(I, J), m=(I,))
    return of_te(t.compute((I, J), lambda i, j: t.exp(x[i, j] - m[i])))


def exponentials_halide() -> Computation:
    image, m = images(image=2, m=1)
    f, x, y = hl.Func("f"), hl.Var("x"), hl.Var("y")
    f[x, y] = hl.exp(image[x, y] - m[y])
    return of_halide(f, J, I)


def exponentials_mdh() -> Computation:
    hom = md_hom[I, J](lambda x, m: mdh.exp(x - m), (cc, cc))
    return of_mdh(lambda i, j: (i, j), hom, lambda i, j: (i, j), lambda i, j: i)


def exponentials_lift() -> Computation:
    def row(pair: Any) -> Any:
        return Map(lambda x: L["exp"](L["sub"](x, pair[1])))(pair[0])

    return of_lift(lambda X, m: Map(row)(Zip(X, m)), f32[I, J], f32[I])


def sums_compute() -> Computation:
    x, s = buffers(x=(I, J), s=(I,))
    return reduce_("sums", s, (J,), "add", lambda i, j: x[i, j])


def sums_te() -> Computation:
    (x,) = tensors(x=(I, J))
    j = t.reduce_axis((0, J))
    return of_te(t.compute((I,), lambda i: t.sum(x[i, j], axis=j)))


def sums_halide() -> Computation:
    (x,) = images(x=2)
    f, y, r = hl.Func("f"), hl.Var("y"), hl.RDom([(0, J)], "r")
    f[y] += x[r, y]
    return of_halide(f, I)


def sums_mdh() -> Computation:
    hom = md_hom[I, J](lambda x: x, (cc, pw(add)))
    return of_mdh(lambda i, j: i, hom, lambda i, j: (i, j))


def sums_lift() -> Computation:
    return of_lift(
        lambda X: Map(lambda r: At(0)(Reduce(L["add"], 0.0)(r)))(X), f32[I, J]
    )


def quotients_compute() -> Computation:
    x, s, y = buffers(x=(I, J), s=(I,), y=(I, J))
    return map_("quotients", y, lambda i, j: x[i, j] / s[i])


def quotients_te() -> Computation:
    x, s = tensors(x=(I, J), s=(I,))
    return of_te(t.compute((I, J), lambda i, j: x[i, j] / s[i]))


def quotients_halide() -> Computation:
    image, s = images(image=2, s=1)
    f, x, y = hl.Func("f"), hl.Var("x"), hl.Var("y")
    f[x, y] = image[x, y] / s[y]
    return of_halide(f, J, I)


def quotients_mdh() -> Computation:
    hom = md_hom[I, J](lambda x, s: x / s, (cc, cc))
    return of_mdh(lambda i, j: (i, j), hom, lambda i, j: (i, j), lambda i, j: i)


def quotients_lift() -> Computation:
    def row(pair: Any) -> Any:
        return Map(lambda x: L["div"](x, pair[1]))(pair[0])

    return of_lift(lambda X, s: Map(row)(Zip(X, s)), f32[I, J], f32[I])


# -- prefix scan


def prefix_compute() -> Computation:
    x, y = buffers(x=(K,), y=(K,))
    return reduce_(
        "prefix",
        y,
        (K,),
        "add",
        lambda i: x[i],
        extents=(),
        index=lambda i: (i,),
        combine=PS,
    )


def prefix_te() -> Computation:
    (x,) = tensors(x=(K,))
    return of_te(t.compute((K,), lambda i: t.scan_op(t.sum)(x[i], axis=i)))


def prefix_mdh() -> Computation:
    return of_mdh(lambda i: i, md_hom[K](lambda x: x, (ps(add),)), lambda i: i)


def prefix_lift() -> Computation:
    return of_lift(lambda X: Scan(L["add"], 0.0)(X), f32[K])


# operator -> notation -> how it is written there
Builders = dict[str, Callable[[], Computation]]
NOTATIONS = ("compute", "te", "halide", "mdh", "lift")


def _row(name: str, notations: Sequence[str] = NOTATIONS) -> Builders:
    return {n: globals()[f"{name}_{n}"] for n in notations}


TABLE: dict[str, Builders] = {
    "matrix product": _row("product"),
    "batched product": _row("batched"),
    "convolution": _row("convolution"),
    "softmax: maxima": _row("maxima"),
    "softmax: exponentials": _row("exponentials"),
    "softmax: sums": _row("sums"),
    "softmax: quotients": _row("quotients"),
    "prefix scan": _row("prefix", ("compute", "te", "mdh", "lift")),
}
PAIRS = [(op, *pair) for op, row in TABLE.items() for pair in combinations(row, 2)]


@pytest.mark.parametrize(
    ("operator", "one", "other"), PAIRS, ids=lambda v: v.replace(" ", "_")
)
def test_two_notations_make_one_computation(
    operator: str, one: str, other: str
) -> None:
    row = TABLE[operator]
    assert text(row[one]()) == text(row[other]())
