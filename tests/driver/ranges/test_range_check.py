"""TILEWRIGHT_CHECK with code for ranges of shapes: each shape is checked once, and faults found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.driver.ranges import test_positions
from tests.driver.ranges.test_ranged import MODELS, fed, model
from tilewright.base import dtypes, events
from tilewright.base.errors import ExecutionError
from tilewright.driver.compiled import CompiledGroup, Preparation
from tilewright.driver.guard import Verdict
from tilewright.driver.ranges import open_check
from tilewright.driver.ranges.open_check import code_at
from tilewright.driver.ranges.open_code import OpenCode
from tilewright.driver.sized import SizedExecutable
from tilewright.expr.nodes import INDEX, Buffer, Select, Var, const
from tilewright.ir.node import transform
from tilewright.loops.nodes import SIZE, For, Kernel, Store, loop
from tilewright.plan.normalize import KernelSignature
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.registry import target

Change = Callable[[Any, Var], Any]


@pytest.fixture(autouse=True)
def checking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CHECK", "1")


def ranged(text: str, most: int = 300) -> Any:
    how: Any = {"jit": False, "threads": 2, "cache": False}
    return tw.compile(model(text), dims={"n": (2, most)}, **how)


def validated(call: Callable[[], object]) -> list[bool]:
    """Whether each kernel that a call validates is right."""
    with events.record() as log:
        call()
    return [e.fields["ok"] for e in log if e.kind == "kernel-validated"]


def spoil(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """Change each node of the kernels that are emitted for many sizes, given their first size."""
    emit = CpuTarget.emit

    def changed(machine: CpuTarget, kernel: Kernel, *rest: Any) -> Any:
        if kernel.sizes:
            size = kernel.sizes[0]
            kernel = kernel.with_body(transform(kernel.body, lambda s: change(s, size)))
        return emit(machine, kernel, *rest)

    monkeypatch.setattr(CpuTarget, "emit", changed)


def other_value_at(wrong: int) -> Change:
    """Store twice the value at one size."""

    def change(s: Any, size: Var) -> Any:
        if isinstance(s, Store) and s.buffer.dtype.is_float:
            twice = Select(size.eq(const(wrong, INDEX)), s.value + s.value, s.value)
            return Store(s.buffer, s.index, twice)
        return s

    return change


def further_at(wrong: int) -> Change:
    """One more iteration of the loops over a size at one of its values."""

    def change(s: Any, size: Var) -> Any:
        if isinstance(s, For) and s.kind != SIZE and s.extent is size:
            one = const(1, INDEX)
            more = Select(size.eq(const(wrong, INDEX)), size + one, size)
            return For(s.var, more, s.kind, s.body)
        return s

    return change


def test_each_shape_is_checked_once() -> None:
    """The weights of one product are packed, and the guard packs them too."""
    text = MODELS["products"]
    exe = ranged(text)
    assert len(exe.model.shared) == 1 and not exe.model.single
    for n, kernels in ((2, 0), (300, 0), (37, 1), (37, 0), (38, 1)):
        assert validated(lambda n=n: exe(fed(model(text), n))) == [True] * kernels
    exe.release()
    assert not validated(lambda: exe(fed(model(text), 37)))


def test_short_ranges_share_their_code_under_the_check() -> None:
    exe = ranged(MODELS["rows"], most=9)
    assert sum(len(s.covers) for s in exe.model.shared) == 8


def test_a_wrong_value_at_one_size_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, other_value_at(37))
    text = MODELS["sums"]
    exe = ranged(text)
    assert validated(lambda: exe(fed(model(text), 36))) == [True]
    for _ in range(2):
        with pytest.raises(ExecutionError, match="elements of y are wrong") as caught:
            exe(fed(model(text), 37))
        assert caught.value.code == "TW-CHECK"
        assert (caught.value.where or "").startswith("n = 37: kernel ")
    assert validated(lambda: exe(fed(model(text), 38))) == [True]


def test_an_access_out_of_bounds_at_one_size_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spoil(monkeypatch, further_at(64))
    text = "(float[n] x) => (float[n] y) { y = CumSum(x, a) }"
    text = text.replace("{ ", "{ a = Constant<value_int = 0>() ")
    exe = ranged(text)
    exe(fed(model(text), 63))
    with pytest.raises(ExecutionError, match="past the end of") as caught:
        exe(fed(model(text), 64))
    assert "n = 64" in (caught.value.where or "")


@pytest.mark.parametrize("corner", [2, 300])
def test_a_fault_at_an_end_of_the_range_is_found_when_it_is_compiled(
    monkeypatch: pytest.MonkeyPatch, corner: int
) -> None:
    spoil(monkeypatch, other_value_at(corner))
    with pytest.raises(ExecutionError, match="elements of y are wrong") as caught:
        ranged(MODELS["sums"])
    assert f"n = {corner}" in (caught.value.where or "")


def test_a_saved_range_keeps_its_code_and_not_the_check(tmp_path: Path) -> None:
    exe = ranged(MODELS["rows"])
    exe.save(tmp_path / "rows.tw")
    again: Any = tw.load(tmp_path / "rows.tw")
    x = fed(model(MODELS["rows"]), 5)
    assert not validated(lambda: again(x))
    np.testing.assert_array_equal(again(x), exe(x))


def images(layers: list[test_positions.Layer]) -> list[bool]:
    """Whether each kernel is right in a call of layers over images of open height and width."""
    dims: Any = {"n": 1, "h": (17, 20), "w": (18, 20)}
    how: Any = {"jit": False, "threads": 2, "cache": False}
    exe: Any = tw.compile(test_positions.model(layers), dims=dims, **how)
    x = np.ones((1, test_positions.channels(layers), 19, 20), np.float32)
    return validated(lambda: exe(x))


def test_images_are_judged_by_the_form_that_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Winograd's form rounds otherwise than the convolution does."""
    judged = []

    def noted(signature: KernelSignature, *rest: Any, **how: Any) -> Verdict:
        judged.extend(c.name for c in signature.source)
        return Verdict(signature.name, "", "")

    monkeypatch.setattr(open_check, "validate", noted)
    first, third, pooling = test_positions.MODELS["Winograd"]
    images([first, third, pooling])
    assert "conv.filter" in judged


