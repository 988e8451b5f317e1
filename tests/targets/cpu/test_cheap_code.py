"""What spares LLVM's code generator work that gains nothing: hidden counters of long bodies, and
functions that only call others."""

from __future__ import annotations

import pytest

from tilewright.loops.nodes import Kernel
from tilewright.loops.parser import parse
from tilewright.targets.cpu import compile as cpu
from tilewright.targets.cpu import emit
from tilewright.targets.cpu.emit import LONG_BODY
from tilewright.targets.cpu.machine import machine

V4 = machine("x86-64-v4")


def steps(statements: int) -> Kernel:
    """A loop whose body has as many statements."""
    body = "\n".join(
        f"    y[i + {64 * n}] = x[i + {64 * n}] * 2.0" for n in range(statements)
    )
    size = 64 * statements
    text = f"kernel k(x: float32[{size}]) -> y: float32[{size}]:\n  for i in 64:\n"
    return parse((text + body).split("\n"))


@pytest.mark.parametrize("name", ["x86-64-v3", "neoverse-n1"])
@pytest.mark.parametrize(("statements", "long"), [(2, False), (LONG_BODY, True)])
def test_a_long_body_hides_its_counter_from_llvm_on_x86(
    name: str, statements: int, long: bool
) -> None:
    text = cpu.llvm_ir(steps(statements), machine(name))
    assert ("@llvm.expect" in text) == (long and name.startswith("x86"))


def test_addresses_of_a_long_body_are_not_rewritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One register counts steps; if LLVM sees it, another one counts bytes."""
    hidden = cpu.assembly(steps(LONG_BODY), V4)
    monkeypatch.setattr(emit, "LONG_BODY", 1 << 20)
    seen = cpu.assembly(steps(LONG_BODY), V4)
    assert ("incq" in hidden, "incq" in seen) == (True, False)


SHARED = """
kernel k(x: float32[64]) -> y: float32[64], z: float32[64]:
  for i in 64 parallel:
    y[i] = x[i]
  for j in {trips}{kind}:
    z[j] = x[j]
"""


@pytest.mark.parametrize(
    ("kind", "trips", "calls"),
    [(" parallel", 64, True), ("", 64, False), (" parallel", 1, False)],
)
def test_functions_that_only_call_are_translated_one_instruction_at_a_time(
    kind: str, trips: int, calls: bool
) -> None:
    kernel = parse(SHARED.format(kind=kind, trips=trips).strip().split("\n"))
    module = cpu.optimized(cpu.llvm_ir(kernel, V4), V4, "k")
    plainly = [
        f.name for f in module.functions if b"optnone" in b" ".join(f.attributes)
    ]
    assert plainly == (["k"] if calls else [])
