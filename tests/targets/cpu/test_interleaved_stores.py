"""Interleaved stores: the same values, in whole vectors where and only where that is the same."""

from __future__ import annotations

import numpy as np
import pytest

from tests.guarded import guarded, in_a_child
from tests.targets.cpu.native import run_native
from tilewright.loops import interp
from tilewright.loops.nodes import Kernel
from tilewright.loops.parser import parse
from tilewright.targets.cpu.compile import llvm_ir
from tilewright.targets.cpu.machine import host, machine
from tilewright.targets.permitted import IndexSet, Permitted


def parsed(text: str) -> Kernel:
    return parse(text.strip().split("\n"))


def is_whole(kernel: Kernel) -> bool:
    """Whether nothing is stored in part or element by element, after checking the results."""
    rng = np.random.default_rng(0)
    want = {b: rng.integers(0, 9, b.shape).astype(b.dtype.numpy) for b in kernel.params}
    found = {b: v.copy() for b, v in want.items()}
    interp.run(kernel, want)
    assert run_native(kernel, found, machine=host()) == 0
    for b in kernel.params:
        np.testing.assert_array_equal(found[b], want[b])
    text = llvm_ir(kernel, machine("x86-64-v4"))
    apart = ("scatter", "extractelement", "masked.store")
    return not any(word in text for word in apart)


