"""Expressions that are deeper than a stack of calls usually is."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.targets.cpu.native import run_native
from tilewright.base.dtypes import float32
from tilewright.expr.nodes import Buffer, Expr, Max, const, var
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.targets.cpu import compile as native
from tilewright.targets.cpu.machine import host


def test_deep_expressions() -> None:
    a, b = Buffer("a", (8,), float32), Buffer("b", (8,), float32)
    v = var("v")
    x = np.arange(8, dtype=np.float32)
    e: Expr = a[v]
    want = x
    for n in range(3000):
        e = Max(e + const(n % 3 - 1, float32), const(-9, float32))
        want = np.maximum(want + np.float32(n % 3 - 1), np.float32(-9))
    kernel = Kernel("k", (a, b), (b,), loop(v, 8, Store(b, (v,), e), "vector"))
    got = {a: x, b: np.zeros_like(x)}
    run_native(kernel, got)
    np.testing.assert_array_equal(got[b], want)


def test_deep_expressions_are_walked_on_a_large_stack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With torch.compile in the process, each call of Python takes some of the stack."""
    emitted, threads = native.emit_module, []

    def recording(*arguments: Any) -> str:
        threads.append(threading.current_thread())
        return emitted(*arguments)

    monkeypatch.setattr(native, "emit_module", recording)
    a, b, v = Buffer("a", (8,), float32), Buffer("b", (8,), float32), var("v")
    for depth in (10, 400):
        e: Expr = a[v]
        for _ in range(depth):
            e = Max(e + const(1, float32), const(-9, float32))
        kernel = Kernel("k", (a, b), (b,), loop(v, 8, Store(b, (v,), e), "vector"))
        assert "define" in native.llvm_ir(kernel, host())
    assert [t is threading.main_thread() for t in threads] == [True, False]
    assert threading.stack_size() == 0
