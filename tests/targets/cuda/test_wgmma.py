"""Products of four warps (`wgmma`): in launches, as PTX with planted faults, and by ptxas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.loops.gpu_kernels import judged, without_barrier
from tests.targets.cuda.group_products import tensorized
from tests.targets.cuda.mma_products import DTYPES
from tilewright.base.dtypes import float32
from tilewright.base.errors import CompileError, ScheduleError
from tilewright.compute.build import map_, reduce_
from tilewright.expr.nodes import Buffer
from tilewright.loops.intrinsic import (
    INTRINSICS,
    TensorIntrinsic,
    decl_tensor_intrinsic,
    hardware_intrinsic,
)
from tilewright.loops.launch import LaunchProgram, Wait
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Block, Stmt, block
from tilewright.loops.parser import parse_program
from tilewright.loops.passes.in_flight import PRODUCTS
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.shared_memory import RaceError
from tilewright.loops.walk import walk
from tilewright.schedule import Schedule
from tilewright.targets.cuda import report
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.group_intrinsics import GROUP, factor_layout
from tilewright.targets.cuda.machine import WARP, machine
from tilewright.targets.cuda.target import code_of
from tilewright.testing.ptx.device import load
from tilewright.testing.ptx.wgmma import Descriptor, accumulator

SM90A = machine("sm_90a")
ONE = (64, 64, 128)  # one block, two steps
# of, b is given as its transpose, columns, groups of four warps, stages, extents
CASES = [
    ("bfloat16", True, 64, 1, 1, ONE),
    ("float16", False, 64, 1, 1, ONE),
    ("float16", True, 128, 2, 1, (128, 128, 128)),
    ("bfloat16", False, 64, 2, 3, (128, 128, 256)),
    ("bfloat16", True, 256, 1, 1, (64, 256, 128)),
    ("float8_e4m3fn", True, 64, 1, 1, (64, 64, 256)),
    ("float8_e5m2", True, 64, 1, 1, (64, 64, 128)),
]
NAMES = {"float16": "f16", "bfloat16": "bf16"}
NAMES |= {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def program(
    of: str = "float16", transposed: bool = True, **how: object
) -> LaunchProgram:
    how = {"extents": ONE, **how}
    kernel = tensorized(of, transposed, **how).kernel  # type: ignore[arg-type]
    return to_launches(kernel, 32, async_copies=True)


def run(p: LaunchProgram, text: str) -> tuple[np.ndarray, np.ndarray]:
    """What a program computes, and the right result; b is what the shapes say."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(x.shape).astype(x.dtype.numpy) for x in p.params[:2])
    c = np.full(p.params[2].shape, 7, np.float32)
    load(code_of(p, text, SM90A).to_bytes())(
        [x.reshape(-1).view(np.uint8) for x in (a, b, c)], False
    )
    left, right = (x.astype(np.float64) for x in (a, b))
    turned = a.shape[1] == b.shape[1]
    return c, left @ (right.T if turned else right)


@pytest.mark.sampled(3)  # layouts of b, types; one and several steps, groups, stages
@pytest.mark.parametrize(
    ("of", "transposed", "columns", "groups", "stages", "extents"), CASES
)
def test_a_product_is_right_as_ptx(of, transposed, columns, groups, stages, extents):
    how = {"columns": columns, "groups": groups, "stages": stages, "extents": extents}
    p = program(of, transposed, **how)
    text = ptx(p, SM90A)
    depth = 32 // DTYPES[of].itemsize
    assert f"m64n{columns}k{depth}.f32.{NAMES[of]}.{NAMES[of]}" in text
    assert ("cp.async" in text) == (stages > 1)
    found, wanted = run(p, text)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize(("columns", "groups", "stages"), [(128, 2, 3), (64, 1, 1)])
def test_ptxas_takes_it_and_accumulators_are_in_registers(columns, groups, stages):
    p = program(columns=columns, groups=groups, stages=stages, extents=(128, 128, 256))
    _, used = report.assemble(ptx(p, SM90A), SM90A)
    (kernel,) = used.values()
    assert kernel.stack == kernel.spill_stores == 0
    assert kernel.registers <= columns // 2 + 56
    assert not kernel.is_serialized


