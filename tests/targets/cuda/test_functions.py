"""Functions give the same bits as on a processor: it is the same emitter and the same polynomials.

PTX is run by an interpreter (`testing/ptx`); nothing here has run on a GPU.
"""

import numpy as np
import pytest

from tests.targets.cuda.running import program, run
from tilewright.driver.build_kernel import build_kernel
from tilewright.loops.parser import parse
from tilewright.runtime.executable import Executable
from tilewright.targets.registry import target

N = 2048
FUNCTIONS = (
    "exp exp2 expm1 sigmoid log log2 log1p tanh sinh cosh arcsinh arccosh arctanh erf "
    "sin cos tan arcsin arccos arctan floor ceil trunc round_even sqrt abs"
).split()
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1, -1, 88.7, -103.9, 1e38)


def values(dtype: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    found = rng.normal(size=N) * 3
    found[N // 2 :] = rng.uniform(-120, 120, N // 2)
    found[: len(SPECIAL)] = SPECIAL
    return found.astype(dtype)


def both(expression: str, dtype: str, out: str) -> tuple[np.ndarray, np.ndarray]:
    """What PTX gives, and what an x86-64 without AVX-512 gives, of `x[i]`."""
    at = "blockIdx.x * 256 + threadIdx.x"
    p = program(f"""
program k(x: {dtype}[{N}]) -> y: {out}[{N}]:
  launch k(x, y) grid [{N // 256}, 1, 1] threads [256, 1, 1]:
    y[{at}] = {expression.replace("@", at)}""")
    x = values(dtype)
    (ours,) = run(p, [x])
    lines = [
        f"kernel k(x: {dtype}[{N}]) -> y: {out}[{N}]:",
        f"  for i in {N}:",
        f"    y[i] = {expression.replace('@', 'i')}",
    ]
    exact = target("cpu", "x86-64-v3", exact=True)
    theirs = Executable(build_kernel(parse(lines), exact))(x)
    return ours, np.asarray(theirs).reshape(N)


def same(ours: np.ndarray, theirs: np.ndarray) -> None:
    bits = f"u{ours.dtype.itemsize}"
    nan = ours != ours
    assert np.array_equal(nan, theirs != theirs)
    assert np.array_equal(ours[~nan].view(bits), theirs[~nan].view(bits))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_of_float32_has_the_same_bits(function):
    same(*both(f"{function}(x[@])", "float32", "float32"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("function", "exp log tanh erf sin sigmoid".split())
def test_a_function_of_float64_has_the_same_bits(function):
    same(*both(f"{function}(x[@])", "float64", "float64"))


@pytest.mark.parametrize(
    "expression",
    [
        "x[@] * x[@] + x[@]",
        "x[@] / (x[@] + 1.0)",
        "max(x[@], 0.5)",
        "min(x[@], x[@] * 2.0)",
        "select(x[@] < 0.5, 0.0, x[@])",
        "select(0.5 < x[@], x[@], 0.5)",
    ],
)
def test_arithmetic_has_the_same_bits(expression):
    same(*both(expression, "float32", "float32"))
