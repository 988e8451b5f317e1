"""The verbs for GPUs of each notation: their kernels run on PoCL, and agree with NumPy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.lang.te.test_cooperative import product as cooperative
from tests.lift.test_dot_product import derived, dot
from tests.loops.gpu_kernels import barriers
from tests.targets.opencl.running import pocl
from tilewright import halide as hl
from tilewright import lift, mdh
from tilewright import te as t
from tilewright.base.errors import ArtifactError, ScheduleError, UnsupportedError
from tilewright.lang import mdh as words
from tilewright.loops import launch_interp
from tilewright.loops.passes.to_launches import to_launches
from tilewright.runtime import devices
from tilewright.schedule import Schedule
from tilewright.tune.base import Candidate

Array = np.ndarray[Any, Any]
AXES = ("blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x")
x, y, xo, yo, xi, yi = hl.vars("x y xo yo xi yi")


@pytest.fixture(autouse=True)
def _on_pocl(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pocl()
    monkeypatch.setenv("TILEWRIGHT_OPENCL_DEVICE", "Portable")
    devices.find.cache_clear()
    yield
    devices.find.cache_clear()


def random(*shape: int) -> Array:
    """Numbers between -1 and 1."""
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


# -- te


def product(m: int, n: int, k: int) -> tuple[t.Schedule, list[t.Tensor]]:
    """A matrix product in tiles of blocks, an element for each thread."""
    A, B = t.placeholder((m, k), name="A"), t.placeholder((k, n), name="B")
    r = t.reduce_axis((0, k), name="k")
    C = t.compute((m, n), lambda i, j: t.sum(A[i, r] * B[r, j], axis=r), name="C")
    s = t.create_schedule(C.op)
    for loop, axis in zip(s[C].tile(*s[C].op.axis, 8, 16), AXES, strict=True):
        s[C].bind(loop, t.thread_axis(axis))
    return s, [A, B, C]


@pytest.mark.parametrize("sizes", [(16, 32, 8), (13, 19, 7)])
def test_te_runs(sizes: tuple[int, int, int]) -> None:
    s, args = product(*sizes)
    m, n, k = sizes
    a, b, c = random(m, k), random(k, n), np.full((m, n), np.nan, np.float32)
    f = t.build(s, args, target="opencl")
    f(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)
    assert "get_local_id(1)" in f.source("asm")
    assert f.profile(a, b, c, repeat=2).rows


def test_te_makes_ptx_without_a_gpu() -> None:
    s, args = product(16, 32, 8)
    f = t.build(s, args, target="cuda")
    assert ".visible .entry C_0" in f.source("asm")
    try:
        devices.find("cuda")
    except ArtifactError as why:
        with pytest.raises(ArtifactError, match=re.escape(str(why))):
            f(random(16, 8), random(8, 32), np.zeros((16, 32), np.float32))


def staged(m: int, n: int, k: int) -> tuple[t.Schedule, list[t.Tensor]]:
    """The same, from copies in the block's memory, into a register of each thread."""
    s, (A, B, C) = product(m, n, k)
    block = s[C].leaf_iter_vars[1]
    for tensor in (A, B):
        copy = s.cache_read(tensor, "shared", [C])
        s[copy].compute_at(s[C], block)
        rows, columns = s[copy].op.axis
        s[copy].bind(rows, t.thread_axis("threadIdx.y"))
        s[copy].bind(columns, t.thread_axis("threadIdx.x"))
    return s, [A, B, C]


def test_te_reads_by_way_of_shared_memory() -> None:
    s, args = staged(13, 19, 16)
    a, b, c = random(13, 16), random(16, 19), np.full((13, 19), np.nan, np.float32)
    f = t.build(s, args, target="opencl")
    f(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)
    (launch,) = to_launches(f.functions[0].kernel).launches
    assert {b.shape for b in launch.shared} == {(8, 16), (16, 16)}
    assert str(launch.body).count("barrier") == 1


