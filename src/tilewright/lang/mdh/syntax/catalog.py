"""The operators of the MDH papers (SC 2021, table I; TOPLAS 2024, figure 14), as expressions.

Each is a function of its sizes. Convolutions have the papers' index sets: no padding, stride 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.base.dtypes import float32, int64
from tilewright.expr.nodes import Expr, const
from tilewright.expr.python import select
from tilewright.lang.mdh.syntax.operators import (
    OPERATORS,
    Operator,
    cc,
    ps,
    pw,
    pw_custom_func,
)
from tilewright.lang.mdh.syntax.program import Expression
from tilewright.lang.mdh.syntax.views import inp_view, md_hom, out_view

add = OPERATORS["add"]
mul = OPERATORS["mul"]
argmax = OPERATORS["argmax"]


def identity(x: Expr) -> Expr:
    """The scalar function that returns its argument."""
    return x


# -- linear algebra


def dot(k: int) -> Expression:
    """Two vectors, one number."""
    return (
        out_view[float32](C=[lambda k: ()])
        @ md_hom[k](mul, (pw(add),), name="dot")
        @ inp_view[float32, float32](A=[lambda k: k], B=[lambda k: k])
    )


def mat_vec(i: int, k: int) -> Expression:
    """A matrix and a vector."""
    return (
        out_view[float32](w=[lambda i, k: i])
        @ md_hom[i, k](mul, (cc, pw(add)), name="mat_vec")
        @ inp_view[float32, float32](M=[lambda i, k: (i, k)], v=[lambda i, k: k])
    )


def mat_mul(i: int, j: int, k: int) -> Expression:
    """Two matrices."""
    return (
        out_view[float32](C=[lambda i, j, k: (i, j)])
        @ md_hom[i, j, k](mul, (cc, cc, pw(add)), name="mat_mul")
        @ inp_view[float32, float32](
            A=[lambda i, j, k: (i, k)],
            B=[lambda i, j, k: (k, j)],
        )
    )


def mat_mul_t(i: int, j: int, k: int) -> Expression:
    """Two matrices, both and the result transposed."""
    return (
        out_view[float32](C=[lambda i, j, k: (j, i)])
        @ md_hom[i, j, k](mul, (cc, cc, pw(add)), name="mat_mul_t")
        @ inp_view[float32, float32](
            A=[lambda i, j, k: (k, i)],
            B=[lambda i, j, k: (j, k)],
        )
    )


def b_mat_mul(b: int, i: int, j: int, k: int) -> Expression:
    """A batch of products."""
    return (
        out_view[float32](C=[lambda b, i, j, k: (b, i, j)])
        @ md_hom[b, i, j, k](mul, (cc, cc, cc, pw(add)), name="b_mat_mul")
        @ inp_view[float32, float32](
            A=[lambda b, i, j, k: (b, i, k)],
            B=[lambda b, i, j, k: (b, k, j)],
        )
    )


def batch_mat_mul(b1: int, b2: int, i: int, j: int, k: int) -> Expression:
    """TensorFlow's BatchMatMul: two batch dimensions."""
    return (
        out_view[float32](C=[lambda b1, b2, i, j, k: (b1, b2, i, j)])
        @ md_hom[b1, b2, i, j, k](mul, (cc, cc, cc, cc, pw(add)), name="batch_mat_mul")
        @ inp_view[float32, float32](
            A=[lambda b1, b2, i, j, k: (b1, b2, i, k)],
            B=[lambda b1, b2, i, j, k: (b1, b2, k, j)],
        )
    )


def bias_add_grad(i: int, j: int) -> Expression:
    """TensorFlow's BiasAddGrad<NHWC>: sums over the outer dimension."""
    return (
        out_view[float32](OB=[lambda i, j: j])
        @ md_hom[i, j](identity, (pw(add), cc), name="bias_add_grad")
        @ inp_view[float32](IB=[lambda i, j: (i, j)])
    )


