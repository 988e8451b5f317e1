"""What `build` of every notation returns has the same methods: profile, why, explain, save, ..."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import halide, lift, mdh
from tilewright import te as t
from tilewright.base.errors import InputError
from tilewright.lang.function.kept import KEPT, ProgramCache
from tilewright.lang.function.program import Program

N = 64
x = np.random.default_rng(4).random(N, np.float32) + 1


def double(a: Any, out: Any) -> None:
    out[...] = a * 2


def _te(n: Any = N, called: bool = False, first: bool = False, **options: Any) -> Any:
    X = t.placeholder((n,), name="X")
    Y = t.compute((n,), lambda i: t.sqrt(X[i]), name="Y")
    if called:
        call = lambda ins, outs: t.call_packed(double, ins[0], outs[0])  # noqa: E731
        twice = t.extern((n,), [Y], call, name="twice", dtype="float32")
        Y = t.compute((n,), lambda i: twice[i] + 1.0, name="Z")
    s = t.create_schedule(Y.op)
    if not options.get("auto"):
        s[Y].vectorize(s[Y].split(s[Y].op.axis[0], 8)[1])
    return t.build(s, [Y, X] if first else [X, Y], **options)


def _halide() -> Any:
    image, f, i = halide.ImageParam(halide.Float(32), 1), halide.Func(), halide.Var()
    f[i] = halide.sqrt(image[i])
    image.set(halide.Buffer(x))
    return f.vectorize(i, 8).compile_jit([N])


def _mdh() -> Any:
    return mdh.build(
        mdh.out_view[mdh.float32](y=[lambda i: i])
        @ mdh.md_hom[N](lambda v: mdh.sqrt(v), (mdh.cc,), name="roots")
        @ mdh.inp_view[mdh.float32](x=[lambda i: i])
    )


def _lift(**sizes: int) -> Any:
    return lift.build(
        lift.fun(lambda v: v | lift.Map(lift.sqrt), lift.f32["n"]), sizes=sizes
    )


PROGRAMS = {
    "function": _te,
    "auto": lambda: _te(auto=True),
    "specializing": lambda: _te(t.var("n"), specialize=True),
    "open": lambda: _te(t.var("n")),
    "calling": lambda: _te(called=True),
    "calling-open": lambda: _te(t.var("n"), called=True),
    "calling-specialized": lambda: _te(t.var("n"), called=True, specialize=True),
    "arranged": lambda: _te(first=True),
    "arranged-calling": lambda: _te(called=True, first=True),
    "halide": _halide,
    "mdh": _mdh,
    "lift": lambda: _lift(n=N),
    "lift-symbolic": _lift,
}


def arrays(name: str) -> tuple[np.ndarray, ...]:
    y = np.zeros_like(x)
    return (y, x) if name.startswith("arranged") else (x, y)


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_have_the_same(name: str) -> None:
    f = PROGRAMS[name]()
    assert isinstance(f, Program)
    given = arrays(name)
    before = [a.copy() for a in given]
    profile = f.profile(*given, repeat=2)
    for a, b in zip(given, before, strict=True):
        np.testing.assert_array_equal(a, b)
    called = name.endswith(("calling", "calling-open", "calling-specialized"))
    kinds = [row.kind for row in profile.rows]
    assert kinds == (["native", "host", "native"] if called else ["native"])
    shares = sum(row.share for row in profile.rows)
    assert abs(shares + profile.between / profile.total - 1) < 1e-6
    assert profile.advice is not None
    f(*given)
    [out] = [a for a in given if a is not x]
    wanted = np.sqrt(x)
    np.testing.assert_allclose(out, wanted * 2 + 1 if called else wanted, rtol=1e-6)
    text = f.explain(*given, repeat=2)
    assert "kernel " in text and "GFLOP/s" in text and f.why() in text
    assert "GFLOP/s" not in f.explain()
    assert len(f.functions) == (2 if called else 1)


@pytest.mark.parametrize("name", ["specializing", "arranged", "function"])
def test_one_kernel_is_saved(name: str, tmp_path: Path) -> None:
    f = PROGRAMS[name]()
    f(*arrays(name))
    f.save(tmp_path / "f.tw")
    found = tilewright.load(tmp_path / "f.tw")(x)
    np.testing.assert_allclose(found, np.sqrt(x), rtol=1e-6)
    header, _ = f.export_c(tmp_path / "f")
    assert "f(" in header.read_text()


@pytest.mark.parametrize(
    "name, problem", [("calling", "2 kernels"), ("specializing", "no kernel yet")]
)
def test_what_needs_one_kernel(name: str, problem: str, tmp_path: Path) -> None:
    f = PROGRAMS[name]()
    for use in (
        lambda: f.save(tmp_path / "f.tw"),
        lambda: f.export_c(tmp_path / "f"),
        lambda: f.executable,
    ):
        with pytest.raises(InputError, match=problem):
            use()


def test_why_by_hand() -> None:
    assert _te().why().splitlines() == [
        "# Y: Y",
        "  chosen: by hand",
        "trace:",
        "  s.split('Y.i', 8)",
        "  s.vectorize('Y.i.i')",
    ]
    assert _halide().why().count("s.vectorize(") == 1


def test_why_by_a_sketch() -> None:
    text = PROGRAMS["auto"]().why()
    assert "chosen: map, expected" in text
    assert "one of " in text
    assert "  s.vectorize(" in text


def test_the_record_of_a_sketch() -> None:
    a, b = t.placeholder((N, N), name="a"), t.placeholder((N, N), name="b")
    k = t.reduce_axis((0, N), name="k")
    c = t.compute((N, N), lambda i, j: t.sum(a[i, k] * b[k, j], axis=k), name="c")
    f = t.build(t.create_schedule(c.op), [a, b, c], auto=True)
    record = f.functions[0].record
    assert record.sketch in record.sketches and record.trace.steps
    assert f.why() == str(record)


def test_calls_count_arrays() -> None:
    f = _te(called=True)
    with pytest.raises(InputError, match="1 array given, 2 expected"):
        f(x)
    with pytest.raises(InputError, match=r"expected shape \(64,\), got \(63,\)"):
        f(x[:-1], np.zeros(63, np.float32))
    with pytest.raises(InputError, match="float64"):
        f(x.astype(float), x.copy())


def test_programs_that_are_kept() -> None:
    kept, made = ProgramCache(), []
    for n in (*range(KEPT), 0, KEPT, 0, 1):
        kept.get(n, lambda n=n: made.append(n) or _Empty())  # type: ignore[misc]
    assert made == [*range(KEPT), KEPT, 1]  # 1 went when KEPT came, since 0 was used


class _Empty(Program):
    functions = ()

    def __call__(self, *arrays: Any) -> None: ...

    def profile(self, *arrays: Any, repeat: int = 20, **peaks: float) -> Any: ...
