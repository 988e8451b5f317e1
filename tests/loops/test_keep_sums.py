"""Sums in registers: the same values to the last bit, where and only where the pass may."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tilewright.base.dtypes import int32, int64
from tilewright.base.errors import VerifyError
from tilewright.compute.reducer import arg_reducer
from tilewright.loops import interp
from tilewright.loops.nodes import Alloc, Kernel
from tilewright.loops.parser import parse
from tilewright.loops.passes.keep_sums import keep_sums
from tilewright.loops.verify import verify
from tilewright.loops.walk import walk
from tilewright.targets.registry import target

MOST = 2048
OPERATORS = {"argmax": arg_reducer("argmax", int32, int64)}


def results(kernel: Kernel) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {}
    for b in kernel.params:
        values = (
            rng.integers(0, 4, b.shape) if b.dtype.is_int else rng.normal(size=b.shape)
        )
        arrays[b] = values.astype(b.dtype.numpy)
    interp.run(kernel, arrays)
    return [arrays[b] for b in kernel.outputs]


def checked(text: str, most: int = MOST) -> tuple[Kernel, Kernel]:
    """The rewritten kernel, which is verified and computes the same."""
    kernel = parse(text.strip().split("\n"), operators=OPERATORS)
    verify(kernel)
    made = keep_sums(kernel, most)
    verify(made)
    for found, want in zip(results(made), results(kernel), strict=True):
        np.testing.assert_array_equal(found, want)
    return kernel, made


def copies(kernel: Kernel) -> list[str]:
    return [
        f"{s.buffer.name}{list(s.buffer.shape)}"
        for at in walk(kernel.body)
        if isinstance(s := at.stmt, Alloc) and s.buffer.scope == "register"
    ]


def test_a_copy_has_a_name_of_its_own() -> None:
    """Beside a parameter with the name that it would have."""
    _, made = checked("""
kernel k(C.sum: float32[4, 8]) -> C: float32[4]:
  for y in 4:
    for k in 8:
      C[y] add= C.sum[y, k]
""")
    assert copies(made) == ["C.sum2[]"]


def test_the_page_s_example() -> None:
    _, made = checked("""
kernel k(A: float32[4, 8], B: float32[8, 16]) -> C: float32[4, 16]:
  for y in 4:
    for k in 8:
      for x in 16 vector:
        C[y, x] add= A[y, k] * B[k, x]
""")
    assert (
        repr(made)
        == """\
kernel k(A: float32[4, 8], B: float32[8, 16]) -> C: float32[4, 16]:
  for y in 4:
    alloc C.sum: float32[16] in register:
      for x.load in 16 vector:
        C.sum[x.load] = C[y, x.load]
      for k in 8:
        for x in 16 vector:
          C.sum[x] add= A[y, k] * B[k, x]
      for x.store in 16 vector:
        C[y, x.store] = C.sum[x.store]"""
    )


MATRIX = """
kernel k(A: float32[8, 8], B: float32[8, 16]) -> C: float32[8, 16]:
  for yo in 4:
    for xo in 2:
      for k in 8{k}:
        for yi in 2{y}:
          for x in 8{x}:
            C[yo * 2 + yi, xo * 8 + x] add= A[yo * 2 + yi, k] * B[k, xo * 8 + x]
"""


@pytest.mark.parametrize(
    ("k", "y", "x", "expected"),
    [
        ("", " unroll", " vector", ["C.sum[2, 8]"]),
        (" unroll", " unroll", " unroll", ["C.sum[2, 8]"]),
        ("", "", " vector", []),  # a row of memory for each step of the sum
        ("", " unroll", "", []),
        (" parallel", " unroll", " vector", None),  # the verifier's business
    ],
)
def test_what_is_inside_of_the_sum_is_written_out(
    k: str, y: str, x: str, expected: list[str] | None
) -> None:
    if expected is None:
        kernel = parse(MATRIX.format(k=k, y=y, x=x).strip().split("\n"))
        assert keep_sums(kernel, MOST) is kernel
        return
    kernel, made = checked(MATRIX.format(k=k, y=y, x=x))
    assert copies(made) == expected and (bool(expected) or made is kernel)


def test_what_does_not_fit_into_registers_stays() -> None:
    text = MATRIX.format(k="", y=" unroll", x=" vector")
    assert copies(checked(text, 64)[1]) == ["C.sum[2, 8]"]
    assert not copies(checked(text, 63)[1])


def test_nested_sums_are_one_and_a_sum_in_a_vector_is_private() -> None:
    _, made = checked("""
