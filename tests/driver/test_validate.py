"""Every kind of kernel validated, and faults of every kind found and named."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tests.driver.kinds import SMALL
from tilewright.base import dtypes, events
from tilewright.base.errors import ExecutionError, MemoryLimitError, UnsupportedError
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.driver.compile import schedules
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.validate import Verdict, validate, validate_model
from tilewright.expr.nodes import Buffer, Const, Load, Var, const
from tilewright.ir.node import transform
from tilewright.loops.nodes import Alloc, For, Kernel, Store, While, block, loop
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.normalize import KernelSignature, kernel_signature
from tilewright.targets.cpu.sketches.rules import RULES
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.llvm import emit_memory
from tilewright.targets.registry import target

f32 = dtypes.float32


@pytest.mark.slow
def test_kernels_are_right_and_every_sketch_has_a_model():
    kinds = set()
    for name, small in SMALL.items():
        found = validate_model(
            small.model(),
            target=small.target(),
            math=small.math,
            effort=200_000,
            cache=False,
        )
        assert found, name
        for v in found:
            assert v.ok, v
            assert v.compared > 0
            assert not v.note
        kinds |= {v.kind.split(":")[0] for v in found}
    assert set(RULES) - {"blocked"} | {"parts", "kernel"} <= kinds


def test_a_sketch_that_no_rule_takes_is_validated_where_it_is_asked_for():
    small = SMALL["packed"]
    source = small.model()
    record = next(r for r in schedules(source) if "blocked" in r.sketches)
    asked = {record.kernel: {"sketch": "blocked"}}
    found = validate_model(source, schedules=asked, cache=False)
    assert all(v.ok and v.compared > 0 for v in found)
    (asked_for,) = (
        r for r in schedules(source, schedules=asked) if r.sketch == "blocked"
    )
    assert asked_for.kernel == record.kernel


def test_overlapping_windows_into_a_halo():
    """The stem of many networks: its pooling writes the inside of the next convolution's halo."""
    body = (
        "(float[1,4,13,13] x, float[4,4,3,3] w) => (float[1,4,6,6] y) "
        "{ p = MaxPool<kernel_shape=[3,3], strides=[2,2]>(x) y = Conv<pads=[1,1,1,1]>(p, w) }"
    )
    small = replace(SMALL["convolution"], text=body, weights={"w": (4, 4, 3, 3)})
    for v in validate_model(small.model(), effort=200_000):
        assert v.ok, v


# -- seeded faults

Change = Callable[[Kernel], Kernel]


def face_of(*group: Computation, live: Buffer | None = None) -> KernelSignature:
    last = group[-1].outputs[0].tensor
    return kernel_signature(FusionGroup("k", group), {live or last})


def judged(signature: KernelSignature, change: Change, **how) -> Verdict:
    """The verdict on the plain nest of a group after a change that makes it wrong."""
    machine = target("cpu")
    compiler = KernelCompiler(machine, machine, None)
    fixed = [False] * len(signature.values)
    code = compiler.compile(signature, ())
    made = machine.emit(change(signature.plain()), code.symbol)
    arguments = tuple(range(len(signature.params)))
    wrong = replace(
        code,
        code=made.code,
        arguments=arguments,
        preparations=(),
        prepare_code=(),
        workspace=made.workspace,
        thread_workspace=made.thread_workspace,
        in_place=how.get("in_place", ()),
    )
    if how.get("compared", True):
        right = validate(
            signature,
            replace(wrong, in_place=(), code=_plain(signature, code.symbol)),
            fixed,
        )
        assert right.ok, right
    return validate(signature, wrong, fixed)


def _plain(signature: KernelSignature, symbol: str) -> bytes:
    return target("cpu").emit(signature.plain(), symbol).code


def body(change: Callable[[object], object]) -> Change:
    return lambda kernel: kernel.with_body(transform(kernel.body, change))


def doubled(n: int = 37) -> KernelSignature:
    x, y = Buffer("x", (3, n), f32), Buffer("y", (3, n), f32)
    return face_of(map_("turned", y, lambda i, j: x[i, (n - 1) - j] + 1.0))


