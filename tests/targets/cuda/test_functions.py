"""Functions have the same bits as on a CPU: the emitter and the polynomials are the same.

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
    if np.dtype(dtype).kind in "iu":
        return rng.integers(-(1 << 31), 1 << 31, N).astype(dtype)
    found = rng.normal(size=N) * 3
    found[N // 2 :] = rng.uniform(-120, 120, N // 2)
    found[: len(SPECIAL)] = SPECIAL
    return found.astype(dtype)


def both(expression: str, dtype: str, out: str) -> tuple[np.ndarray, np.ndarray]:
    """The results for `x[i]` as PTX, and on an x86-64 without AVX-512."""
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


# polynomials, a period, an instruction
@pytest.mark.representatives("exp", "log1p", "cos", "ceil", "sqrt")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_of_float32_has_the_same_bits(function):
    same(*both(f"{function}(x[@])", "float32", "float32"))


@pytest.mark.representatives("exp")
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


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8"])
def test_a_narrow_integer_is_extended_by_its_load(dtype):
    ours, theirs = both("i64(x[@])", dtype, "int64")
    assert (ours < 0).any() == dtype.startswith("int")
    assert np.array_equal(ours, theirs)


def test_a_constant_of_float16():
    same(*both("f16(x[@] < 0.0)", "float32", "float16"))


@pytest.mark.parametrize("sign", ["<<", ">>"])
def test_a_shift_by_more_than_there_are_bits_is_0(sign):
    """Also by 2**32 and more, whose low 32 bits are a small number."""
    p = program(f"""
program k(x: uint64[4], n: uint64[4]) -> y: uint64[4]:
  launch k(x, n, y) grid [1, 1, 1] threads [4, 1, 1]:
    y[threadIdx.x] = x[threadIdx.x] {sign} n[threadIdx.x]""")
    x = np.full(4, 1 << 40, np.uint64)
    by = np.array([1, 63, 64, (1 << 32) + 1], np.uint64)
    wanted = {"<<": [1 << 41, 0, 0, 0], ">>": [1 << 39, 0, 0, 0]}[sign]
    assert run(p, [x, by])[0].tolist() == wanted


def test_the_quotient_of_the_least_integer():
    least = -(1 << 63)
    p = program("""
program k(x: int64[4], n: int64[4]) -> y: int64[4]:
  launch k(x, n, y) grid [1, 1, 1] threads [4, 1, 1]:
    y[threadIdx.x] = x[threadIdx.x] / n[threadIdx.x]""")
    found = run(p, [np.full(4, least), np.array([2, -3, -1, least])])[0]
    assert found.tolist() == [-(1 << 62), (1 << 63) // 3, least, 1]
