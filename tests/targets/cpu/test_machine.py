"""Machines: this one from the system, others by name."""

from __future__ import annotations

import pytest

from tilewright.base.dtypes import bfloat16, float32, float64, int8
from tilewright.base.errors import ArtifactError, UnsupportedError
from tilewright.runtime.machine import require
from tilewright.targets.cpu.machine import host, machine
from tilewright.targets.cpu.processors import LEVELS
from tilewright.targets.registry import target


def test_host() -> None:
    m = machine("native")
    assert m is host() and m.cores >= 1
    assert m.l1 >= 8 << 10 and m.l2 >= m.l1 and m.vector_bits in (128, 256, 512)


@pytest.mark.parametrize(
    ("name", "bits", "registers"),
    [
        ("x86-64-v2", 128, 16),
        ("x86-64-v3", 256, 16),
        ("x86-64-v4", 512, 32),
        ("aarch64", 128, 32),
        ("neoverse-n1", 128, 32),
    ],
)
def test_levels(name: str, bits: int, registers: int) -> None:
    m = machine(name)
    assert name in LEVELS and (m.vector_bits, m.registers) == (bits, registers)
    lanes = [m.lanes(d) for d in (float32, float64, bfloat16, int8)]
    assert lanes == [bits // 32, bits // 64, bits // 32, bits // 8]


@pytest.mark.parametrize("name", ["native", *LEVELS])
def test_a_target_runs_here_where_its_artifacts_load(name: str) -> None:
    made = target("cpu", name)
    try:
        require(made.requirements)
    except ArtifactError:
        assert not made.runs_here
    else:
        assert made.runs_here


def test_unknown_processor() -> None:
    with pytest.raises(UnsupportedError, match="known: native"):
        machine("z80")