@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
def test_ptxas_says_where_products_do_not_overlap():
    text = ptx(program(**OVERLAPPED), SM90A)
    (held, *_) = re.findall(r"k16\.f32\.f16\.f16 \{(%r\d+),", text)
    commit = "wgmma.commit_group.sync.aligned;"
    text = text.replace(commit, f"{commit}\nadd.f32 {held}, {held}, 0f3f800000;", 1)
    (kernel,) = report.assemble(text, SM90A)[1].values()
    assert kernel.is_serialized


def test_factors_begin_where_the_order_of_their_rows_does():
    """A buffer of 20 bytes is in front of them."""
    p = program()
    (launch,) = p.launches
    odd = Buffer("odd", (5,), float32, "shared")
    p = replace(p, launches=(replace(launch, shared=(odd, *launch.shared)),))
    found, wanted = run(p, ptx(p, SM90A))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


# -- products that overlap steps

OVERLAPPED = {"stages": 3, "extents": (64, 64, 256)}


def waits(p: LaunchProgram) -> list[int]:
    """How many groups of products each wait for these leaves in flight."""
    found = (at.stmt for x in p.launches for at in walk(x.body))
    return [s.pending for s in found if isinstance(s, Wait) and s.of == PRODUCTS]


def test_a_product_goes_on_while_the_next_step_begins():
    """With two tiles it has to be over where the next but one is copied: at the next barrier."""
    assert waits(program(**OVERLAPPED)) == [1, 0]
    assert waits(program(stages=2, extents=(64, 64, 256))) == [0, 0]
    assert waits(program()) == [0]


def test_what_is_waited_for_is_printed_and_read():
    text = """
program f(x: float32[4]) -> y: float32[4]:
  launch f_0(x, y) grid [1, 1, 1] threads [4, 1, 1]:
    commit
    commit products
    wait 2
    wait products 1
    wait products
    y[threadIdx.x] = x[threadIdx.x]
"""
    assert str(parse_program(text.strip().split("\n"))) == text.strip()


# -- planted faults


def without(line: str, text: str) -> str:
    found = re.sub(rf"^\s*{re.escape(line)}.*\n", "", text, flags=re.M)
    assert found != text
    return found


# what is left out, steps of the product, what is found
FAULTS = [
    ("fence.proxy.async", 1, "with no fence.proxy.async since it was written"),
    ("wgmma.wait_group", 1, "is accessed with no wait for its product"),
    ("wgmma.wait_group", 2, "is written that a product still reads"),
    ("wgmma.commit_group", 1, "is accessed with no wait for its product"),
    ("wgmma.fence", 1, "is written with no wgmma.fence since"),
]


@pytest.mark.parametrize(("line", "steps", "why"), FAULTS)
def test_a_planted_fault_is_found(line, steps, why):
    p = program(extents=(64, 64, 64 * steps))
    text = without(line, ptx(p, SM90A))
    with pytest.raises(RuntimeError, match=why):
        run(p, text)


def test_a_wait_that_leaves_a_group_in_flight_is_found():
    p = program(extents=(64, 64, 64))
    text = ptx(p, SM90A).replace(
        "wait_group.sync.aligned 0", "wait_group.sync.aligned 1"
    )
    with pytest.raises(RuntimeError, match="is accessed with no wait for its product"):
        run(p, text)


@pytest.mark.parametrize(
    ("without_it", "instead"),
    [("aligned 1;", "aligned 2;"), ("wgmma.wait_group.sync.aligned 1;", "")],
)
def test_a_tile_that_is_fetched_too_early_is_found(without_it, instead):
    p = program(**OVERLAPPED)
    text = ptx(p, SM90A)
    assert without_it in text
    with pytest.raises(RuntimeError, match="is written that a product still reads"):
        run(p, text.replace(without_it, instead))


def changed(p: LaunchProgram, number: int, more: int | None) -> LaunchProgram:
    """A program in which one of its waits for products leaves more in flight, or is gone."""
    (launch,) = p.launches
    found = [at.stmt for at in walk(launch.body) if isinstance(at.stmt, Wait)]
    which = [s for s in found if s.of == PRODUCTS][number]
    instead = block() if more is None else Wait(PRODUCTS, which.pending + more)
    body = edited(launch.body, {which: instead})
    return replace(p, launches=(launch.with_body(body),))


