"""Units: a piece of a kernel that every analysis looks into, and that prints as one line."""

from __future__ import annotations

import gc
import pickle
import weakref
from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.dtypes import float32
from tilewright.base.errors import InputError, VerifyError
from tilewright.expr.nodes import INDEX, Var
from tilewright.ir.node import substitute
from tilewright.loops.analysis.dependence import can_parallelize
from tilewright.loops.analysis.effects import reads, writes
from tilewright.loops.interp import run
from tilewright.loops.intrinsic import (
    INTRINSICS,
    TensorIntrinsic,
    decl_tensor_intrinsic,
    hardware_intrinsic,
)
from tilewright.loops.lower import lower
from tilewright.loops.match import match
from tilewright.loops.nodes import Block, For, Kernel, Unit, block, loop
from tilewright.loops.operands import OperandMismatch
from tilewright.loops.printer import show_kernel, show_units
from tilewright.loops.verify import verify
from tilewright.loops.walk import walk
from tilewright.operators import Buffer, map_, reduce_


def _axpy() -> TensorIntrinsic:
    """out[i] += x[i] * a[0], 4 lanes, with a reduction of any length (the dimension k is free)."""
    x, a, out = (
        Buffer("x", (2, 4), float32),
        Buffer("a", (2,), float32),
        Buffer("o", (4,), float32),
    )
    meaning = reduce_("axpy", out, (2,), "add", lambda i, k: x[k, i] * a[k])

    def lower(inputs, outputs):  # type: ignore[no-untyped-def]
        x, a = (t.access_ptr("r") for t in inputs)
        step = hardware_intrinsic(
            "axpy4", outputs[0].access_ptr("rw"), x, inputs[0].strides[0], a
        )
        return None, hardware_intrinsic("zero4", outputs[0].access_ptr("w")), step

    return decl_tensor_intrinsic(meaning, lower, name="test.axpy", free=("k",))


def _kernel() -> tuple[Kernel, Unit]:
    """`c = b @ a` with its update nest over (k, j) as a Unit."""
    a, b, c = (
        Buffer("A", (3, 4), float32),
        Buffer("B", (5, 3), float32),
        Buffer("C", (5, 4), float32),
    )
    product = reduce_("mm", c, (3,), "add", lambda i, j, k: a[k, j] * b[i, k])
    plain = lower("mm", [product], params=[a, b, c], outputs=[c])
    rows = plain.body
    assert isinstance(rows, For) and isinstance(rows.body, For)
    columns, pair = rows.body, rows.body.body
    assert isinstance(pair, Block) and isinstance(pair.stmts[1], For)
    start, steps = pair.stmts[0], pair.stmts[1]
    j = Var("mm.j2", INDEX)
    init = loop(columns.var, 4, start)
    nest = loop(steps.var, 3, loop(j, 4, substitute(steps.body, {columns.var: j})))
    use, operands = match(_axpy(), nest)
    unit = Unit("axpy4", use, operands, nest)
    return plain.with_body(loop(rows.var, 5, block(init, unit))), unit


def test_a_unit_prints_as_one_line(golden) -> None:  # type: ignore[no-untyped-def]
    kernel, _ = _kernel()
    golden("unit", f"{show_kernel(kernel)}\n\n{show_units(kernel)}")


def test_a_unit_means_its_body() -> None:
    kernel, unit = _kernel()
    verify(kernel)
    a, b, c = kernel.params
    rng = np.random.default_rng(0)
    arrays = {t: rng.standard_normal(t.shape, dtype=np.float32) for t in (a, b)}
    arrays[c] = np.full(c.shape, 77, np.float32)
    run(kernel, arrays)
    np.testing.assert_allclose(arrays[c], arrays[b] @ arrays[a], rtol=1e-5, atol=1e-6)
    assert unit.intrinsic is not None
    assert unit.intrinsic.sizes == (4, 3)
    assert [o.strides for o in unit.operands] == [(4, 1), (1,), (1,)]


def test_analyses_look_into_a_unit() -> None:
    kernel, unit = _kernel()
    a, b, c = kernel.params
    assert (reads(unit), writes(unit)) == ({a, b, c}, {c})
    assert can_parallelize(kernel, "mm.i")
    assert [type(p.stmt).__name__ for p in walk(unit)] == [
        "Unit",
        "For",
        "For",
        "Update",
    ]


