"""Number formats: how values are rounded.

    Float8   e4m3fn: 4 bits of precision, no infinity, saturates at 448 (OCP OFP8, 2023)
    Float16  IEEE 754 binary16
    Float32  IEEE 754 binary32

A BlockFloat is the format inside matrix products: values side by side share the exponent of the
largest of them (Fowers et al., ISCA 2018).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.base.numbers import whole

Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A binary floating-point format.

    precision: significant bits, including the leading one. lowest: the smallest exponent of a
    normal number. saturates: whether larger values become the largest number.
    """

    name: str
    bits: int
    precision: int
    lowest: int
    largest: float
    saturates: bool = False

    @property
    def unit(self) -> float:
        """The largest relative error of rounding a normal number."""
        return float(2.0**-self.precision)

    @property
    def tiny(self) -> float:
        """The largest error of rounding a number below the normal ones."""
        return float(2.0 ** (self.lowest - self.precision))

    def round(self, x: Values) -> Values:
        """The nearest numbers, ties to even; any shape, Float32 in and out."""
        if self.bits == 32:
            return x.astype(np.float32)
        wide = x.astype(np.float64)
        exponent = np.maximum(np.frexp(wide)[1] - 1, self.lowest)
        quantum = np.ldexp(1.0, exponent - self.precision + 1)
        with np.errstate(invalid="ignore"):
            near = np.where(np.isfinite(wide), np.rint(wide / quantum) * quantum, wide)
        beyond = np.abs(near) > self.largest
        limit = self.largest if self.saturates else np.inf
        return np.where(beyond, np.copysign(limit, near), near).astype(np.float32)


Float8 = NumberFormat("Float8", 8, 4, -6, 448.0, saturates=True)
Float16 = NumberFormat("Float16", 16, 11, -14, 65504.0)
Float32 = NumberFormat("Float32", 32, 24, -126, float(np.finfo(np.float32).max))


@dataclass(frozen=True, slots=True)
class BlockFloat:
    """`size` values side by side with one exponent, `mantissa` bits and a sign for each.

    Raises InputError for no values, and for more bits than Float32 has.
    """

    size: int
    mantissa: int

    def __post_init__(self) -> None:
        if whole(self.size, 1) is None or self.mantissa not in range(
            1, Float32.precision + 1
        ):
            raise InputError(
                f"blocks of {self.size!r} values of {self.mantissa!r} bits",
                hint=f"at least one value, and 1 to {Float32.precision} bits",
            )

    @property
    def unit(self) -> float:
        """The largest error, relative to the largest value of a block."""
        return float(2.0 ** (1 - self.mantissa))

    def round(self, x: Values) -> Values:
        """The last axis in blocks; each value the nearest multiple of its block's step."""
        blocks, length = self._blocks(x)
        exponent = np.frexp(np.abs(blocks).max(axis=-1, keepdims=True))[1]
        step = np.ldexp(1.0, exponent - self.mantissa)
        most = 2.0**self.mantissa - 1
        rounded = np.clip(np.rint(blocks / step), -most, most) * step
        return self._flat(rounded, x.shape, length).astype(np.float32)

    def errors(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """A bound on what `round` changes at each value."""
        blocks, length = self._blocks(x)
        largest = np.abs(blocks).max(axis=-1, keepdims=True)
        bounds = np.broadcast_to(largest * self.unit, blocks.shape)
        return self._flat(bounds, x.shape, length)

    def _blocks(self, x: NDArray[Any]) -> tuple[NDArray[np.float64], int]:
        length = x.shape[-1]
        padded = np.zeros((*x.shape[:-1], -(-length // self.size) * self.size))
        padded[..., :length] = x
        return padded.reshape(*x.shape[:-1], -1, self.size), length

    def _flat(
        self, blocks: NDArray[np.float64], shape: tuple[int, ...], length: int
    ) -> NDArray[np.float64]:
        return blocks.reshape(*shape[:-1], -1)[..., :length]
