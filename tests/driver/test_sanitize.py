"""Sanitized code: right on right programs, and a wrong access is named, not made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.driver.kinds import SMALL
from tests.driver.ranges.test_ranged import model
from tests.targets.cpu.test_transpose import transposed
from tilewright.base import dtypes
from tilewright.base.errors import ExecutionError
from tilewright.compute.build import map_
from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.driver import sized as driver_sized
from tilewright.driver.build_kernel import unverified
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.options import Options
from tilewright.driver.reach import reach
from tilewright.driver.sized import SizedExecutable
from tilewright.driver.validate import validate, validate_model
from tilewright.expr.nodes import INDEX, Buffer, Load, Min, Select, Var, const
from tilewright.ir.node import transform
from tilewright.loops.nodes import SIZE, Kernel, Stmt, Store, block, loop
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.normalize import KernelSignature, kernel_signature
from tilewright.runtime.abi import REPORT_SIZE
from tilewright.runtime.executable import Executable
from tilewright.schedule import Schedule
from tilewright.targets.cpu.intrinsics import TRANSPOSES
from tilewright.targets.permitted import IndexSet, Permissions, Permitted
from tilewright.targets.registry import target

f32, i64 = dtypes.float32, dtypes.int64


@pytest.mark.representatives("map", "attention", "argmax")
@pytest.mark.parametrize("name", SMALL)
def test_right_programs_run(name: str):
    small = SMALL[name]
    machine, data = small.target(), small.model()
    for v in validate_model(
        data, target=machine, math=small.math, effort=20_000, cache=False, sanitize=True
    ):
        assert v.ok, v


def run(kernel: Kernel, *arrays: np.ndarray, threads: int = 1):
    made = unverified(kernel, target("cpu"), sanitize=True)
    return Executable(made, threads=threads)(*arrays)


def copy(value, kind: str = "serial", extent: int = 12) -> Kernel:
    """`y[i] = value(x, i)`, optionally for more elements than y has."""
    x, y = Buffer("x", (10,), f32), Buffer("y", (10,), f32)
    i = Var("i", i64)
    return Kernel(
        "copy", (x, y), (y,), loop(i, extent, Store(y, (i,), value(x, i)), kind)
    )


X = np.arange(10, dtype=np.float32)


@pytest.mark.parametrize("kind", ["serial", "unroll", "vector", "parallel"])
def test_a_store_outside_is_named_and_not_made(kind: str):
    with pytest.raises(ExecutionError) as raised:
        run(copy(lambda x, i: const(1.0, f32), kind), X)
    said = str(raised.value)
    assert raised.value.code == "TW-BOUNDS"
    assert "kernel 'copy'" in said
    assert "store to y[" in said and "of dimension 0 is outside 0..9" in said
    if kind == "serial":
        assert "y[i]: index 10 of dimension 0 is outside 0..9, in i = 10" in said
    if kind == "vector":
        assert "index 11 " in said  # the greatest of the lanes'


def test_a_load_outside_is_named_with_its_loops():
    x, y = Buffer("x", (4, 5), f32), Buffer("y", (4, 5), f32)
    i, j = Var("i", i64), Var("j", i64)
    body = loop(i, 4, loop(j, 5, Store(y, (i, j), x[i, j - 1])))
    with pytest.raises(ExecutionError, match=r"load of x\[i, ") as raised:
        run(Kernel("shifted", (x, y), (y,), body), np.zeros((4, 5), np.float32))
    assert "index -1 of dimension 1 is outside 0..4, in i = 0, j = 0" in str(
        raised.value
    )


def test_each_dimension_is_checked_and_not_only_the_memory():
    """Row 0, element 5 is an element of row 1: inside the memory, but outside the dimension."""
    x, y = Buffer("x", (4, 5), f32), Buffer("y", (4, 5), f32)
    i, j = Var("i", i64), Var("j", i64)
    body = loop(i, 3, loop(j, 5, Store(y, (i, j), x[i, j + 1])))
    with pytest.raises(ExecutionError, match="index 5 of dimension 1 is outside"):
        run(Kernel("next", (x, y), (y,), body), np.zeros((4, 5), np.float32))


def test_masked_lanes_are_not_checked():
    def value(x, i):
        return Select(i < const(9), x[i + 1], const(0.0, f32))

    for kind in ("serial", "vector", "unroll"):
        got = run(copy(value, kind, 10), X)
        np.testing.assert_array_equal(got, [*range(1, 10), 0])


def test_threads_report_once():
    kernel = copy(lambda x, i: const(1.0, f32), "parallel", 40)
    with pytest.raises(ExecutionError, match=r"index \d+ of dimension 0"):
        run(kernel, X, threads=2)


def test_a_call_after_a_violation_is_as_good_as_the_first():
    at = Buffer("at", (1,), i64)
    y = Buffer("y", (4,), f32)
    i = Var("i", i64)
    kernel = Kernel("fill", (at, y), (y,), loop(i, 4, Store(y, (i,), const(2.0, f32))))
    exe = Executable(unverified(kernel, target("cpu"), sanitize=True), threads=1)
    np.testing.assert_array_equal(exe(np.array([1])), [2, 2, 2, 2])
    bad = Executable(
        unverified(copy(lambda x, i: x[i]), target("cpu"), sanitize=True), threads=1
    )
    for _ in range(2):
        with pytest.raises(ExecutionError, match="load of x"):
            bad(X)


def test_a_kernel_may_not_leave_its_part_of_a_result():
    """What `cache_write` did to the inside of a halo: it wrote the tensor from its start to end."""
    x, y = Buffer("x", (4, 4), f32), Buffer("y", (6, 6), f32)
    i, j = Var("i", i64), Var("j", i64)
    part = Computation(
        "part", (Dim(i, 4), Dim(j, 4)), (Output(y, (i + 1, j + 1), x[i, j]),)
    )
    signature = kernel_signature(FusionGroup("part", (part,)), {y})
    part_of = (IndexSet(0, ((1, 4),)),) * 2
    assert reach(signature.computations, signature.outputs) == {
        signature.outputs[0]: Permitted(part_of, part_of)
    }
    p, q = Var("p", i64), Var("q", i64)
    out = signature.outputs[0]
    whole = loop(p, 6, loop(q, 6, Store(out, (p, q), const(0.0, f32))))
    wrong = "store to y[p, q]: index 4 of dimension 1 is outside 0..3, in p = 0, q = 4"
    assert reported(signature, block(signature.plain().body, whole)) == wrong


def reported(
    signature: KernelSignature, body: Stmt, limits: Permissions | None = None
) -> str:
    """The report of sanitized code with another body than the kernel's."""
    machine = target("cpu")
    code = KernelCompiler(machine, machine, None, True).compile(signature, ())
    if limits is None:
        limits = reach(signature.computations, signature.outputs)
    made = machine.emit(signature.plain().with_body(body), code.symbol, limits)
    code = replace(
        code,
        code=made.code,
        workspace=made.workspace,
        thread_workspace=made.thread_workspace,
    )
    fault = validate(signature, code, [False] * len(signature.values)).faults[0]
    assert fault.what == "status"
    return fault.text


