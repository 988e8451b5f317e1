"""The processor of the board that VTA was published on, as a bound.

A PYNQ-Z1 has a Zynq XC7Z020, where VTA runs at 100 MHz (`device.CLOCK`; `fpga_freq` in tvm-vta's
pkg_config.py), two Cortex-A9 cores of 650 MHz and a 16-bit DDR3 bus of 1050 million transfers per
second (Digilent, PYNQ-Z1 Reference Manual). A core's NEON unit issues one data-processing
instruction per cycle, and some of them take it for longer (GCC, config/arm/cortex-a9-neon.md,
contributed by ARM):

    float32: VMLA.F32 of four lanes takes 2 cycles: 2 products per cycle
    int8:    VMULL.S8, VMLAL.S8 and VPADAL.S16 take 1 each for 16 products: 16/3 per cycle

The second is how libraries multiply bytes on ARMv7, for instance ruy. Loads, loops and edges cost
nothing here, and every byte is moved once: no program on the processor is faster than this.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.targets.vta.layers import Convolution


@dataclass(frozen=True, slots=True)
class BoardProcessor:
    """A processor by its peaks.

    products: multiply-accumulates per core and cycle, by dtype; bytes: of a number, by dtype.
    """

    hertz: float
    cores: int
    products: Mapping[str, float]
    bytes: Mapping[str, int]
    bytes_per_second: float

    def seconds(
        self, c: Convolution, dtype: str = "int8", cores: int | None = None
    ) -> float:
        """The least time that a convolution takes, by arithmetic or by memory.

        cores: how many are used; all by default. Raises InputError for a dtype without a rate, and
        for cores that there are not.
        """
        used = self.cores if cores is None else cores
        if dtype not in self.products or not 0 < used <= self.cores:
            raise InputError(
                f"{dtype} on {used} cores, expected {', '.join(self.products)} on 1 to "
                f"{self.cores}",
                where="BoardProcessor",
            )
        arithmetic = c.macs / (used * self.hertz * self.products[dtype])
        return max(arithmetic, self._moved(c, dtype) / self.bytes_per_second)

    def _moved(self, c: Convolution, dtype: str) -> int:
        """Bytes of the data, the weights and the result, each once."""
        rows, columns = c.size
        high, wide = c.out_size
        weights = c.inputs * c.outputs * c.kernel[0] * c.kernel[1]
        numbers = c.inputs * rows * columns + weights + c.outputs * high * wide
        return numbers * self.bytes[dtype]


CORTEX_A9 = BoardProcessor(
    hertz=650e6,
    cores=2,
    products={"float32": 2, "int8": 16 / 3},
    bytes={"float32": 4, "int8": 1},
    bytes_per_second=2 * 1050e6,
)