# -- tensor contractions of quantum chemistry: CCSD(T)


def ccsdt_i1(a: int, b: int, c: int, d: int, e: int, f: int, g: int) -> Expression:
    """CCSD(T), instance 1."""
    return (
        out_view[float32](C=[lambda a, b, c, d, e, f, g: (a, b, c, d, e, f)])
        @ md_hom[a, b, c, d, e, f, g](mul, (*[cc] * 6, pw(add)), name="ccsdt_i1")
        @ inp_view[float32, float32](
            A=[lambda a, b, c, d, e, f, g: (g, d, a, b)],
            B=[lambda a, b, c, d, e, f, g: (e, f, g, c)],
        )
    )


def ccsdt_i2(a: int, b: int, c: int, d: int, e: int, f: int, g: int) -> Expression:
    """CCSD(T), instance 2."""
    return (
        out_view[float32](C=[lambda a, b, c, d, e, f, g: (a, b, c, d, e, f)])
        @ md_hom[a, b, c, d, e, f, g](mul, (*[cc] * 6, pw(add)), name="ccsdt_i2")
        @ inp_view[float32, float32](
            A=[lambda a, b, c, d, e, f, g: (g, d, a, c)],
            B=[lambda a, b, c, d, e, f, g: (e, f, g, b)],
        )
    )


# -- convolutions and stencils


def conv2d(p: int, q: int, r: int, s: int) -> Expression:
    """One image of one channel."""
    return (
        out_view[float32](O=[lambda p, q, r, s: (p, q)])
        @ md_hom[p, q, r, s](mul, (cc, cc, pw(add), pw(add)), name="conv2d")
        @ inp_view[float32, float32](
            I=[lambda p, q, r, s: (p + r, q + s)],
            F=[lambda p, q, r, s: (r, s)],
        )
    )


def mcc(n: int, p: int, q: int, k: int, r: int, s: int, c: int) -> Expression:
    """Multi-channel convolution, NHWC."""
    return (
        out_view[float32](O=[lambda n, p, q, k, r, s, c: (n, p, q, k)])
        @ md_hom[n, p, q, k, r, s, c](mul, (*[cc] * 4, *[pw(add)] * 3), name="mcc")
        @ inp_view[float32, float32](
            I=[lambda n, p, q, k, r, s, c: (n, p + r, q + s, c)],
            F=[lambda n, p, q, k, r, s, c: (k, r, s, c)],
        )
    )


def mcc_capsule(
    n: int, p: int, q: int, k: int, r: int, s: int, c: int, mi: int, mj: int, mk: int
) -> Expression:
    """Convolution of capsules: each element is a matrix."""
    return (
        out_view[float32](
            O=[lambda n, p, q, k, r, s, c, mi, mj, mk: (n, p, q, k, mi, mj)]
        )
        @ md_hom[n, p, q, k, r, s, c, mi, mj, mk](
            mul, (*[cc] * 4, *[pw(add)] * 3, cc, cc, pw(add)), name="mcc_capsule"
        )
        @ inp_view[float32, float32](
            I=[lambda n, p, q, k, r, s, c, mi, mj, mk: (n, p + r, q + s, c, mi, mk)],
            F=[lambda n, p, q, k, r, s, c, mi, mj, mk: (k, r, s, c, mk, mj)],
        )
    )


def jacobi1d(i: int) -> Expression:
    """The mean of three neighbors."""
    return (
        out_view[float32](y=[lambda i: i])
        @ md_hom[i](lambda a, b, c: (a + b + c) * (1.0 / 3.0), (cc,), name="jacobi1d")
        @ inp_view[float32](x=[lambda i: i, lambda i: i + 1, lambda i: i + 2])
    )


