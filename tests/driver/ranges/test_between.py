"""Sizes between those that are planned: none runs code of another's form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tests.driver.ranges.test_ranged import HEAD
from tilewright.base.errors import UnsupportedError
from tilewright.driver.options import Options
from tilewright.driver.ranges import between
from tilewright.driver.ranges.between import KNOWN, Between
from tilewright.driver.ranges.reshaped_axes import broadcast_alike, reshapes_alike
from tilewright.driver.ranges.size_terms import SizeTerm
from tilewright.driver.sources import import_model
from tilewright.graph.infer import Typer
from tilewright.graph.nodes import Graph
from tilewright.graph.specialize import typing_at
from tilewright.runtime.ranged import RangedExecutable

HOW: Any = {"jit": False, "threads": 1, "cache": False}


def found(text: str, points: list[dict[str, int]], **most: int) -> list[Any]:
    """The sizes that are odd, of ranges from 1 on."""
    graph = import_model(onnx.parser.parse_model(HEAD + text), (), Options.of({}))
    return compared(graph, points, **most)


def compared(graph: Graph, points: list[dict[str, int]], **most: int) -> list[Any]:
    allowed = {name: range(1, n + 1) for name, n in most.items()}
    told = [*points, most]
    typings = [typing_at(graph, p, fold_elements=KNOWN) for p in told]
    return list(Between(graph, allowed, told, typings).odd())


LINE = [{"n": 200}, {"n": 30}]
CUBE = [{"n": 20, "m": 25}, {"n": 9, "m": 25}, {"n": 20, "m": 8}]


def whole(*names: str, **numbers: Any) -> str:
    """Constants by name."""
    texts = (f"{n} = Constant<value_ints = {list(v)}>() " for n, v in numbers.items())
    return "".join(texts) + "".join(f"{n} = Shape(x) " for n in names)


RARE = {
    "a shape": "(float[n] x) => (float[m] y) {"
    + whole("s", k=[277], one=[1])
    + " e = Equal(s, k) f = Where(e, one, s) r = Reshape(f, one) z = ConstantOfShape(r)"
    " y = Add(x, z) }",
    "a factor": "(float[n] x) => (float[n] y) {"
    + whole("s", k=[277])
    + "a = Constant<value_floats = [2.0]>() b = Constant<value_floats = [3.0]>()"
    " e = Equal(s, k) f = Where(e, a, b) y = Mul(x, f) }",
    "a row": "(float[n] x) => (float[n] y) {"
    + whole("s", k=[277])
    + "a = Constant<value_floats = [2.0]>() b = Constant<value_floats = [3.0]>()"
    " e = Equal(s, k) f = Where(e, a, b) r = Expand(f, s) y = Mul(x, r) }",
    "a branch": "(float[n] x) => (float[n] y) {"
    + whole("s", k=[277])
    + "e = Equal(s, k) c = Squeeze(e) y = If(c)<"
    "then_branch = t () => (float[n] a) { a = Neg(x) },"
    "else_branch = o () => (float[n] b) { b = Exp(x) }> }",
    "within a branch": "(float[n] x) => (float[n] y) {"
    + whole("s", k=[277], z=[0])
    + "e = Less(s, z) c = Squeeze(e) y = If(c)<"
    "then_branch = t () => (float[n] a) { a = Neg(x) },"
    "else_branch = o () => (float[n] b) { q = Equal(s, k) p = Cast<to = 1>(q)"
    " b = Add(x, p) }> }",
}


@pytest.mark.parametrize("name", RARE)
def test_a_size_in_a_thousand_that_is_treated_otherwise_is_found(name: str) -> None:
    assert found(RARE[name], LINE, n=400) == [{"n": 277}]


def gathered(data: str, indices: str) -> str:
    """Rows of data, at the first indices out of 400."""
    places = whole(p=range(400), z=[0])
    return (
        "(float[n] x) => (float[k, 2] y) {"
        + whole("s")
        + places
        + f" q = Slice(p, z, s)"
        f" a = Constant<value = float[400, 2] {{{','.join(map(str, range(800)))}}}>()"
        f" d = {data} i = {indices} y = Gather(d, i) }}"
    )


def worked(text: str, monkeypatch: pytest.MonkeyPatch, **most: int) -> list[str]:
    """The operators whose results are computed at all sizes."""
    told = []
    with monkeypatch.context() as m:
        m.setattr(
            Between, "_worked", lambda _, op, *more: told.append(op.qualified) or ()
        )
        found(text, CUBE if len(most) > 1 else LINE, **most)
    return told


def test_rows_of_a_table_by_the_first_places_are_the_first_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as positions that are embedded: they are not computed for each size."""
    plain = gathered("Identity(a)", "Identity(q)")
    assert "Gather" not in worked(plain, monkeypatch, n=400)
    assert found(plain, LINE, n=400) == []
    sliced = gathered("Slice(a, z, s)", "Identity(q)")
    assert "Gather" in worked(sliced, monkeypatch, n=400)


