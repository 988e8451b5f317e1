"""One executable for the shapes of a range: whole models, against NumPy and per-shape code."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tests.plan.test_open_extents import positives, rows
from tilewright.base import events
from tilewright.base.errors import (
    InputError,
    MemoryLimitError,
    TilewrightError,
    TilewrightWarning,
    UnsupportedError,
)
from tilewright.driver.constants import ConstantPool
from tilewright.driver.ranges import open_resizes
from tilewright.driver.ranges.generalize import is_corner
from tilewright.driver.ranges.open_model import open_model, ranged_model
from tilewright.driver.ranges.range_parts import without_odd
from tilewright.driver.ranges.ranged import TOGETHER, _check_few, _check_memory
from tilewright.plan.nodes import Plan
from tilewright.runtime.open_model import OpenModel
from tilewright.runtime.ranged import RangedExecutable
from tilewright.targets.base import Target
from tilewright.targets.registry import target

RNG = np.random.default_rng(0)
HEAD = '<ir_version: 10, opset_import: ["" : 21]> net '
MODELS = {
    "products": "(float[n, 6] x) => (float[n, 5] y) {"
    " h = MatMul(x, w) r = Relu(h) y = Add(r, b) }",
    "rows": "(float[n, 6] x) => (float[n, 6] y) { y = Softmax<axis = -1>(x) }",
    "columns": "(float[6, n] x) => (float[6, n] y) { y = Softmax<axis = -1>(x) }",
    "convolution": "(float[n, 2, 5, 5] x) => (float[n, 3, 3, 3] y) { y = Conv(x, v) }",
    "length": "(float[1, 2, n, 5] x) => (float[1, 3, k, 3] y) { y = Conv(x, v) }",
    "attention": "(float[2, n, 4] x) => (float[2, n, 4] y) {"
    " t = Transpose<perm = [0, 2, 1]>(x) s = MatMul(x, t)"
    " p = Softmax<axis = -1>(s) o = MatMul(p, x) y = Neg(o) }",
    "sums": "(float[3, n] x) => (float[3] y) { a = Constant<value_ints = [1]>()"
    " y = ReduceSum<keepdims = 0>(x, a) }",
    "joined": "(float[n, 3] x) => (float[n, 6] y) { z = Neg(x) y = Concat<axis = 1>(x, z) }",
    "two": "(float[n, 6] x) => (float[n, 5] y) {"
    " h = MatMul(x, u) r = Softmax<axis = -1>(h) k = MatMul(r, w) y = Add(k, b) }",
    "pooled": "(float[n, 2, 6, 6] x) => (float[n, 2, 3, 3] y) {"
    " y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x) }",
}


def model(text: str) -> onnx.ModelProto:
    made = onnx.parser.parse_model(HEAD + text)
    rng = np.random.default_rng(1)
    shapes = {"w": (6, 5), "b": (5,), "v": (3, 2, 3, 3), "u": (6, 6)}
    shapes |= {"lw": (1, 16, 6), "lr": (1, 16, 4)}
    used = {i for node in made.graph.node for i in node.input}
    for name, shape in shapes.items():
        if name in used:
            array = rng.standard_normal(shape).astype(np.float32)
            made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return made


def fed(source: onnx.ModelProto, n: int) -> Any:
    dims = source.graph.input[0].type.tensor_type.shape.dim
    shape = [n if d.dim_param else d.dim_value for d in dims]
    return RNG.standard_normal(shape).astype(np.float32)


FAST = {"products", "columns", "attention", "sums"}  # of attention, some rows at a time


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n not in FAST)) for n in MODELS],
)
def test_one_executable_agrees_with_one_per_shape(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = model(MODELS[name])
    least = 3 if name == "length" else 1
    most = least + 20
    exe = tw.compile(
        source, dims={"n": (least, most)}, jit=False, threads=2, cache=False
    )
    each = tw.compile(source, threads=2, cache=False)
    assert isinstance(exe, RangedExecutable)
    assert sum(len(s.covers) for s in exe.model.shared) >= 18
    points = (least, least + 1, 7, 13, most - 1, most)
    inputs = [fed(source, n) for n in points]
    wanted = [each(x) for x in inputs]

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a call compiles")

    monkeypatch.setattr("tilewright.driver.steps.build", never)
    for x, want in zip(inputs, wanted, strict=True):
        np.testing.assert_allclose(exe(x), want, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match=f"n is {most + 1}, and may be"):
        exe(fed(source, most + 1))


def test_two_open_dimensions() -> None:
    text = "(float[n, m] x) => (float[n, m] y) { r = Relu(x) y = Softmax<axis = 1>(r) }"
    source = model(text)
    exe: Any = tw.compile(
        source, dims={"n": (1, 5), "m": (1, 6)}, jit=False, threads=1, cache=False
    )
    for n, m in ((1, 1), (1, 6), (5, 1), (5, 6), (3, 4)):
        x = RNG.standard_normal((n, m)).astype(np.float32)
        e = np.exp(np.maximum(x, 0))
        np.testing.assert_allclose(exe(x), e / e.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("debug", ["1", pytest.param("0", marks=pytest.mark.slow)])
def test_a_joined_axis_in_tiles_is_proven(
    monkeypatch: pytest.MonkeyPatch, debug: str
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DEBUG", debug)
    text = "(float[n, m] x) => (float[1, k] y) { f = Flatten<axis = 0>(x) y = Relu(f) }"
    dims = {"n": (1, 5), "m": (1, 7)}
    exe: Any = tw.compile(model(text), dims=dims, jit=False, threads=1, cache=False)
    x = RNG.standard_normal((5, 7)).astype(np.float32)
    np.testing.assert_array_equal(exe(x), np.maximum(x, 0).reshape(1, -1))


def test_what_has_another_form_at_many_sizes_is_refused_by_name() -> None:
    text = "(float[n] x) => (int64[1, k] y) { y = NonZero(x) }"
    why = "one kernel for a range of sizes is not possible: its extents depend on data"
    with pytest.raises(TilewrightError, match=f"tensor 'y': {why}"):
        tw.compile(model(text), dims={"n": (1, 20)}, jit=False, threads=1, cache=False)


def coded(text: str, extents: Any) -> tuple[int, int]:
    """How many sizes share code, and how many have their own."""
    how: Any = {"jit": False, "threads": 1, "cache": False}
    exe: Any = tw.compile(model(text), dims={"n": extents}, **how)
    for n in extents if isinstance(extents, list) else range(extents[0], extents[1]):
        x = RNG.standard_normal((n, 6)).astype(np.float32)
        each = tw.compile(model(text), **how | {"jit": True})
        np.testing.assert_allclose(exe(x), each(x), rtol=1e-5, atol=1e-6)
    return sum(len(s.covers) for s in exe.model.shared), len(exe.model.single)


def test_short_ranges_share_code_and_named_sizes_have_their_own() -> None:
    assert coded(MODELS["products"], (1, 8)) == (7, 1)  # one row is another plan
    assert coded(MODELS["products"], [1, 2, 3, 4, 5, 6]) == (0, 6)
    assert coded(MODELS["products"], (5, 8)) == (0, 4)


def test_a_short_range_that_cannot_share_code_has_code_for_each_size() -> None:
    text = (
        "(float[n, 6] x) => (float[m, 6] y) { s = Shape<end = 1>(x)"
        " f = Cast<to = 1>(s) r = Sqrt(f) e = Cast<to = 7>(r)"
        " z = Constant<value_ints = [0]>() y = Slice(x, z, e, z) }"
    )
    told: list[events.Event] = []
    events.subscribe(told.append)
    try:
        with pytest.warns(
            TilewrightWarning, match="6 codes are compiled, .* share none: "
        ):
            assert coded(text, (1, 6)) == (0, 6)
    finally:
        events.unsubscribe(told.append)
    (apart,) = (e.fields for e in told if e.kind == "range-apart")
    assert apart["codes"] == 6 and apart["reason"]


@pytest.mark.filterwarnings("ignore:.*share none")
@pytest.mark.parametrize("allowed", [(1, 6), list(range(3, 54, 3))])
def test_nothing_is_left_of_shared_code_that_is_given_up(
    allowed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short range has code for each size then, values in steps have it by their numbers."""
    failed: list[bool] = []

    def opened(plan: Plan, cpu: Target, pool: ConstantPool, *how: Any) -> OpenModel:
        if not failed:
            pool.place_array(np.ones(1000, np.float32))
            failed.append(True)
            raise UnsupportedError("not this one")
        return open_model(plan, cpu, pool, *how)

    monkeypatch.setattr("tilewright.driver.ranges.open_model.open_model", opened)
    source = model(MODELS["products"])
    exe: Any = tw.compile(source, dims={"n": allowed}, jit=False, cache=False)
    assert failed and not any(m.constants.nbytes >= 4000 for m in exe.model.models)
    x = fed(source, 6)
    same = tw.compile(source, dims={"n": 6}, cache=False)
    np.testing.assert_allclose(exe(x), same(x), rtol=1e-5, atol=1e-5)


