"""Exchanges within subgroups: generated text, by an emulation of their functions on PoCL."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.targets.opencl.fake import DEVICE, FakeOpenCL
from tests.targets.opencl.running import X, launched, pocl
from tilewright.base.dtypes import DType, bool_, float16, float32, int32
from tilewright.base.errors import ArtifactError, ExecutionError, InputError
from tilewright.compute.build import reduce_
from tilewright.compute.nodes import Computation
from tilewright.compute.reducer import Reducer
from tilewright.expr.nodes import Add, Buffer, Mul, Select, Var, const
from tilewright.loops import launch_interp
from tilewright.loops.launch import CombineThreads, LaunchProgram
from tilewright.loops.nodes import Alloc, Store, block
from tilewright.runtime.device import MemoryRange
from tilewright.schedule import Schedule
from tilewright.targets.opencl import device as module
from tilewright.targets.opencl.device import OpenCLDevice
from tilewright.targets.opencl.emit import emit
from tilewright.targets.opencl.target import OpenCL
from tilewright.targets.simt.code import NO_SUBGROUPS, DeviceProgram
from tilewright.targets.simt.machine import GENERIC, described
from tilewright.testing.random_kernels import plain

THREADS = 32
# Numbers of subgroups of SIZE neighbors, and of threads that are dealt out to subgroups in turn.
NEIGHBORS = ("(tw_me / SIZE)", "(tw_me % SIZE)")
DEALT = (f"(tw_me % ({THREADS} / SIZE))", f"(tw_me / ({THREADS} / SIZE))")
FUNCTIONS = """
#define SIZE {size}
#define get_max_sub_group_size() SIZE
#define get_sub_group_id() {number[0]}
#define get_sub_group_local_id() {number[1]}
#define sub_group_shuffle_xor(x, n) ({{ \\
    barrier(CLK_LOCAL_MEM_FENCE); \\
    *(__local __typeof__((x) + 0) *)&tw_room[tw_me] = (x); \\
    barrier(CLK_LOCAL_MEM_FENCE); \\
    *(__local __typeof__((x) + 0) *)&tw_room[tw_me ^ (n)]; }})