def jacobi2d(i: int, j: int) -> Expression:
    """The mean of a point and its four neighbors."""
    return (
        out_view[float32](y=[lambda i, j: (i, j)])
        @ md_hom[i, j](
            lambda c, n, s, w, e: (c + n + s + w + e) * 0.2, (cc, cc), name="jacobi2d"
        )
        @ inp_view[float32](
            x=[
                lambda i, j: (i + 1, j + 1),
                lambda i, j: (i, j + 1),
                lambda i, j: (i + 2, j + 1),
                lambda i, j: (i + 1, j),
                lambda i, j: (i + 1, j + 2),
            ]
        )
    )


def jacobi3d(i: int, j: int, k: int) -> Expression:
    """A weighted mean of a point and its six neighbors."""
    return (
        out_view[float32](y=[lambda i, j, k: (i, j, k)])
        @ md_hom[i, j, k](
            lambda c, u, d, n, s, w, e: c * 0.4 + (u + d + n + s + w + e) * 0.1,
            (cc, cc, cc),
            name="jacobi3d",
        )
        @ inp_view[float32](
            x=[
                lambda i, j, k: (i + 1, j + 1, k + 1),
                lambda i, j, k: (i, j + 1, k + 1),
                lambda i, j, k: (i + 2, j + 1, k + 1),
                lambda i, j, k: (i + 1, j, k + 1),
                lambda i, j, k: (i + 1, j + 2, k + 1),
                lambda i, j, k: (i + 1, j + 1, k),
                lambda i, j, k: (i + 1, j + 1, k + 2),
            ]
        )
    )


# -- data mining


def weight(
    n0: Expr, n1: Expr, n2: Expr, e0: Expr, e1: Expr, e2: Expr, key: Expr
) -> Any:
    """How likely two records of three fields are the same, and which record it is."""
    pairs = ((n0, e0, 4.0), (n1, e1, 2.5), (n2, e2, 1.0))
    parts = [select(a.eq(b), worth, const(-worth, float32)) for a, b, worth in pairs]
    return parts[0] + parts[1] + parts[2], key


@pw_custom_func(identity=(float("-inf"), (1 << 63) - 1), commutative=True)
def max_prl(lhs: Any, rhs: Any) -> Any:
    """The heavier of two matches; of equal ones the record with the lower key."""
    tie = lhs[0].eq(rhs[0]) & (lhs[1] < rhs[1])
    left = (rhs[0] < lhs[0]) | tie
    return select(left, lhs[0], rhs[0]), select(left, lhs[1], rhs[1])


def prl(i: int, j: int) -> Expression:
    """Probabilistic record linkage: to each new record the best match among the existing ones."""
    return (
        out_view[float32, int64](W=[lambda i, j: i], M=[lambda i, j: i])
        @ md_hom[i, j](weight, (cc, pw(max_prl)), name="prl")
        @ inp_view[int64, int64, int64](
            N=[lambda i, j: (i, 0), lambda i, j: (i, 1), lambda i, j: (i, 2)],
            E=[lambda i, j: (j, 0), lambda i, j: (j, 1), lambda i, j: (j, 2)],
            K=[lambda i, j: j],
        )
    )


def gen_histo(e: int, b: int, f: Callable[..., Any], op: Operator) -> Expression:
    """A generalized histogram: per bin, `op` over what `f` says of each element."""
    return (
        out_view[int64](Out=[lambda e, b: b])
        @ md_hom[e, b](f, (pw(op), cc), name="histo")
        @ inp_view[int64, int64](Elems=[lambda e, b: e], Bins=[lambda e, b: b])
    )


def histo(e: int, b: int) -> Expression:
    """How many elements are in each bin."""
    one = const(1, int64)
    return gen_histo(e, b, lambda elem, bin_: select(elem.eq(bin_), one, 0), add)


# -- patterns


def map_(f: Callable[[Expr], Any], i: int) -> Expression:
    """A function of every element."""
    return (
        out_view[float32](y=[lambda i: i])
        @ md_hom[i](f, (cc,), name="map")
        @ inp_view[float32](x=[lambda i: i])
    )


