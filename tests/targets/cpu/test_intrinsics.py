"""Tensor intrinsics of processors: products by hand schedules, against NumPy, and their limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.targets.cpu import tiles
from tests.targets.cpu.native import run_native
from tilewright.base.dtypes import DType, bfloat16, float32, int8, int32, uint8
from tilewright.base.errors import CompileError, ScheduleError
from tilewright.compute.build import cast
from tilewright.compute.quantized import s8_as_u8
from tilewright.loops.intrinsic import decl_tensor_intrinsic, hardware_intrinsic
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.loops.verify import verify
from tilewright.operators import Buffer, map_, reduce_
from tilewright.runtime.abi import STATUS_TILES
from tilewright.runtime.elf import parse
from tilewright.schedule import Schedule
from tilewright.targets import registry
from tilewright.targets.cpu.compile import assembly, compile_kernel
from tilewright.targets.cpu.machine import host, machine

INTRINSICS = registry.intrinsics("cpu")
AMX = machine("sapphirerapids")


def needs(*features: str) -> pytest.MarkDecorator:
    """Skip where this processor lacks a feature."""
    missing = [f for f in features if not host().has(f)]
    return pytest.mark.skipif(
        bool(missing), reason=f"this processor has no {', '.join(missing)}"
    )


def product(m: int, n: int, k: int, a: DType, b: DType, c: DType) -> Kernel:
    """`c = a @ b`, accumulated in c's dtype."""
    x, w, y = Buffer("a", (m, k), a), Buffer("b", (k, n), b), Buffer("c", (m, n), c)
    mm = reduce_(
        "mm", y, (k,), "add", lambda i, j, k: cast(x[i, k], c) * cast(w[k, j], c)
    )
    return lower("mm", [mm], params=[x, w, y], outputs=[y])


def dot_schedule(
    kernel: Kernel,
    intrinsic: str,
    inside: int,
    rows: int,
    vectors: int,
    interleave: bool = False,
) -> Schedule:
    """A register tile of rows x vectors, its products by a dot product of `inside` numbers."""
    s = Schedule(kernel)
    io, ii, jo, ji = (*s.split("mm.i", rows), *s.split("mm.j", 16 * vectors))
    s.reorder(jo, io, ii, ji)
    acc = s.cache_write("c", io, "register")
    s.decompose_reduction(acc, ii)
    ko, ki = s.split("mm.k", inside)
    vector, lane = s.split(ji, 16)
    s.reorder(ko, ii, vector, lane, ki)
    s.pack("b", jo, ko, vector, lane, ki)
    if interleave:
        s.tensorize("b.pack.r3", f"cpu.interleave.{s.kernel.params[1].dtype}")
    s.tensorize(lane, intrinsic)
    for loop in (f"{ji}.init", f"{acc}.w1"):
        block, lanes = s.split(loop, 16)
        s.unroll(block)
        s.vectorize(lanes)
    for loop in (ii, vector, f"{ii}.init", f"{acc}.w0"):
        s.unroll(loop)
    return s


def tile_schedule(kernel: Kernel, intrinsic: str, inside: int, side: int) -> Schedule:
    """Tiles of side x side, each by one sequence of tile products over all of k."""
    s = Schedule(kernel)
    io, ii, jo, ji = (*s.split("mm.i", side), *s.split("mm.j", side))
    s.reorder(jo, io, ii, ji)
    s.decompose_reduction("c", ii)
    ko, ki = s.split("mm.k", 16 * inside)
    k, kk = s.split(ki, inside)
    s.reorder(ii, ko, k, ji, kk)
    s.pack("b", jo, ko, k, ji, kk)
    if side > 16:
        several, ii = s.split(ii, 16)
        s.reorder(ii, several)
    s.tensorize(ii, intrinsic)
    return s


