"""Tensor cores: products that a warp does, in launches, as PTX, and by ptxas."""

from __future__ import annotations

import numpy as np
import pytest

from tests.loops.gpu_kernels import barriers, judged, without_barrier
from tests.targets.cuda.mma_products import DTYPES, K, M, N, tensorized, tiled
from tilewright.base.errors import CompileError, ScheduleError
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.shared_memory import RaceError
from tilewright.schedule import Schedule
from tilewright.targets import registry
from tilewright.targets.cuda import report
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.target import code_of
from tilewright.testing.ptx import mma as ptx_mma
from tilewright.testing.ptx.device import load

SM80, SM89 = machine("sm_80"), machine("sm_89")
# of, b is given as its transpose, elements that rows of shared memory are longer
CASES = [
    (of, *how)
    for of in DTYPES
    for how in ((False, 0), (True, 0), (True, 1), (False, 8))
]


def arrays(of: str, transposed: bool) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    dtype = DTYPES[of].numpy
    shapes = (M, K), (N, K) if transposed else (K, N)
    made = [rng.standard_normal(shape) for shape in shapes]
    if of == "int8":
        made = [rng.integers(-128, 128, shape) for shape in shapes]
    out = np.int32 if of == "int8" else np.float32
    return [x.astype(dtype) for x in made] + [np.full((M, N), 7, out)]


def wanted(of: str, given: list[np.ndarray], transposed: bool) -> np.ndarray:
    wide = np.int64 if of == "int8" else np.float64
    a, b = (x.astype(wide) for x in given[:2])
    return a @ (b.T if transposed else b)


def check(s: Schedule, of: str, transposed: bool) -> None:
    """That a product is what its intrinsic promises."""
    program = to_launches(s.kernel, 32)
    text = ptx(program, SM89)
    given = arrays(of, transposed)
    code = code_of(program, text, SM89).to_bytes()
    load(code)([x.reshape(-1).view(np.uint8) for x in given], False)
    reference = wanted(of, given, transposed)
    if of == "int8":
        np.testing.assert_array_equal(given[2], reference)
        return
    a, b = (np.abs(x.astype(np.float64)) for x in given[:2])
    sums = a @ (b.T if transposed else b)
    (intrinsic,) = [
        i for n, i in registry.intrinsics("cuda").items() if n == f"cuda.mma.{of}"
    ]
    assert (np.abs(given[2] - reference) <= intrinsic.tolerance * sums).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("of", "transposed", "pad"), CASES)
def test_a_product_is_right_as_ptx(of, transposed, pad):
    s = tensorized(of, transposed, pad)
    text = ptx(to_launches(s.kernel, 32), SM89)
    assert text.count("mma.sync") in (2 * DTYPES[of].itemsize, 4 * DTYPES[of].itemsize)
    check(s, of, transposed)


def test_the_launches_do_what_the_kernel_does():
    kernel = tensorized("tf32", extents=(32, 16, 16), step=8).kernel
    program = to_launches(kernel, 32)
    assert len(barriers(program)) == 2
    judged(kernel, program)


@pytest.mark.parametrize("number", range(2))
def test_no_barrier_around_a_product_is_needless(number):
    kernel = tensorized("tf32", extents=(32, 16, 16), step=8).kernel
    with pytest.raises(RaceError):
        judged(kernel, without_barrier(to_launches(kernel, 32), number))


def test_a_schedule_with_instructions_means_what_it_meant():
    tensorized("tf32", extents=(32, 16, 16), step=8).verify()


@pytest.mark.sampled(3)  # each architecture, three of the types
@pytest.mark.skipif(report.ptxas() is None, reason="ptxas was not found")
@pytest.mark.parametrize("arch", ["sm_89", "sm_90a"])
@pytest.mark.parametrize("of", DTYPES)
def test_ptxas_takes_it_and_accumulators_are_in_registers(of, arch):
    program = to_launches(tensorized(of).kernel, 32)
    _, used = report.assemble(ptx(program, machine(arch)), machine(arch))
    (kernel,) = used.values()
    assert kernel.stack == kernel.spill_stores == 0
    assert kernel.registers <= 80


# of, b is given as its transpose, elements that rows are longer, in shared memory, how b is loaded
LOADS = [
    ("float16", True, 0, True, "ldmatrix.sync.aligned.m8n8.x2.shared.b16"),
    ("float16", True, 8, True, "ldmatrix.sync.aligned.m8n8.x2.shared.b16"),
    ("float16", False, 0, True, "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16"),
    ("int8", True, 0, True, "ldmatrix.sync.aligned.m8n8.x2.shared.b16"),
    ("int8", False, 0, True, "ld.shared.b8"),
    ("tf32", True, 0, True, "ldmatrix.sync.aligned.m8n8.x2.shared.b16"),
    ("tf32", False, 0, True, "ld.shared.b32"),
    ("float16", True, 2, True, "ld.shared.b32"),
    ("float16", True, 1, True, "ld.shared.b16"),
    ("float16", True, 0, False, "ld.global.nc.b32"),
    ("float16", False, 0, False, "ld.global.nc.b16"),
]


