"""Machines: this one from the system, others by name."""

from __future__ import annotations

import pytest

from tilewright.base.dtypes import bfloat16, float32, float64, int8
from tilewright.base.errors import ArtifactError, UnsupportedError
from tilewright.runtime.machine import require
from tilewright.targets.cpu.cost import cost_model
from tilewright.targets.cpu.description import described
from tilewright.targets.cpu.machine import host, machine
from tilewright.targets.cpu.processors import KNOWN, LEVELS, CoreKind, costs_of
from tilewright.targets.llvm import backend
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


def test_a_kind_of_core_has_its_constants_of_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By name, and where the processor says that it has the features that tell it."""
    for name in ("znver5", "sapphirerapids"):
        made = machine(name)
        assert made.measured == costs_of(made.features)
        assert cost_model(made).multiply_rate(16, 4) == 2
        seen = dict.fromkeys(made.features, True)
        monkeypatch.setattr(backend, "host_features", lambda seen=seen: seen)
        monkeypatch.setattr("tilewright.targets.cpu.machine._costs", costs_of)
        assert host.__wrapped__().measured == made.measured
    assert machine("znver4").measured == ()


@pytest.mark.parametrize("kind", KNOWN, ids=lambda k: "+".join(k.features))
def test_all_features_of_a_kind_tell_it(kind: CoreKind) -> None:
    assert dict(costs_of(kind.features)) == kind.costs
    for feature in kind.features:
        assert not costs_of([f for f in kind.features if f != feature])
    described(machine("x86-64-v4"), {"costs": kind.costs})  # all are constants


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