PIXELS = """
kernel k(A: {t}[5, 48], B: {t}[{c}]) -> O: {t}[5, 48, {c}]:
  for y in 5:
    for xo in {o}:
      for x in {n} vector:
        for c in {c} unroll:
          O[y, xo * {n} + x, {at}] = A[y, xo * {n} + x] * B[c]
"""


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float32", "uint8", "int16", "float64"])
@pytest.mark.parametrize("lanes", [4, 6, 16])
@pytest.mark.parametrize("channels", [2, 3, 4])
def test_channels(dtype: str, lanes: int, channels: int) -> None:
    for at in ("c", f"{channels - 1} - c"):
        values = {"t": dtype, "c": channels, "n": lanes, "o": 48 // lanes, "at": at}
        assert is_whole(parsed(PIXELS.format(**values)))


def test_what_is_behind_the_buffer_is_not_touched() -> None:
    kernel = parsed(PIXELS.format(t="float32", c=3, n=16, o=3, at="c"))
    a, b, o = kernel.params

    def test() -> None:
        for at_end in (True, False):
            arrays = {a: np.ones(a.shape, np.float32), b: np.ones(3, np.float32)}
            arrays[o] = guarded(np.zeros(o.shape, np.float32), at_end)
            assert run_native(kernel, arrays, machine=host()) == 0
            assert (arrays[o] == 1).all()

    in_a_child(test)


STORES = """
kernel k(A: float32[16], B: float32[16]) -> O: float32[64], P: float32[64]:
  for x in 16 vector:
    {0}
    {1}
    {2}
"""


@pytest.mark.parametrize(
    ("stores", "whole"),
    [
        (("O[x * 3] = A[x]", "O[x * 3 + 1] = B[x]", "O[x * 3 + 2] = 1.0"), True),
        (("O[x * 3 + 7] = A[x]", "O[x * 3 + 6] = B[x]", "O[x * 3 + 5] = 1.0"), True),
        # Other statements, before and behind.
        (("P[x] = A[x]", "O[x * 2 + 1] = A[x]", "O[x * 2] = B[x]"), True),
        (("O[x * 2] = A[x]", "O[x * 2 + 1] = B[x]", "P[x] = O[x]"), True),
        # The second value is what the first store leaves there.
        (("O[x * 2] = A[x]", "O[x * 2 + 1] = O[x * 2]", "P[x] = A[x]"), False),
        (("O[x * 2] = A[x]", "O[x * 2 + 1] = O[x * 2 + 33]", "P[x] = A[x]"), False),
        # In place, each element by itself.
        (
            (
                "O[x * 2] = O[x * 2] + 1.0",
                "O[x * 2 + 1] = O[x * 2 + 1] * A[x]",
                "P[x] = A[x]",
            ),
            True,
        ),
        (
            ("O[x * 2 + 1] = O[x * 2 + 1] * A[x]", "O[x * 2] = A[x]", "P[x] = O[x]"),
            True,
        ),
        (
            (
                "O[x * 2] = O[x * 2] + 1.0",
                "O[x * 2 + 1] = O[x * 2] * A[x]",
                "P[x] = A[x]",
            ),
            False,
        ),
        # Elements between stay as they are.
        (("O[x * 3] = A[x]", "O[x * 3 + 1] = B[x]", "P[x] = 1.0"), False),
        (("O[x * 3] = A[x]", "O[x * 3 + 1] = B[x]", "O[x * 3 + 5] = 1.0"), False),
        # The last store to an element is the one that stays.
        (("O[x * 2] = A[x]", "O[x * 2] = B[x]", "P[x] = A[x]"), False),
        # Another buffer, another stride.
        (("O[x * 2] = A[x]", "P[x * 2 + 1] = B[x]", "P[x] = A[x]"), False),
        (("O[x * 2] = A[x]", "O[x + 33] = B[x]", "P[x] = A[x]"), False),
        (("O[x * 2] = A[x]", "O[31 - x * 2] = B[x]", "P[x] = A[x]"), False),
    ],
)
def test_stores(stores: tuple[str, ...], whole: bool) -> None:
    assert is_whole(parsed(STORES.format(*stores))) == whole


GUARDED = """
kernel k(A: {t}[16]) -> O: {t}[{e}]:
  for x in 16 vector:
    if {condition}:
      O[x * {c}] = A[x]
      O[x * {c} + {c} - 1] = O[x * {c} + {c} - 1] + A[x]{third}
"""


@pytest.mark.parametrize("condition", ["x < 11", "A[x] < 4.0", "O[x * C] < 4.0"])
@pytest.mark.parametrize(
    ("level", "dtype", "whole"),
    [
        ("x86-64-v4", "float32", True),
        ("x86-64-v4", "int16", True),
        ("x86-64-v3", "float32", False),
    ],
)
@pytest.mark.parametrize("channels", [2, 3])
def test_one_guard_around_all(
    condition: str, level: str, dtype: str, whole: bool, channels: int
) -> None:
    """Its lanes are ordered as the values are; it may be about what the stores change."""
    if dtype == "int16":
        condition = condition.replace("4.0", "4_i16")
    condition = condition.replace("C", str(channels))
    third = "\n      O[x * 3 + 1] = A[x] * A[x]" if channels == 3 else ""
    text = GUARDED.format(
        t=dtype, e=16 * channels, c=channels, condition=condition, third=third
    )
    kernel = parsed(text)
    is_whole(kernel)
    stored = llvm_ir(kernel, machine(level)).count("call void @llvm.masked.store")
    assert (stored == channels) == whole


def test_two_guards_keep_stores_apart() -> None:
    kernel = parsed("""
kernel k(A: float32[16]) -> O: float32[32]:
  for x in 16 vector:
    if x < 11:
      O[x * 2] = A[x]
    if x < 12:
      O[x * 2 + 1] = 2.0
""")
    assert not is_whole(kernel)
    masks = llvm_ir(kernel, machine("x86-64-v4")).count("call void @llvm.masked.store")
    assert masks > 2


def test_each_lane_has_an_array_of_its_own() -> None:
    """Lanes take turns in it: what one stores beside its element is of the next lane."""
    assert not is_whole(
        parsed("""
kernel k(A: float32[16], B: float32[16]) -> O: float32[16]:
  for x in 16 vector:
    alloc t: float32[32]:
      t[x * 2] = A[x]
      t[x * 2 + 1] = B[x]
      O[x] = t[x * 2] + t[x * 2 + 1] * 2.0
""")
    )


def test_places_that_no_ranges_prove_are_checked() -> None:
    kernel = parsed("""
kernel k(A: float32[16], P: int64[1]) -> O: float32[64]:
  for x in 16 vector:
    O[P[0] + x * 2] = A[x]
    O[P[0] + x * 2 + 1] = 2.0
""")
    a, p, o = kernel.params
    for first, outside in ((0, False), (32, False), (33, True), (-1, True)):
        arrays = {
            a: np.ones(16, np.float32),
            p: np.array([first]),
            o: np.zeros(64, "f4"),
        }
        status = run_native(kernel, arrays, machine=host())
        assert (status != 0) == outside
        assert outside or (arrays[o][first : first + 32 : 2] == 1).all()


def test_places_that_lanes_share_in_part_are_not_in_order() -> None:
    assert not is_whole(
        parsed("""
kernel k(A: float32[16]) -> O: float32[160]:
  for y in 3:
    for x in 16 vector:
      O[x * 2 + x * y // 5 * 16] = A[x]
      O[x * 2 + x * y // 5 * 16 + 1] = 2.0
""")
    )


def test_sanitized_code_checks_each_store() -> None:
    stores = ("O[x * 2] = A[x]", "O[x * 2 + 1] = B[x]", "P[x] = O[x]")
    kernel = parsed(STORES.format(*stores))
    out = kernel.outputs[0]
    every = (IndexSet.over(0, [(1, 64)]),)
    text = llvm_ir(
        kernel, machine("x86-64-v4"), permitted={out: Permitted(every, every)}
    )
    assert text.count("internal constant") == 6  # what each access is called in reports