def positions(how: str, computed: tuple[int, ...]) -> Any:
    """Two of x, one behind the other, resized to its size; the code computes positions."""
    text = whole("s") + f"c = Concat<axis = 0>(x, x) y = Resize<{how}>(c, , , s)"
    model = onnx.parser.parse_model(HEAD + f"(float[n] x) => (float[k] y) {{ {text} }}")
    graph = import_model(model, (), Options.of({}))
    *before, resize = graph.operations
    marked = replace(resize, attributes={**resize.attributes, "computed": computed})
    return replace(graph, operations=(*before, marked))


@pytest.mark.parametrize(
    ("how", "computed", "taken"),
    [
        ("", (0,), True),
        ("", (1,), False),  # not along the axis that changes
        ("axes = [0]", (0,), False),
        # One element is elsewhere than the formula has it.
        ('coordinate_transformation_mode = "pytorch_half_pixel"', (0,), False),
        ('coordinate_transformation_mode = "align_corners"', (0,), True),
    ],
)
def test_positions_that_code_computes_are_taken_at_all_sizes(
    how: str, computed: Any, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = f", {how}" if how else ""
    graph = positions(f'mode = "linear"{more}', computed)
    told: list[str] = []
    monkeypatch.setattr(
        Between, "_worked", lambda _, op, *more: told.append(op.qualified) or ()
    )
    compared(graph, LINE, n=400)
    assert ("Resize" not in told) == taken


N, M = ((5, ((SizeTerm(name), 1),)) for name in "nm")
# The extents of the data, the numbers of the shape, and whether all sizes are alike.
RESHAPED: dict[str, tuple[list[Any], list[Any], bool]] = {
    "split": ([N, M, 6], [N, M, 2, 3], True),
    "merged": ([N, M, 2, 3], [N, M, 6], True),
    "moved": ([N, M, 6], [M, N, 6], True),
    "inferred": ([N, M, 6], [M, N, -1], True),
    "an inferred size": ([N, M, 6], [N, 2, -1, 3], True),
    "an inferred part": ([N, M, 6], [N, 2, -1], True),
    "copied": ([N, M, 6], [0, 0, 3, 2], True),
    "copied and inferred": ([N, M, 6], [0, -1, 3], True),
    "another product": ([N, M, 6], [N, M, 4], False),
    "a size twice": ([N, M, 6], [N, N, -1], False),
    "one size for another": ([N, M, 6], [N, N, 6], False),
    "a size less": ([N, M, 6], [N, 6], False),
    "a size more": ([N, 6], [N, M, 6], False),
    "two sizes inferred": ([N, M, 6], [6, -1], False),
    "two inferred": ([N, M, 6], [N, -1, -1], False),
    "an odd rest": ([N, M, 6], [N, M, 4, -1], False),
    "copied from nowhere": ([N, 6], [N, 6, 0], False),
}


@pytest.mark.parametrize("name", RESHAPED)
def test_reshapes_that_take_all_sizes(name: str) -> None:
    given, wanted, alike = RESHAPED[name]
    forms = (
        [(e, ()) if isinstance(e, int) else e for e in es] for es in (given, wanted)
    )
    assert reshapes_alike(*forms, {"n": 5, "m": 5}, {"n": 1, "m": 1}) == alike


def test_views_of_sizes_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "(float[n, m, 6] x) => (float[a, b, c, d] y) { s = Shape(x) i = "
        "Constant<value_ints = [0, 1]>() p = Gather(s, i)"
        " k = Constant<value_ints = [2, 3]>() t = Concat<axis = 0>(p, k)"
        " y = Reshape(x, t) }"
    )
    assert worked(text, monkeypatch, n=40, m=50) == []
    merged = text.replace("[2, 3]", "[-1]").replace("[0, 1]", "[2]")
    merged = merged.replace("b, c, d", "b")
    assert worked(merged, monkeypatch, n=40, m=50) == ["Reshape"]  # n * m


