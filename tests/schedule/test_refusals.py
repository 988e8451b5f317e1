"""Every refusal names the primitive, the place, what would break, and what is legal instead."""

from __future__ import annotations

import re
from pkgutil import iter_modules

import pytest

from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import PS
from tilewright.expr.nodes import Buffer
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.schedule import Schedule, Step, Trace

f32 = dtypes.float32


def chain() -> Kernel:
    """T = X + X reversed; R = row sums of T; Y = T / R."""
    x, y = Buffer("X", (6, 10), f32), Buffer("Y", (6, 10), f32)
    t, r = Buffer("T", (6, 10), f32), Buffer("R", (6,), f32)
    steps = [
        map_("t", t, lambda i, j: x[i, j] + x[i, 9 - j]),
        reduce_("r", r, (10,), "add", lambda i, j: t[i, j]),
        map_("y", y, lambda i, j: t[i, j] / r[i]),
    ]
    return lower("chain", steps, [x, y], [y])


def prefix() -> Kernel:
    x, y = Buffer("X", (4, 9), f32), Buffer("Y", (4, 9), f32)
    c = reduce_(
        "scan",
        y,
        (9,),
        "add",
        lambda i, j: x[i, j],
        extents=(4,),
        combine=PS,
        index=lambda i, j: (i, j),
    )
    return lower("prefix", [c], [x, y], [y])


def shift() -> Kernel:
    """Y[i + 1] = Y[i], as a hand-written nest."""
    from tilewright.expr.nodes import Var

    y, i = Buffer("Y", (9,), f32), Var("i", dtypes.int64)
    return Kernel("shift", (y,), (y,), loop(i, 8, Store(y, (i + 1,), y[i])))


CASES = [
    (chain, ("split", "nope", 4), "no loop 'nope'", "did you mean"),
    (
        chain,
        ("split", "y.j", 4),
        "4 does not divide its 10 iterations",
        r"\[1, 2, 5, 10\]",
    ),
    (chain, ("split", "y.j", 11, "overlap"), "factor 11 is not in 1..10", "at most 10"),
    (chain, ("split", "y.j", 4, "other"), "unknown tail", "exact, guard"),
    (
        chain,
        ("split", "r.j", 4, "overlap"),
        r"updates R\[r.i\] as its first run",
        "guard",
    ),
    (shift, ("split", "i", 3, "overlap"), r"reads Y\[i\]", "guard"),
    (
        shift,
        ("vectorize", "i"),
        r"writes Y\[i \+ 1\].*\(iterations .* conflict at Y\[1\]\)",
        "split",
    ),
    (
        shift,
        ("parallel", "i"),
        "this parallel loop has a loop-carried dependence",
        "cc dimension",
    ),
    (
        prefix,
        ("vectorize", "scan.j"),
        "this vector loop has a loop-carried dependence",
        "split",
    ),
    (chain, ("parallel", "r.j"), "updates R", "rfactor"),
    (
        chain,
        ("reorder", "r.i", "r.j"),
        "not perfectly nested with r.j.*2 statements",
        "decompose",
    ),
    (chain, ("reorder", "y.i", "y.i"), "two or more", "once"),
    (
        chain,
        ("fuse", "y.j", "y.i"),
        "not perfectly nested|not the loop",
        "reorder|decompose",
    ),
    (prefix, ("fission", "scan.i", 1), "cannot be parted after 1", "nothing is left"),
    (
        chain,
        ("decompose_reduction", "T", "r.i"),
        "does not start with a Store to T",
        "name",
    ),
    (
        prefix,
        ("decompose_reduction", "Y", "scan.i"),
        "allocated inside the loop",
        "expand",
    ),
    (chain, ("cache_write", "T", "r.i"), "does not write it", "cache_read"),
    (chain, ("cache_read", "Y"), "still being written", "name the loop"),
    (chain, ("cache_read", "nope"), "no buffer 'nope'", "did you mean"),
    (chain, ("pack", "X", "t.i", "t.j"), "2 different reads of X", "cache_read"),
    (chain, ("pack", "T", "r.i"), "unnamed .*r.j", "exactly the loops"),
    (
        chain,
        ("compute_at", "T", "r.i"),
        "also used outside loop r.i",
        "move those uses",
    ),
    (chain, ("compute_at", "X", "r.i"), "it is a parameter", "cache_write"),
    (
        chain,
        ("compute_at", "R", "t.i"),
        "does not exist at loop|no statement before",
        "name",
    ),
    (chain, ("compute_inline", "R"), "not computed by a single Store", "only maps"),
    (prefix, ("rfactor", "scan.j"), "used by other values", "running result"),
    (chain, ("rfactor", "t.j"), "not one Update .* none", "fission"),
    (chain, ("set_scope", "X", "stack"), "parameter", "cache_read"),
    (prefix, ("expand", "Y", "scan.i"), "not the innermost loop", "no loop"),
]


