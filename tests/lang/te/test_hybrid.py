"""hybrid.script: functions of loops, compiled, interpreted and run by Python: equal results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import te as t
from tilewright.base.errors import InputError, ScheduleError, VerifyError

RNG = np.random.default_rng(4)
WIDTH = 5

# The language's own names, for the linter: in a script they are what the language says.
output_tensor = allocate = parallel = vectorize = unroll = const_range = likely = None  # type: ignore
float32 = int32 = exp = sqrt = ceil_div = None  # type: ignore


@t.hybrid.script
def outer(a, b):
    """A product of all pairs."""
    c = output_tensor((a.shape[0], b.shape[0]), a.dtype)
    for i in range(a.shape[0]):
        for j in range(len(b)):
            c[i, j] = a[i] * b[j]
    return c


@t.hybrid.script
def running(a, b):
    out = output_tensor(a.shape, "float32")
    most = output_tensor((1,), "float32")
    total = 0.0
    top = a[0]
    for i in range(a.shape[0]):
        total += a[i]
        out[i] = total
        if a[i] > top and b[i] > 0.0:
            top = a[i]
    most[0] = top
    return out, most


@t.hybrid.script
def windows(a, b):
    out = output_tensor((a.shape[0],), "float32")
    row = allocate((WIDTH,), "float32")
    half = WIDTH // 2
    for i in parallel(a.shape[0]):
        s = 0.0
        for k in unroll(WIDTH):
            if i + k >= half and i + k - half < a.shape[0]:
                s += a[i + k - half]
            elif k == 0:
                s += -1.0
        out[i] = s
    for i in range(1, a.shape[0], 3):
        if (i > 5 and a[i - 6] > 0.0) or i == 0:
            out[i] += 1.0
        row[i % WIDTH] = exp(b[i]) if b[i] < 0.0 else sqrt(b[i])
        out[i] += row[i % WIDTH] * float32(i)
    return out


@t.hybrid.script
def in_order(a, b):
    out = output_tensor((1,), "float32")
    s = 1.0
    for i in range(a.shape[0]):
        s = s * 0.5 - a[i]
    s *= 2.0 + s
    out[0] = s
    return out


@t.hybrid.script
def collatz(a, b):
    out = output_tensor(a.shape, "int64")
    for i in range(a.shape[0]):
        n = i + 1
        steps = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        out[i] = steps
    return out


@t.hybrid.script
def sparse(a, b):
    out = output_tensor((3,), "float32")
    ends = allocate((4,), "int32")
    for i in const_range(4):
        ends[i] = i * i
    for i in range(3):
        out[i] = 0.0
        for k in range(ends[i], ends[i + 1]):
            out[i] += a[k] * 2.0
    return out


SCRIPTS: dict[str, Callable[..., Any]] = {
    "outer": outer,
    "running": running,
    "windows": windows,
    "in order": in_order,
    "collatz": collatz,
    "sparse": sparse,
}


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("target", ["cpu", "interp"])
def test_as_in_python(name, target):
    a, b = RNG.standard_normal((2, 12), dtype=np.float32)
    wanted = SCRIPTS[name](a, b)
    A, B = t.placeholder((12,), name="A"), t.placeholder((12,), name="B")
    made = SCRIPTS[name](A, B)
    several = made if isinstance(made, tuple) else (made,)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    read = [x for x in (A, B) if x in several[0].op.inputs]
    found = [np.empty(tuple(x.shape), x.dtype.numpy) for x in several]
    f = t.build(t.create_schedule(several[0].op), [*read, *several], target=target)
    f(*(v for x, v in ((A, a), (B, b)) if x in read), *found)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def test_sizes_that_a_call_decides():
    A, B = (
        t.placeholder((t.var("n"),), name="A"),
        t.placeholder((t.var("m"),), name="B"),
    )
    C = outer(A, B)
    f = t.build(t.create_schedule(C.op), [A, B, C])
    for shape in ((3, 4), (7, 2)):
        a, b = (RNG.standard_normal(k, dtype=np.float32) for k in shape)
        found = np.empty(shape, np.float32)
        f(a, b, found)
        np.testing.assert_array_equal(found, np.outer(a, b))


def test_a_script_is_scheduled_with_what_is_around_it():
    A, B = t.placeholder((16,), name="A"), t.placeholder((8,), name="B")
    E = t.compute((16,), lambda i: A[i] + 1.0, name="E")
    C = outer(E, B)
    D = t.compute((16, 8), lambda i, j: C[i, j] * 2.0, name="D")
    s = t.create_schedule(D.op)
    i, j = s[C].op.axis
    io, ii = s[C].split(i, 4)
    s[C].vectorize(j)
    s[C].parallel(io)
    s[E].compute_at(s[C], ii)
    shown = str(s)
    assert "for C.i.o in 4 parallel" in shown and "for C.j in 8 vector" in shown
    a, b = np.arange(16, dtype=np.float32), np.arange(8, dtype=np.float32)
    out = np.empty((16, 8), np.float32)
    t.build(s, [A, B, D])(a, b, out)
    np.testing.assert_array_equal(out, np.outer(a + 1, b) * 2)


def test_a_step_that_reads_its_variable_is_none_of_a_reduction():
    A, B = t.placeholder((12,), name="A"), t.placeholder((12,), name="B")
    shown = str(t.create_schedule(in_order(A, B).op))
    assert "mul=" not in shown and "add=" in str(t.create_schedule(windows(A, B).op))


def test_a_schedule_that_would_change_it_is_refused():
    A, B = t.placeholder((12,), name="A"), t.placeholder((12,), name="B")
    R, _ = running(A, B)
    s = t.create_schedule(R.op)
    s[R].parallel(s[R].op.axis[0])
    with pytest.raises(ScheduleError, match="dependence"):
        str(s)


def test_a_loop_that_may_not_run_together_is_an_error():
    @t.hybrid.script
    def wrong(a):
        out = output_tensor(a.shape, "float32")
        for i in parallel(1, a.shape[0]):
            out[i] = out[i - 1] + a[i]
        return out

    A = t.placeholder((12,), name="A")
    W = wrong(A)
    with pytest.raises(VerifyError):
        t.build(t.create_schedule(W.op), [A, W], target="interp")


@pytest.mark.parametrize(
    "line, message",
    [
        ("    with a: pass", "a statement With"),
        ("    out[0] = a[0] if False else b", "there is no variable b"),
        ("    for i in a: out[0] = 1.0", "a loop over no range"),
        ("    for i in range(0, 4, -1): out[i] = 1.0", "a step of -1"),
        ("    for i in zip(4): out[i] = 1.0", "a loop over zip"),
        (
            "    out[0] = int32(a[0])",
            r"int32 is stored in out, of float32.*float32\(value\)",
        ),
        ("    out[0] = hurry(a[0])", "a call of hurry"),
        ("    assert 1 > 2", "an assert that does not hold"),
        ("    n = output_tensor((a[0],))", "extents are constants"),
        ("    if a[0]: out[0] = 1.0", "a condition of float32"),
        ("    out[9] = 1.0", r"index 9 is outside 0\.\.3"),
        ("    for i in range(4):\n        s = 1.0\n    out[0] = s", "no variable s"),
        ("    return a", "it does not end with return|what it returns"),
    ],
)
def test_what_the_language_does_not_have(line, message, tmp_path, monkeypatch):
    text = f"def f(a):\n    out = output_tensor((4,))\n{line}\n    return out\n"
    if "return a" in line:
        text = text.replace("    return out\n", "")
    (tmp_path / "script_file.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import importlib
    import sys

    sys.modules.pop("script_file", None)
    module = importlib.import_module("script_file")
    with pytest.raises(InputError, match=message):
        t.hybrid.script(module.f)(t.placeholder((4,), name="A"))