def _integers(kernel: Kernel, seed: int = 0) -> dict[Buffer, np.ndarray[Any, Any]]:
    """Inputs over the whole range of their dtypes, an output that no product gives."""
    rng = np.random.default_rng(seed)
    arrays: dict[Buffer, np.ndarray[Any, Any]] = {}
    for b in kernel.params:
        if b in kernel.outputs:
            arrays[b] = np.full(b.shape, 77, b.dtype.numpy)
        elif b.dtype.is_int:
            info = np.iinfo(b.dtype.numpy)
            arrays[b] = rng.integers(info.min, info.max + 1, b.shape).astype(
                b.dtype.numpy
            )
        else:
            arrays[b] = rng.standard_normal(b.shape).astype(b.dtype.numpy)
    return arrays


def _run(kernel: Kernel, threads: int = 1) -> tuple[np.ndarray[Any, Any], ...]:
    arrays = _integers(kernel)
    assert run_native(kernel, arrays, threads) == 0
    return tuple(arrays[b] for b in kernel.params)


@needs("avx512vnni")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [(4, 64, 4), (8, 128, 64), (12, 64, 20)], ids=str)
def test_vnni_is_exact(size: tuple[int, int, int], threads: int) -> None:
    s = dot_schedule(product(*size, uint8, int8, int32), "cpu.vpdpbusd", 4, 4, 4)
    s.parallel("mm.i.o")
    verify(s.kernel)
    a, b, c = _run(s.kernel, threads)
    np.testing.assert_array_equal(c, a.astype(np.int32) @ b.astype(np.int32))


@needs("avx512vnni")
@pytest.mark.parametrize("bits", [4, 8])
def test_bits_of_bytes_are_exact(bits: int) -> None:
    """Numbers cut out of bytes, signed bytes by them: all bits set and negative ones too."""
    parts, words = 8 // bits, 3
    x, w, y = (
        Buffer("a", (words, parts, 4), int8),
        Buffer("b", (words, 16, 4), uint8),
        Buffer("c", (16,), int32),
    )

    def part(i: Any, k: Any, h: Any, n: Any) -> Any:
        q = (w[k, i, n] >> cast(h * bits, uint8)) & ((1 << bits) - 1)
        return cast(x[k, h, n], int32) * cast(q, int32)

    def whole(i: Any, k: Any, n: Any) -> Any:
        return cast(x[k, 0, n], int32) * cast(w[k, i, n], int32)

    over = (words, parts, 4) if parts > 1 else (words, 4)
    mm = reduce_("mm", y, over, "add", part if parts > 1 else whole)
    s = Schedule(lower("mm", [mm], params=[x, w, y], outputs=[y]))
    s.decompose_reduction("c", "mm.i")
    s.reorder("mm.k", "mm.i", *(["mm.h"] if parts > 1 else []), "mm.n")
    s.tensorize("mm.i", f"cpu.vpdpbusd.{bits}")
    verify(s.kernel)
    random = np.random.default_rng(0)
    a = random.integers(-128, 128, (words, parts, 4)).astype(np.int8)
    b = random.integers(0, 256, (words, 16, 4)).astype(np.uint8)
    a[0], b[0] = -128, 255
    c = np.zeros(16, np.int32)
    assert run_native(s.kernel, {x: a, w: b, y: c}) == 0
    shifts = np.arange(0, 8, bits)
    q = (b[:, :, None].astype(np.int32) >> shifts[:, None]) & ((1 << bits) - 1)
    np.testing.assert_array_equal(c, np.einsum("khn,kihn->i", a.astype(np.int32), q))


@needs("avx512vnni", "avx512bf16")
@pytest.mark.parametrize("dtype", [int8, bfloat16], ids=str)
def test_packing_by_the_instruction(dtype: DType) -> None:
    """The same numbers in the same order as by the loops of `pack`."""
    rows = {
        int8: ("cpu.vpdpbusd", 4, uint8, int32),
        bfloat16: ("cpu.vdpbf16ps", 2, dtype, float32),
    }
    name, inside, left, out = rows[dtype]
    results = []
    for interleave in (False, True):
        kernel = product(4, 128, 16, left, dtype, out)
        s = dot_schedule(kernel, name, inside, 4, 4, interleave)
        verify(s.kernel)
        assert ("interleave(b.pack" in str(s)) == interleave
        results.append(_run(s.kernel)[2])
    np.testing.assert_array_equal(*results)