def product() -> KernelSignature:
    x, w = Buffer("x", (5, 40), f32), Buffer("w", (40, 6), f32)
    y = Buffer("y", (5, 6), f32)
    return face_of(reduce_("dot", y, (40,), "add", lambda i, j, r: x[i, r] * w[r, j]))


def inside() -> KernelSignature:
    """Writes rows 1 to 3 of 5, which a halo surrounds."""
    x, y = Buffer("x", (3, 8), f32), Buffer("y", (5, 8), f32)
    i, j = (Var(n, dtypes.int64) for n in "ij")
    return face_of(
        Computation("part", (Dim(i, 3), Dim(j, 8)), (Output(y, (i + 1, j), x[i, j]),))
    )


def stores_one_further(s):
    if isinstance(s, Store):
        return Store(s.buffer, (*s.index[:-1], s.index[-1] + 1), s.value)
    return s


def loads_one_further(s):
    if isinstance(s, Load):
        return Load(s.buffer, (*s.index[:-1], s.index[-1] + 1))
    return s


def longer(by: int, trips: int) -> Callable[[object], object]:
    def change(s):
        if isinstance(s, For) and s.trips == trips:
            return For(s.var, Const(trips + by, dtypes.int64), s.kind, s.body)
        return s

    return change


def test_a_store_one_element_further():
    found = judged(doubled(), body(stores_one_further))
    assert not found.ok
    # Processors differ in which of a masked vector's bytes they report.
    said = r"fault: write at [14] bytes past the end of y"
    assert re.fullmatch(said, found.faults[0].text)


def test_a_load_one_element_further():
    found = judged(doubled(), body(loads_one_further))
    assert found.faults[0].text == "fault: read at 1 bytes past the end of x"


def test_a_store_one_element_before_shows_at_the_other_end():
    def before(s):
        if isinstance(s, Store):
            return Store(s.buffer, (*s.index[:-1], s.index[-1] - 1), s.value)
        return s

    found = judged(doubled(1024), body(before))
    assert any("4 bytes before y" in f.text for f in found.faults)


def test_a_wrong_tail():
    found = judged(doubled(), body(longer(-1, 37)))
    values = [f for f in found.faults if f.what == "value"]
    assert values[0].tensor == "y" and values[0].index == (0, 36)
    assert "nan" in (values[0].found or "")
    # If it is not written, its content is arbitrary: another run finds other bytes.
    assert "repeat" in {f.what for f in found.faults}


def test_a_missing_term():
    found = judged(product(), body(longer(-1, 40)))
    assert [f.what for f in found.faults] == ["value", "value"]
    assert "reals" in found.faults[0].run and "integers" in found.faults[1].run


def test_an_accumulator_that_is_not_set():
    def unset(s):
        return block() if isinstance(s, Store) else s

    found = judged(product(), body(unset))
    assert {f.what for f in found.faults} >= {"value", "repeat"}


def test_the_rest_of_a_tensor_stays_as_it_is():
    signature = inside()

    def whole(kernel: Kernel) -> Kernel:
        y = kernel.outputs[0]
        j = Var("more", dtypes.int64)
        zero = loop(j, 8, Store(y, (const(3), j), const(0.0, f32)))
        return kernel.with_body(block(kernel.body, zero))

    found = judged(signature, whole)
    fault = found.faults[0]
    assert fault.what == "untouched"
    # The kernel begins at row 1: its row 3 is row 4 of the tensor.
    assert fault.index == (4, 0)
    assert (
        "8 elements of y are written that the Computations do not write" in fault.text
    )


def test_an_input_is_not_written():
    def spoiled(kernel: Kernel) -> Kernel:
        x = kernel.inputs[0]
        zero = Store(x, (const(0), const(0)), const(0.0, f32))
        return kernel.with_body(block(kernel.body, zero))

    found = judged(doubled(), spoiled)
    assert found.faults[0].text == "fault: write at byte 0 of x"


