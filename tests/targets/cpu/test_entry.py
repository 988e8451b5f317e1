"""A segment calls its kernels in order, on places of the pointer table, and stops at a failure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.targets.cpu.native import Loaded, aligned, context
from tilewright.base.dtypes import float32, int64
from tilewright.expr.nodes import Buffer, const, var
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.runtime.abi import CTX_PROFILE, CTX_STATUS, STATUS_INDEX
from tilewright.targets.base import Argument, ConditionalActions, KernelCall
from tilewright.targets.cpu.compile import compile_kernel
from tilewright.targets.cpu.entry import compile_entry, entry_ir
from tilewright.targets.cpu.machine import host


def segment() -> Any:
    """out = a + 1 through the arena, then out[0] = out[index[0]], then out[3] = 9."""
    a, t, index = (
        Buffer("a", (4,), float32),
        Buffer("t", (4,), float32),
        Buffer("i", (1,), int64),
    )
    i, j = var("i"), var("j")
    plus = Kernel("plus", (a, t), (t,), loop(i, 4, Store(t, (i,), a[i] + 1), "vector"))
    read = Kernel("read", (index, a, t), (t,), Store(t, (const(0),), a[index[0]]))
    last = Kernel(
        "last", (t,), (t,), loop(j, 1, Store(t, (const(3),), const(9, float32)))
    )
    arena, out = Argument(0, 64), Argument(4)
    calls = [
        KernelCall("plus", (Argument(2), arena), Argument(0), 5),
        KernelCall("plus", (arena, out), Argument(0), 6),
        KernelCall("read", (Argument(3), arena, out), Argument(0), 7),
        KernelCall("last", (out,), Argument(0), 8),
    ]
    objects = [compile_kernel(k, host()).object_bytes for k in (plus, read, last)]
    return Loaded(compile_entry("e", calls, host()), *objects)


def test_segment() -> None:
    loaded = segment()
    run = loaded.function("e", 2)
    ctx, keep = context(1)
    a, out, index = (
        np.arange(4, dtype=np.float32),
        np.zeros(4, np.float32),
        np.array([2]),
    )
    arena, stamps = aligned(256), np.zeros(16, np.uint64)
    pointers = [arena.ctypes.data, 0, a.ctypes.data, index.ctypes.data, out.ctypes.data]
    table = np.array(pointers, np.uint64)
    run(ctx.ctypes.data, table.ctypes.data)
    assert ctx[CTX_STATUS] == 0
    np.testing.assert_array_equal(out, [3, 3, 4, 9])
    ctx[CTX_PROFILE] = stamps.ctypes.data
    run(ctx.ctypes.data, table.ctypes.data)
    assert stamps[5:10].all() and (np.diff(stamps[5:10].astype(np.int64)) > 0).all()
    assert not stamps[:5].any() and not stamps[10:].any()
    index[0] = 4
    run(ctx.ctypes.data, table.ctypes.data)
    assert ctx[CTX_STATUS] == (7 + 1) << 8 | STATUS_INDEX
    assert out[3] == 5 and keep is not None


def test_an_action_of_another_class_is_refused() -> None:
    other: Any = object()
    nothing = Argument(0)
    inside = ConditionalActions(nothing, (), (other,), 0)
    for actions in ([other], [inside]):
        with pytest.raises(AssertionError, match="object object"):
            entry_ir("segment_0", actions, host())
