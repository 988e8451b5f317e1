"""Launches as PTX: what LLVM makes of them, and what an interpreter of PTX computes with it."""

import re

import numpy as np
import pytest

from tests.targets.cuda.running import SM80, program, run
from tilewright.base.dtypes import float32, int64
from tilewright.base.errors import CompileError, ExecutionError, UnsupportedError
from tilewright.compute.reducer import arg_reducer
from tilewright.loops.parser import parse_program
from tilewright.targets.cuda.emit import llvm_ir, ptx
from tilewright.targets.cuda.machine import MACHINES, machine
from tilewright.targets.cuda.report import ptxas

REVERSE = """
program reverse(x: float32[2, 64]) -> y: float32[2, 64]:
  launch reverse(x, y) grid [2, 1, 1] threads [64, 1, 1]:
    shared t: float32[64] in shared
    t[threadIdx.x] = x[blockIdx.x, threadIdx.x]
    barrier shared
    y[blockIdx.x, threadIdx.x] = t[63 - threadIdx.x]"""

SUMS = """
program sums(x: float32[5, {n}]) -> y: float32[5, {n}]:
  launch sums(x, y) grid [5, 1, 1] threads [{n}, 1, 1]:
    alloc r: float32[] in register:
      r[] = x[blockIdx.x, threadIdx.x]
      combine r[] by add over {width}
      y[blockIdx.x, threadIdx.x] = r[]"""


def tree(x: np.ndarray) -> np.ndarray:
    """Sums of neighbors as a tree, in float32."""
    while x.shape[-1] > 1:
        x = x[..., 0::2] + x[..., 1::2]
    return x


def test_threads_exchange_values_at_a_barrier():
    x = np.arange(128, dtype=np.float32).reshape(2, 64)
    (y,) = run(program(REVERSE), [x])
    assert np.array_equal(y, x[:, ::-1])


def test_without_its_barrier_the_code_is_another():
    lines = [line for line in REVERSE.split("\n") if "barrier" not in line]
    text = ptx(program("\n".join(lines)), SM80)
    assert "bar.sync" not in text
    assert ptx(program(REVERSE), SM80).count("bar.sync") == 1


