"""Schedules of several threads: one is replayed at a time."""

from __future__ import annotations

import pytest

from tilewright.driver import compile_lock
from tilewright.lang import te
from tilewright.lang.te import parts
from tilewright.lang.te import schedule as schedules


@pytest.mark.parametrize("part", [False, True], ids=["whole", "part"])
def test_a_schedule_is_replayed_under_the_lock_of_compilations(monkeypatch, part):
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i] + 1, name="B")
    s = te.create_schedule(b.op)
    module = parts if part else schedules
    replay, owned = module.replay, []

    def watched(*args):
        owned.append(compile_lock._lock._is_owned())
        return replay(*args)

    monkeypatch.setattr(module, "replay", watched)
    if part:
        s.parts()[0].schedule()
    else:
        te.lower(s, [a, b])
    assert owned == [True]
    assert not compile_lock._lock._is_owned()
