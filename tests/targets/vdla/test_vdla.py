"""The example accelerator: the matrix product of TVM's talks on it, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.dtypes import DType, float32, float64
from tilewright.base.errors import CompileError, UnsupportedError
from tilewright.graph.nodes import Graph
from tilewright.loops.intrinsic import decl_tensor_intrinsic, hardware_intrinsic
from tilewright.loops.lower import lower
from tilewright.loops.verify import verify
from tilewright.operators import Buffer, map_, reduce_
from tilewright.schedule import Schedule, Trace
from tilewright.targets import registry, vdla


def _plain(m: int, n: int, k: int, dtype: DType = float32) -> Schedule:
    """C[y, x] = sum over k of A[k, y] * B[k, x]."""
    a, b, c = (
        Buffer("A", (k, m), dtype),
        Buffer("B", (k, n), dtype),
        Buffer("C", (m, n), dtype),
    )
    product = reduce_("C", c, (k,), "add", lambda y, x, k: a[k, y] * b[k, x])
    return Schedule(lower("matmul", [product], params=[a, b, c], outputs=[c]))


def _staged(s: Schedule) -> Schedule:
    """Tiles of 8x8, accumulated on the chip, with the parts of A and B that a step reads."""
    _, xo, _, _ = s.tile("C.y", "C.x", 8, 8)
    s.cache_write("C", xo, vdla.acc_buffer, name="CL")
    s.decompose_reduction("CL", "C.y.i")
    ko, ki = s.split("C.k", 8)
    s.reorder(ko, "C.y.i", "C.x.i", ki)
    s.cache_read("A", ko, vdla.inp_buffer, name="AL")
    s.cache_read("B", ko, vdla.inp_buffer, name="BL")
    return s


def _mapped(m: int, n: int, k: int) -> Schedule:
    s = _staged(_plain(m, n, k))
    s.tensorize("C.y.i", vdla.gemm8x8)
    for nest in ("AL.r0", "BL.r0", "CL.w0"):
        s.tensorize(nest, vdla.dma_copy2d)
    return s


def _arrays(m: int, n: int, k: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((k, side), dtype=np.float32) for side in (m, n))
    return [a, b, np.full((m, n), np.nan, np.float32)]


def test_the_matrix_product_of_the_talks(golden: Callable[[str, str], None]) -> None:
    s = _mapped(1024, 1024, 1024)
    golden("vdla_matmul", f"{s}\n\n{s.trace}")


@pytest.mark.parametrize("size", [(8, 8, 8), (16, 32, 24), (64, 64, 64)], ids=str)
def test_the_simulator_agrees_with_numpy(size: tuple[int, int, int]) -> None:
    m, n, k = size
    s = _mapped(m, n, k)
    verify(s.kernel)
    a, b, c = _arrays(m, n, k)
    counts = registry.target("vdla").load(s.kernel)([a, b, c])
    np.testing.assert_allclose(c, a.T @ b, rtol=1e-4, atol=1e-4)
    tiles, steps = m * n // 64, m * n * k // 512
    assert counts.instructions == {
        "fill_zero": tiles,
        "dma_copy2d": 2 * steps + tiles,
        "fused_gemm8x8_add": steps,
    }
    assert counts.macs == m * n * k
    assert (counts.bytes_loaded, counts.bytes_stored) == (2 * steps * 256, m * n * 4)
    assert f"multiply-adds      {m * n * k:>10}" in str(counts)


def test_the_trace_replays_on_another_size() -> None:
    trace = Trace.from_json(_mapped(16, 16, 16).trace.to_json())
    again = Schedule(_plain(24, 8, 40).kernel, trace)
    a, b, c = _arrays(24, 8, 40)
    registry.target("vdla").load(again.kernel)([a, b, c])
    np.testing.assert_allclose(c, a.T @ b, rtol=1e-4, atol=1e-4)


def test_the_interpreter_agrees_with_the_lowering() -> None:
    _mapped(16, 8, 16).verify()


LATER: dict[str, tuple[Callable[[Schedule], object], int]] = {
    "double_buffer": (lambda s: s.double_buffer("AL"), 8192),
    "vthread": (
        lambda s: s.vthread("C.x.o"),
        6144,
    ),  # the part of A is loaded once for both
    "partition_loop": (lambda s: s.partition_loop("C.k.o", 1), 8192),
    "split": (lambda s: s.split("C.k.o", 2), 8192),
    "unroll": (lambda s: s.unroll("C.k.o"), 8192),
}


@pytest.mark.parametrize("name", LATER)
def test_steps_around_instructions_keep_the_result(name: str) -> None:
    step, loaded = LATER[name]
    s = _mapped(16, 16, 32)
    step(s)
    verify(s.kernel)
    a, b, c = _arrays(16, 16, 32)
    counts = registry.target("vdla").load(s.kernel)([a, b, c])
    np.testing.assert_allclose(c, a.T @ b, rtol=1e-4, atol=1e-4)
    assert (counts.macs, counts.bytes_loaded) == (8192, loaded)


def test_a_whole_product_is_one_instruction() -> None:
    s = _plain(8, 8, 8)
    s.cache_write("C", None, vdla.acc_buffer, name="CL")
    s.cache_read("A", None, vdla.inp_buffer, name="AL")
    s.cache_read("B", None, vdla.inp_buffer, name="BL")
    assert s.tensorize("C.y", vdla.gemm8x8) == "gemm8x8"
    for nest in ("AL.r0", "BL.r0", "CL.w0"):
        s.tensorize(nest, vdla.dma_copy2d)
    a, b, c = _arrays(8, 8, 8)
    counts = registry.target("vdla").load(s.kernel)([a, b, c])
    np.testing.assert_allclose(c, a.T @ b, rtol=1e-4, atol=1e-4)
    assert counts.instructions["gemm8x8"] == 1


def test_rows_of_any_length_are_copied() -> None:
    x, y = Buffer("x", (5, 7), float32), Buffer("y", (5, 7), float32)
    s = Schedule(
        lower("copy", [map_("y", y, lambda i, j: x[i, j])], params=[x, y], outputs=[y])
    )
    s.cache_write("y", None, vdla.acc_buffer, name="t")
    s.tensorize("y.i", vdla.dma_copy2d)
    s.tensorize("t.w0", vdla.dma_copy2d)
    source = np.arange(35, dtype=np.float32).reshape(5, 7)
    to = np.zeros_like(source)
    registry.target("vdla").load(s.kernel)([source, to])
    np.testing.assert_array_equal(to, source)


def _load(s: Schedule) -> CompileError:
    with pytest.raises(CompileError) as caught:
        registry.target("vdla").load(s.kernel)
    return caught.value


def test_scalar_arithmetic_is_refused() -> None:
    s = _staged(_plain(16, 16, 16))
    for nest in ("AL.r0", "BL.r0", "CL.w0"):
        s.tensorize(nest, vdla.dma_copy2d)
    error = _load(s)
    assert error.code == "TW-VDLA-SCALAR"
    assert "no instruction performs `CL[C.y.i.init, C.x.i.init] = 0.0`" in str(error)


def test_a_buffer_that_does_not_fit_is_refused() -> None:
    fits, large = _plain(1024, 8, 8), _plain(2048, 8, 8)
    for s in (fits, large):
        s.cache_read("A", None, vdla.inp_buffer, name="AL")
        s.tensorize("AL.r0", vdla.dma_copy2d)
    assert _load(fits).code == "TW-VDLA-SCALAR"  # of the product, which is not mapped
    error = _load(large)
    assert error.code == "TW-VDLA-MEMORY"
    assert "AL needs 65536 bytes of inp_buffer, where 0 of 32768 are in use" in str(
        error
    )


def test_a_memory_of_another_machine_is_refused() -> None:
    s = _plain(8, 8, 8)
    s.cache_write("C", "C.y", "register")
    error = _load(s)
    assert error.code == "TW-SCOPE"
    assert "allocated in register, which the machine does not have" in str(error)


def test_another_dtype_is_refused() -> None:
    assert "the machine computes in float32" in str(_load(_plain(8, 8, 8, float64)))


def test_an_intrinsic_of_no_machine_is_refused() -> None:
    w, x, y = (Buffer(name, (8, 8), float32) for name in "wxy")
    product = reduce_("y", y, (8,), "add", lambda i, j, k: w[i, k] * x[j, k])

    def lower_(inputs, outputs):  # type: ignore[no-untyped-def]
        reads = [t.access_ptr("r") for t in inputs]
        return hardware_intrinsic("gemm8x8", *reads, outputs[0].access_ptr("w"))

    declared = decl_tensor_intrinsic(product, lower_, name="test.gemm_of_no_machine")
    s = Schedule(lower("g", [product], params=[w, x, y], outputs=[y]))
    s.tensorize("y.i", declared)
    error = _load(s)
    assert error.code == "TW-VDLA-INSTRUCTION"
    assert "declared for no machine" in str(error)


def test_an_unknown_target_names_the_known_ones() -> None:
    with pytest.raises(
        UnsupportedError,
        match="known: amdgpu, cpu, cuda, npu, opencl, spirv, vdla, vta",
    ):
        registry.target("tpu")


def test_it_takes_no_part_of_a_model() -> None:
    target = registry.target("vdla")
    assert target.refuses(()) == "vdla takes no part of a model"
    with pytest.raises(UnsupportedError, match="'vdla' has no code generator"):
        tw.compile(_mapped(8, 8, 8).kernel, target="vdla")
    graph = Graph("g", (), (), ())
    with pytest.raises(UnsupportedError, match="'vdla' takes no part of any model"):
        tw.compile(graph, target="vdla")