@pytest.mark.parametrize("virtual", [False, True])
def test_te_threads_fetch_together(virtual: bool) -> None:
    s, args, _ = cooperative((29, 19, 7), virtual=virtual)
    a, b, c = random(7, 29), random(7, 19), np.full((29, 19), np.nan, np.float32)
    t.build(s, args, target="opencl")(a, b, c)
    np.testing.assert_allclose(c, a.T @ b, rtol=1e-5, atol=1e-5)


def test_what_tvm_calls_local_is_registers() -> None:
    A = t.placeholder((64,), name="A")
    B = t.compute((64,), lambda i: A[i] * 2.0, name="B")
    s = t.create_schedule(B.op)
    own = s.cache_write(B, "local")
    outer, inner = s[B].split(s[B].op.axis[0], 16)
    s[B].bind(outer, "blockIdx.x")
    s[B].bind(inner, "threadIdx.x")
    s[own].compute_at(s[B], inner)
    assert s[own].scope == "register" and "in register" in str(s)
    a, b = random(64), np.zeros(64, np.float32)
    t.build(s, [A, B], target="opencl")(a, b)
    np.testing.assert_array_equal(b, a * 2)


# -- Halide


def blur(image: Array, tile: bool, memory: Any = None, at: hl.Var = xo) -> hl.Func:
    """A blur of 3 by 3, the rows first: on a GPU a block's rows are in its shared memory; or, at
    xi, a thread's in its own."""
    given = hl.ImageParam(hl.Float(32), 2, "image")
    given.set(hl.Buffer(image))
    rows, out = hl.Func("rows"), hl.Func("out")
    rows[x, y] = given[x, y] + given[x + 1, y] + given[x + 2, y]
    out[x, y] = rows[x, y] + rows[x, y + 1] + rows[x, y + 2]
    if tile:
        out.gpu_tile(x, y, xo, yo, xi, yi, 16, 8)
        rows.compute_at(out, at)
        if at is xo:
            rows.gpu_threads(x, y)
        if memory is not None:
            rows.store_in(memory)
    return out


@pytest.mark.parametrize("memory", [None, hl.MemoryType.GPUShared])
def test_halide_runs(memory: Any) -> None:
    image = random(37, 61)
    want = np.asarray(blur(image, tile=False).realize([59, 35]))
    f = blur(image, tile=True, memory=memory)
    np.testing.assert_array_equal(np.asarray(f.realize([59, 35], "opencl")), want)
    kernel = f.compile_jit([59, 35], "opencl").functions[0].kernel
    (launch,) = to_launches(kernel).launches
    assert (launch.grid, launch.threads) == ((4, 5, 1), (16, 10, 1))
    assert [b.name for b in launch.shared] == ["rows"]
    assert str(to_launches(kernel)).count("barrier") == 1


def test_a_target_of_halide_names_the_device() -> None:
    image = random(10, 18)
    want = np.asarray(blur(image, tile=False).realize([16, 8]))
    target = hl.get_host_target().with_feature(hl.TargetFeature.OpenCL)
    got = blur(image, tile=True).realize([16, 8], target)
    np.testing.assert_array_equal(np.asarray(got), want)
    metal = hl.get_host_target().with_feature(hl.TargetFeature.Metal)
    with pytest.raises(UnsupportedError, match="OpenCL or CUDA"):
        blur(image, tile=True).realize([16, 8], metal)


def test_updates_have_blocks_and_threads_of_their_own() -> None:
    A = random(32, 8)
    f, r = hl.Func("f"), hl.RDom([(0, 8)])
    f[x] = 0.0
    f[x] += hl.Buffer(A)[r.x, x]
    f.gpu_tile(x, xo, xi, 16)
    f.update().gpu_tile(x, xi, 8)
    got = np.asarray(f.realize([32], "opencl"))
    np.testing.assert_allclose(got, A.sum(1), rtol=1e-5, atol=1e-5)
    kernel = f.compile_jit([32], "opencl").functions[0].kernel
    assert [n.threads[0] for n in to_launches(kernel).launches] == [16, 8]


