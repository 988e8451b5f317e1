"""Models with symbolic dimensions: who waits for a compilation, and which shapes are allowed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base.errors import InputError, MemoryLimitError, UnsupportedError
from tilewright.base.once import ComputeOnceCache
from tilewright.driver import steps
from tilewright.driver.compilation import onnx_fallback
from tilewright.driver.dynamic import DynamicExecutable
from tilewright.driver.options import Options
from tilewright.frontends.load import load
from tilewright.graph.nodes import Graph
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.ranged import RangedExecutable

SUM = """
<ir_version: 10, opset_import: ["" : 21]>
sums (float[n, 3] x, float[n, m] z) => (float[n, 3] y, float[n, m] w) {
  y = Add(x, x)
  w = Neg(z)
}"""
TIMES = """
<ir_version: 10, opset_import: ["" : 21]>
times (float[k] x, int64[1] n) => (float[m] y) { y = Tile(x, n) }"""


OPTIONS = Options(threads=1, cache=False)


def model(text: str = SUM) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def feeds(n: int, m: int = 2) -> tuple[Any, Any]:
    x = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
    return x, np.ones((n, m), np.float32)


def checked(exe: Any, n: int, m: int = 2) -> None:
    x, z = feeds(n, m)
    y, w = exe(x, z)
    np.testing.assert_array_equal(y, x + x)
    np.testing.assert_array_equal(w, -z)


def with_build(build: Callable[[Callable[[], Graph]], CompiledModel]) -> Any:
    """The model, compiled for a call by `build`."""
    return DynamicExecutable(load(model()), build, 1, onnx_fallback())


def test_a_call_that_has_its_code_does_not_wait_for_another_that_compiles() -> None:
    entered, go = threading.Event(), threading.Event()
    made: list[int] = []

    def build(make: Callable[[], Graph]) -> CompiledModel:
        made.append(len(made))
        if len(made) > 1:
            entered.set()
            assert go.wait(60)
        return steps.build(make(), OPTIONS)

    exe = with_build(build)
    checked(exe, 1)
    errors: list[BaseException] = []

    def new_shape() -> None:
        try:
            checked(exe, 5)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=new_shape) for _ in range(3)]
    for t in threads:
        t.start()
    try:
        assert entered.wait(60)
        began = time.perf_counter()
        checked(exe, 1)
        took = time.perf_counter() - began
        assert all(t.is_alive() for t in threads)
    finally:
        go.set()
    for t in threads:
        t.join(60)
    assert not errors and took < 5
    assert (
        len(made) == 2
    )  # three who asked for one new shape waited for one compilation


def test_what_fails_once_is_tried_again() -> None:
    fail = [True]

    def build(make: Callable[[], Graph]) -> CompiledModel:
        if fail.pop() if fail else False:
            raise MemoryError("once")
        return steps.build(make(), OPTIONS)

    exe = with_build(build)
    with pytest.raises(MemoryError, match="once"):
        checked(exe, 2)
    checked(exe, 2)


def test_who_waits_for_an_interrupted_maker_makes_it_itself() -> None:
    entered, go = threading.Event(), threading.Event()
    once: ComputeOnceCache[int] = ComputeOnceCache(lambda kept: 0)

    def interrupted() -> int:
        entered.set()
        assert go.wait(60)
        raise KeyboardInterrupt

    def maker() -> None:
        with pytest.raises(KeyboardInterrupt):
            once.get("a", interrupted)

    found: list[int] = []
    first = threading.Thread(target=maker)
    first.start()
    assert entered.wait(60)
    second = threading.Thread(target=lambda: found.append(once.get("a", lambda: 7)))
    second.start()
    go.set()
    first.join(60)
    second.join(60)
    assert found == [7] and once.get("a", lambda: 8) == 7


def test_the_least_recently_used_is_forgotten() -> None:
    once: ComputeOnceCache[int] = ComputeOnceCache(lambda kept: max(0, len(kept) - 2))
    for key in (1, 2, 1, 3):
        once.get(key, lambda key=key: key)  # type: ignore[misc]
    assert once.values() == (1, 3)


def test_an_extent_outside_of_its_range_is_refused_by_name() -> None:
    exe = tw.compile(model(), dims={"n": (2, 3), "m": [1, 4]}, threads=1, cache=False)
    for n, m in ((2, 1), (3, 4)):
        checked(exe, n, m)
    with pytest.raises(InputError, match="n is 4, and may be 2 to 3") as caught:
        exe(*feeds(4, 1))
    assert caught.value.code == "TW-SIZE" and "'x', dimension 0" in str(caught.value)
    with pytest.raises(InputError, match="m is 2, and may be 1, 4"):
        exe(*feeds(2, 2))


def test_without_jit_all_shapes_are_compiled_in_advance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dims: Any = {"n": (0, 2), "m": [1, 3]}
    exe = tw.compile(model(), dims=dims, jit=False, threads=1, cache=False)

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a call compiles")

    monkeypatch.setattr(steps, "build", never)
    for n in (0, 1, 2):
        for m in (1, 3):
            checked(exe, n, m)
    assert isinstance(exe, RangedExecutable)
    exe.release()
    checked(exe, 1, 3)
    with pytest.raises(InputError, match="n is 3"):
        exe(*feeds(3, 1))


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (None, "'n' may have any extent"),
        ({"n": (1, 4)}, "'m' may have any extent"),
    ],
)
def test_without_jit_shapes_have_to_be_known(dims: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        tw.compile(model(), dims=dims, jit=False, threads=1, cache=False)
    assert caught.value.code == "TW-JIT"


def test_without_jit_no_value_may_decide_a_shape() -> None:
    with pytest.raises(UnsupportedError, match="values of 'n' determine shapes"):
        tw.compile(model(TIMES), dims={"k": (1, 2)}, jit=False, threads=1, cache=False)


def test_without_jit_code_that_does_not_fit_is_refused() -> None:
    how: Any = {"jit": False, "threads": 1, "cache": False, "memory_limit": 1 << 20}
    text = "(float[n] x) => (float[n] y) { y = Add(x, w) }"
    made = onnx.parser.parse_model(SUM.partition("sums")[0] + "add " + text)
    big = onnx.numpy_helper.from_array(np.zeros(1, np.float32), "w")
    made.graph.initializer.append(big)
    tw.compile(made, dims={"n": [1, 50_000]}, **how)
    with pytest.raises(MemoryLimitError, match="over"):
        tw.compile(made, dims={"n": [1, 200_000]}, **how)


def test_a_static_model_needs_no_jit() -> None:
    exe = tw.compile(model(), dims={"n": 2, "m": 2}, jit=False, threads=1, cache=False)
    assert isinstance(exe, tw.Executable)
    checked(exe, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((3, 2), "from 3 to 2"),
        ((1, 9, 0), r"dimension 'n' is \(1, 9, 0\)"),
        ((9, 1, 2), "from 9 to 1"),
        ((1, 2, 3, 4), r"dimension 'n' is \(1, 2, 3, 4\)"),
        ((-1, 2), r"dimension 'n' is \(-1, 2\)"),
        ([], r"dimension 'n' is \[\]"),
        ([1.5], r"dimension 'n' is \[1.5\]"),
        ((1, True), r"dimension 'n' is \(1, True\)"),
        (-4, "dimension 'n' is -4; give an integer of at least 0"),
    ],
)
def test_what_is_no_range_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tw.compile(model(), dims={"n": given}, threads=1, cache=False)


@pytest.mark.parametrize("dims", [[4], 4, "n=4"])
@pytest.mark.parametrize("cache", [None, False])
def test_dims_that_are_no_mapping_are_refused(dims: Any, cache: Any) -> None:
    with pytest.raises(InputError, match=r"dims=.*as in {'batch': 1}"):
        tw.compile(model(), dims=dims, threads=1, cache=cache)


def test_a_range_of_an_unknown_dimension_is_refused() -> None:
    with pytest.raises(InputError, match="no dimension is called 'batch'"):
        tw.compile(model(), dims={"batch": (1, 2)}, threads=1, cache=False)


def test_options_say_true_or_false() -> None:
    with pytest.raises(InputError, match="jit=0"):
        tw.compile(model(), jit=0)


RESHAPE = """<ir_version: 9, opset_import: ["" : 21]>
it (float[n,4] x, int64[2] shape) => (float[a,b] y) { y = Reshape(x, shape) }"""


def test_numbers_of_another_dtype_decide_no_shape() -> None:
    """Their bytes are those of other numbers, whose code would be kept under them."""
    exe = tw.compile(onnx.parser.parse_model(RESHAPE), threads=1)
    x, shape = np.ones((6, 4), np.float32), np.array([2, 12])
    for wrong in (shape.view(np.float64), shape.view(np.int32), shape[None]):
        with pytest.raises(InputError, match=r"expected int64\[2\], got"):
            exe(x, wrong)
    assert exe(x, shape).shape == exe(x, [2, 12]).shape == (2, 12)


@pytest.mark.parametrize("jit", [True, False])
def test_a_missing_input_is_named(jit: bool) -> None:
    """Of one executable for many shapes too."""
    exe = tw.compile(model(), threads=1, dims={"n": (1, 20), "m": [2]}, jit=jit)
    with pytest.raises(InputError, match=r"missing inputs: z: float32\[\w"):
        exe(feeds(3)[0])
    checked(exe, 3)


def test_no_code_is_made_per_value_of_a_weight() -> None:
    """Shapes follow from shapes."""
    text = """<ir_version: 9, opset_import: ["" : 21]>
    it (float[n,4] x, float[4] scale, float[4] bias) => (float[n,4] y) {
      y = LayerNormalization(x, scale, bias)
    }"""
    exe: Any = tw.compile(onnx.parser.parse_model(text), threads=1)
    x, one = np.ones((2, 4), np.float32), np.ones(4, np.float32)
    made = [exe.specialized({"x": x, "scale": s, "bias": one}) for s in (one, -one)]
    assert made[0] is made[1]


@pytest.mark.parametrize("only", [[2], (2, 2)])
def test_values_of_which_there_is_one_are_that_value(only: Any) -> None:
    """And do not keep the others from one executable for all."""
    exe = tw.compile(model(), threads=1, dims={"n": (1, 20), "m": only}, jit=False)
    assert exe.inputs[1].shape == (None, 2)
    checked(exe, 7)