def test_threads_that_need_one_another():
    """A running sum whose loop is called parallel."""
    x, y = Buffer("x", (64,), f32), Buffer("y", (64,), f32)
    signature = face_of(map_("sum", y, lambda i: x[i] * 0.0))

    def running(kernel: Kernel) -> Kernel:
        out = kernel.outputs[0]
        i = Var("p", dtypes.int64)
        carried = Store(out, (i + 1,), Load(out, (i,)) + kernel.inputs[0][i] * 0.0)
        return kernel.with_body(
            block(
                Store(out, (const(0),), const(0.0, f32)),
                loop(i, 63, carried, "parallel"),
            )
        )

    found = judged(signature, running)
    assert [f.what for f in found.faults] == ["repeat"]
    assert "3 threads" in found.faults[0].run


def test_a_result_in_the_place_of_an_input_that_is_still_read():
    x, y = Buffer("x", (8, 8), f32), Buffer("y", (8, 8), f32)
    signature = face_of(map_("both", y, lambda i, j: x[i, j] + x[j, i]))
    found = judged(signature, lambda kernel: kernel, in_place=(0,))
    assert [f.what for f in found.faults] == ["repeat"]
    assert "result in the memory of input 0" in found.faults[0].run
    assert found.faults[0].tensor == "y"


def test_a_workspace_that_is_too_small():
    signature = doubled()

    def scratch(kernel: Kernel) -> Kernel:
        local = Buffer("local", (1 << 15,), f32)
        i = Var("s", dtypes.int64)
        fill = loop(i, 1 << 15, Store(local, (i,), const(1.0, f32)))
        keep = Store(kernel.outputs[0], (const(0), const(0)), local[5])
        return kernel.with_body(Alloc(local, block(fill, keep, kernel.body)))

    machine = target("cpu")
    code = KernelCompiler(machine, machine, None).compile(signature, ())
    made = machine.emit(scratch(signature.plain()), code.symbol)
    whole = replace(code, code=made.code, workspace=made.workspace)
    assert validate(signature, whole, [False, False]).ok
    found = validate(
        signature, replace(whole, workspace=made.workspace - 64), [False, False]
    )
    assert (
        found.faults[0].text == "fault: write at 1 bytes past the end of the workspace"
    )


def test_an_endless_loop_and_a_trap_end_only_their_process(monkeypatch):
    from tilewright.driver.guard import process

    monkeypatch.setattr(process, "_SECONDS", 1)

    def endless(kernel: Kernel) -> Kernel:
        y = kernel.outputs[0]
        forever = While(
            y[0, 0].eq(y[0, 0]), Store(y, (const(0), const(0)), const(0.0, f32))
        )
        return kernel.with_body(block(kernel.body, forever))

    found = judged(doubled(), endless, compared=False)
    said = "the process ended with no result after 1 seconds of processor time"
    assert found.faults[0].text == said


def test_a_wrong_mask_of_the_code_generator(monkeypatch):
    """One lane too many: only code is wrong, the program is right."""
    x, y = Buffer("x", (2, 3, 5), f32), Buffer("y", (2, 3, 5), f32)
    signature = face_of(map_("sub", y, lambda i, j, k: x[i, j, k] - 1.0))
    machine = target("cpu")
    if "avx512vl" not in machine.requirements["features"]:
        pytest.skip("the masks in question are those of AVX-512")
    fixed = [False, False]

    def vectors(kernel: Kernel) -> Kernel:
        i, k = Var("i", dtypes.int64), Var("k", dtypes.int64)
        p, q = kernel.params
        index = (i * 5 + k,)  # its three dimensions are merged
        inner = loop(k, 5, Store(q, index, p[index] - 1.0), "vector")
        return kernel.with_body(loop(i, 6, inner))

    code = KernelCompiler(machine, machine, None).compile(signature, ())
    plain = vectors(signature.plain())
    right = machine.emit(plain, code.symbol)
    assert validate(signature, replace(code, code=right.code), fixed).ok
    first = emit_memory._first_lanes
    monkeypatch.setattr(
        emit_memory, "_first_lanes", lambda lanes, whole: first(lanes + 1, whole)
    )
    wrong = machine.emit(plain, code.symbol)
    found = validate(signature, replace(code, code=wrong.code), fixed)
    assert not found.ok
    assert found.faults[0].text.startswith("fault: ")


