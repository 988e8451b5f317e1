"""Functions behind long sums become loops: the same values, and only where nothing is lost."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tilewright.loops import interp
from tilewright.loops.nodes import Kernel, Unit
from tilewright.loops.parser import parse
from tilewright.loops.verify import verify
from tilewright.loops.walk import loops_of
from tilewright.targets.cpu import roll_functions as rolling
from tilewright.targets.cpu.compile import (
    compile_kernel,
    finished,
    llvm_ir,
    optimized,
)
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.roll_functions import roll_functions

LEVEL = machine("x86-64-v3")
TILE = """
kernel k(x: float32[2, 6, 64], w: float32[64, 8]) -> y: float32[2, {rows}, 8]:
  for i in 2:
    {alloc}:
      for n.init in {init}:
        for a.init in 8 vector:
          t[n.init, a.init] = 0_f32
      for k in {steps}:
        for n in 6 unroll:
          for a in 8 vector:
            t[n, a] add= x[i, n, k] * w[k, a]
      for m in {use}:
        {inner}:
          {store}
"""


def tile(
    rows: int = 6,
    alloc: str = "alloc t: float32[6, 8] in register",
    init: str = "6 unroll",
    steps: str = "64",
    use: str = "6 unroll",
    inner: str = "for b in 8 vector",
    store: str = "y[i, m, b] = exp(t[m, b]) + t[m, b]",
) -> Kernel:
    given = TILE.format(
        rows=rows,
        alloc=alloc,
        init=init,
        steps=steps,
        use=use,
        inner=inner,
        store=store,
    )
    made = parse(given.strip().split("\n"))
    verify(made)
    return made


def results(kernel: Kernel) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {b: rng.normal(size=b.shape).astype(np.float32) for b in kernel.params}
    interp.run(kernel, arrays)
    return [arrays[b] for b in kernel.outputs]


def rolled(kernel: Kernel) -> Kernel | None:
    """The result, which is verified and gives the same bits; None if nothing changes."""
    made = roll_functions(kernel)
    verify(made)
    for found, want in zip(results(made), results(kernel), strict=True):
        np.testing.assert_array_equal(found, want, strict=True)
    return None if made is kernel else made


def test_a_function_behind_a_long_sum_is_a_loop_over_copies() -> None:
    made = rolled(tile())
    assert made is not None
    kinds = {f.var.name: f.kind for f in loops_of(made.body)}
    assert kinds["m"] == "serial"
    assert kinds["m.kept"] == "unroll"
    assert kinds["b"] == kinds["b.kept"] == "vector"
    text = str(made)
    assert "alloc t.kept: float32[6, 8] in stack" in text
    assert "t.kept[m.kept, b.kept] = t[m.kept, b.kept]" in text
    assert "y[i, m, b] = exp(t.kept[m, b]) + t.kept[m, b]" in text


def test_copies_have_names_of_their_own() -> None:
    """Beside a parameter and a loop with the names that they would have."""
    text = str(tile(store="y[i, m, b] = exp(t[m, b]) + w[0, b]"))
    names = {"w": "t.kept", "k": "m.kept"}
    for old, new in names.items():
        text = re.sub(rf"\b{old}\b(?!\()", new, text)
    made = rolled(parse(text.split("\n")))
    assert made is not None
    assert "alloc t.kept_2: float32[6, 8] in stack" in str(made)
    assert "t.kept_2[m.kept_2, b.kept] = t[m.kept_2, b.kept]" in str(made)
    assert "exp(t.kept_2[m, b]) + t.kept[0, b]" in str(made)


def test_what_the_sums_are_added_to_stays_as_it_is() -> None:
    made = rolled(tile(store="y[i, m, b] = tanh(t[m, b] + x[i, m, b])"))
    assert made is not None
    assert "tanh(t.kept[m, b] + x[i, m, b])" in str(made)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": "63"},
        {"use": "3 unroll"},
        {"use": "6"},
        {"use": "i * 2 + 4 unroll"},
        {"store": "y[i, m, b] = t[m, b] * 2_f32"},
        {"store": "y[i, m, b] = sqrt(abs(t[m, b]))"},
        {"store": "y[i, m, b] = exp(x[i, m, b])"},
        {"store": "y[i, m, b] add= exp(t[m, b])"},
        {"store": "t[m, b] = exp(t[m, b])"},
        {"use": "6", "store": "y[i, m, b] = exp(t[0, b] + x[i, m, b])"},
        {"inner": "for b in 8", "store": "y[i, m, b] = exp(t[m, 0] + x[i, m, b])"},
        {"inner": "if m < 5", "store": "y[i, m, 0] = exp(t[m, 0])"},
        {"alloc": "alloc t: float32[6, 8]"},
        {"init": "6"},
        {"rows": 10, "use": "5 unroll", "store": "y[i, m + i, b] = exp(t[m + i, b])"},
    ],
    ids=[
        "a short sum",
        "few iterations",
        "a loop already",
        "an open extent",
        "no function",
        "functions of one instruction",
        "a function of no sum",
        "an update",
        "the sums change",
        "a loop that reads one place",
        "a loop inside",
        "a condition",
        "in memory",
        "in memory because of another loop",
        "places that another loop decides",
    ],
)
def test_other_loops_stay(change: dict[str, object]) -> None:
    assert rolled(tile(**change)) is None  # type: ignore[arg-type]


def test_a_place_that_may_be_outside_stays() -> None:
    """The copy would read it whenever the loop runs, whatever is chosen."""
    store = "y[i, m, b] = select(m < 6, exp(t[m, b]), 0_f32)"
    assert rolled(tile(rows=8, use="8 unroll", store=store)) is None


def test_a_unit_is_left_alone() -> None:
    kernel = tile()
    unit = kernel.with_body(Unit("tile", None, (), kernel.body))
    verify(unit)
    assert rolled(unit) is None


def test_lanes_are_left_alone() -> None:
    lanes = """
kernel k(x: float32[64, 6, 8]) -> y: float32[6, 8]:
  for b in 8 vector:
    alloc t: float32[6] in register:
      for n.init in 6 unroll:
        t[n.init] = 0_f32
      for k in 64:
        for n in 6 unroll:
          t[n] add= x[k, n, b]
      for m in 6 unroll:
        y[m, b] = exp(t[m])
"""
    kernel = parse(lanes.strip().split("\n"))
    verify(kernel)
    assert rolled(kernel) is None


def test_code_has_the_function_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums stay in registers, and LLVM compiles the kernel."""

    def passed() -> str:
        return str(optimized(llvm_ir(tile(), LEVEL), LEVEL, "k"))

    text = passed()
    assert text.count("phi <8 x float>") == 6
    assert compile_kernel(tile(), LEVEL).object_bytes
    monkeypatch.setattr(rolling, "FEWEST", 7)
    assert len(passed()) > 2 * len(text)


def test_sanitized_code_keeps_its_loops() -> None:
    kernel = finished(tile(), LEVEL, sanitized=True)
    assert {f.var.name: f.kind for f in loops_of(kernel.body)}["m"] == "unroll"