def test_a_unit_with_other_operands_is_refused_by_verify() -> None:
    kernel, unit = _kernel()
    wrong = unit.replace(operands=unit.operands[::-1])
    rows = kernel.body
    assert isinstance(rows, For)
    body = rows.body.map(lambda s: wrong if s is unit else s)
    with pytest.raises(VerifyError, match=r"axpy4.* has other operands") as caught:
        verify(kernel.with_body(rows.replace(body=body)))
    assert caught.value.code == "TW-UNIT"


def test_units_survive_pickling() -> None:
    kernel, _ = _kernel()
    again = pickle.loads(pickle.dumps(kernel.body))
    assert repr(again) == repr(kernel.body)
    assert show_units(kernel.with_body(again)) == show_units(kernel)


def test_declaring_twice_the_same_is_fine_and_another_meaning_is_not() -> None:
    assert (
        INTRINSICS["test.axpy"] is not _axpy()
        and INTRINSICS["test.axpy"].name == "test.axpy"
    )
    out, x = Buffer("o", (4,), float32), Buffer("x", (4,), float32)
    other = map_("copy", out, lambda i: x[i])
    with pytest.raises(InputError, match="the name is taken"):
        decl_tensor_intrinsic(
            other,
            lambda i, o: hardware_intrinsic("copy", o[0].access_ptr("w")),
            name="test.axpy",
        )


@pytest.mark.parametrize(
    ("lower_", "message"),
    [
        (lambda i, o: None, "the lowering returned None"),
        (lambda i, o: (None, None, None), "the lowering returned"),
        (
            lambda i, o: hardware_intrinsic("f", i[0].access_ptr("x")),
            "'x' is not a way to access x",
        ),
        (lambda i, o: hardware_intrinsic("f", "nothing"), "an argument is 'nothing'"),
        (
            lambda i, o: (None, hardware_intrinsic("f", i[0].access_ptr("r")), None),
            "reset reads an input",
        ),
    ],
    ids=["none", "no-call", "mode", "argument", "reset"],
)
def test_a_lowering_that_is_none(lower_, message) -> None:  # type: ignore[no-untyped-def]
    x, out = Buffer("x", (4,), float32), Buffer("o", (4,), float32)
    with pytest.raises(InputError, match=message):
        decl_tensor_intrinsic(
            map_("copy", out, lambda i: x[i]), lower_, name="test.none"
        )
    assert "test.none" not in INTRINSICS


def test_a_description_with_an_offset_is_refused() -> None:
    x, out = Buffer("x", (5,), float32), Buffer("o", (4,), float32)
    shifted = map_("shifted", out, lambda i: x[i + 1])
    with pytest.raises(InputError, match=r"the index i \+ 1 is not a sum of multiples"):
        decl_tensor_intrinsic(
            shifted, lambda i, o: hardware_intrinsic("f"), name="test.shifted"
        )


def test_a_block_unit_prints_its_body() -> None:
    kernel, unit = _kernel()
    plain = Unit("piece", None, (), unit.body)
    assert repr(plain).splitlines()[0] == "block piece:"
    assert replace(kernel, body=plain).body is plain


def test_a_unit_without_an_intrinsic_is_verified_by_its_body() -> None:
    kernel, unit = _kernel()
    rows = kernel.body
    assert isinstance(rows, For)
    for name, piece in (("axpy4", unit), ("piece", Unit("piece", None, (), unit.body))):
        body = rows.body.map(lambda s, piece=piece: piece if s is unit else s)
        changed = kernel.with_body(rows.replace(body=body))
        assert name in show_kernel(changed)
        verify(changed)


class Held:
    """What a caller holds, such as a model's weights."""


def _refused() -> weakref.ref[Held]:
    """A match that fails because of a stride, and what was held meanwhile."""
    held = Held()
    a, b, c = (Buffer(n, s, float32) for n, s in zip("abc", ((4, 3), (3,), (4,))))
    sums = reduce_("sums", c, (3,), "add", lambda i, k: a[i, k] * b[k])
    pair = lower("sums", [sums], params=[a, b, c], outputs=[c]).body
    assert isinstance(pair, For) and isinstance(pair.body, Block)
    _, steps = pair.body.stmts
    assert isinstance(steps, For)
    nest = loop(steps.var, 3, loop(pair.var, 4, steps.body))
    with pytest.raises(OperandMismatch, match="stride"):
        match(_axpy(), nest)
    return weakref.ref(held)


def test_an_attempt_to_match_keeps_nothing_of_its_callers() -> None:
    gc.disable()
    try:
        assert _refused()() is None
    finally:
        gc.enable()