kernel k(X: float32[12, 12], W: float32[3, 3]) -> Y: float32[10, 10]:
  for y in 10:
    for x in 10 vector:
      for r in 3:
        for q in 3:
          Y[y, x] add= X[y + r, x + q] * W[r, q]
""")
    assert copies(made) == ["Y.sum[]"] and repr(made).index("Y.sum") < repr(made).index(
        "for r"
    )


def test_a_pair_of_values() -> None:
    """argmax: both targets are kept, with the order of steps."""
    _, made = checked("""
kernel k(X: int32[4, 9]) -> V: int32[4], I: int64[4]:
  for y in 4:
    for k in 9:
      V[y], I[y] argmax= X[y, k], k
""")
    assert copies(made) == ["I.sum[]", "V.sum[]"]


@pytest.mark.parametrize(
    "text",
    [
        # Two iterations update one element: two copies of it would lose one of the sums.
        """
kernel k(A: float32[3, 8]) -> C: float32[4]:
  for k in 3:
    for x in 8 unroll:
      C[x // 2] add= A[k, x]
""",
        """
kernel k(A: float32[3, 8]) -> C: float32[8]:
  for k in 3:
    for x in 8 unroll:
      C[min(x, 5)] add= A[k, x]
""",
        # The element that is updated depends on memory.
        """
kernel k(A: float32[6], I: int64[6]) -> C: float32[4]:
  for k in 6:
    C[max(min(I[k], 3), 0)] add= A[k]
""",
        # The value reads the target: each step needs the result of the previous one.
        """
kernel k(A: float32[6]) -> C: float32[4]:
  for k in 6:
    C[1] add= C[0] * A[k]
""",
        """
kernel k(A: float32[6]) -> C: float32[4]:
  for k in 6:
    C[1] add= C[1] * A[k]
""",
        # The sum contains something else.
        """
kernel k(A: float32[6]) -> C: float32[4], D: float32[6]:
  for k in 6:
    C[1] add= A[k]
    D[k] = C[1]
""",
        # Only the guard may keep the index inside of the target.
        """
kernel k(A: float32[6, 4]) -> C: float32[3]:
  for k in 6:
    for x in 4 unroll:
      if x < 3:
        C[x] add= A[k, x]
""",
        # Lanes around the sum update one element together: a copy for each would lose all but one.
        """
kernel k(A: float32[6, 8]) -> C: float32[2], D: float32[8]:
  for x in 8 vector:
    D[x] = A[0, x]
    for k in 6:
      C[1] add= A[k, x]
""",
        # One step is not a sum.
        """
kernel k(A: float32[6]) -> C: float32[4]:
  for k in 1:
    C[1] add= A[k]
""",
        # In registers already.
        """
kernel k(A: float32[6]) -> C: float32[4]:
  alloc S: float32[1] in register:
    S[0] = 0.0
    for k in 6:
      S[0] add= A[k]
    C[0] = S[0]
""",
        # Each iteration of the sum's own index has its element.
        """
kernel k(A: float32[6]) -> C: float32[6]:
  for k in 6:
    C[k] add= A[k]
""",
    ],
)
def test_what_stays(text: str) -> None:
    kernel, made = checked(text)
    assert made is kernel


def test_a_sum_without_steps_touches_nothing() -> None:
    """C[x] for x of 10 and more is beyond its end, and nothing is added there."""
    _, made = checked("""
kernel k(X: float32[16]) -> C: float32[10]:
  for x in 16:
    for k in 10 - x:
      C[x] add= X[k]
""")
    assert "if 0 < 10 - x:" in repr(made)
    assert copies(made) == ["C.sum[]"]


def test_threads_whose_sums_have_no_steps_do_not_meet() -> None:
    checked("""
kernel k(A: float32[8]) -> C: float32[2]:
  for p in 2 parallel:
    for k in p * 5:
      C[p] add= A[k]
    for m in p * 5:
      C[1 - p] add= A[m]
""")


def test_a_buffer_that_is_a_target_twice_stays() -> None:
    text = """
kernel k(A: int64[8]) -> C: int64[4]:
  for k in 8:
    C[0], C[1] argmax= A[k], k
"""
    pairs = {"argmax": arg_reducer("argmax", int64, int64)}
    kernel = parse(text.strip().split("\n"), operators=pairs)
    verify(kernel)
    assert keep_sums(kernel, MOST) is kernel


def test_what_threads_have_for_themselves_is_kept() -> None:
    """A row of each thread's own: allocated in the parallel loop, not indexed by it."""
    _, made = checked("""
kernel k(A: float32[4, 6, 8]) -> C: float32[4, 8]:
  for y in 4 parallel:
    alloc row: float32[8]:
      for x.zero in 8 vector:
        row[x.zero] = 0.0
      for k in 6:
        for x in 8 vector:
          row[x] add= A[y, k, x]
      for x.out in 8 vector:
        C[y, x.out] = row[x.out]
""")
    assert copies(made) == ["row.sum[8]"]


def test_names_are_new() -> None:
    _, made = checked("""
kernel k(A: float32[4, 8]) -> C: float32[8]:
  for k in 4:
    for x in 8 vector:
      C[x] add= A[k, x]
  for x.load in 8:
    C[x.load] = C[x.load] + 1.0
""")
    assert "for x.load2 in 8 vector" in repr(made)


def _random(seed: int) -> str:
    """Loops of any kind around an update of one or two dimensions, in parts of a larger target."""
    rng = random.Random(seed)
    loops = [(f"l{n}", rng.choice((1, 2, 3, 4))) for n in range(rng.randint(2, 4))]
    kinds = [rng.choice(("", " unroll", " unroll")) for _ in loops]
    if rng.random() < 0.6:
        kinds[-1] = " vector"
    inner = [x for x in loops[1:] if rng.random() < 0.6]
    terms = [f"{name} * {rng.choice((1, 2, 4))}" for name, _ in inner]
    index = " + ".join(terms or ["0"])
    index = rng.choice((index, f"({index}) // 2", f"({index}) % 7"))
    value = "A[" + " + ".join(name for name, _ in loops) + "]"
    dtype, op = rng.choice((("float32", "add"), ("float16", "add"), ("int32", "max")))
    lines = [f"kernel k(A: {dtype}[16]) -> C: {dtype}[64]:"]
    for n, ((name, extent), kind) in enumerate(zip(loops, kinds, strict=True)):
        lines.append(f"{'  ' * (n + 1)}for {name} in {extent}{kind}:")
    lines.append(
        f"{'  ' * (len(loops) + 1)}C[{index} + {rng.randint(0, 5)}] {op}= {value}"
    )
    return "\n".join(lines)


def test_random_nests() -> None:
    legal = changed = 0
    for seed in range(200):
        try:
            kernel, made = checked(_random(seed))
        except VerifyError as error:
            assert "depend on one another" in str(error) and ".load" not in str(error)
            continue
        legal += 1
        changed += made is not kernel
    assert legal > 100 and changed > 30


def test_code_has_no_stores_in_the_sum() -> None:
    from tilewright.runtime.instruction_mix import inner_loop

    kernel = parse(MATRIX.format(k="", y=" unroll", x=" vector").strip().split("\n"))
    mix = inner_loop(target("cpu", "x86-64-v3").emit(kernel, "k").code)
    assert mix is not None and mix.fmas and not mix.stores