@pytest.mark.parametrize(
    "make, step, message, hint",
    CASES,
    ids=lambda x: getattr(x, "__name__", str(x)[:40]),
)
def test_refusal(make, step, message, hint):
    s = Schedule(make())
    before = s.kernel
    with pytest.raises(ScheduleError) as caught:
        s.apply(Step(step[0], step[1:]))
    error = caught.value
    assert error.message.startswith(step[0] + ":")
    assert re.search(message, error.message), error.message
    assert error.where and error.hint and re.search(hint, error.hint), error.hint
    assert s.kernel is before and not s.trace.steps


def test_order_of_a_hand_written_stencil_is_kept():
    """Y[i+1, j] = Y[i, j+1]: exchanging the loops would read what is not yet written."""
    from tilewright.expr.nodes import Var

    y = Buffer("Y", (6, 6), f32)
    i, j = Var("i", dtypes.int64), Var("j", dtypes.int64)
    nest = loop(i, 5, loop(j, 5, Store(y, (i + 1, j), y[i, j + 1])))
    s = Schedule(Kernel("stencil", (y,), (y,), nest))
    with pytest.raises(
        ScheduleError, match=r"exchanging i and j .*iterations .* conflict at Y\["
    ):
        s.reorder("j", "i")


def test_isl_permits_what_the_lemma_cannot_see():
    """Even elements from odd ones: never the same, which takes divisibility to know."""
    from tilewright.expr.nodes import Var

    y, i = Buffer("Y", (20,), f32), Var("i", dtypes.int64)
    kernel = Kernel("even", (y,), (y,), loop(i, 8, Store(y, (i * 2,), y[i * 2 + 3])))
    s = Schedule(kernel)
    s.parallel("i")
    assert "parallel" in repr(s.kernel)


def test_trace_text_and_json():
    s = Schedule(chain())
    s.compute_at("R", "y.i", "register")
    fork = s.fork()
    fork.split("y.j", 5)
    assert str(s.trace) == "s.compute_at('R', 'y.i', scope='register')"
    assert Trace.from_json(fork.trace.to_json()) == fork.trace != s.trace
    with pytest.raises(ScheduleError, match="no primitive 'grow'"):
        s.apply(Step("grow", ()))
    with pytest.raises(ScheduleError, match="this is not a trace"):
        Trace.from_json("[1, 2]")


def test_a_primitive_has_a_file_of_its_name_and_is_a_method():
    """So a name in a trace leads to its file."""
    from tilewright.schedule import primitives
    from tilewright.schedule.registry import PRIMITIVES

    files = {m.name for m in iter_modules(primitives.__path__)}
    assert files == set(PRIMITIVES)
    for name, rewrite in PRIMITIVES.items():
        assert rewrite.__module__ == f"tilewright.schedule.primitives.{name}"
        assert Schedule.__dict__[name] is rewrite


def test_every_method_is_a_primitive_with_a_documented_contract():
    from tilewright.schedule.registry import PRIMITIVES

    for name, rewrite in PRIMITIVES.items():
        assert hasattr(Schedule, name)
        text = rewrite.__doc__ or ""
        assert "before:" in text and "after" in text, name