def histogram(image: Array) -> tuple[hl.Func, Any]:
    f, data = hl.Func("f"), hl.Buffer(image)
    r = hl.RDom([(0, image.shape[1]), (0, image.shape[0])])
    f[x] = 0
    f[hl.clamp(data[r.x, r.y], 0, 15)] += 1
    f.gpu_blocks(x)
    return f, r


def row_sums(image: Array) -> tuple[hl.Func, Any]:
    f, data = hl.Func("f"), hl.Buffer(image)
    r = hl.RDom([(0, image.shape[1]), (0, image.shape[0])])
    f[x] = 0
    f[x] += data[r.x, r.y] * (x + 1)
    f.gpu_blocks(x)
    f.update().reorder(r.x, x, r.y)
    return f, r


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (histogram, lambda image: np.bincount(image.ravel(), minlength=16)),
        (row_sums, lambda image: image.sum() * np.arange(1, 17)),
    ],
)
def test_blocks_update_the_same_elements_where_halide_says_atomic(
    make: Any, wanted: Any
) -> None:
    image = np.random.default_rng(0).integers(0, 16, (24, 20)).astype(np.int32)
    want = wanted(image)
    f, r = make(image)
    f.update().atomic().gpu_blocks(r.y).gpu_threads(r.x)
    assert "atomic f[" in str(to_launches(f.schedule([16]).kernel))
    np.testing.assert_array_equal(np.asarray(f.realize([16], "opencl")), want)
    f, r = make(image)
    with pytest.raises(ScheduleError, match="loop-carried dependence"):
        f.update().gpu_blocks(r.y).gpu_threads(r.x)
        f.kernel([16])


def test_blocks_with_elements_of_their_own_are_bound_as_usual() -> None:
    image = np.random.default_rng(0).integers(0, 16, (24, 20)).astype(np.int32)
    f, r = row_sums(image)
    f.update().atomic().reorder(r.x, r.y, x).gpu_blocks(x).gpu_threads(r.x)
    assert "atomic f[" not in str(to_launches(f.schedule([16]).kernel))


def kinds(f: hl.Func, size: list[int]) -> list[str]:
    """The axes of the loops of a Func, outermost first."""
    text = str(f.schedule(size).kernel)
    return [w.strip(":") for w in text.split() if "Idx." in w]


def test_the_innermost_loop_of_a_group_is_on_x() -> None:
    def ramp() -> hl.Func:
        f = hl.Func("f")
        f[x, y] = x + 10 * y
        return f

    tiled = ["blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x"]
    assert kinds(ramp().gpu_tile(x, y, xi, yi, 4, 2), [8, 8]) == tiled
    assert kinds(ramp().gpu_blocks(y).gpu_threads(x), [8, 8]) == tiled[1::2]
    assert kinds(ramp().gpu(y, x), [8, 8]) == tiled[1::2]
    api = hl.DeviceAPI.OpenCL
    assert kinds(ramp().gpu_blocks(y, api).gpu_threads(x, api), [8, 8]) == tiled[1::2]
    assert kinds(ramp().gpu_threads(y).gpu_lanes(x), [8, 8]) == tiled[2:]
    assert kinds(ramp().gpu_single_thread(), [8, 8]) == []