@pytest.mark.parametrize("k", [-1, 31])
def test_shapes_to_expand_to_are_not_computed(
    monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    """As exporters write them: -1 is no extent, and 31 is none of the last axis."""
    text = (
        "(float[n, m] x) => (float[n, m, 3] y) {"
        + whole("s", three=[3], last=[-1], k=[400, 31, k], ones=[1, 1, 1])
        + " a = Concat<axis = 0>(s, three) b = Reshape(a, last) e = Equal(b, k)"
        " f = Where(e, ones, b) u = Unsqueeze(x, last) y = Expand(u, f) }"
    )
    monkeypatch.setattr(between, "WORKED", 0)
    assert found(text, CUBE, n=300, m=30) == []
    with pytest.raises(UnsupportedError, match="Equal"):
        found(text, CUBE, n=300, m=31)


def test_products_may_meet_any_number() -> None:
    text = (
        "(float[n, m] x) => (float[q] y) {"
        + whole("s", k=[299 * 30], one=[1])
        + " p = ReduceProd<keepdims = 1>(s) e = Equal(p, k) f = Where(e, one, p)"
        " y = ConstantOfShape(f) }"
    )
    odd = found(text, CUBE, n=300, m=30)
    assert {(e["n"], e["m"]) for e in odd} == {(299, 30)}


def test_a_reshape_of_a_size_that_may_be_zero_is_computed() -> None:
    n, m = SizeTerm("n"), SizeTerm("m")
    start = {"n": 5, "m": 7}
    data = [(5, ((n, 1),)), (7, ((m, 1),)), (6, ())]
    wanted = [(5, ((n, 1),)), (7, ((m, 1),)), (2, ()), (3, ())]
    assert reshapes_alike(data, wanted, start, {"n": 1, "m": 1})
    assert not reshapes_alike(data, wanted, start, {"n": 0, "m": 1})
    falling = [(5, ((n, -1),)), *data[1:]]
    assert not reshapes_alike(falling, [*falling], start, {"n": 1, "m": 1})


def test_an_expansion_takes_all_sizes_where_extents_are_one_or_equal() -> None:
    n, m = ((5, ((SizeTerm(name), 1),)) for name in "nm")
    one, two = (1, ()), (2, ())
    assert broadcast_alike([[n, one], [n, m]])
    assert broadcast_alike([[one, m], [n, one, m]])
    assert broadcast_alike([[two, n], [one, n]])
    assert not broadcast_alike([[n], [m]])
    assert not broadcast_alike([[n, two], [n, m]])


def test_a_floor_that_is_affine_at_first_is_found() -> None:
    text = (
        "(float[1, n] x) => (float[1, k] y) { s = Constant<value_floats = [1.0, 1.004]>()"
        ' y = Resize<mode = "nearest">(x, , s) }'
    )
    assert found(text, LINE, n=400)[0] == {"n": 251}
    assert len(found(text, LINE, n=400)) == 150


def test_a_sum_that_overflows_is_found() -> None:
    text = (
        "(float[n] x) => (float[n] y) {"
        + whole("s")
        + "h = Cast<to = 3>(s) t = Add(h, h) e = Cast<to = 1>(t) y = Add(x, e) }"
    )
    assert found(text, [{"n": 40}, {"n": 10}], n=120)[0] == {"n": 64}


def test_sizes_are_odd_together() -> None:
    text = (
        "(float[n, m] x) => (float[n, m] y) {"
        + whole("s", z=[0], o=[1])
        + "a = Gather(s, z) b = Gather(s, o) e = Equal(a, b) f = Cast<to = 1>(e)"
        " y = Add(x, f) }"
    )
    assert found(text, CUBE, n=30, m=40) == [{"n": i, "m": i} for i in range(1, 31)]


PLAIN = (
    "(float[n, m, 6] x) => (float[n, 2, m, 3] y) {"
    + whole("s", z=[0], o=[1], t=[2, 3], minus=[-1], three=[3])
    + "a = Gather(s, z) b = Gather(s, o) c = Concat<axis = 0>(a, b, t)"
    " r = Reshape(x, c) u = Transpose<perm = [0, 2, 1, 3]>(r) v = Softmax<axis = -1>(u)"
    " i = Concat<axis = 0>(a, minus, b, three) j = Reshape(v, i) y = Add(v, j) }"
)


def test_layers_of_shape_arithmetic_are_the_same_at_all_sizes() -> None:
    assert found(PLAIN, CUBE, n=30, m=40) == []


def test_a_product_of_sizes_is_followed_and_a_square_is_not() -> None:
    text = "(float[n, m] x) => (float[k] y) {" + whole(t=[-1]) + "y = Reshape(x, t) }"
    assert found(text, CUBE, n=30, m=40) == []
    text = "(float[n] x) => (float[k] y) {" + whole("s") + "y = Tile(x, s) }"
    wrong = found(text, LINE, n=400)
    assert len(wrong) == 400 - 2
    assert not any(e in wrong for e in LINE)


def test_a_product_of_sizes_without_axes_is_followed() -> None:
    text = (
        "(int64[n, m] x) => (int64[n, m] y) {"
        + whole("s", z=[0], o=[1])
        + "a = Gather(s, z) b = Gather(s, o) i = Squeeze(a) j = Squeeze(b) p = Mul(i, j)"
        " q = Add(p, i) y = Mul(x, q) }"
    )
    assert found(text, CUBE, n=30, m=40) == []


def test_a_product_of_three_sizes_is_not_followed() -> None:
    text = (
        "(float[n, m, l] x) => (float[k] y) {" + whole(t=[-1]) + "y = Reshape(x, t) }"
    )
    start = {"n": 3, "m": 4, "l": 5}
    points = [start, *({**start, name: 2} for name in start)]
    wrong = found(text, points, n=6, m=7, l=8)
    assert {"n": 6, "m": 7, "l": 8} in wrong
    assert not any(e in wrong for e in points)


def test_of_what_cannot_be_told_the_node_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rest = "(float[n] x) => (float[n] y) {" + whole("s", k=[97], z=[41])
    rest += "r = Mod(s, k) e = Equal(r, z) f = Cast<to = 1>(e) y = Add(x, f) }"
    with pytest.raises(
        UnsupportedError,
        match=r"'Mod -> r'.*cannot decide .*: 'r' is not .*: \[6\] at n = 200 and",
    ):
        found(rest, LINE, n=400)
    long = "(float[n] x) => (float[n] y) { s = Shape(x) c = Squeeze(s)"
    long += " z = Constant<value_int = 0>() m = Constant<value_int = -1>()"
    long += " r = Range(c, z, m) f = Cast<to = 1>(r) y = Add(x, f) }"
    with pytest.raises(UnsupportedError, match="'r' is not an affine"):
        found(long, LINE, n=400)
    loop = (
        "(float[n] x) => (float[n] y) { s = Shape(x) t = Squeeze(s) y = Loop(t, , x)<"
        "body = g (int64 i, bool c, float[n] a) => (bool d, float[n] b)"
        " { d = Identity(c) b = Neg(a) }> }"
    )
    with pytest.raises(UnsupportedError, match="its body depends on a size"):
        found(loop, [{"n": 9}, {"n": 4}], n=400)
    monkeypatch.setattr(between, "WORKED", 399)
    with pytest.raises(UnsupportedError, match="over 399 results"):
        found(RARE["a factor"], LINE, n=400)


@pytest.mark.parametrize("name", ["a factor", "a row"])
def test_no_short_range_has_a_wrong_size(name: str) -> None:
    """Some sizes are planned, and all of them where a size in between is odd."""
    text = RARE[name].replace("[277]", "[77]")
    source = onnx.parser.parse_model(HEAD + text)
    exe: Any = tw.compile(source, dims={"n": (1, 120)}, **HOW)
    assert (77,) in exe.model.single
    assert [len(s.covers) for s in exe.model.shared] == [120 - len(exe.model.single)]
    for n in (1, 2, 76, 77, 78, 120):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(exe(x), x * (2 if n == 77 else 3))


def test_an_end_of_its_own_is_one_at_all_sizes_of_a_short_range() -> None:
    """At a batch of 1 a plan has fewer loops, also where only its neighbors are planned."""
    text = "(float[b, n, 4] x) => (float[b, n, 4] y) { y = Softmax<axis = 1>(x) }"
    source = onnx.parser.parse_model(HEAD + text)
    exe: Any = tw.compile(source, dims={"b": (1, 5), "n": (1, 40)}, **HOW)
    first, *_ = exe.model.shared
    assert len(first.covers) <= 4 * 40
    x = np.random.default_rng(0).standard_normal((1, 23, 4)).astype(np.float32)
    want = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(exe(x), want, rtol=1e-5)


def test_of_a_short_range_that_cannot_be_told_all_sizes_are_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = RARE["a factor"].replace("[277]", "[77]")
    monkeypatch.setattr(between, "WORKED", 99)
    with pytest.raises(UnsupportedError, match="over 99 results"):
        found(text, LINE, n=100)
    source = onnx.parser.parse_model(HEAD + text)
    exe: Any = tw.compile(source, dims={"n": (1, 100)}, **HOW)
    assert (77,) in exe.model.single
    assert sum(len(s.covers) for s in exe.model.shared) + len(exe.model.single) == 100
    x = np.arange(77, dtype=np.float32)
    np.testing.assert_array_equal(exe(x), x * 2)


def test_no_wide_range_has_a_wrong_size() -> None:
    """A size in the middle divides the range."""
    source = onnx.parser.parse_model(HEAD + RARE["a factor"])
    exe: Any = tw.compile(source, dims={"n": (1, 400)}, **HOW)
    covers = [len(s.covers) for s in exe.model.shared]
    assert len(covers) == 2
    assert sum(covers) == 400 - len(exe.model.single)
    assert (277,) in exe.model.single
    for n in (1, 2, 276, 277, 278, 400):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(exe(x), x * (2 if n == 277 else 3))


def test_code_is_of_the_sizes_that_it_covers_alone() -> None:
    text = "(float[n] x) => (float[k] y) {" + whole(a=[3], b=[-2], c=[0])
    source = onnx.parser.parse_model(HEAD + text + "y = Slice(x, a, b, c) }")
    exe = tw.compile(source, dims={"n": (1, 20)}, **HOW)
    assert isinstance(exe, RangedExecutable)
    assert len(exe.model.shared) == 1
    for n in range(1, 21):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(exe(x), x[3:-2])


def test_a_product_that_one_tile_holds_has_a_plain_schedule() -> None:
    text = "(float[n, 3] x) => (float[3, 3] y) {"
    text += " t = Transpose<perm = [1, 0]>(x) y = MatMul(t, x) }"
    exe: Any = tw.compile(
        onnx.parser.parse_model(HEAD + text), dims={"n": (1, 20)}, **HOW
    )
    for n in (1, 7, 20):
        x = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
        np.testing.assert_allclose(exe(x), x.T @ x, rtol=1e-4, atol=1e-5)


def applications(text: str, monkeypatch: pytest.MonkeyPatch, most: int) -> list[Any]:
    """The names and operands' shapes of operators that are computed, in order."""
    told: list[Any] = []
    apply = Typer.apply

    def counted(typer: Typer, op: Any) -> Any:
        told.append((op.qualified, op.inputs[0].shape))
        return apply(typer, op)

    graph = import_model(onnx.parser.parse_model(HEAD + text), (), Options.of({}))
    points = [{"n": n} for n in (40, 41, 42, 44, most)]
    typings = [typing_at(graph, p, fold_elements=KNOWN) for p in points]
    allowed = {"n": range(16, most + 1)}
    terms = {"n": [SizeTerm("n", divisor) for divisor in (1, 2, 4)]}
    with monkeypatch.context() as m:
        m.setattr(Typer, "apply", counted)
        assert list(Between(graph, allowed, points, typings, terms=terms).odd()) == []
    return told


def pooled(first: str, second: str) -> str:
    """Two poolings of a row, with these attributes."""
    return (
        "(float[1, 1, n] x) => (float[1, 1, a] y, float[1, 1, b] z) {"
        f"y = MaxPool<kernel_shape = [{first}> (x) z = MaxPool<kernel_shape = [{second}> (x) }}"
    )


def test_equal_operands_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind strides, few extents are left, and operators that do the same need no more."""
    row = "1, 1, n"
    chain = (
        f"(float[{row}] x) => (float[1, 1, k] y) {{"
        "a = MaxPool<kernel_shape = [2], strides = [2]>(x)"
        "y = MaxPool<kernel_shape = [2], strides = [2]>(a) }"
    )
    told = applications(chain, monkeypatch, 79)
    assert len(told) == len(set(told)) == 72  # of x from 16 on, of a from 8 on
    alike = applications(pooled("2]", "2]"), monkeypatch, 79)
    assert len(alike) == 64


def test_another_attribute_is_computed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    told = applications(pooled("2]", "3]"), monkeypatch, 79)
    assert len(told) == 2 * 64


@pytest.mark.parametrize("k", [277, 278])
def test_equal_shapes_of_other_numbers_are_computed_anew(k: int) -> None:
    """The second comparison, of the same size with another number, is not the first one's."""
    text = RARE["a factor"].replace(
        "e = Equal(s, k)", "o = Equal(s, u) w = Where(o, a, a) e = Equal(s, k)"
    )
    text = text.replace("[277]", f"[{k}]").replace(
        "s = Shape(x)", f"{whole(u=[555])}s = Shape(x)"
    )
    assert found(text, LINE, n=400) == [{"n": k}]