def test_code_for_all_sizes_takes_half_of_the_memory_limit_at_most(
    opened: RangedExecutable,
) -> None:
    arenas = sum(m.arena_bytes for m in opened.model.models)
    _check_memory(opened.model, 1000, 2 * (arenas + 1000))
    with pytest.raises(MemoryLimitError, match="over half of the memory limit"):
        _check_memory(opened.model, 1001, 2 * (arenas + 1000))


def test_a_wide_range_is_one_code_although_some_sizes_alone_are_compared() -> None:
    source = model(MODELS["rows"])
    how: Any = {"jit": False, "threads": 1, "cache": False}
    exe = tw.compile(source, dims={"n": (1, 4096)}, **how)
    assert isinstance(exe, RangedExecutable)
    assert sum(len(s.covers) for s in exe.model.shared) >= 4090
    assert len(exe.model.single) <= 6
    for n in (1, 2, 3, 63, 64, 65, 1021, 4095, 4096):
        x = RNG.standard_normal((n, 6)).astype(np.float32)
        e = np.exp(x)
        np.testing.assert_allclose(exe(x), e / e.sum(1, keepdims=True), rtol=1e-5)


@pytest.fixture(scope="module")
def opened() -> RangedExecutable:
    plan = rows()
    made = ranged_model(plan, target("cpu"))
    return RangedExecutable(made, threads=2)