@pytest.mark.slow
@pytest.mark.parametrize("name", test_positions.MODELS)
def test_kernels_over_images_are_right(name: str) -> None:
    found = images(test_positions.MODELS[name])
    assert found and all(found)


def test_packs_come_one_after_the_other() -> None:
    """Each has two preparations, the second of the result of the first."""
    first = Preparation("first", (1,), (4,), "float32", 0)
    second = Preparation("second", (-1, 2), (4,), "float32", 0)
    pack = CompiledGroup("", (-2,), 0, 0, (first, second), b"", (b"f", b"s"))
    code = OpenCode("k", b"k", ["*", "n", 4], 8, (0, -1, -2, 3), (pack, pack), 0)
    made = code_at(code, {"n": 5})
    inputs = [p.inputs for p in made.preparations]
    assert inputs == [(1,), (-1, 2), (1,), (-3, 2)]
    assert made.arguments == (0, -2, -4, 3)
    assert made.prepare_code == (b"f", b"s", b"f", b"s")
    assert (made.workspace, made.thread_workspace) == (20, 8)


def test_kernels_with_sizes_are_checked_at_their_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spoil(monkeypatch, other_value_at(37))
    n, i = Var("n", INDEX), Var("i", INDEX)
    x, y = Buffer("x", (n,), dtypes.float32), Buffer("y", (n,), dtypes.float32)
    body = loop(n, 100, loop(i, n, Store(y, (i,), x[i] + 1.0)), SIZE)
    exe = SizedExecutable(Kernel("plus", (x, y), (y,), body), target("cpu"), 1)
    assert validated(lambda: exe(np.ones(36, np.float32))) == [True]
    assert not validated(lambda: exe(np.ones(36, np.float32)))
    with pytest.raises(ExecutionError, match="elements of y are wrong"):
        exe(np.ones(37, np.float32))
