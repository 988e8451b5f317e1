"""The steps of TVM's tutorial on matrix products: definitions, and schedules for both packages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

N = 1024
BLOCK = 32  # rows and columns of a tile
STEPS = 4  # of the sum, between two tiles' loops


@dataclass(frozen=True)
class Program:
    """A program for two packages.

    ours(te): its arguments and schedule by this package's te; theirs(tvm): by TVM's TensorIR.
    shapes: of the inputs. expected: the result, by NumPy.
    """

    name: str
    ours: Callable[[Any], tuple[list[Any], Any]]
    theirs: Callable[[Any], tuple[list[Any], Any]]
    shapes: tuple[tuple[int, ...], ...]
    expected: Callable[..., np.ndarray[Any, Any]]


def product(te: Any) -> tuple[Any, ...]:
    """C = A B."""
    A = te.placeholder((N, N), name="A")
    B = te.placeholder((N, N), name="B")
    k = te.reduce_axis((0, N), name="k")
    C = te.compute((N, N), lambda m, n: te.sum(A[m, k] * B[k, n], axis=k), name="C")
    return A, B, C, k


def packed_product(te: Any) -> tuple[Any, ...]:
    """C = A B, where B is read in panels of as many columns as a tile has."""
    A = te.placeholder((N, N), name="A")
    B = te.placeholder((N, N), name="B")
    k = te.reduce_axis((0, N), name="k")
    panels = (N // BLOCK, N, BLOCK)
    P = te.compute(panels, lambda b, k, n: B[k, b * BLOCK + n], name="P")
    C = te.compute(
        (N, N),
        lambda m, n: te.sum(A[m, k] * P[n // BLOCK, k, n % BLOCK], axis=k),
        name="C",
    )
    return A, B, P, C, k


# ------------------------------------------------------------------------------ te


def naive(te: Any) -> tuple[list[Any], Any]:
    A, B, C, _ = product(te)
    return [A, B, C], te.create_schedule(C.op)


def _tiled(te: Any) -> tuple[list[Any], Any, Any, tuple[Any, ...]]:
    A, B, C, k = product(te)
    s = te.create_schedule(C.op)
    m, n = s[C].op.axis
    mo, no, mi, ni = s[C].tile(m, n, BLOCK, BLOCK)
    ko, ki = s[C].split(k, STEPS)
    return [A, B, C], s, C, (mo, no, ko, ki, mi, ni)


def blocking(te: Any) -> tuple[list[Any], Any]:
    args, s, C, (mo, no, ko, ki, mi, ni) = _tiled(te)
    s[C].reorder(mo, no, ko, ki, mi, ni)
    return args, s


def vectorization(te: Any) -> tuple[list[Any], Any]:
    args, s, C, (mo, no, ko, ki, mi, ni) = _tiled(te)
    s[C].reorder(mo, no, ko, ki, mi, ni)
    s[C].vectorize(ni)
    return args, s


def permutation(te: Any) -> tuple[list[Any], Any]:
    args, s, C, (mo, no, ko, ki, mi, ni) = _tiled(te)
    s[C].reorder(mo, no, ko, mi, ki, ni)
    s[C].vectorize(ni)
    return args, s


def packing(te: Any) -> tuple[list[Any], Any]:
    A, B, P, C, k = packed_product(te)
    s = te.create_schedule(C.op)
    m, n = s[C].op.axis
    mo, no, mi, ni = s[C].tile(m, n, BLOCK, BLOCK)
    ko, ki = s[C].split(k, STEPS)
    s[C].reorder(mo, no, ko, mi, ki, ni)
    s[C].vectorize(ni)
    panel, _, column = s[P].op.axis
    s[P].vectorize(column)
    s[P].parallel(panel)
    return [A, B, C], s


def write_cache(te: Any) -> tuple[list[Any], Any]:
    A, B, P, C, k = packed_product(te)
    s = te.create_schedule(C.op)
    CC = s.cache_write(C, "global")
    m, n = s[C].op.axis
    _, no, _, _ = s[C].tile(m, n, BLOCK, BLOCK)
    s[CC].compute_at(s[C], no)
    mc, nc = s[CC].op.axis
    ko, ki = s[CC].split(k, STEPS)
    s[CC].reorder(ko, mc, ki, nc)
    s[CC].vectorize(nc)
    s[CC].unroll(ki)
    panel, _, column = s[P].op.axis
    s[P].vectorize(column)
    s[P].parallel(panel)
    return [A, B, C], s


def parallel(te: Any) -> tuple[list[Any], Any]:
    args, s = write_cache(te)
    C = args[-1]
    s[C].parallel(s[C].leaves[0])
    return args, s


# ------------------------------------------------------------------------------ TensorIR


def _schedule(tvm: Any, args: list[Any]) -> Any:
    return tvm.s_tir.Schedule(tvm.te.create_prim_func(args))


def tir_naive(tvm: Any) -> tuple[list[Any], Any]:
    A, B, C, _ = product(tvm.te)
    s = _schedule(tvm, [A, B, C])
    block = s.get_sblock("C")
    s.decompose_reduction(block, s.get_loops(block)[2])
    return [A, B, C], s


def _tir_tiled(tvm: Any, args: list[Any], permuted: bool, vector: bool) -> Any:
    s = _schedule(tvm, args)
    block = s.get_sblock("C")
    m, n, k = s.get_loops(block)
    mo, mi = s.split(m, [None, BLOCK])
    no, ni = s.split(n, [None, BLOCK])
    ko, ki = s.split(k, [None, STEPS])
    s.reorder(mo, no, ko, *((mi, ki) if permuted else (ki, mi)), ni)
    if vector:
        s.vectorize(ni)
    s.decompose_reduction(block, ko)
    return s


def tir_blocking(tvm: Any) -> tuple[list[Any], Any]:
    A, B, C, _ = product(tvm.te)
    return [A, B, C], _tir_tiled(tvm, [A, B, C], permuted=False, vector=False)


def tir_vectorization(tvm: Any) -> tuple[list[Any], Any]:
    A, B, C, _ = product(tvm.te)
    return [A, B, C], _tir_tiled(tvm, [A, B, C], permuted=False, vector=True)


def tir_permutation(tvm: Any) -> tuple[list[Any], Any]:
    A, B, C, _ = product(tvm.te)
    return [A, B, C], _tir_tiled(tvm, [A, B, C], permuted=True, vector=True)


def _tir_panels(s: Any) -> None:
    panel, _, column = s.get_loops(s.get_sblock("P"))
    s.vectorize(column)
    s.parallel(panel)


def tir_packing(tvm: Any) -> tuple[list[Any], Any]:
    A, B, _, C, _ = packed_product(tvm.te)
    s = _tir_tiled(tvm, [A, B, C], permuted=True, vector=True)
    _tir_panels(s)
    return [A, B, C], s


def _tir_cached(tvm: Any, shared: bool) -> tuple[list[Any], Any]:
    A, B, _, C, _ = packed_product(tvm.te)
    s = _schedule(tvm, [A, B, C])
    block = s.get_sblock("C")
    written = s.cache_write(block, 0, "global")
    m, n, k = s.get_loops(block)
    mo, mi = s.split(m, [None, BLOCK])
    no, ni = s.split(n, [None, BLOCK])
    ko, ki = s.split(k, [None, STEPS])
    s.reorder(mo, no, ko, mi, ki, ni)
    s.reverse_compute_at(written, no)
    s.vectorize(ni)
    s.unroll(ki)
    if shared:
        s.parallel(mo)
    s.decompose_reduction(block, ko)
    _tir_panels(s)
    return [A, B, C], s


def tir_write_cache(tvm: Any) -> tuple[list[Any], Any]:
    return _tir_cached(tvm, shared=False)


def tir_parallel(tvm: Any) -> tuple[list[Any], Any]:
    return _tir_cached(tvm, shared=True)


PROGRAMS = tuple(
    Program(f"gemm-{n}-{name}", mine, other, ((N, N), (N, N)), np.matmul)
    for n, (name, mine, other) in enumerate(
        (
            ("naive", naive, tir_naive),
            ("blocking", blocking, tir_blocking),
            ("vectorization", vectorization, tir_vectorization),
            ("permutation", permutation, tir_permutation),
            ("packing", packing, tir_packing),
            ("write-cache", write_cache, tir_write_cache),
            ("parallel", parallel, tir_parallel),
        )
    )
)


def _sum(te: Any) -> tuple[list[Any], Any]:
    A = te.placeholder((64,), name="A")
    B = te.compute((64,), lambda i: A[i] + 1.0, name="B")
    return [A, B], B


def _small(te: Any) -> tuple[list[Any], Any]:
    args, B = _sum(te)
    return args, te.create_schedule(B.op)


def _tir_small(tvm: Any) -> tuple[list[Any], Any]:
    args, _ = _sum(tvm.te)
    return args, _schedule(tvm, args)


SMALL = Program("small", _small, _tir_small, ((64,),), lambda a: a + 1)
