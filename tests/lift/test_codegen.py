"""Low-level patterns as loops: the loops they name, what is refused, and that they compute it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.base.errors import InputError
from tilewright.lift.codegen import DEVICE, PROCESSOR, lower
from tilewright.lift.interp import interpret
from tilewright.lift.nodes import DeviceOp
from tilewright.lift.patterns import parse
from tilewright.loops import interp
from tilewright.loops.nodes import Kernel
from tilewright.loops.verify import verify

MV = "Map(lambda r: Zip(r, v) | Map(mul) | Reduce(add, 0.0)) | Join"
OPS = {
    "MVMul6": DeviceOp("MVMul6", (6,), parse(f"fun(lambda A, v: A | {MV})")),
    "VVRelu4": DeviceOp("VVRelu4", (4,), parse("Map(relu)")),
}
WEIGHTED = "A | MapPar(lambda r: Zip(r, v) | MapSeq(mul) | {}) | Join"
PROGRAMS = {
    "serial_fold": WEIGHTED.format("ReduceSeq(add, 0.0)"),
    "unrolled_fold": WEIGHTED.format("ReduceSeqUnroll(max, -inf)"),
    "any_fold": "A | MapSeq(ReduceSeq(lambda a, x: a * 0.5 + x, 1.0)) | Join",
    "prefix": "A | Transpose | MapPar(ScanSeq(add, 0.0)) | Transpose",
    "lanes": "A | Join | Split(4) | MapPar(MapVec(relu)) | Join",
    "vectors": "A | MapSeq(asVector(2) >> MapSeq(Vectorize(2, neg)) >> asScalar)",
    "groups": "A | MapWrg(toLocal(MapLcl(relu)) >> toGlobal(MapLcl(neg)))",
    "items": "A | MapGlb(MapGlb(exp, 0), 1)",
    "window": "A | MapPar(Pad(1, 1, 0.0) >> MapSeqSlide(Reduce(add, 0.0), 3, 1) >> Join)",
    "unequal": "Concat(A | Take(3) | MapPar(MapVec(relu)), A | Drop(3) | MapSeq(MapSeq(relu)))",
    "array_accumulator": "A | ReduceSeq(lambda a, r: Zip(a, r) | MapSeq(add), Fill(0.0, n))",
    "argmax": (
        "A | MapPar(lambda r: Zip(r, Iota(n)) | ReduceSeq(lambda a, b: Tuple("
        "select(lt(a[0], b[0]), b[0], a[0]), select(lt(a[0], b[0]), b[1], a[1])), Tuple(-inf, -1)))"
    ),
    "named": (
        "let(A | MapPar(MapSeq(exp)), "
        "lambda E: Zip(E, A) | MapPar(lambda p: Zip(p[0], p[1]) | MapSeq(sub)))"
    ),
    "device": "toOutput(VVRelu4)(toChip(MVMul6)(A, v))",
    "written_through": (
        "A | Split(2) | MapPar(Transpose >> MapSeq(MapSeq(relu)) >> Transpose) | Join"
    ),
}


def program(name: str) -> Any:
    body = PROGRAMS[name]
    used = "A, v" if "v)" in body else "A"
    types = "f32[m, n], f32[n]" if "v)" in body else "f32[m, n]"
    return parse(f"fun(lambda {used}: {body}, {types})", OPS)


def sized(p: Any, spaces: Any = PROCESSOR) -> Kernel:
    from tilewright.lift.sizes import named

    return lower(p, named(p, {"m": 4, "n": 6}), "lift", spaces)


@pytest.mark.parametrize("name", PROGRAMS)
def test_loops(name: str, golden) -> None:
    p = program(name)
    kernel = sized(p)
    golden(f"lift_loops_{name}", repr(kernel))
    verify(kernel)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(b.shape).astype(b.dtype.numpy) for b in kernel.inputs]
    outputs = [np.zeros(b.shape, b.dtype.numpy) for b in kernel.outputs]
    interp.run(kernel, dict(zip(kernel.params, [*arrays, *outputs], strict=True)))
    for got, want in zip(outputs, interpret(p, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_address_spaces_are_scopes_of_the_device() -> None:
    kernel = sized(program("device"), DEVICE)
    assert "in chip" in repr(kernel)
    assert "in shared" in repr(sized(program("groups"), DEVICE))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("A | MapLcl(MapSeq(exp))", r"MapLcl is not inside MapWrg"),
        ("A | MapAtomLcl(MapSeq(exp))", r"MapAtomLcl is not inside MapWrg"),
        ("A | MapWarp(MapLane(exp))", r"MapWarp is not inside MapWrg"),
        ("A | MapWrg(MapLane(exp))", r"MapLane over 6 elements: a warp has 32 lanes"),
        ("A | MapAtomWrg(MapWrg(exp))", r"a loop on blockIdx.x is inside another"),
        (
            "A | MapWrg(MapWrg(exp, 0), 0)",
            r"a loop on blockIdx.x is inside another one",
        ),
        (
            "A | MapWrg(toLocal(MapLcl(exp)) >> Split(4))",
            r"4 does not divide 6|does not hold",
        ),
    ],
)
def test_loops_that_cannot_be(body: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sized(parse(f"fun(lambda A: {body}, f32[m, n])"))


def test_a_size_is_missing() -> None:
    with pytest.raises(InputError, match=r"the length m has no size"):
        lower(program("lanes"), {})


def test_a_tuple_of_what_is_computed_is_named() -> None:
    body = "A | MapSeq(lambda v: let(Tuple(v * 2, v), lambda t: t[0] * t[1]))"
    p = parse(f"fun(lambda A: {body}, i64[4])")
    numbers, out = np.arange(4), np.empty(4, np.int64)
    kernel = lower(p, {})
    interp.run(kernel, dict(zip(kernel.params, (numbers, out), strict=True)))
    np.testing.assert_array_equal(out, interpret(p, numbers)[0])


def test_private_values_are_not_written_to_shared_memory() -> None:
    to_shared = "toLocal(MapLcl(toPrivate(MapSeq(neg))))"
    body = f"A | MapWrg({to_shared} >> toGlobal(MapLcl(MapSeq(relu))))"
    kernel = lower(parse(f"fun(lambda A: {body}, f32[2, 4, 3])"), {}, spaces=DEVICE)
    assert "float32[3] in stack" in repr(kernel)
    assert "float32[4, 3] in shared" in repr(kernel)