def test_an_index_out_of_range_is_reported_by_kernel_and_judge():
    x, at = Buffer("x", (4, 3), f32), Buffer("at", (6,), dtypes.int64)
    y = Buffer("y", (6, 3), f32)
    signature = face_of(map_("gather", y, lambda i, j: x[at[i], j]))
    machine = target("cpu")
    code = KernelCompiler(machine, machine, None).compile(signature, ())
    names = {b.name: b for b in signature.values}
    bad = {names["at"]: np.array([0, 1, 2, 3, 4, 0])}
    both = validate(signature, code, [False] * 3, known=bad)
    assert both.ok and both.compared == 0
    assert both.note.startswith(
        "values were not compared: the random data contain an index"
    )
    good = {names["at"]: np.array([0, 1, 2, 3, 3, 0])}
    found = validate(signature, code, [False] * 3, known=good)
    assert found.ok and found.compared == 36


def test_a_failure_is_told_of_a_loop_program_that_nobody_interprets(monkeypatch):
    from tilewright.driver.guard import check

    x, y = Buffer("x", (8,), f32), Buffer("y", (8,), f32)
    i = Var("i", dtypes.int64)
    late = Kernel("late", (x, y), (y,), loop(i, 8, Store(y, (i,), x[i + 1])))
    signature = kernel_signature(FusionGroup("late", (), kernel=late), {y})
    machine = target("cpu")
    code = KernelCompiler(machine, machine, None, sanitize=True).compile(signature, ())
    monkeypatch.setattr(check, "STEPS", 0)
    found = validate(signature, code, [False, False])
    assert found.faults[0].what == "status"
    assert (
        "load of x[i + 1]: index 8 of dimension 0 is outside 0..7"
        in found.faults[0].text
    )
    assert (
        found.note
        == "values were not compared: the loop interpreter would take too long"
    )


# -- what users see


def test_other_systems_are_told_what_there_is(monkeypatch):
    signature = doubled()
    machine = target("cpu")
    code = KernelCompiler(machine, machine, None).compile(signature, ())
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(
        UnsupportedError, match="on Linux only, not on darwin"
    ) as caught:
        validate(signature, code, [False, False])
    assert caught.value.code == "TW-CHECK"
    assert caught.value.hint is not None and "TILEWRIGHT_CHECK" in caught.value.hint