@pytest.mark.parametrize(
    ("index", "bad"),
    [
        pytest.param(lambda i, j: i * 10 + j * 3, [1, 8, 40], marks=pytest.mark.slow),
        (lambda i, j: i * -10 + j * 3 + 30, [2, 14, 41]),
        pytest.param(lambda i, j: i * 8 + j * 2, [7, 25, 32], marks=pytest.mark.slow),
        pytest.param(lambda i, j: i * 8 + j, [4, 15, 28], marks=pytest.mark.slow),
    ],
)
def test_a_kernel_may_not_write_between_what_it_writes(index, bad):
    """One phase of interleaved results; other kernels write the other phases."""
    x, y = Buffer("x", (4, 4), f32), Buffer("y", (48,), f32)
    i, j, k = Var("i", i64), Var("j", i64), Var("k", i64)
    part = Computation(
        "part", (Dim(i, 4), Dim(j, 4)), (Output(y, (index(i, j),), x[i, j]),)
    )
    signature = kernel_signature(FusionGroup("part", (part,)), {y})
    out = signature.outputs[0]
    plain = signature.plain()
    for place in bad:
        stray = Store(out, (const(place),), const(0.0, f32))
        assert f"store to y[{place}]: index {place} of " in reported(
            signature, block(plain.body, stray)
        )
    lanes = loop(k, 4, Store(out, (k + bad[1],), const(0.0, f32)), "vector")
    assert "store to y[" in reported(signature, block(plain.body, lanes))
    right = KernelCompiler(target("cpu"), target("cpu"), None, True).compile(
        signature, ()
    )
    assert validate(signature, right, [False] * len(signature.values)).ok


def in_units(kernel: Kernel, rewrite) -> Stmt:
    """The body, with the loads of its Units rewritten."""
    return transform(kernel.body, lambda n: rewrite(n) if isinstance(n, Load) else n)


