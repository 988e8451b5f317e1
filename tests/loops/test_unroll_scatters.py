"""Scatters in steps of four: the same values in the same order, and only scatters."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.loops import interp
from tilewright.loops.nodes import Kernel
from tilewright.loops.parser import parse
from tilewright.loops.passes.unroll_scatters import unroll_scatters
from tilewright.loops.verify import verify
from tilewright.loops.walk import loops_of
from tilewright.targets.cpu.compile import finished
from tilewright.targets.cpu.machine import machine


def kernel(text: str) -> Kernel:
    made = parse(text.strip().split("\n"))
    verify(made)
    return made


def results(k: Kernel) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {}
    for b in k.params:
        values = rng.integers(
            0, 5, b.shape
        )  # few places: most are written several times
        if b.dtype.is_float:
            values = rng.normal(size=b.shape) * 10.0 ** rng.integers(-9, 9, b.shape)
        arrays[b] = values.astype(b.dtype.numpy)
    interp.run(k, arrays)
    return [arrays[b] for b in k.outputs]


def kinds(k: Kernel) -> list[tuple[str, int | None, str]]:
    return [(f.var.name, f.trips, f.kind) for f in loops_of(k.body)]


def changed(text: str) -> list[tuple[str, int | None, str]]:
    """The loops of the result, which is verified and gives the same bits; [] if unchanged."""
    k = kernel(text)
    made = unroll_scatters(k)
    verify(made)
    for found, want in zip(results(made), results(k), strict=True):
        np.testing.assert_array_equal(found, want, strict=True)
    return [] if made is k else kinds(made)


HISTOGRAM = """
kernel k(A: uint8[2, {n}], V: float32[2, {n}]) -> C: float32[8]:
  for c in 8:
    C[c] = 0_f32
  for y in 2:
    for x in {n}{kind}:
      {body}
"""
ADDED = "C[i64(A[y, x])] add= V[y, x]"
STORED = "C[i64(A[y, x])] = V[y, x]"


@pytest.mark.parametrize("body", [ADDED, STORED])
@pytest.mark.parametrize("n", [8, 9, 11, 12])
def test_four_at_a_time_and_what_is_left(body: str, n: int) -> None:
    loops = changed(HISTOGRAM.format(n=n, kind="", body=body))
    rest = [("x.rest", n % 4, "unroll")] if n % 4 else []
    steps = [("x", n // 4, "serial"), ("x.step", 4, "unroll")]
    assert loops == [("c", 8, "serial"), ("y", 2, "serial"), *steps, *rest]


@pytest.mark.parametrize(
    ("n", "kind", "body"),
    [
        (7, "", ADDED),  # too few
        (8, " unroll", ADDED),
        (8, " parallel", ADDED),
        (8, "", "C[y] add= V[y, x]"),  # no scatter
        (8, "", "C[i64(A[y, 0])] add= V[y, x]"),  # to one place
        (8, "", "C[i64(A[y, i64(A[y, 0])])] add= V[y, x]"),
        (8, "", f"if x < 5:\n        {ADDED}"),
        (8, "", "\n      ".join([ADDED] * 5)),  # too much
        (8, "", ADDED + "".join(f" + {n}_f32" for n in range(60))),
    ],
)
def test_what_stays(n: int, kind: str, body: str) -> None:
    assert changed(HISTOGRAM.format(n=n, kind=kind, body=body)) == []


def test_two_scatters_have_names_of_their_own() -> None:
    text = HISTOGRAM.format(n=9, kind="", body=ADDED)
    nest = "  for {0}.step in 2:\n    for {0} in 9:\n      C[i64(A[{0}.step, {0}])] = 1_f32\n"
    names = [name for name, *_ in changed(text.rstrip() + "\n" + nest.format("z"))]
    assert len(set(names)) == len(names) == 9


def test_a_loop_with_notes_stays() -> None:
    k = kernel(HISTOGRAM.format(n=8, kind="", body=ADDED))
    noted = Kernel(k.name, k.params, k.outputs, k.body, {"x": {"steps": 16}})
    assert unroll_scatters(noted) is noted


def test_code_for_a_cpu_has_it_unless_it_is_checked() -> None:
    k = kernel(HISTOGRAM.format(n=8, kind="", body=ADDED))
    assert "x.step in 4 unroll" in str(finished(k, machine("x86-64-v3")))
    assert ".step" not in str(finished(k, machine("x86-64-v3"), True))