@needs("avx512bf16")
def test_bf16_is_within_its_tolerance() -> None:
    m, n, k = 8, 64, 128
    s = dot_schedule(
        product(m, n, k, bfloat16, bfloat16, float32), "cpu.vdpbf16ps", 2, 4, 4
    )
    verify(s.kernel)
    a, b, c = (x.astype(np.float64) for x in _run(s.kernel))
    bound = k * INTRINSICS["cpu.vdpbf16ps"].tolerance * (np.abs(a) @ np.abs(b))
    assert np.all(np.abs(c - a @ b) <= bound)


@needs("avx512bf16")
def test_bf16_flushes_denormals_as_it_says() -> None:
    s = dot_schedule(
        product(4, 64, 2, bfloat16, bfloat16, float32), "cpu.vdpbf16ps", 2, 4, 4
    )
    a, b, c = s.kernel.params
    arrays = _integers(s.kernel)
    arrays[a][:] = 2.0**-130  # a denormal: the product with 2 ** 100 would be 2 ** -30
    arrays[b][:] = 2.0**100
    assert run_native(s.kernel, arrays) == 0
    assert np.all(arrays[c] == 0)
    assert "denormals count as 0" in INTRINSICS["cpu.vdpbf16ps"].rounding


@needs("avx512vnni")
def test_a_product_of_512_by_the_inner_loop_it_should_have() -> None:
    s = dot_schedule(
        product(512, 512, 512, uint8, int8, int32), "cpu.vpdpbusd", 4, 4, 4
    )
    a, b, c = _run(s.kernel)
    exact = a.astype(np.float64) @ b.astype(np.float64)  # below 2 ** 53, so exact
    np.testing.assert_array_equal(c, exact.astype(np.int32))
    lines = assembly(s.kernel, host()).splitlines()
    at = [n for n, line in enumerate(lines) if "vpdpbusd" in line]
    head = max(n for n, line in enumerate(lines[: at[0]]) if line.startswith(".LBB"))
    loop = lines[head : at[-1] + 1]
    assert len(at) == 16
    assert sum("vpbroadcastd" in x for x in loop) == 4
    assert sum("vmovdqu64" in x for x in loop) == 4


@needs("avx512vnni")
def test_signed_bytes_by_the_law_are_exact() -> None:
    """s8_as_u8, then the product of unsigned by signed bytes by the instruction."""
    x, w, y = (
        Buffer("x", (8, 64), int8),
        Buffer("w", (64, 128), int8),
        Buffer("y", (8, 128), int32),
    )
    signed = reduce_(
        "mm",
        y,
        (64,),
        "add",
        lambda i, j, k: cast(x[i, k], int32) * cast(w[k, j], int32),
    )
    kernel = lower("mm", s8_as_u8(signed), params=[x, w, y], outputs=[y])
    s = Schedule(kernel)
    io, ii, jo, ji = (*s.split("mm.i", 4), *s.split("mm.j", 64))
    s.reorder(io, jo, ii, ji)
    s.decompose_reduction("y.raw", ii)
    ko, ki = s.split("mm.k", 4)
    vector, lane = s.split(ji, 16)
    s.reorder(ko, ii, vector, lane, ki)
    s.pack("w", jo, ko, vector, lane, ki)
    s.tensorize(lane, "cpu.vpdpbusd")
    verify(s.kernel)
    a, b, c = _run(s.kernel)
    np.testing.assert_array_equal(c, a.astype(np.int32) @ b.astype(np.int32))


TILES: list[tuple[str, DType, DType, DType, int]] = [
    ("tdpbusd", uint8, int8, int32, 4),
    ("tdpbssd", int8, int8, int32, 4),
    ("tdpbf16ps", bfloat16, bfloat16, float32, 2),
]
_TILE_IDS = [row[0] for row in TILES]


def _tiled(row: tuple[str, DType, DType, DType, int], side: int, k: int) -> Schedule:
    name, a, b, c, inside = row
    kernel = product(2 * side, 2 * side, k, a, b, c)
    return tile_schedule(kernel, f"cpu.{name}.{side}", inside, side)