def edited(s: Stmt, new: Mapping[Stmt, Stmt]) -> Stmt:
    made = s.map(lambda c: new.get(c, edited(c, new)) if isinstance(c, Stmt) else c)
    return block(*made.stmts) if isinstance(made, Block) else made


@pytest.mark.parametrize("more", [None, 1])
@pytest.mark.parametrize("number", range(2))
def test_no_wait_for_products_is_needless_or_too_strict(number, more):
    """By the interpreter of launches, with a small instruction."""
    kernel = small(by_proxy=True).kernel
    p = to_launches(kernel, 32)
    assert waits(p) == [1, 0]
    judged(kernel, p)
    with pytest.raises(RaceError, match="no wait"):
        judged(kernel, changed(p, number, more))


@pytest.mark.parametrize("number", range(2))
def test_a_barrier_around_a_product_is_not_needless(number):
    """By the interpreter of launches, with a small instruction of as many threads."""
    kernel = small().kernel
    judged(kernel, to_launches(kernel, 32))
    with pytest.raises(RaceError):
        judged(kernel, without_barrier(to_launches(kernel, 32), number))


def test_two_groups_at_one_barrier_are_found():
    p = program(groups=2, columns=64, extents=(128, 64, 64))
    text = re.sub(r"(bar\w*\.sync\S*\s+)%r\d+, 128", r"\g<1>1, 128", ptx(p, SM90A))
    with pytest.raises(RuntimeError, match="a barrier is for 128"):
        run(p, text)


def test_part_of_a_group_at_a_product_is_found():
    p = program(extents=(64, 64, 64))
    text = ptx(p, SM90A).replace(
        "wgmma.fence.sync.aligned;",
        "setp.lt.u32 %half, %tid.x, 64;\nwgmma.fence.sync.aligned;",
    )
    with pytest.raises(RuntimeError, match="only part of a group is here"):
        run(p, text.replace("wgmma.mma_async", "@%half wgmma.mma_async"))


def small(by_proxy: bool = False) -> Schedule:
    """c = a @ b.T by an instruction of 4 x 4 x 4 that 128 threads do together.

    by_proxy: a warp does it, it runs beside these threads, and overlaps the steps: there are three
    tiles of each factor.
    """
    product, store = small_intrinsics(by_proxy)
    rows, depth = (4, 16) if by_proxy else (8, 8)
    a, b = Buffer("a", (rows, depth), float32), Buffer("b", (4, depth), float32)
    c = Buffer("c", (rows, 4), float32)
    mm = reduce_("mm", c, (depth,), "add", lambda i, j, k: a[i, k] * b[j, k])
    s = Schedule(lower("f", [mm], params=[a, b, c], outputs=[c]))
    block, row = s.split("mm.i", 4)
    acc = s.cache_write("c", block, "warp")
    ko, ki = s.split("mm.k", 4)
    s.decompose_reduction(acc, row)
    s.reorder(ko, row, "mm.j", ki)
    for name in "ab":
        part = s.cache_read(name, ko, "shared")
        s.bind(s.fuse(f"{part}.r0", f"{part}.r1"), "threadIdx.x")
    s.tensorize(row, product)
    s.tensorize(f"{acc}.w0", store)
    if by_proxy:
        s.pipeline(ko, 0, 0, 1, spare=1)
    s.bind(block, "blockIdx.x")
    return s


def small_intrinsics(by_proxy: bool) -> tuple[str, str]:
    """The names of a product of 4 x 4 x 4 and of a store of it."""
    name = f"tests.product_of_a_group.{by_proxy}"
    if name not in INTRINSICS:
        _small_intrinsics(name, by_proxy)
    return name, f"{name}.store"