VERBS = {
    "gpu_tile": lambda f: f.gpu_tile(x, y, xi, yi, 4, 2),
    "gpu_blocks, gpu_threads": lambda f: f.gpu_blocks(y).gpu_threads(x),
    "gpu": lambda f: f.gpu(y, x),
    "gpu_lanes": lambda f: f.gpu_threads(y).gpu_lanes(x),
    "gpu_single_thread": lambda f: f.gpu_single_thread(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_of_halide_runs(verb: str) -> None:
    f = hl.Func("f")
    f[x, y] = 3 * x + 10 * y
    got = np.asarray(VERBS[verb](f).realize([8, 6], "opencl"))
    np.testing.assert_array_equal(got, 3 * np.arange(8) + 10 * np.arange(6)[:, None])


@pytest.mark.parametrize(
    ("memory", "shared", "device"),
    [
        (hl.MemoryType.Auto, ["rows"], []),
        (hl.MemoryType.Stack, ["rows"], []),
        (hl.MemoryType.Heap, [], ["rows"]),
    ],
)
def test_each_memory_of_a_block_runs(
    memory: Any, shared: list[str], device: list[str]
) -> None:
    """A block's intermediate is in its shared memory, or, where asked for, in the device's."""
    image = random(37, 61)
    want = np.asarray(blur(image, tile=False).realize([59, 35]))
    f = blur(image, tile=True, memory=memory)
    np.testing.assert_array_equal(np.asarray(f.realize([59, 35], "opencl")), want)
    program = to_launches(f.compile_jit([59, 35], "opencl").functions[0].kernel)
    assert [b.name for x in program.launches for b in x.shared] == shared
    assert [b.name for b in program.workspace] == device


@pytest.mark.parametrize("memory", [hl.MemoryType.Register, hl.MemoryType.Stack])
def test_a_thread_s_own_memory_runs(memory: Any) -> None:
    image = random(37, 61)
    want = np.asarray(blur(image, tile=False).realize([59, 35]))
    f = blur(image, tile=True, memory=memory, at=xi)
    np.testing.assert_array_equal(np.asarray(f.realize([59, 35], "opencl")), want)
    program = to_launches(f.compile_jit([59, 35], "opencl").functions[0].kernel)
    assert not program.workspace and not program.launches[0].shared


def test_memory_that_a_block_cannot_have_there_is_refused() -> None:
    """Registers that other threads would read, and what this machine has not."""
    image = random(37, 61)
    with pytest.raises(ScheduleError, match="in the registers of another thread"):
        blur(image, True, hl.MemoryType.Register).realize([59, 35], "opencl")
    with pytest.raises(UnsupportedError, match=r"no MemoryType\.GPUTexture"):
        blur(image, True, hl.MemoryType.GPUTexture).realize([59, 35], "opencl")


def test_wrong_verbs_for_gpus_are_refused() -> None:
    f = hl.Func("f")
    f[x, y] = x + y
    with pytest.raises(
        ScheduleError, match=r"gpu_tile is given 5 arguments.*gpu_tile\("
    ):
        f.gpu_tile(x, y, xi, yi, 4)
    with pytest.raises(ScheduleError, match="gpu is given 3 arguments"):
        f.gpu(x, y, xi)
    with pytest.raises(ScheduleError, match="there is no loop xi"):
        f.gpu_blocks(y, xi)
    assert not f.touched  # what failed has recorded nothing


# -- Lift

PATTERNS = {
    "groups": "A | MapWrg(MapLcl(relu))",
    "shared": "A | MapWrg(toLocal(MapLcl(relu)) >> toGlobal(MapLcl(neg)))",
    "sums": "A | MapWrg(Split(4) >> toLocal(MapLcl(ReduceSeq(add, 0.0))) >> Join "
    ">> toGlobal(ReduceSeq(add, 0.0))) | Join",
    "items": "A | MapGlb(MapGlb(relu, 0), 1)",
    "item sums": "A | MapGlb(ReduceSeq(add, 0.0)) | Join",
    "private": "A | MapWrg(toPrivate(MapLcl(relu)) >> MapLcl(neg))",
    "queues": "A | MapAtomWrg(toLocal(MapAtomLcl(relu)) >> toGlobal(MapLcl(neg)))",
    "warps": "A | MapWrg(Split(4) >> MapWarp(MapLane(relu)) >> Join)",
    "one warp": "A | MapWrg(Split(5) >> MapLane(ReduceSeq(add, 0.0)) >> Join)",
    "lane sums": "A | MapWrg(Split(5) >> MapLane(ReduceSeq(add, 0.0) >> toLocal(MapSeq(id))) "
    ">> Join >> toGlobal(ReduceSeq(add, 0.0))) | Join",
    "warps that exchange": "A | MapWrg(Split(4) >> toLocal(MapWarp(MapLane(relu))) >> Transpose "
    ">> toGlobal(MapLcl(ReduceSeq(add, 0.0))) >> Join)",
    "neighbors": "A | MapWrg(toLocal(MapLcl(relu)) >> Slide(3, 1) "
    ">> toGlobal(MapLcl(ReduceSeq(add, 0.0))) >> Join)",
    "unrolled": "A | MapGlb(ReduceSeqUnroll(add, 0.0)) | Join",
    "prefixes": "A | MapGlb(ScanSeq(add, 0.0))",
    "a rotating window": "A | MapGlb(MapSeqSlide(ReduceSeq(add, 0.0), 3, 1) >> Join)",
    "two dimensions": "A | Split(3) | MapWrg(Transpose >> Split(4) "
    ">> MapWrg(Transpose >> MapLcl(MapLcl(relu, 0), 1), 0), 1)",
}


@pytest.mark.parametrize("name", PATTERNS)
def test_lift_runs(name: str) -> None:
    p = lift.parse(f"fun(lambda A: {PATTERNS[name]}, f32[6, 20])")
    A = random(6, 20)
    (want,) = lift.interpret(p, A)
    got = np.full_like(want, np.nan)
    lift.build(p, "opencl")(A, got)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["queues", "warps", "one warp", "lane sums", "warps that exchange"]
)
def test_warps_and_queues_are_loops_over_threads(name: str) -> None:
    """An element that is handed out has a block, or a thread, of its own: the device hands out."""
    p = lift.parse(f"fun(lambda A: {PATTERNS[name]}, f32[6, 20])")
    program = to_launches(lift.lower(p, target="opencl"), warp=32)
    (launch,) = program.launches
    known = {"queues": (20, 1, 1), "one warp": (4, 1, 1), "lane sums": (4, 1, 1)}
    threads = known.get(name, (4, 5, 1))
    assert launch.grid == (6, 1, 1) and launch.threads == threads
    exchange = ("queues", "lane sums", "warps that exchange")
    assert len(launch.shared) == (name in exchange)
    assert len(barriers(program)) == (name in ("lane sums", "warps that exchange"))
    A = random(6, 20)
    (want,) = lift.interpret(p, A)
    got = dict(zip(program.params, (A, np.full_like(want, np.nan)), strict=True))
    launch_interp.run(program, got)
    np.testing.assert_allclose(got[program.outputs[0]], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("n", "threads"), [(20, 20), (130, 26), (67, 1), (64, 64)])
def test_work_items_are_in_groups_that_divide_them(n: int, threads: int) -> None:
    p = lift.parse(f"fun(lambda A: A | MapGlb(relu), f32[{n}])")
    (launch,) = to_launches(lift.lower(p, target="opencl")).launches
    assert launch.threads[0] == threads
    assert launch.grid[0] == n // threads


# Lift's direct convolution for a mobile GPU (GPGPU 2020), small: each group has a tile of the image
# in local memory, and each work item the sums of one place, kept private.
CONVOLUTION = """
fun(lambda A, W: A | Slide(6, 4) | MapWrg(toLocal(MapLcl(id))
    >> Slide(3, 1)
    >> toGlobal(MapLcl(lambda window: Zip(window, W) | Map(mul) | ReduceSeq(add, 0.0)) >> Join)
  ) | Join, f32[34], f32[3])
"""


def test_lifts_dot_product() -> None:
    d = derived(dot(512))
    x, y = random(2, 512)
    got = np.empty(1, np.float32)
    lift.build(d.program, "opencl")(x, y, got)
    np.testing.assert_allclose(got[0], x @ y, rtol=1e-5, atol=1e-5)


def test_lifts_convolution_for_mobile_gpus() -> None:
    p = lift.parse(" ".join(CONVOLUTION.split()))
    A, W = random(34), random(3)
    got = np.full(32, np.nan, np.float32)
    lift.build(p, "opencl")(A, W, got)
    np.testing.assert_allclose(got, np.correlate(A, W), rtol=1e-5, atol=1e-5)
    (launch,) = to_launches(lift.lower(p, target="opencl")).launches
    assert launch.grid[0] == 8 and [b.shape for b in launch.shared] == [(6,)]


# -- MDH

M, N, K = 12, 20, 24
C = words.out_view[words.float32](C=[lambda i, j, k: (i, j)])
HOM = words.md_hom[M, N, K](words.mul, (words.cc, words.cc, words.pw(words.add)))
MATMUL = (
    C
    @ HOM
    @ words.inp_view[words.float32, words.float32](
        A=[lambda i, j, k: (i, k)], B=[lambda i, j, k: (k, j)]
    )
)
TILED = {
    "PRT.THR.i": 3,
    "PRT.THR.j": 5,
    "PRT.BLK.i": 2,
    "PRT.BLK.j": 2,
    "PRT.SM.k": 4,
    "PRT.BLK.k": 1,
    "ORD.RM": ("i", "j", "k"),
    "MEM.SM.A": True,
    "MEM.SM.B": True,
}


def decomposed(values: dict[str, Any]) -> Schedule:
    """The product, de-composed over the layers of a GPU."""
    space = mdh.parameter_space(MATMUL, target="opencl")
    return space.schedule(Candidate("", values)).schedule


def run_product(s: Schedule) -> None:
    """Compare on PoCL."""
    a, b, c = random(M, K), random(K, N), np.full((M, N), np.nan, np.float32)
    mdh.build(s, target="opencl")(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"MEM.SM.A": False, "ORD.RM": ("k", "i", "j")},
        {"MEM.SM.A": False, "MEM.SM.B": False},
        {"PRT.SM.k": 1},
    ],
    ids=str,
)
def test_mdh_runs(other: dict[str, Any]) -> None:
    run_product(decomposed(TILED | other))


