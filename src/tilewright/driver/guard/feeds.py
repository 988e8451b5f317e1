"""Random data for one kernel: `integers`, on which its arithmetic is exact, and `reals`.

`integers` are small whole numbers: their sums and products are exact in any order, so that any
wrong term shows. `reals` exercise rounding. Integers that index a tensor are in range.

Kernels that are loops, not Computations, may feed results back, as recurrences do: with weights
of several units these are chaotic, and a rounding error grows until it looks like a wrong term. The
`integers` of such kernels are multiples of `FED_BACK`, whose sums and products are exact, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Load
from tilewright.ir.node import postorder

Array = np.ndarray[Any, Any]
KINDS: Final = ("reals", "integers")
_BLOCK: Final = 65_521  # random elements; a larger tensor repeats them
_SMALL: Final = 100  # the largest magnitude of integers wider than a byte
_FEW: Final = 4
FED_BACK: Final = 1 / 32  # 13 by 13 such weights hardly ever stretch a vector


class Feeds:
    """Generates the contents of a kernel's tensors.

    known: contents to use unchanged, such as the integer constants of a model. limit: the exclusive
    upper bound of integers that may be indices; None if no tensor is indexed by data. unit: of the
    whole numbers that floats are.
    """

    def __init__(
        self,
        seed: int,
        limit: int | None,
        known: Mapping[Buffer, Array],
        unit: float = 1,
    ) -> None:
        self.seed, self.limit, self.known = seed, limit, known
        self.unit = unit

    def array(self, number: int, b: Buffer, kind: str) -> Array:
        """The contents of tensor `number` of the kernel, the same in every call."""
        given = self.known.get(b)
        if given is not None and not b.dtype.is_float:
            return np.ascontiguousarray(given).reshape(b.shape)
        rng = np.random.default_rng([self.seed, number, KINDS.index(kind)])
        block = self._drawn(rng, min(b.size, _BLOCK), b.dtype, kind)
        return np.resize(block, b.size).reshape(b.shape)

    def _drawn(
        self, rng: np.random.Generator, count: int, dtype: DType, kind: str
    ) -> Array:
        if dtype.is_bool:
            return rng.random(count) < 0.5
        if dtype.is_float:
            least = -_FEW if dtype.is_signed else 1
            whole = rng.integers(least, _FEW + 1, count) * self.unit
            drawn = whole if kind == "integers" else rng.standard_normal(count)
            return drawn.astype(np.float32).astype(dtype.numpy)
        if self.limit is not None and dtype.bits >= 16:
            return rng.integers(0, max(1, self.limit), count).astype(dtype.numpy)
        low = max(int(dtype.min), -_SMALL if dtype.bits > 8 else -128)
        high = min(int(dtype.max), _SMALL if dtype.bits > 8 else 255)
        return rng.integers(low, high + 1, count).astype(dtype.numpy)


def index_limit(group: Sequence[Computation]) -> int | None:
    """The smallest extent that data index; None if they index none."""
    least: int | None = None
    for c in group:
        for buffer, index in _places(c):
            for part, extent in zip(index, buffer.shape, strict=True):
                if any(isinstance(n, Load) for n in postorder(part)):
                    least = extent if least is None else min(least, extent)
    return least


def _places(c: Computation) -> Iterable[tuple[Buffer, tuple[Any, ...]]]:
    for load in c.accesses:
        yield load.buffer, load.index
    for o in c.outputs:
        yield o.tensor, o.index
