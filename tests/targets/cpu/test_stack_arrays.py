"""Small arrays go to the stack of a function up to a number of register files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cost_cases import small_arrays
from tilewright.targets.cpu.compile import finished
from tilewright.targets.cpu.machine import machine


@pytest.mark.parametrize(
    ("level", "rows"), [("x86-64-v2", 16), ("x86-64-v3", 32), ("x86-64-v4", 128)]
)
@pytest.mark.parametrize("files", [4, 2])
def test_the_register_files_of_a_machine_limit_an_array(
    level: str, rows: int, files: int
) -> None:
    """rows: of 64 bytes, which four register files hold."""
    at = replace(machine(level), measured=(("spilled", files),))
    most = rows * files // 4
    for n in (most, most + 1):
        made = str(finished(small_arrays(rows=n), at))
        assert ("in stack" in made) == (n == most)
