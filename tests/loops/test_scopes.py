"""A memory scope is known before it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.base.dtypes import float32
from tilewright.base.errors import CompileError, ScheduleError
from tilewright.expr.nodes import Buffer
from tilewright.lang import te
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.loops.scopes import declare_scopes, known_scopes
from tilewright.operators import reduce_
from tilewright.schedule import Schedule
from tilewright.targets import vdla
from tilewright.targets.registry import target


def product() -> Kernel:
    a, b, c = (Buffer(name, (8, 8), float32) for name in "abc")
    mm = reduce_("mm", c, (8,), "add", lambda i, j, k: a[i, k] * b[k, j])
    return lower("mm", [mm], params=[a, b, c], outputs=[c])


VERBS: dict[str, Callable[[Schedule, str], Any]] = {
    "cache_read": lambda s, scope: s.cache_read("a", None, scope),
    "cache_write": lambda s, scope: s.cache_write("c", None, scope),
    "pack": lambda s, scope: s.pack("b", "mm.j", "mm.k", scope=scope),
    "rfactor": lambda s, scope: s.rfactor("mm.k", scope),
    "set_scope": lambda s, scope: s.set_scope(s.cache_read("a"), scope),
    "compute_at": lambda s, scope: s.compute_at(s.cache_read("a"), "mm.i", scope),
}


@pytest.mark.parametrize("verb", VERBS)
def test_primitives_refuse_a_scope_that_nothing_declares(verb: str) -> None:
    with pytest.raises(
        ScheduleError, match="no memory scope 'nonsense'; known: global, stack"
    ):
        VERBS[verb](Schedule(product()), "nonsense")


STAGES: dict[str, Callable[[te.Schedule, te.Tensor, str], Any]] = {
    "cache_read": lambda s, C, scope: s.cache_read(C.op.inputs[0], scope),
    "cache_write": lambda s, C, scope: s.cache_write(C, scope),
    "set_scope": lambda s, C, scope: s[C].set_scope(scope),
}


@pytest.mark.parametrize("verb", STAGES)
def test_te_refuses_it_where_it_is_said(verb: str) -> None:
    A = te.placeholder((8,), name="A")
    C = te.compute((8,), lambda i: A[i] + 1, name="C")
    with pytest.raises(
        ScheduleError, match=rf"{verb}.*there is no memory scope 'x'; known"
    ):
        STAGES[verb](te.create_schedule(C), C, "x")


def test_a_machine_declares_its_own_with_its_instructions() -> None:
    assert {vdla.inp_buffer, vdla.acc_buffer} <= {*known_scopes()}


def test_a_scope_of_ones_own() -> None:
    declare_scopes("my.memory")
    s = Schedule(product())
    s.cache_read("a", None, "my.memory")
    assert "in my.memory" in repr(s.kernel)
    with pytest.raises(
        CompileError, match=r"^kernel mm: buffer a\.local: the memory scope"
    ) as e:
        target("cpu", "x86-64-v3").emit(s.kernel, "mm")
    assert str(e.value).count("kernel mm") == 1


def test_a_kernel_is_named_once_in_an_error() -> None:
    declare_scopes("my.memory")
    A = te.placeholder((8,), name="A")
    C = te.compute((8,), lambda i: A[i] + 1, name="C")
    s = te.create_schedule(C)
    s.cache_write(C, "my.memory")
    with pytest.raises(CompileError) as raised:
        te.build(s, [A, C])
    assert str(raised.value).count("kernel C") == 1
    out = np.empty(8, np.float32)
    te.build(s, [A, C], target="interp")(np.arange(8, dtype=np.float32), out)
    assert out.tolist() == [*range(1, 9)]