def test_every_iteration_of_an_intrinsic_is_checked():
    """The first and the last iteration read the right elements; those between do not."""
    kernel = transposed(8, 8, f32).kernel

    def bent(load: Load) -> Load:
        j, i = load.index
        return Load(load.buffer, (j + Min(i, const(7) - i), i))

    with pytest.raises(
        ExecutionError, match=r"load of a\[.* in transpose: index 8 of dim"
    ):
        run(kernel.with_body(in_units(kernel, bent)), np.zeros((8, 8), np.float32))
    run(kernel, np.zeros((8, 8), np.float32))


def test_every_iteration_of_an_intrinsic_is_checked_against_the_part_of_its_kernel():
    x, y = Buffer("x", (8, 8), f32), Buffer("y", (8, 8), f32)
    signature = kernel_signature(
        FusionGroup("t", (map_("t", y, lambda i, j: x[j, i]),)), {y}
    )
    out = signature.outputs[0]
    s = Schedule(signature.plain())
    s.tensorize("t.i", TRANSPOSES[f32])
    whole, ends = IndexSet(0, ((1, 8),)), IndexSet(0, ((7, 2),))
    limits = {out: Permitted((whole, whole), (ends, whole))}
    found = reported(signature, s.kernel.body, limits)
    assert "store to y[" in found
    assert "index 1 of dimension 0 is not 0 + 7 * 0..1" in found


def test_it_is_part_of_the_key_and_of_the_options():
    assert Options().decisive != Options(sanitize=True).decisive
    x, y = Buffer("x", (8,), f32), Buffer("y", (8,), f32)
    signature = kernel_signature(FusionGroup("m", (map_("m", y, lambda i: x[i]),)), {y})
    machine = target("cpu")
    codes = [
        KernelCompiler(machine, machine, None, s).compile(signature, ())
        for s in (False, True)
    ]
    assert codes[0].symbol != codes[1].symbol
    assert codes[1].workspace == codes[0].workspace + REPORT_SIZE


def test_a_whole_model_with_prepared_constants():
    small = SMALL["packed"]
    x = np.random.default_rng(0).standard_normal((7, 50)).astype(np.float32)
    want = tw.compile(small.model(), cache=False)(x)
    got = tw.compile(small.model(), cache=False, sanitize=True)(x)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_runs_behind_a_region_that_failed(threads: int):
    x, y = Buffer("x", (10,), f32), Buffer("y", (10,), f32)
    i = Var("i", i64)
    first = loop(i, 10, Store(y, (i,), x[i + 10]), "parallel")
    kernel = Kernel(
        "two", (x, y), (y,), block(first, Store(y, (const(3),), const(7.0, f32)))
    )
    out = np.zeros(10, np.float32)
    exe = Executable(unverified(kernel, target("cpu"), sanitize=True), threads=threads)
    with pytest.raises(ExecutionError, match="load of x"):
        exe(X, out=out)
    assert not out.any()


def sized(shift: int) -> Kernel:
    """`y[2 * i] = x[i + shift]` for an n that a call decides; x has n elements and y 2 * n."""
    n, i = Var("n", INDEX), Var("i", INDEX)
    x, y = Buffer("x", (n,), f32), Buffer("y", (n * 2,), f32)
    body = loop(i, n, Store(y, (i * 2,), x[i + shift]))
    return Kernel("sized", (x, y), (y,), loop(n, 65, body, SIZE))


def test_an_extent_that_a_call_decides(monkeypatch: pytest.MonkeyPatch):
    x, out = X[:9].copy(), np.zeros(18, np.float32)
    right = SizedExecutable(sized(0), target("cpu"), sanitize=True)
    np.testing.assert_array_equal(right(x, out=out)[::2], x)
    monkeypatch.setattr(driver_sized, "verify", lambda kernel: None)
    for shift, bad in ((2, 9), (-1, -1)):
        wrong = SizedExecutable(sized(shift), target("cpu"), sanitize=True)
        told = rf"load of x\[.*\]: index {bad} of dimension 0 is outside 0\.\.n - 1"
        with pytest.raises(ExecutionError, match=told):
            wrong(x, out=out)


def test_a_range_of_shapes():
    text = "(float[n, 5] x) => (float[n, m] y) { s = Softmax(x) y = Concat<axis = 1>(s, x) }"
    made: Any = tw.compile(
        model(text), dims={"n": (3, 40)}, jit=False, cache=False, sanitize=True
    )
    for n in (3, 17, 40):
        x = np.random.default_rng(n).standard_normal((n, 5)).astype(np.float32)
        e = np.exp(x)
        want = np.concatenate([e / e.sum(1, keepdims=True), x], 1)
        np.testing.assert_allclose(made(x), want, rtol=1e-4, atol=1e-5)
