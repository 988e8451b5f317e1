"""Every special form of a cast is met in a vector of the latest level."""

from __future__ import annotations

import pytest

from tilewright.base.dtypes import float32, int32, uint8, uint32
from tilewright.expr.nodes import INDEX, Buffer, Call, Cast, Const, Expr, Max, var
from tilewright.ir.node import substitute
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.targets.cpu.compile import llvm_ir
from tilewright.targets.cpu.machine import machine
from tilewright.targets.llvm import emit_casts

X, W, N = var("x", float32), var("w", uint32), var("n", INDEX)
ROUNDED = Cast(Call("round_even", (X,)), uint8)
POSITIVE = Cast(Max(X, Const(0.0, float32)), int32)
BITS = (W >> Const(4, uint32)) & Const(15, uint32)
FORMS: dict[str, Expr] = {
    "a float rounded to an integer of 16 bits at most": ROUNDED,
    "such an integer as a float": Cast(ROUNDED, float32),
    "few bits of a word as a float": Cast(BITS, float32),
    "a clamped float as an integer": POSITIVE,
    "an index of 32 bits as a float": Cast(N % 50, float32),
    "a position that a float gives": Cast(POSITIVE, INDEX),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_met(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    met: set[str] = set()

    def watched(row: emit_casts.CastForm) -> emit_casts.CastForm:
        def emit(*given):
            met.add(row.form)
            return row.emit(*given)

        return row._replace(emit=emit)

    monkeypatch.setattr(emit_casts, "CASTS", tuple(map(watched, emit_casts.CASTS)))
    given = [Buffer(v.name, (16,), v.dtype) for v in (X, W, N)]
    out, i = Buffer("out", (16,), FORMS[form].dtype), var("i")
    value = substitute(FORMS[form], {v: b[i] for v, b in zip((X, W, N), given)})
    body = loop(i, 16, Store(out, (i,), value), "vector")
    llvm_ir(Kernel("k", (*given, out), (out,), body), machine("x86-64-v4"))
    assert form in met


def test_every_form_has_a_case() -> None:
    assert list(FORMS) == [row.form for row in emit_casts.CASTS]