def test_mdhs_layers_are_blocks_shared_memory_and_registers() -> None:
    (launch,) = to_launches(decomposed(TILED).kernel).launches
    assert (launch.grid, launch.threads) == ((2, 2, 1), (5, 3, 1))
    assert sorted((b.name, b.shape) for b in launch.shared) == [
        ("A.local", (6, 6)),
        ("B.local", (6, 10)),
    ]
    assert "alloc C.acc: float32[2, 2] in register" in str(launch.body)


@pytest.mark.parametrize(
    "other",
    [
        {"PRT.BLK.k": 3, "PRT.SM.k": 2},
        {"PRT.BLK.k": 4, "PRT.SM.k": 1, "MEM.SM.A": False, "MEM.SM.B": False},
        {"PRT.BLK.k": K, "PRT.SM.k": 1},
    ],
    ids=str,
)
def test_mdhs_reductions_in_parts_for_blocks_take_two_launches(other: Any) -> None:
    s = decomposed(TILED | other)
    first, last = to_launches(s.kernel).launches
    assert first.grid == (2, 2, other["PRT.BLK.k"]) and last.grid == (2, 2, 1)
    run_product(s)


def test_any_point_of_mdhs_space_runs() -> None:
    space = mdh.parameter_space(MATMUL, target="opencl", threads=32)
    rng = Random(1)
    for candidate in [space.default(), *(space.sample(rng) for _ in range(3))]:
        s = space.schedule(candidate).schedule
        run_product(s)
        for launch in to_launches(s.kernel).launches:
            assert np.prod(launch.threads) <= 32