def _small_intrinsics(
    name: str, by_proxy: bool
) -> tuple[TensorIntrinsic, TensorIntrinsic]:
    a, b = Buffer("a", (4, 4), float32), Buffer("b", (4, 4), float32)
    out = Buffer("out", (4, 4), float32)
    threads = WARP if by_proxy else GROUP

    def product(inputs, outputs):
        strides = [s for t in (*inputs, *outputs) for s in t.strides]
        fill = hardware_intrinsic("test.fill", outputs[0].access_ptr("w"))
        pointers = outputs[0].access_ptr("rw"), *(t.access_ptr("r") for t in inputs)
        return None, fill, hardware_intrinsic("test.product", *pointers, *strides)

    def store(inputs, outputs):
        pointers = outputs[0].access_ptr("w"), inputs[0].access_ptr("r")
        return hardware_intrinsic("test.store", *pointers)

    return (
        decl_tensor_intrinsic(
            reduce_("p", out, (4,), "add", lambda i, j, k: a[i, k] * b[j, k]),
            product,
            name=name,
            threads=threads,
            by_proxy=by_proxy,
        ),
        decl_tensor_intrinsic(
            map_("s", out, lambda i, j: a[i, j]),
            store,
            name=f"{name}.store",
            threads=threads,
        ),
    )


# -- what is refused


def test_only_the_architecture_itself_has_it():
    p = program()
    for name in ("sm_90", "sm_100a", "sm_80"):
        with pytest.raises(CompileError, match="needs sm_90a, which this GPU does not"):
            ptx(p, machine(name))


def test_exact_code_has_no_sums_in_another_order():
    with pytest.raises(CompileError, match="rounds its own way"):
        ptx(program(), SM90A, contract=False)


def test_factors_that_are_not_swizzled_are_refused():
    with pytest.raises(CompileError, match="is not swizzled in rows of 128 bytes"):
        ptx(program(is_swizzled=False), SM90A)


def test_factors_with_longer_rows_are_refused():
    with pytest.raises(CompileError, match=r"b\.local is not swizzled in rows of 128"):
        ptx(program(transposed=False, columns=128, extents=(64, 128, 128)), SM90A)


def test_a_block_of_fewer_threads_is_refused():
    s = tensorized("float16", extents=ONE)
    with pytest.raises(ScheduleError, match="128 threads do it together, and a warp"):
        to_launches(s.kernel, 1)


@pytest.mark.parametrize(
    ("side", "strides", "swizzle", "block", "found"),
    [
        (64, (64, 1), 128, 0, (False, 32, 0)),
        (128, (64, 1), 128, 0, (False, 32, 0)),
        (64, (1, 64), 128, 0, (True, 2048, 0)),
        (128, (1, 64), 128, 4096, (True, 2048, 8192)),
        (128, (1, 64), 128, 4160, None),  # the second block begins inside of a pattern
        (128, (64, 1), 128, 4096, None),
        (128, (1, 128), 256, 0, None),
        (64, (64, 1), 0, 0, None),
        (64, (72, 1), 128, 0, None),
    ],
)
def test_the_layouts_that_the_instruction_reads(side, strides, swizzle, block, found):
    assert factor_layout(side, strides, swizzle, block) == found


def test_bytes_are_read_along_the_sum_only():
    assert factor_layout(64, (128, 1), 128, 0, 1) == (False, 32, 0)
    assert factor_layout(128, (1, 128), 128, 0, 1) is None


# -- the interpreter of PTX


@pytest.mark.parametrize("columns", [64, 128])
def test_each_result_is_in_one_register_of_one_thread(columns):
    seen = np.zeros((64, columns), int)
    for place in accumulator(columns):
        np.add.at(seen, place, 1)
    assert (seen == 1).all()


def test_a_descriptor_says_where_each_element_is():
    bits = 1 << 62 | 64 << 32 | 1 << 16 | 2048 >> 4
    for is_turned, side, depth in ((False, 128, 64), (True, 64, 64)):
        at = Descriptor.of(bits).places(side, depth, is_turned)
        assert sorted(at.reshape(-1)) == list(range(2048, 2048 + 2 * side * depth, 2))
    assert Descriptor.of(bits).places(64, 16, False)[1, 0] == 2048 + 128 + 16
    assert Descriptor.of(bits).places(64, 32, False, 1)[1, 8] == 2048 + 128 + 24
    with pytest.raises(NotImplementedError, match="without a swizzle"):
        Descriptor.of(bits & ~(3 << 62))


def test_the_types_of_the_cases_are_those_of_the_instruction():
    assert {of for of, *_ in CASES} <= set(DTYPES)
