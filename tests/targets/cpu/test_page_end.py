"""Vectors of any number of lanes at the end of a page: nothing behind their buffers is touched."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.targets.cpu.native import run_native
from tilewright.base.dtypes import DType, float32, float64
from tilewright.expr.nodes import Buffer, var
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.targets.cpu.machine import host, machine

PROT_NONE = 0
COUNT = 64  # elements of a buffer that ends where its page does


@pytest.fixture
def page() -> Iterator[np.ndarray[Any, Any]]:
    """A page of bytes before one that nobody may touch."""
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    view = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    second = ctypes.c_void_p(view.ctypes.data + mmap.PAGESIZE)
    assert libc.mprotect(second, mmap.PAGESIZE, PROT_NONE) == 0
    yield view[: mmap.PAGESIZE]
    assert libc.mprotect(second, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE) == 0


@pytest.mark.covering(2)
@pytest.mark.parametrize("mcpu", ["native", "x86-64-v3"])
@pytest.mark.parametrize("lanes", [3, 5, 7, 8, 9, 13, 14, 16, 27])
@pytest.mark.parametrize("step", [1, 2, 3, 4, -1])
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_the_last_elements_are_loaded_and_stored(
    page: np.ndarray[Any, Any], dtype: DType, step: int, lanes: int, mcpu: str
) -> None:
    if mcpu != "native" and not host().has("avx2"):
        pytest.skip("this processor has no AVX2")
    size = max(COUNT, abs(step) * lanes)
    a, b, v = Buffer("a", (size,), dtype), Buffer("b", (lanes,), dtype), var("v")
    first = size - 1 - step * (lanes - 1) if step > 0 else size - 1
    read = a[v * step + first]
    body = loop(v, lanes, Store(b, (v,), read), "vector")
    given = page[-size * dtype.itemsize :].view(dtype.numpy)
    given[:] = np.arange(size)
    want = given[first::step][:lanes].copy()
    got = np.zeros(lanes, dtype.numpy)
    here = host() if mcpu == "native" else machine(mcpu)
    assert (
        run_native(Kernel("k", (a, b), (b,), body), {a: given, b: got}, machine=here)
        == 0
    )
    np.testing.assert_array_equal(got, want)
    store = Kernel(
        "k",
        (b, a),
        (a,),
        loop(v, lanes, Store(a, (v + (size - lanes),), b[v]), "vector"),
    )
    before = given[: size - lanes].copy()
    assert run_native(store, {b: got, a: given}, machine=here) == 0
    np.testing.assert_array_equal(given[size - lanes :], want)
    np.testing.assert_array_equal(given[: size - lanes], before)
