"""The receiver, compiled: the steps of `chain.py` with their schedules, and the arrays between."""

from __future__ import annotations

from typing import Any

import chain
import numpy as np
from chain import LANES, Tensors
from linear import METHODS
from slot import Layout, signs

from tilewright import te as t


def blocked(values: np.ndarray) -> np.ndarray:
    """Complex (..., subcarriers) as float32 (2, blocks, ..., lanes), the last block filled up."""
    *others, count = values.shape
    padded = np.zeros((*others, -(-count // LANES) * LANES), complex)
    padded[..., :count] = values
    apart = np.moveaxis(padded.reshape(*others, -1, LANES), -2, 0)
    return np.ascontiguousarray(np.stack([apart.real, apart.imag]), np.float32)


def joined(values: np.ndarray, blocks: int, subcarriers: int) -> np.ndarray:
    """An array with its blocks at dimension `blocks`, as (..., subcarriers)."""
    apart = np.moveaxis(values, blocks, -2)
    return apart.reshape(*apart.shape[:-2], -1)[..., :subcarriers]


def by_blocks(
    result: t.Tensor, parts: Tensors = (), sums: Tensors = (), held: Tensors = ()
) -> t.Schedule:
    """Lanes as vectors, the blocks shared out to threads.

    parts: tensors of which `result` is the stack, and sums that they are made of, computed in
    registers just before their use. held: tensors that a block reads often, and first copies to
    one place.
    """
    s = t.create_schedule(result.op)
    readers = [*sums, *parts[:1], result]
    copies = [
        s.cache_read(tensor, "stack", [r for r in readers if tensor in r.op.inputs])
        for tensor in held
    ]
    block, *others, lane = s[result].op.axis
    inner = len(parts[0].shape) - 2 if parts else len(others)
    s[result].vectorize(lane)
    s[result].parallel(block)
    for axis in others[inner:]:
        s[result].unroll(axis)
    for part in (*sums, *parts[:1]):
        s[part].compute_at(s[result], (block, *others)[inner])
        s[part].vectorize(s[part].op.axis[-1])
        s[part].set_scope("register")
    for part in sums:
        _, first, *_, lane = s[part].op.axis
        s[part].reorder(*s[part].op.reduce_axis, first, lane)
        s[part].unroll(first)
    for copy in copies:
        s[copy].compute_at(s[result], block)
        s[copy].vectorize(s[copy].op.axis[-1])
    return s


class Receiver:
    """Compiled for one layout. method: "cholesky" or "lu". Its results are its own arrays."""

    def __init__(
        self, layout: Layout, method: str = "cholesky", threads: int | None = None
    ) -> None:
        self.layout, self.method, self.threads = layout, METHODS[method], threads
        n, m, k = chain.blocks(layout), layout.antennas, layout.layers
        self.shapes = {
            "y": (2, n, layout.symbols, m, LANES),
            "pilots": (2, layout.pilots, layout.subcarriers),
            "sign": (k, layout.pilots, 2),
            "h": (2, n, m, k, LANES),
            "noise": (1,),
            "factors": (n, chain.rows_of(layout, self.method), LANES),
            "x": (n, layout.data, k, 2, LANES),
            "variance": (n, k, LANES),
            "ratios": (layout.bits, n, k, layout.data, LANES),
        }
        self.sign = (signs(layout) / (2 * layout.pilots)).astype(np.float32)
        self._given = {
            name: t.placeholder(s, name=name) for name, s in self.shapes.items()
        }
        for name in ("h", "factors", "x", "ratios"):
            setattr(self, name, np.empty(self.shapes[name], np.float32))
        self._build()

    h: np.ndarray
    factors: np.ndarray
    x: np.ndarray
    ratios: np.ndarray

    def _build(self) -> None:
        layout, method, g = self.layout, self.method, self._given

        def build(
            inputs: str, result: Tensors, schedule: t.Schedule, auto: bool = False
        ) -> Any:
            arguments = [*(g[name] for name in inputs.split()), *result]
            return t.build(schedule, arguments, threads=self.threads, auto=auto)

        h = chain.interpolate(
            layout, chain.least_squares(layout, g["y"], g["pilots"], g["sign"])
        )
        self._estimate = build(
            "y pilots sign", h, t.create_schedule(h[0].op), auto=True
        )
        rows = chain.gram(layout, g["h"])
        factors = chain.factorize(layout, method, rows, g["noise"])
        together = chain.stacked(factors, "factors")
        schedule = by_blocks(together, factors, [row[0] for row in rows])
        self._factorize = build("h noise", [together], schedule)
        sums = chain.matched(layout, g["h"], g["y"])
        x = chain.solve(layout, method, sums, g["factors"])
        symbols = chain.stacked(x, "symbols", (layout.layers, 2))
        schedule = by_blocks(symbols, x, sums[:1], [g["h"]])
        self._detect = build("h y factors", [symbols], schedule)
        ratios = chain.demap(layout, g["x"], g["variance"])
        self._demap = build("x variance", ratios, by_blocks(ratios[0]))

    def estimate(self, y: np.ndarray, pilots: np.ndarray) -> np.ndarray:
        """The channel (2, blocks, antennas, layers, lanes).

        y: what arrived, (2, blocks, symbols, antennas, lanes). pilots: (2, symbols, subcarriers).
        """
        self._estimate(y, pilots, self.sign, *self.h)
        return self.h

    def detect(self, h: np.ndarray, y: np.ndarray, noise: float) -> np.ndarray:
        """Symbols (blocks, data symbols, layers, 2, lanes); one factorization per subcarrier."""
        self._factorize(h, np.array([noise], np.float32), self.factors)
        self._detect(h, y, self.factors, self.x)
        return self.x

    @property
    def gains(self) -> np.ndarray:
        """What the solutions were multiplied with to be unbiased: (blocks, layers, lanes)."""
        return self.factors[:, -2 * self.layout.layers : -self.layout.layers]

    @property
    def solutions(self) -> np.ndarray:
        """What was detected last before it was unbiased: complex (blocks, symbols, ..., lanes)."""
        return (self.x[..., 0, :] + 1j * self.x[..., 1, :]) / self.gains[:, None]

    @property
    def variance(self) -> np.ndarray:
        """Error variances (blocks, layers, lanes) of the symbols that were detected last."""
        return np.ascontiguousarray(self.factors[:, -self.layout.layers :])

    def demap(self, x: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """Likelihood ratios of the bits: (bits, blocks, layers, data symbols, lanes)."""
        self._demap(x, variance, *self.ratios)
        return self.ratios

    def __call__(self, y: np.ndarray, pilots: np.ndarray, noise: float) -> np.ndarray:
        """Likelihood ratios (bits, layers, data symbols, subcarriers) of what arrived.

        y: complex (symbols, antennas, subcarriers). pilots: complex (symbols, subcarriers).
        """
        received, sent = (
            blocked(y),
            np.stack([pilots.real, pilots.imag]).astype(np.float32),
        )
        x = self.detect(self.estimate(received, sent), received, noise)
        return joined(self.demap(x, self.variance), 1, self.layout.subcarriers)