@pytest.mark.parametrize("side", [16, 32])
@pytest.mark.parametrize("row", TILES, ids=_TILE_IDS)
def test_tiles_assemble(row: tuple[str, DType, DType, DType, int], side: int) -> None:
    s = _tiled(row, side, 128)
    s.parallel("mm.j.o")
    verify(s.kernel)
    text = assembly(s.kernel, AMX)
    assert text.count(row[0]) == (side // 16) ** 2
    assert text.count("ldtilecfg") == 1  # the region's, outside its loop
    assert text.count("tilerelease") == 1
    assert text.count("syscall") == 1
    assert parse(compile_kernel(s.kernel, AMX).object_bytes).symbols


@pytest.mark.sampled(2)
@pytest.mark.parametrize("row", TILES, ids=_TILE_IDS)
def test_tiles_mean_the_product(row: tuple[str, DType, DType, DType, int]) -> None:
    _tiled(row, 16, 16 * row[4]).verify()


@pytest.mark.parametrize("side", [16, 32])
@pytest.mark.parametrize("row", TILES, ids=_TILE_IDS)
def test_tiles_agree_with_numpy_where_they_are_simulated(
    row: tuple[str, DType, DType, DType, int], side: int
) -> None:
    s = _tiled(row, side, 256)
    s.parallel("mm.j.o")
    arrays = list(_integers(s.kernel).values())
    assert tiles.run(s.kernel, AMX, arrays, refuse=False) == 0
    a, b, c = (x.astype(np.float64) for x in arrays)
    bound = 256 * INTRINSICS[f"cpu.{row[0]}.{side}"].tolerance * (np.abs(a) @ np.abs(b))
    assert np.all(np.abs(c - a @ b) <= bound)


def _whole(kernel: Kernel, rows: int, columns: int) -> Schedule:
    """Groups of rows by a product of tiles that starts from 0."""
    s = Schedule(kernel)
    groups, row = s.split("mm.i", rows)
    jo, ji = s.split("mm.j", columns)
    s.reorder(jo, row, groups, ji)
    ko, ki = s.split("mm.k", 32)
    word, near = s.split(ki, 2)
    s.reorder(ko, word, near)
    s.pack("b", jo, ko, word, ji, near)
    s.tensorize(row, f"cpu.tdpbf16ps.{columns}")
    return s


TILE_SHAPES = [(2, 14, 32), (4, 7, 16), (1, 3, 32), (3, 16, 16), (2, 5, 32)]


@pytest.mark.parametrize(("groups", "rows", "columns"), TILE_SHAPES)
def test_rows_of_tiles_may_be_few(groups: int, rows: int, columns: int) -> None:
    """Nothing outside the operands is read or written: they end where their memory does."""
    sizes = groups * rows, 2 * columns, 96
    s = _whole(product(*sizes, bfloat16, bfloat16, float32), rows, columns)
    verify(s.kernel)
    assert "tdpbf16ps(" in str(s)
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(-8, 9, b.shape).astype(b.dtype.numpy) for b in s.kernel.params
    ]
    assert tiles.run(s.kernel, AMX, arrays, refuse=False) == 0
    a, b, c = (x.astype(np.float64) for x in arrays)
    np.testing.assert_array_equal(c, a @ b)


@needs("amx-tile", "amx-bf16")
@pytest.mark.parametrize(("groups", "rows", "columns"), TILE_SHAPES)
def test_few_rows_of_tiles_run(groups: int, rows: int, columns: int) -> None:
    sizes = groups * rows, 2 * columns, 96
    s = _whole(product(*sizes, bfloat16, bfloat16, float32), rows, columns)
    a, b, c = (x.astype(np.float64) for x in _run(s.kernel))
    bound = 96 * INTRINSICS["cpu.tdpbf16ps.16"].tolerance * (np.abs(a) @ np.abs(b))
    assert np.all(np.abs(c - a @ b) <= bound)


@pytest.mark.parametrize(("rows", "columns"), [(17, 16), (16, 48)])
def test_larger_tiles_are_refused(rows: int, columns: int) -> None:
    kernel = product(rows, columns, 32, bfloat16, bfloat16, float32)
    with pytest.raises(ScheduleError):
        _whole(kernel, rows, columns)
    with pytest.raises(ScheduleError, match="i < 17"):
        _whole(product(5 * 16, 16, 32, bfloat16, bfloat16, float32), 16, 16)