@pytest.mark.sampled(2)  # by matrices, turned, and element by element
@pytest.mark.parametrize(("of", "transposed", "pad", "staged", "how"), LOADS)
def test_factors_are_loaded_as_they_lie_in_memory(of, transposed, pad, staged, how):
    s = tensorized(of, transposed, pad, staged=staged)
    text = ptx(to_launches(s.kernel, 32), SM80)
    assert how in text
    is_matrix = how.startswith("ldmatrix")
    assert ("x2." in text) == is_matrix
    check(s, of, transposed)


def test_factors_are_rounded_to_tf32_and_not_cut_off():
    program = to_launches(tensorized("tf32", extents=(32, 16, 16), step=8).kernel, 32)
    text = ptx(program, SM80)
    a = np.zeros((32, 16), np.float32)
    b = np.zeros((16, 16), np.float32)
    a[:, 0] = 1 + 3 * 2.0**-12  # halfway between two numbers of tf32 and a bit more
    b[0] = 1
    given = [a, b, np.zeros((32, 16), np.float32)]
    code = code_of(program, text, SM80).to_bytes()
    load(code)([x.reshape(-1).view(np.uint8) for x in given], False)
    assert (given[2] == np.float32(1 + 2.0**-10)).all()


# -- what is refused


def test_an_older_gpu_has_no_such_instruction():
    program = to_launches(tensorized("float16").kernel, 32)
    with pytest.raises(CompileError, match="needs sm_80, which this GPU does not have"):
        ptx(program, machine("sm_75"))


def test_exact_code_has_no_sums_in_another_order():
    for of in ("float16", "tf32"):
        program = to_launches(tensorized(of).kernel, 32)
        with pytest.raises(CompileError, match="rounds its own way"):
            ptx(program, SM80, contract=False)
    assert "mma.sync" in ptx(to_launches(tensorized("int8").kernel, 32), SM80, False)


def test_a_machine_without_warps_has_no_units_of_a_warp():
    with pytest.raises(ScheduleError, match="32 threads do it together, and a warp"):
        to_launches(tensorized("int8").kernel, 1)


def test_another_target_refuses_it():
    with pytest.raises((ScheduleError, CompileError)):
        registry.target("opencl").emit(tensorized("int8").kernel, "product")
    with pytest.raises(CompileError, match="'warp' does not exist on a processor"):
        registry.target("cpu").emit(tensorized("int8").kernel, "product")


def test_a_unit_in_a_loop_over_lanes_is_refused():
    s = tensorized("int8", columns="threadIdx.x")
    with pytest.raises(ScheduleError, match=r"in loop \S+ over threadIdx\.x"):
        to_launches(s.kernel, 32)


def test_a_block_of_more_threads_than_a_warp_on_x_is_refused():
    s = tensorized("int8", step=64)
    with pytest.raises(
        ScheduleError, match=r"the block has 64 threads on threadIdx\.x"
    ):
        to_launches(s.kernel, 32)


def test_a_tile_of_a_warp_is_no_threads_memory():
    s, _ = tiled("float16")
    with pytest.raises(ScheduleError, match="a warp holds it together"):
        to_launches(s.kernel, 32)


def test_accumulators_elsewhere_are_no_operands():
    s, nests = tiled("float16", scope="shared")
    with pytest.raises(ScheduleError, match="out in warp"):
        s.tensorize(nests["product"], "cuda.mma.float16")


def test_a_nest_of_other_types_is_not_matched():
    s, nests = tiled("float16")
    with pytest.raises(ScheduleError, match="not of"):
        s.tensorize(nests["product"], "cuda.mma.bfloat16")


# -- the interpreter of PTX


@pytest.mark.parametrize(
    ("shape", "of", "dtype"),
    [("m16n8k16", "f16", np.float16), ("m16n8k32", "s8", np.int8)],
)
def test_each_element_of_a_fragment_is_one_of_the_matrix(shape, of, dtype):
    depth, of_a, of_b = ptx_mma._SHAPES[shape, of]
    for place, sides in (
        (of_a, (16, depth)),
        (of_b, (depth, 8)),
        (ptx_mma._c, (16, 8)),
    ):
        seen = np.zeros(sides, int)
        for i in range(sides[0] * sides[1] // 32):
            np.add.at(seen, place(i), 1)
        assert (seen == 1).all()
