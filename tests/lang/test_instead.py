"""What a refused name says to write instead works: a sample of the hints, run as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright import halide as hl
from tilewright import te as t
from tilewright.base.errors import UnsupportedError

x, y = hl.vars("x y")


def pipeline() -> tuple[hl.Func, hl.Func]:
    f, g = hl.Func("f"), hl.Func("g")
    f[x, y] = hl.f32(x * 3 + y)
    g[x, y] = f[x, y] + f[x, y + 1]
    g.set_estimates([(0, 6), (0, 4)])
    return f, g


WANT = np.array([[6 * i + 2 * j + 1 for i in range(6)] for j in range(4)], np.float32)


def hint(owner: object, name: str) -> str:
    with pytest.raises(UnsupportedError) as caught:
        getattr(owner, name)()
    return str(caught.value.hint)


def test_files_of_a_pipeline(tmp_path: Path) -> None:
    _, g = pipeline()
    for name in ("compile_to", "compile_to_c", "compile_to_static_library"):
        assert "compile_to_file" in hint(g, name) and ".save(path)" in hint(g, name)
    assert "compile_to_file" in hint(hl, "Module")
    g.compile_to_file(str(tmp_path / "g"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g.h", "g.o"]
    path = tmp_path / "g.tw"
    tw.compile(g.kernel([6, 4])).save(path)
    np.testing.assert_array_equal(tw.load(path)(), WANT)


def test_functions_and_texts() -> None:
    _, g = pipeline()
    assert "compile_jit(sizes)" in hint(g, "compile_to_callable")
    found = np.zeros((4, 6), np.float32)
    f = g.compile_jit([6, 4])
    f(found)
    np.testing.assert_array_equal(found, WANT)
    for kind in ("kernel", "llvm", "asm"):
        assert g.name() in f.source(kind)


def test_what_is_kept() -> None:
    f, g = pipeline()
    assert hint(hl, "memoize_tag") == hint(hl, "EvictionKey")
    assert "memoize() without a key" in hint(hl, "memoize_tag")
    f.compute_root().memoize()
    np.testing.assert_array_equal(g.realize([6, 4]), WANT)


def test_gradients() -> None:
    for name in ("Derivative", "propagate_adjoints"):
        assert "tilewright.te.gradient" in hint(hl, name)
    A = t.placeholder((4,), name="A")
    B = t.compute((4,), lambda i: A[i] * A[i], name="B")
    H = t.placeholder((4,), name="H")
    [dA] = t.gradient(B, [A], H)
    a, h, found = np.arange(4, dtype=np.float32), np.ones(4, np.float32), np.zeros(4)
    found = found.astype(np.float32)
    t.build(t.create_schedule(dA.op), [A, H, dA])(a, h, found)
    np.testing.assert_array_equal(found, 2 * a)


def test_what_the_host_is() -> None:
    assert "get_host_target().natural_vector_size" in hint(
        hl, "target_natural_vector_size"
    )
    assert hl.get_host_target().natural_vector_size(hl.Float(32)) >= 4
    assert hint(hl, "get_target_from_environment") == "get_host_target()"