def reduce_(op: Operator, i: int) -> Expression:
    """All elements combined."""
    return (
        out_view[float32](y=[lambda i: ()])
        @ md_hom[i](identity, (pw(op),), name="reduce")
        @ inp_view[float32](x=[lambda i: i])
    )


def reduce2(op: Operator, i: int) -> Expression:
    """All elements combined in two ways simultaneously: `op` is an operator on pairs."""
    return (
        out_view[float32, float32](y=[lambda i: ()], z=[lambda i: ()])
        @ md_hom[i](lambda x: (x, x), (pw(op),), name="reduce2")
        @ inp_view[float32](x=[lambda i: i])
    )


def scan(op: Operator, i: int) -> Expression:
    """Each element combined with all before it."""
    return (
        out_view[float32](y=[lambda i: i])
        @ md_hom[i](identity, (ps(op),), name="scan")
        @ inp_view[float32](x=[lambda i: i])
    )


def mbbs(i: int, j: int) -> Expression:
    """Maximum bottom box sum's inner part: prefix sums of the rows' sums."""
    return (
        out_view[float32](y=[lambda i, j: i])
        @ md_hom[i, j](identity, (ps(add), pw(add)), name="mbbs")
        @ inp_view[float32](A=[lambda i, j: (i, j)])
    )


# -- parts of networks


def binary(f: Callable[[Any, Any], Any], name: str, i: int, j: int) -> Expression:
    """TensorFlow's Mul, Sub, ...: one function of two tensors, element by element."""
    return (
        out_view[float32](z=[lambda i, j: (i, j)])
        @ md_hom[i, j](f, (cc, cc), name=name)
        @ inp_view[float32, float32](x=[lambda i, j: (i, j)], y=[lambda i, j: (i, j)])
    )


def expand_dims(axis: int, *shape: int) -> Expression:
    """TensorFlow's ExpandDims<axis>: an axis of extent 1 in front of `axis`."""
    return (
        out_view[float32](y=[lambda *i: (*i[:axis], 0, *i[axis:])])
        @ md_hom[shape](identity, [cc] * len(shape), name="expand_dims")
        @ inp_view[float32](x=[lambda *i: i])
    )


def bert_mask(batch: int = 16, length: int = 384) -> Expression:
    """BERT's attention mask: Mul, ExpandDims, Sub and Mul as one (SC 2021, figure 1)."""
    return (
        out_view[float32](OB1=[lambda i1, i2, i3, i4: (i1, i2, i3, i4)])
        @ md_hom[batch, 1, length, length](
            lambda x1, x2: (1.0 - (x1 * x2)) * -10000.0,
            (cc, cc, cc, cc),
            name="bert_mask",
        )
        @ inp_view[float32, float32](
            IB1=[lambda i1, i2, i3, i4: (i1, i3, 0)],
            IB2=[lambda i1, i2, i3, i4: (i1, 0, i4)],
        )
    )


CATALOG: Mapping[str, Callable[..., Expression]] = {
    "Dot": dot,
    "MatVec": mat_vec,
    "MatMul": mat_mul,
    "MatMulT": mat_mul_t,
    "bMatMul": b_mat_mul,
    "BatchMatMul": batch_mat_mul,
    "BiasAddGrad": bias_add_grad,
    "CCSD(T) I1": ccsdt_i1,
    "CCSD(T) I2": ccsdt_i2,
    "Conv2D": conv2d,
    "MCC": mcc,
    "MCC_Capsule": mcc_capsule,
    "Jacobi1D": jacobi1d,
    "Jacobi2D": jacobi2d,
    "Jacobi3D": jacobi3d,
    "PRL": prl,
    "Histo": histo,
    "MBBS": mbbs,
    "Mul": lambda i, j: binary(mul, "mul", i, j),
    "Sub": lambda i, j: binary(lambda x, y: x - y, "sub", i, j),
    "ExpandDims": expand_dims,
    "BERT mask": bert_mask,
}
