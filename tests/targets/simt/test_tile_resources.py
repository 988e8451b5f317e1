"""What ptxas says of a product in tiles; skipped only where it is absent."""

import pytest

from tests.targets.simt.products import product, program, tiled
from tilewright.targets.cuda import report
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine

needs_ptxas = pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")


@pytest.mark.sampled(2)  # the architecture with fewer registers
@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_tile_of_128_by_128_is_in_registers(arch):
    of = machine(arch)
    point = tiled(product(512, 512, 512), of.simt, tile=(128, 128, 16, 16, 16))
    p = program(point, of.simt)
    assert p.launches[0].threads == (16, 16, 1)
    used = report.assemble(ptx(p, of), of)[1][p.launches[0].name]
    assert 88 <= used.registers <= 128
    assert used.stack == used.spill_stores == used.spill_loads == 0
    assert 16_384 <= used.shared <= 18_432
