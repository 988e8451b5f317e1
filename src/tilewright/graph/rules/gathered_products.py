"""Products with constant matrices that are chosen at run time, as in mixtures of experts.

    MatMul(x, Gather(w, e))    =  GatheredMatMul(x, w in panels, e)
    GatheredMatMul(x, w, e)    =  GatheredMatMul(x, w in panels, e)

The matrices are not copied before they are multiplied. A schedule cannot pack them, as it does not
know which one is read, so they are stored in panels of 32 columns, the width of most processors'
products: on Zen 5, 1.3 to 1.7 times as fast for 8 to 32 rows and matrices of 1024 x 3584, float32.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.graph.ops.derivative import extents
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.gathered_matmul import DOMAIN, gathered_matmul
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    Attribute,
    constants,
    onnx,
    operators,
    tensors,
)
from tilewright.graph.rules.rule import Rule, Sample, normals

PANEL = 32  # columns

x, e = tensors("x e")
(w,) = constants("w")
axis = Attribute("axis", default=0)
copied = onnx.MatMul(x, onnx.Gather(w, e, axis=axis))
own = operators(DOMAIN)
whole = own.GatheredMatMul(x, w, e)


def _of_matrices(m: Match) -> bool:
    """one matrix of w for each one of x, of floats and known shapes"""
    dtype = m[x].dtype
    known = m[x].static and m[e].static and dtype is not None and dtype.is_float
    if not known or m.attribute(axis) not in (0, -3):
        return False
    ranks = [len(extents(v)) for v in (m[x], m[w], m[e])]
    return ranks == [3, 3, 1] and extents(m[x])[:1] == extents(m[e])


def _of_one_panel(m: Match) -> bool:
    """w is one panel, of a multiple of 32 columns, and more"""
    _, count, _, n = extents(m[w])
    return m.result.static and count == 1 and n > PANEL and n % PANEL == 0


def _in_panels(m: Match, f: Fragment) -> Value:
    """GatheredMatMul(x, w in panels, e)"""
    groups, *_, k, n = extents(m[w])
    width = PANEL if n % PANEL == 0 else n
    parts = f.reshape(m[w], groups, k, n // width, width)
    parts = f.transpose(parts, 0, 2, 1, 3)
    found = gathered_matmul(f, m[x], parts, m[e])
    return f.reshape(found, *extents(m.result))


def _operands(
    rng: np.random.Generator,
    *matrices: int,
) -> Sample:
    rows = normals(rng, 4, 2, 5)
    numbers = rng.integers(-3, 3, 4)
    return {x: rows, w: normals(rng, 3, *matrices), e: numbers}


def _some(rng: np.random.Generator) -> Sample:
    n = int(rng.choice([7, 64]))
    return {**_operands(rng, 5, n), axis: int(rng.choice([0, -3]))}


GATHERED_PRODUCTS = (
    Rule(
        "product-of-gathered-matrices",
        copied,
        _in_panels,
        when=[_of_matrices],
        exact=False,
        samples=_some,
    ),
    Rule(
        "gathered-matrices-in-panels",
        whole,
        _in_panels,
        when=[_of_one_panel],
        exact=False,
        samples=lambda rng: _operands(rng, 1, 5, 96),
    ),
)