@pytest.mark.parametrize(("n", "m"), [(0, 1), (1, 1), (3, 2), (64, 9), (17, 7)])
def test_an_open_plan_runs_at_any_size(
    opened: RangedExecutable, n: int, m: int
) -> None:
    x = RNG.integers(-9, 9, (n, m)).astype(np.float32)
    np.testing.assert_array_equal(opened(x), x.sum(axis=1) * 2)
    out = np.full(n, 7, np.float32)
    assert opened(x, out=out) is out
    np.testing.assert_array_equal(out, x.sum(axis=1) * 2)


def test_an_open_plan_refuses_sizes_and_counts(
    opened: RangedExecutable,
) -> None:
    with pytest.raises(InputError, match="m is 10, and may be 1 to 9"):
        opened(np.zeros((3, 10), np.float32))
    with pytest.raises(InputError, match="missing inputs: x"):
        opened()
    with pytest.raises(UnsupportedError, match="k is a count"):
        open_model(positives(), target("cpu"), ConstantPool())


def test_a_range_of_pytorch_is_the_default() -> None:
    torch = pytest.importorskip("torch")
    dim = torch.export.Dim("n", min=2, max=4)
    how: Any = {"dynamic_shapes": ({0: dim},), "threads": 1, "cache": False}
    example = (torch.randn(3, 4),)
    module = torch.nn.ReLU()
    exe: Any = tw.compile(module, example, jit=False, **how)
    x = RNG.standard_normal((4, 4)).astype(np.float32)
    np.testing.assert_array_equal(exe(x), np.maximum(x, 0))
    with pytest.raises(InputError, match="n is 5, and may be 2 to 4"):
        exe(np.zeros((5, 4), np.float32))
    narrower: Any = tw.compile(module, example, dims={"n": (2, 3)}, jit=False, **how)
    with pytest.raises(InputError, match="n is 4, and may be 2 to 3"):
        narrower(x)
    one: Any = tw.compile(module, example, dims={"n": 4}, jit=False, **how)
    assert one.inputs[0].shape == (4, 4)
    with pytest.raises(InputError, match="n is 7, and the model is made for 0 to 4"):
        tw.compile(module, example, dims={"n": 7}, jit=False, **how)
    how["dynamic_shapes"] = ({0: torch.export.Dim("n")},)
    with pytest.raises(InputError, match="n"):
        tw.compile(module, example, jit=False, **how)