@pytest.mark.parametrize(
    ("n", "width"), [(32, 32), (64, 32), (32, 4), (16, 8), (48, 16), (8, 8), (40, 2)]
)
def test_neighbors_are_combined_as_a_tree_and_all_have_the_result(n, width):
    x = np.random.default_rng(n).normal(size=(5, n)).astype(np.float32)
    (y,) = run(program(SUMS.format(n=n, width=width)), [x])
    sums = tree(x.reshape(5, n // width, width))
    expected = np.broadcast_to(sums, (5, n // width, width)).reshape(5, n)
    assert np.array_equal(y, expected)


@pytest.mark.parametrize("dtype", ["float64", "int64", "int8", "uint16", "float16"])
def test_values_of_any_width_are_exchanged(dtype):
    text = SUMS.format(n=32, width=8).replace("float32", dtype)
    x = np.random.default_rng(1).integers(-3, 4, (5, 32)).astype(dtype)
    (y,) = run(program(text), [x])
    sums = tree(x.reshape(5, 4, 8))
    assert np.array_equal(y, np.broadcast_to(sums, (5, 4, 8)).reshape(5, 32))


def test_an_operator_of_two_values_keeps_the_order():
    """Of equal values the first index wins: an earlier thread is on the left."""
    text = """
program best(x: float32[32]) -> y: int64[32]:
  launch best(x, y) grid [1, 1, 1] threads [32, 1, 1]:
    alloc v: float32[] in register:
      alloc w: int64[] in register:
        v[] = x[threadIdx.x]
        w[] = threadIdx.x
        combine v[], w[] by argmax over 32
        y[threadIdx.x] = w[]"""
    reducer = arg_reducer("argmax", float32, int64)
    p = parse_program(text.strip().split("\n"), {"argmax": reducer})
    x = np.array([1, 7, 3, 7] * 8, np.float32)
    (y,) = run(p, [x])
    assert (y == 1).all()


def test_more_threads_than_a_warp_are_refused():
    text = SUMS.format(n=64, width=64)
    with pytest.raises(CompileError, match="combines 64 threads, but a warp has 32"):
        ptx(program(text), SM80)


def test_a_load_under_a_condition_is_not_done_elsewhere():
    """The interpreter refuses accesses outside of the array."""
    text = """
program pad(x: float32[60]) -> y: float32[64]:
  launch pad(x, y) grid [1, 1, 1] threads [64, 1, 1]:
    y[threadIdx.x] = select(threadIdx.x < 60, x[threadIdx.x], 2.5)"""
    x = np.arange(60, dtype=np.float32)
    (y,) = run(program(text), [x])
    assert np.array_equal(y, np.append(x, [2.5] * 4))


def test_an_index_in_the_data_is_checked():
    text = """
program gather(x: float32[10], i: int64[4]) -> y: float32[4]:
  launch gather(x, i, y) grid [1, 1, 1] threads [4, 1, 1]:
    y[threadIdx.x] = x[i[threadIdx.x]]"""
    x = np.arange(10, dtype=np.float32)
    (y,) = run(program(text), [x, np.array([3, 0, 9, 1])])
    assert y.tolist() == [3, 0, 9, 1]
    for wrong in (10, -1, 1 << 40):
        with pytest.raises(ExecutionError, match="out of range"):
            run(program(text), [x, np.array([3, 0, wrong, 1])])


def test_what_is_only_read_comes_through_the_cache_for_it():
    text = ptx(program(REVERSE), SM80)
    assert "ld.global.nc.b32" in text and "st.shared.b32" in text
    assert "ld.shared.b32" in text and "st.global.b32" in text
    assert ".reqntid 64, 1, 1" in text


def test_what_threads_exchange_in_global_memory_is_not_a_threads_alone():
    text = """
program swap(x: float32[64]) -> y: float32[64]:
  workspace w: float32[64]
  launch swap(x, w, y) grid [1, 1, 1] threads [64, 1, 1]:
    w[threadIdx.x] = x[threadIdx.x]
    barrier global
    y[threadIdx.x] = w[63 - threadIdx.x]"""
    p = program(text)
    heads = re.findall(r"ptr addrspace\(1\) (align[^%]*) %p", llvm_ir(p, SM80))
    assert heads == ["align 16 noalias readonly", "align 16", "align 16"]
    x = np.arange(64, dtype=np.float32)
    assert np.array_equal(run(p, [x])[0], x[::-1])


def test_indices_are_computed_in_32_bits_where_they_fit():
    small = program(REVERSE)
    text = ptx(small, SM80)
    assert "cvt.u64.u32" in text and "mul.lo.s64" not in text
    large = program(
        """
program far(x: int8[70000, 70000]) -> y: int8[70000]:
  launch far(x, y) grid [70000, 1, 1] threads [1, 1, 1]:
    y[blockIdx.x] = x[blockIdx.x, blockIdx.x]"""
    )
    body = llvm_ir(large, SM80)
    assert "mul nsw i64" in body and "mul nsw i32" in body


def test_more_shared_memory_than_code_may_have_is_asked_for_by_the_launch():
    big = REVERSE.replace("t: float32[64]", "t: float32[12292]")
    text = ptx(program(big), SM80)
    assert ".extern .shared .align 16 .b8" in text
    x = np.arange(128, dtype=np.float32).reshape(2, 64)
    (y,) = run(program(big), [x])
    assert np.array_equal(y, x[:, ::-1])


def test_products_are_fused_with_sums_only_where_that_is_asked_for():
    text = """
program f(x: float32[8]) -> y: float32[8]:
  launch f(x, y) grid [1, 1, 1] threads [8, 1, 1]:
    y[threadIdx.x] = x[threadIdx.x] * x[threadIdx.x] + x[threadIdx.x]"""
    assert "fma.rn.f32" in ptx(program(text), SM80, contract=True)
    exact = ptx(program(text), SM80, contract=False)
    assert "fma" not in exact and "add.rn.f32" in exact and "mul.rn.f32" in exact


def test_a_grid_that_depends_on_a_size_is_refused():
    text = """
program f(x: float32[n]) -> y: float32[n]:
  size n
  launch f(x, y) grid [n, 1, 1] threads [1, 1, 1]:
    y[blockIdx.x] = x[blockIdx.x]"""
    with pytest.raises(UnsupportedError, match=r"grid depends on a size.*fixed input"):
        ptx(program(text), SM80)


@pytest.mark.parametrize("scope", ["register", "shared", "global"])
def test_what_a_thread_allocates_is_its_own(scope):
    text = f"""
program f(x: float32[4]) -> y: float32[4]:
  launch f(x, y) grid [1, 1, 1] threads [4, 1, 1]:
    alloc t: float32[2] in {scope}:
      t[1] = x[threadIdx.x]
      y[threadIdx.x] = t[1] + 1.0"""
    x = np.arange(4, dtype=np.float32)
    assert np.array_equal(run(program(text), [x])[0], x + 1)
    with pytest.raises(
        CompileError, match=r"buffer t: a thread allocates 800,000 bytes"
    ):
        ptx(program(text.replace("float32[2]", "float32[200000]")), SM80)


@pytest.mark.parametrize("name", MACHINES)
def test_each_architecture_has_its_code(name):
    text = ptx(program(SUMS.format(n=32, width=32)), machine(name))
    assert f".target {name}" in text


def test_an_unknown_architecture_is_refused():
    with pytest.raises(UnsupportedError, match=r"'sm_12345'.*known: sm_70"):
        machine("sm_12345")


def test_the_wheel_that_the_tests_install_has_ptxas():
    assert ptxas()
