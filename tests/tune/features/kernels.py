"""Small kernels whose features were worked out on paper."""

from __future__ import annotations

from tilewright.base.dtypes import float32, int64
from tilewright.compute.build import map_, reduce_
from tilewright.expr.nodes import Buffer
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule
from tilewright.tune.features import Facts, FeatureSet, names

# Vectors of four floats; caches so small that the product fills each in another loop.
FACTS = Facts(vector=16, registers=16, l1=256, l2=640, l3=4096, cores=2)


def plain_product(swapped: bool = False, prefix: str = "") -> Kernel:
    """4 x 8 results of 16 products each."""
    a = Buffer(prefix + "a", (4, 16), float32)
    b = Buffer(prefix + "b", (16, 8), float32)
    c = Buffer(prefix + "c", (4, 8), float32)

    def f(i, j, k):
        return b[k, j] * a[i, k] if swapped else a[i, k] * b[k, j]

    made = reduce_(prefix + "m", c, (16,), "add", f)
    return lower("p", [made], [a, b, c], [c])


def product(swapped: bool = False, prefix: str = "", trivial: bool = False) -> Kernel:
    """
    for m.i.init in 4:
      for m.j.o.init in 2:
        for m.j.i.init in 4:
          c[m.i.init, m.j.o.init * 4 + m.j.i.init] = 0.0
    for m.i in 4 parallel:
      for m.k.o in 4:
        for m.k.i in 4:
          for m.j.o in 2 unroll:
            for m.j.i in 4 vector:
              c[m.i, m.j.o * 4 + m.j.i] add=
                a[m.i, m.k.o * 4 + m.k.i] * b[m.k.o * 4 + m.k.i, m.j.o * 4 + m.j.i]
    """
    s = Schedule(plain_product(swapped, prefix))
    i, j, k = (f"{prefix}m.{x}" for x in "ijk")
    s.split(j, 4)
    s.split(k, 4)
    if trivial:
        s.split(f"{k}.i", 4)  # leaves a loop of one trip around
        s.split(i, 1)  # and one inside
    s.decompose_reduction(f"{prefix}c", f"{i}.o" if trivial else i)
    last = f"{k}.i.i" if trivial else f"{k}.i"
    first = f"{i}.o" if trivial else i
    order = [first, f"{k}.o", last, f"{j}.o", f"{j}.i"]
    if trivial:
        order.insert(2, f"{k}.i.o")
        order.insert(1, f"{i}.i")
    s.reorder(*order)
    s.unroll(f"{j}.o")
    s.vectorize(f"{j}.i")
    s.parallel(first)
    return s.kernel


def stencil() -> Kernel:
    """y[i, j] = x[i, j] + x[i, j + 1] + x[i, j + 2], rows of 16 in vectors of 4."""
    x = Buffer("x", (5, 18), float32)
    y = Buffer("y", (5, 16), float32)
    made = map_("s", y, lambda i, j: x[i, j] + x[i, j + 1] + x[i, j + 2])
    s = Schedule(lower("p", [made], [x, y], [y]))
    s.split("s.j", 4)
    s.vectorize("s.j.i")
    return s.kernel


def row_sums() -> Kernel:
    """r[i] is the sum of 32 elements of row i."""
    x = Buffer("x", (6, 32), float32)
    r = Buffer("r", (6,), float32)
    made = reduce_("r", r, (32,), "add", lambda i, j: x[i, j])
    return lower("p", [made], [x, r], [r])


def gather() -> Kernel:
    """y[i, j] = table[ids[i], j], in vectors along i."""
    table = Buffer("table", (100, 8), float32)
    ids = Buffer("ids", (4,), int64)
    y = Buffer("y", (4, 8), float32)
    made = map_("g", y, lambda i, j: table[ids[i], j])
    s = Schedule(lower("p", [made], [table, ids, y], [y]))
    s.reorder("g.j", "g.i")
    s.vectorize("g.i")
    return s.kernel


def rows(features: FeatureSet, kernel: Kernel) -> list[dict[str, float]]:
    """What is not 0 of each row, by the name of the column; logarithms undone."""
    found = []
    for row in features.extract(kernel):
        values = {}
        for column, value in zip(features.columns, row, strict=True):
            if value:
                undone = 2.0**value - 1 if column.unit == "log2(1+x)" else value
                values[column.name] = round(float(f"{undone:.5g}"), 3)
        found.append(values)
    assert len(set(names(features))) == len(features.columns)
    return found
