"""Contractions scheduled with merged dimensions: the loops compute the same on the same tensors."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base.dtypes import int32
from tilewright.compute.build import reduce_
from tilewright.expr.nodes import Buffer
from tilewright.loops import interp
from tilewright.loops.verify import verify
from tilewright.schedule.space.merging import merged
from tilewright.testing.random_kernels import plain


@pytest.mark.parametrize(
    ("shape", "loops"),
    [((3, 2, 4, 5), 2), ((1, 3, 4, 5), 1), ((1, 3, 1, 5), 0)]
    + [((0, 2, 4, 5), 0), ((3, 0, 4, 5), 0), ((3, 2, 4, 0), 0), ((1, 3, 0, 1), 0)],
)
def test_products(shape: tuple[int, ...], loops: int) -> None:
    """`loops`: how many fewer there are. What has no points keeps its loops."""
    b, h, k, m = shape
    x, w = Buffer("X", (b, h, k, m), int32), Buffer("W", (k, m, 3), int32)
    y = Buffer("Y", (b, h, 3), int32)
    c = reduce_("s", y, (k, m), "add", lambda b, h, n, k, m: x[b, h, k, m] * w[k, m, n])
    kernel = plain([c])
    seen = merged(kernel, [c])
    assert _loops(seen.source) - _loops(seen.computations) == loops
    made = seen.finish(seen.start()).kernel
    verify(made)
    rng = np.random.default_rng(0)
    given = [rng.integers(-9, 9, t.shape).astype(np.int32) for t in kernel.params]
    want, found = ([a.copy() for a in given] for _ in range(2))
    interp.run(kernel, dict(zip(kernel.params, want, strict=True)))
    interp.run(made, dict(zip(made.params, found, strict=True)))
    for a, e in zip(found, want, strict=True):
        np.testing.assert_array_equal(a, e)


def _loops(computations) -> int:
    return sum(d.extent != 1 for c in computations for d in c.dims)
