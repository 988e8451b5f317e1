"""Ranges with a step: only their sizes are promised, and others are refused at the call."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.driver.ranges.test_ranged import MODELS, fed, model
from tilewright.base import dtypes
from tilewright.base.errors import (
    ExecutionError,
    InputError,
    TilewrightError,
    UnsupportedError,
)
from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.driver.options import Options
from tilewright.driver.ranges import ranged
from tilewright.driver.ranges.sample_points import pattern
from tilewright.driver.ranges.step_hint import any_step, step_hint
from tilewright.driver.sources import import_model
from tilewright.expr.nodes import INDEX, Buffer, Var, const
from tilewright.graph.interp import evaluate
from tilewright.graph.nodes import Graph, Value
from tilewright.graph.specialize import specialize
from tilewright.plan.nodes import FusionGroup, OpenExtent, Plan
from tilewright.plan.open_extents import input_sizes, step_of, verify_open
from tilewright.runtime import formulas, open_model

RNG = np.random.default_rng(0)
HOW: Any = {"jit": False, "threads": 2, "cache": False}


def unet(depth: int, pads: bool = False) -> onnx.ModelProto:
    """Convolutions and poolings down, and up again beside what was on the way down.

    The extents along a path agree only if they are multiples of 2 ** depth. pads: up to the extents
    of what was on the way down, where they do not agree.
    """
    rng = np.random.default_rng(1)
    nodes, weights = [], []

    def layer(kind: str, x: str, shape: tuple[int, ...], **how: Any) -> str:
        name = f"{kind}{len(nodes)}"
        given = [x]
        if shape:
            array = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
            given.append(f"{name}.w")
            weights.append(numpy_helper.from_array(array.astype(np.float32), given[1]))
        nodes.append(helper.make_node(kind, given, [name], **how))
        return name

    def padded(x: str, like: str) -> str:
        names = [
            f"{x}.{n}" for n in ("to", "from", "more", "half", "rest", "pads", "whole")
        ]
        to, from_, more, half, rest, both, made = names
        for kind, given, name in (
            ("Shape", [like], to),
            ("Shape", [x], from_),
            ("Sub", [to, from_], more),
            ("Div", [more, "two"], half),
            ("Sub", [more, half], rest),
        ):
            nodes.append(helper.make_node(kind, given, [name]))
        nodes.append(helper.make_node("Concat", [half, rest], [both], axis=0))
        nodes.append(helper.make_node("Pad", [x, both], [made]))
        return made

    weights.append(numpy_helper.from_array(np.array([1, 1, 2, 2]), "two"))
    x = layer("Conv", "x", (4, 3, 3, 3), pads=[1] * 4)
    kept = []
    for _ in range(depth):
        kept.append(x)
        x = layer("MaxPool", x, (), kernel_shape=[2, 2], strides=[2, 2])
        x = layer("Relu", layer("Conv", x, (4, 4, 3, 3), pads=[1] * 4), ())
    for before in reversed(kept):
        x = layer("ConvTranspose", x, (4, 4, 2, 2), strides=[2, 2])
        if pads:
            x = padded(x, before)
        nodes.append(helper.make_node("Concat", [before, x], [f"{x}.both"], axis=1))
        x = layer("Conv", f"{x}.both", (4, 8, 3, 3), pads=[1] * 4)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "h", "w"])
    made = helper.make_tensor_value_info(x, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "unet", [given], [made], weights)
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


def agrees(exe: Any, source: onnx.ModelProto, h: int, w: int) -> None:
    graph = specialize(import_model(source, (), Options.of({})), {"h": h, "w": w})
    x = RNG.standard_normal((1, 3, h, w)).astype(np.float32)
    (want,) = evaluate(graph, {"x": x}, float64=True).values()
    np.testing.assert_allclose(exe(x), want, rtol=1e-4, atol=1e-5)


def test_a_unet_that_pads_is_told_the_step_that_needs_no_pads() -> None:
    """It is valid at all sizes; its plans have another form where something is padded."""
    source = unet(2, pads=True)
    with pytest.raises(UnsupportedError) as caught:
        tw.compile(source, dims={"h": (17, 47), "w": (16, 40)}, **HOW)
    assert (
        "plans are alike at multiples, so give a step: dims={'h': (20, 47, 4), 'w': (16, "
        in (str(caught.value))
    )
    exe: Any = tw.compile(source, dims={"h": (20, 47, 4), "w": (16, 40, 4)}, **HOW)
    assert len(exe.model.shared) == 1 and not exe.model.single
    for h, w in ((20, 40), (44, 16), (32, 32)):
        agrees(exe, source, h, w)


def test_the_step_of_alike_plans_is_asked_only_of_a_valid_model() -> None:
    """And at the pattern first, where no two sizes are equal."""
    allowed = {"h": range(8, 40), "w": range(8, 40)}
    asked: list[Any] = []

    def form(extents: Any) -> int:
        asked.append(dict(extents))
        return int(extents["h"] % 4)

    found = any_step(dict, form, allowed)
    assert (
        found is not None
        and "'h': (8, 39, 4)" in str(found)
        and "'w'" not in str(found)
    )
    assert asked[0] == pattern(allowed) and asked[0]["h"] != asked[0]["w"]
    assert any_step(dict, None, allowed) is None
    assert any_step(dict, lambda extents: 0, allowed) is None

    def refused(extents: Any) -> int:
        raise UnsupportedError("at no size")

    assert any_step(dict, refused, allowed) is None


def test_parts_that_are_too_small_to_be_few_are_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    making: Any = SimpleNamespace(graph=SimpleNamespace(inputs=()), real=None)
    allowed = {"h": range(1, 101), "w": range(1, 13)}
    for h, w, taken in ((9, 12, True), (8, 12, False), (9, 1, True), (100, 12, True)):
        inside = {"h": range(1, h + 1), "w": range(1, w + 1)}
        monkeypatch.setattr(ranged, "of_one_form", lambda *given, _found=inside: _found)
        found = ranged._of_one_form(making, allowed)
        assert found == (inside if taken else None)


def multiples(**steps: int) -> Any:
    """Whether extents are multiples of these numbers."""
    return lambda extents: all(extents[n] % step == 0 for n, step in steps.items())


def test_a_step_that_a_range_has_is_no_hint() -> None:
    """Not another one either that a multiple of it."""
    valid = multiples(h=16, w=8)
    for step in (16, 32):
        has = {"h": range(64, 257, step), "w": range(64, 257, step)}
        assert step_hint(valid, has) is None
    one = step_hint(valid, {"h": range(64, 257, 16), "w": range(64, 257, 4)})
    assert one is not None and "'w': (64, 256, 8)" in str(one)
    other = step_hint(valid, {"h": range(64, 257, 16), "w": range(60, 257, 8)})
    assert other is not None and "'w': (64, 252, 8)" in str(other)


def test_a_unet_runs_at_the_multiples_that_it_is_valid_at(tmp_path: Path) -> None:
    source = unet(1)
    with pytest.raises(TilewrightError):
        tw.compile(source, dims={"h": (8, 30), "w": 6}, **HOW)
    exe: Any = tw.compile(source, dims={"h": (8, 31, 2), "w": 6}, **HOW)
    (shared,) = exe.model.shared
    assert shared.covers.extents == (range(8, 31, 2),) and not exe.model.single
    exe.save(tmp_path / "unet.tw")
    loaded: Any = tw.load(tmp_path / "unet.tw")
    for h in (8, 12, 30):
        agrees(exe, source, h, 6)
        agrees(loaded, source, h, 6)
    for n, near in ((11, "10 or 12"), (6, "8"), (32, "30")):
        for one in (exe, loaded):
            with pytest.raises(InputError, match="8 to 30 in steps of 2") as caught:
                one(np.zeros((1, 3, n, 6), np.float32))
            assert caught.value.code == "TW-SIZE"
            assert f"give {near}, or" in str(caught.value.hint)


def test_listed_multiples_share_code_by_their_numbers() -> None:
    source = unet(1)
    listed = [8, 10, 14, 16, 20, *range(24, 48, 2), 64, 128]
    exe: Any = tw.compile(source, dims={"h": listed, "w": 6}, **HOW)
    (shared,) = exe.model.shared
    assert shared.covers.extents == (tuple(listed),) and not exe.model.single
    for h in (8, 14, 46, 128):
        agrees(exe, source, h, 6)
    for between in (12, 9):
        with pytest.raises(InputError) as caught:
            exe(np.zeros((1, 3, between, 6), np.float32))
        assert caught.value.code == "TW-SIZE"


def test_lists_that_share_code_as_they_are_keep_it() -> None:
    source = model(MODELS["rows"])
    exe: Any = tw.compile(source, dims={"n": [*range(2, 80, 2)]}, **HOW)
    (shared,) = exe.model.shared
    assert shared.opened.sizes == ("n",)  # no numbers of values


@pytest.mark.parametrize(
    ("depth", "dims", "hint"),
    [
        (1, {"h": (7, 30), "w": 6}, "{'h': (8, 30, 2)}"),
        (1, {"h": (9, 400, 2), "w": (5, 40)}, "{'h': (10, 399, 2), 'w': (6, 40, 2)}"),
        (2, {"h": (16, 90), "w": (16, 64, 4)}, "{'h': (16, 90, 4)"),
    ],
    ids=str,
)
def test_a_range_without_its_step_names_it(
    depth: int, dims: dict[str, Any], hint: str
) -> None:
    with pytest.raises(TilewrightError, match="at multiples") as caught:
        tw.compile(unet(depth), dims=dims, **HOW)
    assert hint in str(caught.value.hint)


def test_a_step_is_named_only_where_it_helps() -> None:
    allowed: dict[str, Any] = {"h": range(8, 60), "w": range(8, 60)}
    assert step_hint(lambda n: True, allowed) is None
    assert step_hint(lambda n: False, allowed) is None
    assert step_hint(lambda n: n["h"] % 3 == 0, allowed) is None
    assert step_hint(lambda n: n["h"] % 4 == 0, {"h": (8, 12, 16)}) is None
    found = step_hint(lambda n: n["h"] % 4 == 0, allowed)
    assert found is not None and found.endswith("dims={'h': (8, 59, 4)}")


@pytest.mark.slow
def test_a_deep_unet_runs_at_many_sizes() -> None:
    source = unet(4)
    dims: Any = {"h": (16, 512, 16), "w": (32, 512, 16)}
    exe: Any = tw.compile(source, dims=dims, **HOW)
    assert sum(len(s.covers) for s in exe.model.shared) > 900
    for h, w in ((16, 32), (512, 32), (48, 176), (64, 64), (16, 512)):
        agrees(exe, source, h, w)


def test_sizes_with_another_plan_have_their_own_code_by_their_extents() -> None:
    source = model(MODELS["products"])
    exe: Any = tw.compile(source, dims={"n": (1, 80, 3)}, **HOW)
    assert list(exe.model.single) == [(1,)]  # a single row
    (shared,) = exe.model.shared
    assert shared.covers.extents == (range(1, 80, 3),)
    assert shared.covers.without == {(1,)}
    each = tw.compile(source, threads=2, cache=False)
    for n in (1, 4, 40, 79):
        x = fed(source, n)
        np.testing.assert_allclose(exe(x), each(x), rtol=1e-5, atol=1e-5)


def test_few_sizes_have_their_own_code() -> None:
    exe: Any = tw.compile(model(MODELS["rows"]), dims={"n": (2, 9, 3)}, **HOW)
    assert list(exe.model.single) == [(2,), (5,), (8,)]
    exe = tw.compile(model(MODELS["rows"]), dims={"n": (2, 4, 3)}, **HOW)
    assert exe.inputs[0].shape == (2, 6)


def test_calls_that_compile_keep_to_the_steps() -> None:
    how = {**HOW, "jit": True}
    exe: Any = tw.compile(model(MODELS["rows"]), dims={"n": (2, 90, 4)}, **how)
    assert exe(fed(model(MODELS["rows"]), 6)).shape == (6, 6)
    with pytest.raises(InputError, match="2 to 90 in steps of 4"):
        exe(fed(model(MODELS["rows"]), 7))


def test_what_is_refused_is_named() -> None:
    text = "(float[n] x) => (int64[1, k] y) { y = NonZero(x) }"
    with pytest.raises(TilewrightError, match="one kernel for a range of sizes"):
        tw.compile(model(text), dims={"n": (1, 200, 2)}, **HOW)
    text = "(float[n, m] x) => (float[k, l] y) { s = Shape(x) y = Tile(x, s) }"
    squares = r"tensor 'y': .* 2704 at n = 52, m = 49 and 961 at n = 31, m = 49"
    with pytest.raises(TilewrightError, match=squares):
        tw.compile(model(text), dims={"n": (10, 70, 3), "m": (10, 70, 3)}, **HOW)


def test_the_check_is_at_the_extents_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.driver.ranges.test_range_check import other_value_at, spoil

    monkeypatch.setenv("TILEWRIGHT_CHECK", "1")
    spoil(monkeypatch, other_value_at(7))  # the seventh after the first
    source = model(MODELS["sums"])
    exe: Any = tw.compile(source, dims={"n": (2, 90, 4)}, **HOW)
    exe(fed(source, 26))
    with pytest.raises(ExecutionError, match="elements of y are wrong") as caught:
        exe(fed(source, 30))
    assert (caught.value.where or "").startswith("n = 30: ")


@pytest.mark.representatives("columns")
@pytest.mark.parametrize("name", ["columns", "attention"])
def test_workspaces_grow_with_the_extents(name: str) -> None:
    found = []
    for step in (1, 3):
        dims: Any = {"n": (3, 90, step)}
        exe: Any = tw.compile(model(MODELS[name]), dims=dims, **HOW)
        at = [exe.model.shared[0].opened.at({"n": n}) for n in (6, 30, 90)]
        found.append([(m.workspace, m.thread_workspace) for m in at])
    assert found[0] == found[1]
    assert len(set(found[0])) == 3


def test_an_extent_decides_a_size_if_it_grows_with_it_alone() -> None:
    n, m = Var("n", INDEX), Var("m", INDEX)
    assert step_of(n, n) == (0, 1)
    assert step_of(n * 4 + 2, n) == (2, 4)
    for wrong in (10 - n, n + m, n // 2, m, const(5, INDEX)):
        assert step_of(wrong, n) is None, wrong


def test_a_plan_knows_its_sizes_by_steps() -> None:
    n, i = Var("n", INDEX), Var("i", INDEX)
    x, y = (Buffer(name, (n * 4 + 2,), dtypes.float32) for name in "xy")
    c = Computation("c", (Dim(i, n * 4 + 2),), (Output(y, (i,), x[i]),))
    given, made = (Value(name, dtypes.float32, ("h",)) for name in "xy")
    graph = Graph("g", (given,), (made,), ())
    opened = (OpenExtent(n, 1, 5, (given, 0)),)
    group = FusionGroup("c", (c,))
    plan = Plan(graph, (group,), {given: x, made: y}, open=opened)
    verify_open(plan)
    assert input_sizes(plan, {"x": (14,)}) == {n: 3}
    for wrong, message in (
        (15, "2 and a multiple of 4"),
        (26, "1 to 5"),
        (2, "1 to 5"),
    ):
        with pytest.raises(InputError, match=message):
            input_sizes(plan, {"x": (wrong,)})


def test_sizes_of_the_code_are_formulas_of_known_extents() -> None:
    assert formulas.on(["+", "k", ["*", 2, "m"]], {"k": ["//", "n", 4]}) == [
        "+",
        ["//", "n", 4],
        ["*", 2, "m"],
    ]
    exe: Any = tw.compile(model(MODELS["sums"]), dims={"n": (2, 90, 4)}, **HOW)
    opened = exe.model.shared[0].opened
    assert opened.sizes == (["//", ["-", "n", 2], 4],)
    assert opened.at({"n": 30}).sizes == (7,)
    open_model.check(opened, ["n"])
    with pytest.raises(ValueError, match="'n' is not an extent"):
        open_model.check(opened, ["m"])