def test_two_wide_dimensions_share_a_few_codes() -> None:
    text = "(float[n, m] x) => (float[n, m] y) { r = Relu(x) y = Softmax<axis = 1>(r) }"
    how: Any = {"jit": False, "threads": 1, "cache": False}
    exe: Any = tw.compile(model(text), dims={"n": (1, 64), "m": (1, 4096)}, **how)
    covers = [s.covers for s in exe.model.shared]
    assert sum(map(len, covers)) + len(exe.model.single) == 64 * 4096
    for n, m in ((1, 1), (1, 4096), (64, 1), (64, 4096), (3, 1023), (63, 2)):
        assert sum((n, m) in c for c in covers) + ((n, m) in exe.model.single) == 1
        x = RNG.standard_normal((n, m)).astype(np.float32)
        e = np.exp(np.maximum(x, 0))
        want = e / e.sum(1, keepdims=True)
        np.testing.assert_allclose(exe(x), want, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.* codes are compiled")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "(float[n, m] x) => (float[k, l] y) { s = Shape(x) y = Tile(x, s) }",
            "tensor 'y': .* 49 at n = 7, m = 6 and 16 at n = 4, m = 6",
        ),
    ],
)
def test_what_cannot_be_one_code_is_named(text: str, message: str) -> None:
    how: Any = {"jit": False, "threads": 1, "cache": False}
    with pytest.raises(UnsupportedError, match=message) as caught:
        tw.compile(model(text), dims={"n": (2, 9), "m": (2, 7)}, **how)
    assert caught.value.code == "TW-JIT"
    assert str(caught.value.hint).endswith("dims={'n': [2, 6, 9], 'm': [2, 5, 7]}")


def test_each_combination_that_is_allowed_has_code_once() -> None:
    exe: Any = tw.compile(
        model(MODELS["rows"]),
        dims={"n": (1, 40)},
        jit=False,
        threads=1,
        cache=False,
    )
    for n in range(1, 41):
        shared = sum((n,) in s.covers for s in exe.model.shared)
        assert shared + ((n,) in exe.model.single) == 1


SMALL = {
    "gathered": "(float[3, n] x) => (float[3] y) {"
    " i = Constant<value_int = -1>() y = Gather<axis = 1>(x, i) }",
    "edge": "(float[3, n] x) => (float[3, k] y) {"
    ' p = Constant<value_ints = [0, 2, 0, 3]>() y = Pad<mode = "edge">(x, p) }',
}


@pytest.mark.parametrize("name", SMALL)
def test_what_is_right_from_one_on_is_one_code(name: str) -> None:
    """At an extent of 0 both leave their tensor; the range begins at 1."""
    how: Any = {"jit": False, "threads": 2, "cache": False}
    exe: Any = tw.compile(model(SMALL[name]), dims={"n": (1, 20)}, **how)
    assert sum(len(s.covers) for s in exe.model.shared) >= 18
    for n in (1, 2, 3, 19, 20):
        x = RNG.standard_normal((3, n)).astype(np.float32)
        want = x[:, -1] if name == "gathered" else np.pad(x, ((0, 0), (2, 3)), "edge")
        np.testing.assert_array_equal(exe(x), want)


def test_tails_of_two_sizes_are_one_code() -> None:
    """Rows from the second on: there is one at any size of the range, and none at 0."""
    text = (
        "(float[n, 3] x, float[m, 3] z) => (float[k, 3] y) {"
        " s = Constant<value_ints = [1]>() e = Constant<value_ints = [1000000]>()"
        " a = Constant<value_ints = [0]>() c = Slice(x, s, e, a)"
        " d = Slice(z, s, e, a) y = Concat<axis = 0>(c, d) }"
    )
    how: Any = {"jit": False, "threads": 1, "cache": False}
    exe: Any = tw.compile(model(text), dims={"n": (2, 9), "m": (2, 7)}, **how)
    for n, m in ((2, 2), (2, 7), (9, 2), (5, 4)):
        x, z = (RNG.standard_normal((k, 3)).astype(np.float32) for k in (n, m))
        np.testing.assert_array_equal(exe(x, z), np.concatenate([x[1:], z[1:]]))