def test_dimensions_beyond_the_third_are_one_axis() -> None:
    out = words.out_view[words.float32](y=[lambda a, b, c, d: (a, b, c, d)])
    cc = words.cc
    ident = words.md_hom[2, 3, 4, 5](lambda v: v + 1.0, (cc, cc, cc, cc))
    view = words.inp_view[words.float32](x=[lambda a, b, c, d: (d, c, b, a)])
    space = mdh.parameter_space(out @ ident @ view, target="opencl")
    parts = {"a": 2, "b": 3, "c": 4, "d": 5}
    values = {f"PRT.THR.{d}": n for d, n in parts.items()}
    values |= {f"PRT.BLK.{d}": 1 for d in parts} | {"ORD.RM": tuple("abcd")}
    s = space.schedule(Candidate("", values)).schedule
    given, got = random(5, 4, 3, 2), np.zeros((2, 3, 4, 5), np.float32)
    mdh.build(s, target="opencl")(given, got)
    np.testing.assert_array_equal(got, given.T + np.float32(1))
    (launch,) = to_launches(s.kernel).launches
    assert launch.threads == (5, 4, 6)


# Figure 1 of MDH's poster at SC 2021: what makes BERT's mask, as one expression, small.
def test_mdhs_mask_of_bert() -> None:
    out = words.out_view[words.float32](M=[lambda b, o, i, j: (b, o, i, j)])
    cc = words.cc
    f = words.md_hom[3, 1, 24, 40](
        lambda u, v: (1.0 - u * v) * -10000.0, (cc, cc, cc, cc)
    )
    view = words.inp_view[words.float32, words.float32](
        P=[lambda b, o, i, j: (b, i, 0)], Q=[lambda b, o, i, j: (b, 0, j)]
    )
    p, q = random(3, 24, 1), random(3, 1, 40)
    got = np.zeros((3, 1, 24, 40), np.float32)
    mdh.build(out @ f @ view, target="opencl")(p, q, got)
    want = ((1 - p * q) * -10000)[:, None]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-2)