"""


def emulated(
    code: DeviceProgram, size: int = 16, number: tuple[str, str] = NEIGHBORS
) -> bytes:
    """The code with functions of subgroups of so many threads, through shared memory."""
    text = re.sub(
        r"#pragma OPENCL EXTENSION cl_khr_subgroup\S* : enable\n", "", code.text
    )
    assert text != code.text
    x = code.launches[0].threads[0]
    mine = f"const int tw_me = get_local_id(0) + {x} * get_local_id(1);"
    head, *kernels = re.split(r"(?=__kernel )", text)
    own = f"{{\n    __local ulong tw_room[{np.prod(code.launches[0].threads)}];\n    {mine}\n"
    made = [kernel.replace("{\n", own, 1) for kernel in kernels]
    text = "".join([FUNCTIONS.format(size=size, number=number), head, *made])
    return replace(code, text=text, extensions=()).to_bytes()


def run(code: bytes, given: list[np.ndarray]) -> None:
    """The program on PoCL, on these arrays."""
    device = pocl()
    loaded, queue = device.load(code), device.queue()
    there = []
    for x in given:
        there.append(MemoryRange(device.allocate(x.nbytes), 0, x.nbytes))
        queue.write(there[-1], x.reshape(-1).view(np.uint8)).wait()
    queue.launch(loaded, there)
    for x, region in zip(given, there):
        queue.read(x.reshape(-1).view(np.uint8), region).wait()


def affine(dtype: DType) -> Reducer:
    """Maps one after another: it does not commute, so the order of two threads matters."""
    p, q, r, s = (Var(n, dtype) for n in "pqrs")
    one, zero = const(1, dtype), const(0, dtype)
    after = (Mul(p, r), Add(Mul(q, r), s))
    return Reducer("compose", (p, q), (r, s), after, (one, zero), commutative=False)


def either() -> Reducer:
    """Whether the first of two is true, else the second."""
    p, q = Var("p", bool_), Var("q", bool_)
    return Reducer("or", (p,), (q,), (Select(p, p, q),), (const(False, bool_),))


def combining(reducer: Reducer, width: int) -> LaunchProgram:
    """Each thread puts its elements into registers, combines, and stores what it has then."""
    dtypes, zero = [v.dtype for v in reducer.identity], const(0)
    ins = [Buffer(f"x{n}", (THREADS,), d) for n, d in enumerate(dtypes)]
    outs = [Buffer(f"y{n}", (THREADS,), d) for n, d in enumerate(dtypes)]
    held = [Buffer(f"r{n}", (1,), d, "register") for n, d in enumerate(dtypes)]
    places = ((zero,),) * len(held)
    body = block(
        *(Store(r, (zero,), x[X]) for r, x in zip(held, ins)),
        CombineThreads(tuple(held), places, reducer, width),
        *(Store(y, (X,), r[0]) for y, r in zip(outs, held)),
    )
    for r in held:
        body = Alloc(r, body)
    return replace(launched(body, [*ins, *outs], THREADS), outputs=tuple(outs))


def arrays(p: LaunchProgram) -> dict[Buffer, np.ndarray]:
    rng = np.random.default_rng(0)
    return {b: rng.integers(-1, 2, b.shape).astype(b.dtype.numpy) for b in p.params}


@pytest.mark.parametrize("width", [2, 16])
@pytest.mark.parametrize(
    "reducer", [affine(float32), affine(float16), affine(int32), either()], ids=repr
)
def test_neighbors_combine_in_order_as_in_the_interpreter(reducer, width):
    p = combining(reducer, width)
    given = arrays(p)
    found = [x.copy() for x in given.values()]
    run(emulated(emit(p, subgroups=True)), found)
    launch_interp.run(p, given, 0)
    for one, other in zip(found, given.values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_text_exchanges_registers_and_needs_no_shared_memory():
    code = emit(combining(affine(float32), 8), subgroups=True)
    assert code.extensions == ("cl_khr_subgroups", "cl_khr_subgroup_shuffle")
    assert code.checks == (NO_SUBGROUPS,) and code.launches[0].checked
    for name in code.extensions:
        assert f"#pragma OPENCL EXTENSION {name} : enable\n" in code.text
    steps = re.findall(r"sub_group_shuffle_xor\(\w+, (\d)u\)", code.text)
    assert steps == [*"112244"]
    assert "barrier" not in code.text and "__local" not in code.text
    assert DeviceProgram.from_bytes(code.to_bytes(), code.language) == code
    usual = emit(combining(affine(float32), 8))
    assert "sub_group" not in usual.text and not usual.extensions + usual.checks


@pytest.mark.parametrize(("size", "number"), [(8, NEIGHBORS), (16, DEALT)])
def test_other_subgroups_than_expected_are_an_error(size, number):
    """Smaller than the neighbors that combine; of threads that are none."""
    p = combining(affine(float32), 16)
    code = emulated(emit(p, subgroups=True), size, number)
    with pytest.raises(ExecutionError, match=NO_SUBGROUPS) as error:
        run(code, [*arrays(p).values()])
    assert error.value.code == "TW-DEVICE"


def test_larger_subgroups_of_neighbors_are_none():
    p = combining(affine(float32), 8)
    given = arrays(p)
    run(emulated(emit(p, subgroups=True), 32), [x.copy() for x in given.values()])


WARPS = replace(GENERIC, warp=16, subgroups=True)


def test_rows_of_a_model_are_summed_by_subgroups():
    """On a device that has them; no sum of a row is in shared memory."""
    s = Schedule(plain(row_sums()))
    outer, inner = s.split("sums.k", 16)
    s.reorder(inner, outer)
    s.bind("sums.i", "blockIdx.x")
    s.bind(inner, "threadIdx.x")
    texts = {}
    for of in (WARPS, replace(WARPS, subgroups=False)):
        target = OpenCL(of)
        texts[of.subgroups] = target.text(s.kernel, "sums", "asm")
    assert "sub_group_shuffle_xor" in texts[True] and "__local" not in texts[True]
    assert "sub_group" not in texts[False] and "__local" in texts[False]
    code = DeviceProgram.from_bytes(
        OpenCL(WARPS).emit(s.kernel, "sums").code, "OpenCL C"
    )
    x = np.random.default_rng(0).integers(-9, 9, (5, 64)).astype(np.float32)
    given = [x, np.zeros(5, np.float32)]
    run(emulated(code), given)
    np.testing.assert_array_equal(given[1], x.sum(1))


def row_sums() -> list[Computation]:
    x, y = Buffer("x", (5, 64), float32), Buffer("y", (5,), float32)
    return [reduce_("sums", y, (64,), "add", lambda i, k: x[i, k])]


@pytest.mark.parametrize(
    ("version", "option"),
    [
        ("OpenCL 2.1 x", "-cl-std=CL2.0"),
        ("OpenCL 3.0 x", "-cl-std=CL3.0"),
        ("OpenCL 1.2 x", "-cl-std=CL1.2"),
    ],
)
def test_a_device_builds_it_or_is_refused_by_the_extension_that_it_lacks(
    monkeypatch, version, option
):
    api, options = FakeOpenCL(), []
    monkeypatch.setattr(module, "imported", lambda: api)
    monkeypatch.setattr(module, "default_store", lambda: None)
    monkeypatch.setattr(
        OpenCLDevice, "_compiled", lambda self, text, given: options.append(given)
    )
    code = emit(combining(affine(float32), 8), subgroups=True).to_bytes()
    has = {**vars(DEVICE), "version": version}
    both = "cl_khr_subgroup_shuffle cl_khr_subgroups"
    OpenCLDevice(type(DEVICE)(**has, extensions=both)).load(code)
    assert options == [[option]]
    for name, others in (
        ("cl_khr_subgroups", "cl_khr_subgroup_shuffle"),
        ("cl_khr_subgroup_shuffle", "cl_khr_subgroups cl_khr_fp64"),
    ):
        lacking = OpenCLDevice(type(DEVICE)(**has, extensions=others))
        with pytest.raises(ArtifactError, match=rf"needs {name}, which Fake has not"):
            lacking.load(code)
    without = emit(combining(affine(float32), 8)).to_bytes()
    OpenCLDevice(type(DEVICE)(**has)).load(without)
    assert options[1] == ["-cl-std=CL1.2"]


def test_subgroups_are_of_threads_in_step():
    assert described({"warp": 32, "subgroups": True}).subgroups
    with pytest.raises(InputError, match="no threads are in step"):
        described({"subgroups": True})