def test_the_flag_checks_what_is_compiled(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CHECK", "1")
    exe = tw.compile(SMALL["rows"].model(), cache=False)
    x = np.ones((5, 67), np.float32)
    np.testing.assert_allclose(exe(x), 1 / 67, rtol=1e-6)


def test_the_flag_refuses_a_wrong_kernel_even_from_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TILEWRIGHT_MCPU", "x86-64-v2")
    model = SMALL["scan"].model()
    with monkeypatch.context() as patch:
        emit = CpuTarget.emit
        drop = body(longer(-1, 50))
        patch.setattr(
            CpuTarget, "emit", lambda t, kernel, *rest: emit(t, drop(kernel), *rest)
        )
        tw.compile(model)
    monkeypatch.setenv("TILEWRIGHT_CHECK", "1")
    with pytest.raises(
        ExecutionError, match=r"elements of y are wrong: y\[0, 49\]"
    ) as raised:
        tw.compile(model)
    assert raised.value.code == "TW-CHECK"
    assert "kernel " in str(raised.value)


def test_verdicts_travel_and_print():
    found = judged(doubled(), body(stores_one_further))
    assert pickle.loads(pickle.dumps(found)) == found
    said = found.to_dict()
    assert said["ok"] is False and said["faults"][0]["what"] == "fault"
    assert "kernel turned" in str(found) and "past the end of y" in str(found)


def test_what_is_written_twice_is_judged_in_order_or_not_at_all():
    x, y = Buffer("x", (6, 8), f32), Buffer("y", (6, 8), f32)
    signature = face_of(
        map_("first", y, lambda i, j: x[i, 7 - j] + 1.0),
        map_("last", y, lambda i, j: x[i, 7 - j] + 2.0),
    )
    machine = target("cpu")
    code = KernelCompiler(machine, machine, None).compile(signature, ())
    found = validate(signature, code, [False, False])
    assert found.ok and found.compared == 2 * 48 and not found.note
    found = validate(signature, code, [False, False], effort=1)
    assert found.ok and found.compared == 0
    assert found.note == "values were not compared: results are written several times"


def test_an_interrupt_ends_the_process_of_the_kernel(monkeypatch):
    from tilewright.driver.guard import process

    def interrupted(*args, **options):
        raise KeyboardInterrupt

    signature = doubled()
    machine = target("cpu")
    code = KernelCompiler(machine, machine, None).compile(signature, ())
    started = []
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: started.append(fork()) or started[-1])
    monkeypatch.setattr(process, "open", interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt):
        validate(signature, code, [False, False])
    with pytest.raises(ProcessLookupError):
        os.kill(started[-1], 0)


def test_guarded_memory_that_the_system_refuses():
    from tilewright.base.guarded import Guarded

    with pytest.raises(
        MemoryLimitError, match="bytes for x, to run a kernel in"
    ) as caught:
        Guarded("x", 1 << 62, True)
    assert "TILEWRIGHT_CHECK" in str(caught.value.hint)
    held = Guarded("y", 8, True)
    with pytest.raises(
        MemoryLimitError, match=r"to protect 4,096 bytes \(.*\) for y"
    ) as caught:
        held._protect(held.start + 1, 4096, 0)  # no page begins there
    assert "max_map_count" in str(caught.value.hint)


def validated(monkeypatch, source, **options) -> dict[KernelSignature, str]:
    """The kernels that are validated, with the symbols of their code."""
    found = {}

    def noted(signature, code, *rest, **how):
        found[signature] = code.symbol
        return validate(signature, code, *rest, **how)

    monkeypatch.setattr("tilewright.driver.validate.validate", noted)
    verdicts = validate_model(source, cache=False, threads=1, effort=1, **options)
    assert all(v.ok for v in verdicts)
    return found


def test_kernels_are_those_of_the_plan_within_the_memory_limit(monkeypatch):
    """What is made again is not kept: the kernel that made it has other results."""
    head = '<ir_version: 8, opset_import: ["" : 18]> f '
    body = """(float[32,128] x, float[128,128] w) => (float[32,128] y, float[128,32] z) {
        r = Sigmoid(x) z = Transpose<perm=[1,0]>(r)
        s = MatMul(r, w) t = MatMul(s, w) u = MatMul(t, w) y = Mul(u, r) }"""
    source = onnx.parser.parse_model(head + body)
    free = tw.compile(source, cache=False, threads=1)
    for limit in (None, free.peak_bytes - 2**12):
        with events.record() as log:
            validated(monkeypatch, source, memory_limit=limit)
        again = [e for e in log if e.kind == "recompute"]
        assert bool(again) == (limit is not None)


def test_kernels_of_aliases_are_those_that_write_in_place(monkeypatch):
    head = '<ir_version: 8, opset_import: ["" : 24]> f '
    body = """(float[2,3,8,4] past, float[2,3,1,4] new, int64[2] at)
        => (float[2,3,8,4] present) { present = TensorScatter<axis = 2>(past, new, at) }"""
    source = onnx.parser.parse_model(head + body)
    (whole,) = validated(monkeypatch, source)
    (part,) = validated(monkeypatch, source, aliases={"present": "past"})
    names = [[b.name for b in s.values] for s in (whole, part)]
    assert [("past" in n, len(n)) for n in names] == [(True, 4), (False, 3)]