def test_mdhs_batched_product() -> None:
    """With two batch dimensions, as in BERT's attention, small."""
    out = words.out_view[words.float32](C=[lambda a, b, i, j, k: (a, b, i, j)])
    cc, add = words.cc, words.pw(words.add)
    f = words.md_hom[2, 3, 20, 12, 16](lambda u, v: u * v, (cc, cc, cc, cc, add))
    view = words.inp_view[words.float32, words.float32](
        A=[lambda a, b, i, j, k: (a, b, i, k)], B=[lambda a, b, i, j, k: (a, b, k, j)]
    )
    p, q = random(2, 3, 20, 16), random(2, 3, 16, 12)
    got = np.zeros((2, 3, 20, 12), np.float32)
    mdh.build(out @ f @ view, target="opencl")(p, q, got)
    np.testing.assert_allclose(got, p @ q, rtol=1e-4, atol=1e-5)


def test_mdhs_bias_gradient() -> None:
    out = words.out_view[words.float32](g=[lambda i, j: j])
    f = words.md_hom[40, 12](lambda v: v, (words.pw(words.add), words.cc))
    view = words.inp_view[words.float32](x=[lambda i, j: (i, j)])
    given, got = random(40, 12), np.zeros(12, np.float32)
    mdh.build(out @ f @ view, target="opencl")(given, got)
    np.testing.assert_allclose(got, given.sum(0), rtol=1e-4, atol=1e-5)


@words.pw_custom_func(identity=(float("-inf"), 1 << 30))
def first_largest(lhs: Any, rhs: Any) -> Any:
    """The larger of two values with its place; of equal ones the left one."""
    right = lhs[0] < rhs[0]
    return words.select(right, rhs[0], lhs[0]), words.select(right, rhs[1], lhs[1])


@pytest.mark.parametrize("columns", [12, 70])
def test_mdhs_operators_of_your_own(columns: int) -> None:
    """One of two components that is not commutative: ties are in every row."""
    given = np.random.default_rng(0).integers(0, 4, (9, columns)).astype(np.float32)
    place = np.arange(columns, dtype=np.int32)
    out = words.out_view[words.float32, words.int32](
        V=[lambda i, j: i], P=[lambda i, j: i]
    )
    f = words.md_hom[9, columns](
        lambda v, p: (v, p), (words.cc, words.pw(first_largest))
    )
    view = words.inp_view[words.float32, words.int32](
        X=[lambda i, j: (i, j)], K=[lambda i, j: j]
    )
    value, found = np.zeros(9, np.float32), np.full(9, -1, np.int32)
    mdh.build(out @ f @ view, target="opencl")(given, place, value, found)
    np.testing.assert_array_equal(value, given.max(1))
    np.testing.assert_array_equal(found, given.argmax(1))