def test_what_is_wrong_at_zero_is_refused_where_zero_is_allowed() -> None:
    how: Any = {"jit": False, "threads": 1, "cache": False}
    with pytest.raises(TilewrightError, match="n"):
        tw.compile(model(SMALL["gathered"]), dims={"n": (0, 20)}, **how)


@pytest.mark.filterwarnings("ignore:.* codes are compiled")
def test_a_plan_that_is_wrong_at_some_sizes_is_no_code_for_a_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Proportional positions of a resize as constants: those of two sizes differ throughout."""
    monkeypatch.setattr(open_resizes, "can_compute", lambda *given: False)
    text = (
        "(float[1, 1, n] x) => (float[1, 1, k] y) {"
        " s = Constant<value_floats = [1.0, 1.0, 2.0]>()"
        ' y = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">'
        "(x, , s) }"
    )
    how: Any = {"jit": False, "threads": 1, "cache": False}
    with pytest.raises(
        UnsupportedError, match=r"16 combinations .* separate code"
    ) as e:
        tw.compile(model(text), dims={"n": (1, 20)}, **how)
    assert e.value.code == "TW-JIT"
    assert str(e.value).endswith("at most 16 combinations: dims={'n': [1, 11, 20]}")
    few: Any = tw.compile(model(text), dims={"n": [1, 11, 20]}, **how)
    assert few(np.ones((1, 1, 11), np.float32)).shape == (1, 1, 22)


NUMBERS = ", ".join(str(n * 0.25) for n in range(1280))
SIZED = (
    "o = Constant<value_ints = [1]>() e = Constant<value_ints = [2]>()"
    " z = Constant<value_ints = [0]>() s = Shape(x) k = Slice(s, o, e) c = Squeeze(k)"
    f" t = Constant<value = float[320, 4] {{{NUMBERS}}}>()"
)
POSITIONS: dict[str, tuple[str, Any]] = {
    "a table's rows": ("p = Slice(t, z, k, z) y = Add(x, p)", lambda x, t: x + t),
    "rows by positions": (
        "a = Squeeze(z) d = Squeeze(o) i = Range(a, c, d) p = Gather(t, i) y = Add(x, p)",
        lambda x, t: x + t,
    ),
    "a causal mask": (
        "f = Constant<value_floats = [1.0]>() l = Concat<axis = 0>(k, k)"
        " q = Expand(f, l) g = Trilu<upper = 0>(q) y = MatMul(g, x)",
        lambda x, t: np.cumsum(x, 1),
    ),
    "all ones": (
        "f = Constant<value_floats = [2.0]>() l = Concat<axis = 0>(k, o)"
        " q = Expand(f, l) y = Mul(x, q)",
        lambda x, t: 2 * x,
    ),
}


# square and not, few sizes and many
@pytest.mark.representatives("20-a causal mask", "300-rows by positions")
@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("most", [20, 300])
def test_constants_that_grow_with_a_size_are_one_constant(name: str, most: int) -> None:
    """Positions and masks of the longest sequence begin with those of a shorter one."""
    body, want = POSITIONS[name]
    source = model("(float[b, n, 4] x) => (float[b, n, 4] y) {" + SIZED + body + " }")
    how: Any = {"jit": False, "threads": 1, "cache": False}
    exe: Any = tw.compile(source, dims={"b": (1, 3), "n": (1, most)}, **how)
    assert sum(len(s.covers) for s in exe.model.shared) >= 2 * (most - 1)
    table = np.arange(1280, dtype=np.float32).reshape(320, 4) / 4
    for b, n in ((1, 1), (1, most), (3, 1), (2, 17), (3, most - 1), (3, most)):
        x = RNG.standard_normal((b, n, 4)).astype(np.float32)
        np.testing.assert_allclose(exe(x), want(x, table[:n]), rtol=1e-4, atol=1e-4)


def test_a_constant_that_is_another_one_at_a_size_has_code_of_its_own() -> None:
    text = (
        "(float[3, n, 4] x) => (float[3, n, 4] y) {" + SIZED + " a = Identity(z)"
        " h = Constant<value_ints = [7]>() q = Equal(k, h)"
        " f = Where(q, e, o) g = Cast<to = 1>(f) l = Concat<axis = 0>(k, o)"
        " r = Expand(g, l) y = Mul(x, r) }"
    )
    how: Any = {"jit": False, "threads": 1, "cache": False}
    exe: Any = tw.compile(model(text), dims={"n": (2, 40)}, **how)
    assert (7,) in exe.model.single
    for n in (2, 6, 7, 8, 40):
        x = RNG.standard_normal((3, n, 4)).astype(np.float32)
        np.testing.assert_array_equal(exe(x), x * (2 if n == 7 else 1))


def test_constants_of_another_rank_are_another_plan() -> None:
    """A length of 1 leaves nothing: its result is a constant, of another rank than the table."""
    text = (
        "(float[2, n, 4] x) => (float[2, l, 4] y) {" + SIZED + "p = Slice(t, z, k, z)"
        " a = Add(x, p) h = Constant<value_ints = [1000000]>() y = Slice(a, o, h, o) }"
    )
    how: Any = {"jit": False, "threads": 1, "cache": False}
    exe: Any = tw.compile(model(text), dims={"n": (1, 30)}, **how)
    table = np.arange(1280, dtype=np.float32).reshape(320, 4) / 4
    for n in (1, 2, 3, 29, 30):
        x = RNG.standard_normal((2, n, 4)).astype(np.float32)
        np.testing.assert_array_equal(exe(x), (x + table[:n])[:, 1:])


@pytest.mark.parametrize(
    "most", [12, *(pytest.param(n, marks=pytest.mark.slow) for n in (8, 30))]
)
def test_questions_that_the_pattern_was_not_asked_go_to_the_target(most: int) -> None:
    """A mean and a difference: of some lengths one kernel is asked about, of others two."""
    text = (
        "(float[2, n, m] x) => (float[2, n, m] y) { o = Constant<value_ints = [1]>()"
        " a = ReduceMean<keepdims = 1>(x, o) y = Sub(x, a) }"
    )
    how: Any = {"jit": False, "threads": 1, "cache": False}
    exe: Any = tw.compile(model(text), dims={"n": (1, most), "m": (1, 9)}, **how)
    for n, m in ((1, 1), (most, 9), (3, 2), (most - 1, 1)):
        x = RNG.standard_normal((2, n, m)).astype(np.float32)
        want = x - x.mean(1, keepdims=True)
        np.testing.assert_allclose(exe(x), want, rtol=1e-4, atol=1e-5)


def test_a_corner_is_equal_bit_for_bit() -> None:
    whole = np.array([[0.0, 1.0], [2.0, 3.0]])
    assert is_corner(whole[:1], whole)
    assert is_corner(whole[:, :1], whole)
    assert is_corner(whole[:0], whole)
    assert not is_corner(whole[1:], whole)
    assert not is_corner(np.array([[-0.0, 1.0]]), whole)
    assert not is_corner(whole[:1].astype(np.float32), whole)
    assert not is_corner(whole[0], whole)
    assert not is_corner(np.zeros((1, 3)), whole)


def _centered(x: Any) -> Any:
    return x - x.mean((2, 3), keepdims=True)


IMAGES: dict[str, tuple[str, Any]] = {
    "pooled over all": (
        "y = GlobalAveragePool(x)",
        lambda x: x.mean((2, 3), keepdims=True),
    ),
    "squeezed": (
        "p = GlobalAveragePool(x) y = Mul(x, p)",
        lambda x: x * x.mean((2, 3), keepdims=True),
    ),
    "normalized": (
        "a = Constant<value_floats = [1.0, 2.0, 3.0]>() y = InstanceNormalization(x, a, a)",
        lambda x: (
            np.reshape([1, 2, 3], (3, 1, 1))
            * (
                1
                + (x - x.mean((2, 3), keepdims=True))
                / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5)
            )
        ),
    ),
    "tokens": (
        "i = Constant<value_ints = [0, 0, -1]>() z = Reshape(x, i)"
        " y = Transpose<perm = [0, 2, 1]>(z)",
        lambda x: x.reshape(2, 3, -1).transpose(0, 2, 1),
    ),
    "rows of all": (
        "i = Constant<value_ints = [-1, 3]>() t = Transpose<perm = [0, 2, 3, 1]>(x)"
        " y = Reshape(t, i)",
        lambda x: x.transpose(0, 2, 3, 1).reshape(-1, 3),
    ),
    "around": (
        'p = Constant<value_ints = [0, 0, 1, 1, 0, 0, 1, 1]>() y = Pad<mode = "wrap">(x, p)',
        lambda x: np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), "wrap"),
    ),
}


@pytest.mark.representatives("9-around", "17-squeezed")  # few sizes and many
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] * (n in ("normalized", "tokens")))
        for n in IMAGES
    ],
)
@pytest.mark.parametrize("most", [9, 17])
def test_images_of_any_size_share_code(name: str, most: int) -> None:
    """Means over sizes, and products of sizes: compared at all sizes, and at some of many."""
    body, want = IMAGES[name]
    source = model("(float[2, 3, h, w] x) => (float[s, t, u, v] y) { " + body + " }")
    source.graph.output[0].type.tensor_type.ClearField("shape")
    how: Any = {"jit": False, "threads": 1, "cache": False}
    exe: Any = tw.compile(source, dims={"h": (1, most), "w": (1, most)}, **how)
    assert sum(len(s.covers) for s in exe.model.shared) >= most * most - 16
    for h, w in ((1, 1), (1, most), (most, 1), (2, 3), (7, 2), (most - 1, most)):
        x = RNG.standard_normal((2, 3, h, w)).astype(np.float32)
        np.testing.assert_allclose(exe(x), want(x), rtol=1e-3, atol=1e-4)


def test_many_pieces_of_code_are_refused() -> None:
    few = {(n,): None for n in range(16)}
    _check_few(few, [None] * TOGETHER)
    for single, shared in (({**few, (16,): None}, []), ({}, [None] * (TOGETHER + 1))):
        with pytest.raises(UnsupportedError, match="over 16 combinations of extents"):
            _check_few(single, shared)


def test_a_box_without_odd_ones_keeps_the_pattern() -> None:
    box = {"h": range(1, 6), "w": (1, 2, 4)}
    assert without_odd(box, [(1, 1)], (3, 2)) == {"h": range(2, 6), "w": (1, 2, 4)}
    assert without_odd(box, [(3, 1)], (3, 2)) == {"h": range(1, 6), "w": (2, 4)}
    assert without_odd(box, [(5, 2), (4, 2)], (3, 2))["h"] == range(1, 5)
    assert without_odd(box, [(3, 2)], (3, 2)) == {"h": range(1, 6), "w": (1, 2, 4)}


@pytest.mark.slow
@pytest.mark.parametrize("most", [24, 64, 300])
def test_a_decoder_of_any_length_and_batch_is_few_codes(most: int) -> None:
    torch = pytest.importorskip("torch")

    class Decoder(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(50, 16)
            self.places = torch.nn.Embedding(310, 16)
            self.register_buffer("ids", torch.arange(310)[None])
            self.register_buffer("mask", torch.ones(310, 310, dtype=torch.bool).tril())
            self.into = torch.nn.Linear(16, 48)

        def forward(self, x: Any) -> Any:
            n = x.shape[1]
            h = self.embed(x) + self.places(self.ids[:, :n])
            q, k, v = self.into(h).view(*x.shape, 3, 2, 8).permute(2, 0, 3, 1, 4)
            scores = q @ k.transpose(-1, -2) / 8**0.5
            scores = scores.masked_fill(~self.mask[:n, :n], float("-inf"))
            return (scores.softmax(-1) @ v).transpose(1, 2).reshape(*x.shape, 16)

    torch.manual_seed(0)
    module, export = Decoder().eval(), torch.export.Dim
    ids = torch.randint(0, 50, (2, 9))
    shapes = ({0: export("b", min=1, max=4), 1: export("n", min=2, max=most)},)
    how: Any = {"jit": False, "threads": 2, "cache": False}
    exe: Any = tw.compile(module, (ids,), dynamic_shapes=shapes, **how)
    assert sum(len(s.covers) for s in exe.model.shared) >= 4 * (most - 1) - 16
    for b, n in ((1, 2), (4, 2), (3, 17), (1, most), (4, most)):
        x = torch.randint(0, 50, (b, n))
        want = module(x).detach().numpy()
        np.testing.assert_allclose(exe(x.numpy()), want, rtol=1e-4, atol=1e-5)
