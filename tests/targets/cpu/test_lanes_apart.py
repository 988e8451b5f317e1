"""Lanes at constant distances are loaded and stored one by one, not by vectors of addresses."""

from __future__ import annotations

import pytest

from tilewright.base.dtypes import float32, int64
from tilewright.expr.nodes import Buffer, Lt, var
from tilewright.loops.nodes import If, Kernel, Store, loop
from tilewright.targets.cpu.compile import llvm_ir
from tilewright.targets.cpu.machine import machine

V = var("v")
X, Y = Buffer("x", (64, 100), float32), Buffer("y", (64, 100), float32)
I = Buffer("i", (8,), int64)  # noqa: E741


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    ("target", "value", "words"),
    [
        (Y[0, V], X[V, 0], ()),
        (Y[V, 0], X[0, V], ()),
        (Y[0, V], X[0, I[V]], ("gather",)),
    ],
    ids=["loaded", "stored", "by data"],
)
def test_addresses_are_a_vector_only_if_they_are_not_known(target, value, words, mcpu):
    body = loop(V, 8, Store(target.buffer, target.index, value), "vector")
    text = llvm_ir(Kernel("k", (X, I, Y), (Y,), body), machine(mcpu))
    for word in ("gather", "scatter"):
        assert (f"@llvm.masked.{word}" in text) == (word in words)


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    ("target", "value", "word"),
    [(Y[0, V], X[V + 60, 0], "gather"), (Y[V, 0], X[0, V], "scatter")],
    ids=["loaded", "stored"],
)
def test_lanes_that_are_off_touch_no_memory(target, value, word, mcpu):
    store = Store(target.buffer, target.index, value)
    body = loop(V, 8, If(Lt(V, I[0]), store, None), "vector")
    text = llvm_ir(Kernel("k", (X, I, Y), (Y,), body), machine(mcpu))
    assert f"@llvm.masked.{word}" in text
