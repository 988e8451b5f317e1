"""Stencil rules: overlapped tiles of sliding windows (Hagedorn et al., CGO 2018, section 4)."""

from __future__ import annotations

from tilewright.expr.nodes import FloorDiv
from tilewright.lift.conditions import at_most, divides, equal, positive
from tilewright.lift.match import size_holes
from tilewright.lift.nodes import (
    Drop,
    Join,
    Map,
    MapSeqSlide,
    Slide,
    Split,
    Take,
    Transpose,
    Unzip,
    Zip,
)
from tilewright.lift.rule import Rule
from tilewright.lift.rules.vocabulary import a, arr, b, fn, fun, k, m, n, term

size, step, u, v = size_holes("size step u v")
xs = term("xs", arr(a, n))
ys = term("ys", arr(b, n))
xss = term("xss", arr(a, n, m))
f = fun("f", a, b)
g = fun("f", arr(a, size), b)
windows = Slide(size, step)
# u - v = size - step: neighboring tiles share what the windows at their seam share.
tiles = (divides(v, n - u), divides(step, v), equal(u - v, size - step))

RULES = (
    Rule(
        "slide-tiling",
        xs | windows,
        xs | Slide(u, v) | Map(windows) | Join(),
        when=tiles,
    ),
    Rule(
        "map-slide-tiling",
        xs | windows | Map(g),
        xs | Slide(u, v) | Map(fn(lambda tile: tile | windows | Map(g))) | Join(),
        when=tiles,
    ),
    Rule(
        "slide-tiling-zip",
        Zip()(xs | windows, ys | windows),
        Zip()(xs | Slide(u, v), ys | Slide(u, v))
        | Map(fn(lambda x, y: Zip()(x | windows, y | windows)))
        | Join(),
        when=tiles,
    ),
    Rule(
        "slide-2d-tiling",
        xss | Map(windows) | windows | Map(Transpose()),
        xss
        | Map(Slide(u, v))
        | Slide(u, v)
        | Map(Transpose())
        | Map(Map(fn(lambda tile: tile | Map(windows) | windows | Map(Transpose()))))
        | Map(Transpose())
        | Join()
        | Map(Join()),
        when=(
            divides(v, n - u),
            divides(v, m - u),
            divides(step, v),
            equal(u - v, size - step),
        ),
    ),
    Rule(
        "slide-map",
        xs | Map(f) | windows,
        xs | windows | Map(Map(f)),
    ),
    Rule(
        "map-slide",
        xs | windows | Map(Map(f)),
        xs | Map(f) | windows,
    ),
    Rule(
        "slide-split",
        xs | Slide(m, m),
        xs | Split(m),
    ),
    Rule(
        "split-slide",
        xs | Split(m),
        xs | Slide(m, m),
        when=(at_most(m, n),),
    ),
    Rule(
        "slide-take",
        xs | windows | Take(k),
        xs | Take((k - 1) * step + size) | windows,
        when=(positive(k),),
    ),
    Rule(
        "slide-drop",
        xs | windows | Drop(k),
        xs | Drop(k * step) | windows,
        when=(at_most(k, FloorDiv(n - size, step)),),
    ),
    Rule(
        "slide-zip",
        Zip()(xs | windows, ys | windows),
        Zip()(xs, ys) | windows | Map(Unzip()),
    ),
    Rule(
        "map-seq-slide",
        xs | windows | Map(g),
        xs | MapSeqSlide(g, size, step),
    ),
)
