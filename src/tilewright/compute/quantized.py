"""Transformations of products of narrow integers.

* `s8_as_u8`: a product of signed bytes as one of unsigned by signed bytes, which is what AVX-512
  VNNI multiplies: `sum a*b = sum (a + 128)*b - 128 * sum b`, exact in int32, which wraps around.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.base.dtypes import int8, int32, uint8
from tilewright.base.errors import UnsupportedError
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import PS, Computation, Output
from tilewright.compute.reducer import reducer as named
from tilewright.expr.nodes import (
    Bitcast,
    Buffer,
    Cast,
    Expr,
    Load,
    Mul,
    Var,
    Xor,
    const,
)
from tilewright.expr.reads import variables
from tilewright.ir.node import substitute

_OFFSET = 128


def s8_as_u8(computation: Computation) -> tuple[Computation, ...]:
    """The same result by Computations in order, with the first factor unsigned.

    They are: the first factor's tensor + 128 as uint8 (`<name>.offset`), the sums of the second
    factor over the reduction (`<name>.sums`), the product of the two (of the old name), and the
    result, product - 128 * sums (`<name>.corrected`). The sums depend on the second factor only:
    of constant weights, they are constants.
    Raises UnsupportedError unless the Computation is an int32 sum of products of two int8 tensors.
    """
    left, right = _factors(computation)
    name = computation.name
    out = computation.outputs[0]
    shifted = Buffer(f"{left.buffer.name}.u8", left.buffer.shape, uint8)
    offset = map_(
        f"{name}.offset",
        shifted,
        lambda *i: Xor(Bitcast(left.buffer[i], uint8), const(_OFFSET, uint8)),
    )
    sums, total = _sums(computation, right)
    raw = Buffer(f"{out.tensor.name}.raw", out.tensor.shape, int32)
    value = Mul(
        Cast(Load(shifted, left.index), int32),
        Cast(right, int32),
    )
    product = replace(computation, outputs=(Output(raw, out.index, value),))
    corrected = replace(
        computation,
        name=f"{name}.corrected",
        dims=computation.parallel_dims,
        outputs=(
            Output(
                out.tensor,
                out.index,
                Load(raw, out.index) - total * const(_OFFSET, int32),
            ),
        ),
        reducer=None,
    )
    return offset, sums, product, corrected


def _factors(c: Computation) -> tuple[Load, Load]:
    """The reads of the two factors. Raises UnsupportedError where the law does not apply."""
    reducer = c.reducer
    is_sum = reducer is not None and reducer.does_as(named("add", int32))
    scans = any(d.combine == PS for d in c.dims)
    factors: list[Load] = []
    if is_sum and not scans and len(c.outputs) == 1:
        factors = list(_product(c.outputs[0].value))
    if [f.dtype for f in factors] != [int8, int8]:
        raise UnsupportedError(
            "s8_as_u8 rewrites an int32 sum of products of two int8 tensors, found "
            f"{c.outputs[0].value!r}",
            where=f"computation {c.name}",
        )
    return factors[0], factors[1]


def _product(e: Expr) -> Iterator[Load]:
    if isinstance(e, Mul) and e.dtype is int32:
        for side in (e.lhs, e.rhs):
            if isinstance(side, Cast) and isinstance(side.value, Load):
                yield side.value


def _sums(c: Computation, right: Load) -> tuple[Computation, Load]:
    """The sums of the second factor over the reduction, and their read at a point of `c`."""
    reduced = c.combined_dims
    used = {v for i in right.index for v in variables(i)}
    kept = [d for d in c.parallel_dims if d.var in used]
    shape = tuple(d.extent for d in kept)
    sums = Buffer(f"{right.buffer.name}.sums", shape, int32)
    dims = [d.var for d in (*kept, *reduced)]

    def value(*at: Var) -> Expr:
        env: dict[object, object] = dict(zip(dims, at, strict=True))
        read: Expr = substitute(right, env)
        return Cast(read, int32)

    over = [d.extent for d in reduced]
    made = reduce_(f"{c.name}.sums", sums, over, "add", value)
    return made, Load(sums, tuple(d.var for d in kept))