def test_a_system_that_refuses_tiles_is_a_status() -> None:
    s = _tiled(TILES[0], 16, 64)
    arrays = list(_integers(s.kernel).values())
    assert tiles.run(s.kernel, AMX, arrays, refuse=True) == 1 << 8 | STATUS_TILES
    assert np.all(arrays[-1] == 77)


@needs("amx-tile", "amx-int8", "amx-bf16")
@pytest.mark.parametrize("side", [16, 32])
@pytest.mark.parametrize("row", TILES, ids=_TILE_IDS)
def test_tiles_run(row: tuple[str, DType, DType, DType, int], side: int) -> None:
    k = 256
    a, b, c = (x.astype(np.float64) for x in _run(_tiled(row, side, k).kernel))
    bound = k * INTRINSICS[f"cpu.{row[0]}.{side}"].tolerance * (np.abs(a) @ np.abs(b))
    assert np.all(np.abs(c - a @ b) <= bound)


def test_signed_times_signed_is_no_vnni() -> None:
    with pytest.raises(ScheduleError, match="of uint8 and int8, not of int8 and int8"):
        dot_schedule(product(4, 64, 4, int8, int8, int32), "cpu.vpdpbusd", 4, 4, 4)


def test_unpacked_weights_are_refused() -> None:
    s = Schedule(product(4, 64, 4, uint8, int8, int32))
    s.decompose_reduction("c", "mm.i")
    _, lane = s.split("mm.j", 16)
    s.split("mm.k", 4)
    with pytest.raises(
        ScheduleError, match=r"b has stride 1 along axis 1, found 64 in b\["
    ):
        s.tensorize(lane, "cpu.vpdpbusd")


def _small() -> Schedule:
    return dot_schedule(product(4, 64, 4, uint8, int8, int32), "cpu.vpdpbusd", 4, 4, 4)


def test_a_processor_without_the_feature_is_named() -> None:
    with pytest.raises(
        CompileError, match="needs avx512vnni, which this processor"
    ) as caught:
        compile_kernel(_small().kernel, machine("x86-64-v4"))
    assert caught.value.code == "TW-INTRINSIC"


def test_exact_code_refuses_what_rounds_its_own_way() -> None:
    s = dot_schedule(
        product(4, 64, 2, bfloat16, bfloat16, float32), "cpu.vdpbf16ps", 2, 4, 4
    )
    with pytest.raises(
        CompileError, match=r"cpu\.vdpbf16ps rounds its own way: denormals count"
    ):
        compile_kernel(s.kernel, AMX, contract=False)
    assert compile_kernel(_small().kernel, AMX, contract=False).object_bytes


def test_a_unit_in_a_vector_loop_is_refused() -> None:
    s = _small()
    s.serial("mm.j.i.o")
    s.vectorize("mm.j.i.o")
    with pytest.raises(CompileError, match="inside a vector loop"):
        compile_kernel(s.kernel, replace(machine("x86-64-v4"), features=AMX.features))


def test_an_intrinsic_of_no_processor_is_refused() -> None:
    x, y = Buffer("x", (8,), float32), Buffer("y", (8,), float32)
    copy = map_("y", y, lambda i: x[i])
    declared = decl_tensor_intrinsic(
        copy,
        lambda inputs, outputs: hardware_intrinsic("copy8", outputs[0].access_ptr("w")),
        name="test.copy_of_no_processor",
    )
    s = Schedule(lower("f", [copy], params=[x, y], outputs=[y]))
    s.tensorize("y.i", declared)
    with pytest.raises(
        CompileError, match="an intrinsic of no machine, not of a processor"
    ):
        compile_kernel(s.kernel, host())


def test_a_block_is_compiled_as_its_body() -> None:
    s = Schedule(product(4, 8, 4, int8, int8, int32))
    s.blockize("mm.j")
    a, b, c = _run(s.kernel)
    np.testing.assert_array_equal(c, a.astype(np.int32) @ b.astype(np.int32))
