"""Programs as Computations: the form of each pattern, and stages where there must be some."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

from tilewright.base.errors import InputError, UnsupportedError
from tilewright.compute.check import check
from tilewright.compute.interp import evaluate
from tilewright.ir.node import postorder
from tilewright.lang import lift
from tilewright.lang.lift import Map, f32, fun
from tilewright.lift import express
from tilewright.lift.interp import interpret
from tilewright.lift.lambdas import applied, beta, key
from tilewright.lift.nodes import Lambda, Param
from tilewright.lift.normalize import NormalForm, normalize
from tilewright.lift.patterns import parse
from tilewright.lift.printer import show_lines

DOT = "Map(mul) | Reduce(add, 0.0)"
SOFTMAX = (
    "let(r | Reduce(max, -inf) | At(0), lambda m: let(r | Map(lambda v: exp(v - m)), "
    "lambda e: let(e | Reduce(add, 0.0) | At(0), lambda s: e | Map(lambda v: v / s))))"
)
TILED = "A | Map(lambda r: Zip(r, v) | Split(2) | Map(Map(mul) >> Reduce(add, 0.0)) | Join | {})"
PROGRAMS = {
    "matrix_vector": (
        f"fun(lambda A, v: A | Map(lambda r: Zip(r, v) | {DOT}) | Join, f32[4, 6], f32[6])"
    ),
    "softmax": f"fun(lambda A: A | Map(lambda r: {SOFTMAX}), f32[4, 6])",
    "prefix": "fun(lambda A: A | Transpose | Map(Scan(add, 0.0)) | Transpose, f32[4, 6])",
    "concat": "fun(lambda a, b: Concat(a | Map(relu), b), f32[4], f32[3])",
    "stencil": (
        "fun(lambda a: a | Pad(1, 1, 0.0) | Slide(3, 1) | Map(Reduce(add, 0.0)) | Join, f32[8])"
    ),
    "argmax": (
        "fun(lambda A: A | Map(lambda r: Zip(r, Iota(6)) | Reduce(lambda a, b: Tuple("
        "select(lt(a[0], b[0]), b[0], a[0]), select(lt(a[0], b[0]), b[1], a[1])), "
        "Tuple(-inf, -1))), f32[4, 6])"
    ),
    "rows_added": (
        "fun(lambda A: A | Reduce(lambda a, r: Zip(a, r) | Map(add), Fill(0.0, 6)), f32[4, 6])"
    ),
    "after_a_reduction": "fun(lambda A: A | Map(Reduce(add, 0.0)) | Join | Map(exp), f32[4, 6])",
    "initial_value": "fun(lambda A: A | Map(Reduce(add, 1.0)) | Join, f32[4, 6])",
}


def normal(name: str) -> NormalForm:
    return normalize(parse(PROGRAMS[name]), {}, name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_form_and_meaning(name: str, golden) -> None:
    found = normal(name)
    golden(f"lift_{name}", "\n".join(map(repr, found.computations)))
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-4, 5, b.shape).astype(b.dtype.numpy) for b in found.inputs]
    for c in found.computations:
        check(c)
    got = evaluate(found.computations, dict(zip(found.inputs, arrays, strict=True)))
    for b, want in zip(
        found.outputs, interpret(parse(PROGRAMS[name]), *arrays), strict=True
    ):
        np.testing.assert_allclose(got[b], want, rtol=1e-6)


@pytest.mark.parametrize("rest", ["Reduce(add, 0.0)", "Map(id) | Reduce(add, 0.0)"])
def test_a_reduction_of_reductions_is_one(rest: str) -> None:
    program = parse(f"fun(lambda A, v: {TILED.format(rest)}, f32[4, 6], f32[6])")
    (c,) = normalize(program, {}).computations
    assert [d.combine for d in c.dims] == ["cc", "cc", "pw", "pw"]


def test_moving_data_leaves_no_trace() -> None:
    twice = "Gather('reverse') | Gather('reverse')"
    text = f"fun(lambda x: x | Split(4) | Map(Map(exp)) | Join | {twice}, f32[8])"
    plain = normalize(parse("fun(lambda x: x | Map(exp), f32[8])"), {})
    moved = normalize(parse(text), {})
    assert repr(moved.computations) == repr(plain.computations)


def test_a_fold_that_combines_nothing_is_refused() -> None:
    text = "fun(lambda x: x | Reduce(lambda a, e: a * 2.0 + exp(e), 0.0), f32[8])"
    with pytest.raises(InputError, match=r"not neutral|not associative") as error:
        normalize(parse(text), {})
    assert error.value.code == "TW-OPERATOR"
    text = "fun(lambda x: x | Reduce(lambda a, e: i64(e) + a * a, 0), f32[8])"
    with pytest.raises(UnsupportedError, match=r"not a combine operator.*ReduceSeq"):
        normalize(parse(text), {})


def pairs(f: str) -> Any:
    op = f"lambda a, b: Tuple({f}, a[1] + b[1])"
    return parse(f"fun(lambda x: Zip(x, x) | Reduce({op}, Tuple(0, 0)), i64[8])")


def test_an_operator_of_ones_own_must_keep_the_laws() -> None:
    program = pairs("a[0] + b[0] + a[0] * b[0]")
    (c,) = normalize(program, {}).computations
    assert c.reducer is not None and c.reducer.commutative
    with pytest.raises(InputError, match=r"\(0, 0\) is not neutral"):
        normalize(pairs("a[0] - b[0]"), {})


STARTS: dict[str, str] = {
    "sum": "Reduce(add, 5)",
    "product": "Reduce(mul, 3)",
    "maximum": "Reduce(max, 4)",
    "bits": "Reduce(xor, 5)",
    "scan": "Scan(add, 5)",
    "runs": "PartRed(add, 5, 4)",
    "rows": "Split(4) | Map(Reduce(add, 2)) | Join | Reduce(add, 3)",
    "tree": "Split(4) | Map(Reduce(add, 2)) | Join | Reduce(mul, 3)",
    "columns": "Split(2) | Reduce(lambda a, r: Zip(a, r) | Map(add), Fill(1, 2)) | Join",
    "tuple": "Reduce(lambda a, e: Tuple(a[0] + e, a[1] * e), Tuple(2, 3))",
}


@pytest.mark.parametrize("how", STARTS)
def test_a_start_that_is_not_neutral_counts_once(how: str) -> None:
    program = parse(f"fun(lambda x: x | {STARTS[how]}, i64[8])")
    x = np.array([3, -1, 4, 1, -5, 9, 2, -6])
    wanted = interpret(program, x)
    for target in ("cpu", "interp"):
        for way in (program, parse(repr(program).replace("Reduce(", "ReduceSeq("))):
            got = [np.empty_like(w) for w in wanted]
            lift.build(way, target)(x, *got)
            for one, other in zip(wanted, got, strict=True):
                np.testing.assert_array_equal(one, other)


def test_components_that_need_one_another() -> None:
    """The first component of the next pair reads the second of the last: no sum by itself."""
    steps = "lambda a, e: Tuple(a[0] + a[1], a[1] + e), Tuple(0, 0)"
    x = np.arange(1, 9)
    with pytest.raises(UnsupportedError, match=r"not a combine operator.*ReduceSeq"):
        normalize(parse(f"fun(lambda x: x | Reduce({steps}), i64[8])"), {})
    first, second = (np.empty(1, np.int64) for _ in range(2))
    lift.build(parse(f"fun(lambda x: x | ReduceSeq({steps}), i64[8])"))(
        x, first, second
    )
    assert (first[0], second[0]) == (np.cumsum(x)[:-1].sum(), x.sum())


@pytest.mark.parametrize("op", ["sub", "lambda a, b: a * 2 + b", "lambda a, b: b"])
def test_no_operator_is_believed(op: str) -> None:
    with pytest.raises(InputError, match=r"not (neutral|associative), at") as raised:
        normalize(parse(f"fun(lambda x: x | Reduce({op}, 0), i64[8])"), {})
    assert "ReduceSeq" in str(raised.value.hint)


STENCIL = 'Pad(1, 1, "clamp") >> Slide(3, 1) >> Map(Reduce(add, 0.0)) >> Join'


def test_each_stencil_of_many_is_computed_once():
    """Inlined, 20 stencils would read 3**20 elements for each."""
    program = parse(f"fun(lambda a: a | Iterate(20, {STENCIL}), f32[16])")
    found = normalize(program, {})
    assert len(found.computations) == 20
    assert max(prod(d.extent for d in c.dims) for c in found.computations) == 18 * 3
    a = np.linspace(-1, 1, 16, dtype=np.float32)
    (b,) = found.outputs
    got = evaluate(found.computations, {found.inputs[0]: a})[b]
    np.testing.assert_allclose(got, interpret(program, a)[0], rtol=1e-5)


@pytest.mark.parametrize("inner", ["neg", "lambda e: e * e"])
def test_cheap_elements_of_windows_are_inlined(inner: str):
    program = parse(f"fun(lambda a: a | Map({inner}) | {STENCIL}, f32[16])")
    assert len(normalize(program, {}).computations) == 1


def test_windows_that_do_not_overlap_take_their_elements_once():
    text = f"fun(lambda a: a | {STENCIL} | Slide(2, 2) | Map(Reduce(add, 0.0)) | Join, f32[16])"
    assert len(normalize(parse(text), {}).computations) == 1


def test_a_term_that_shares_its_parts_is_walked_once():
    z: Any = Param("z", None)
    x = z
    for _ in range(40):
        z = z * z + 0.25
    program = fun(lambda a: a | Map(Lambda((x,), z)), f32[4])
    assert key(program) is key(program)
    assert applied(program) is not None
    assert len(repr(program)) < 100
    with pytest.raises(UnsupportedError, match="longer than 20000 nodes in writing"):
        show_lines(program)
    opened = beta(Lambda((x,), z), (Param("y", None),))
    assert x not in set(postorder(opened))
    a = np.linspace(0, 0.4, 4, dtype=np.float32)
    found = normalize(program, {})
    got = evaluate(found.computations, {found.inputs[0]: a})[found.outputs[0]]
    np.testing.assert_allclose(got, interpret(program, a)[0], rtol=1e-6)
    with pytest.raises(UnsupportedError, match="in writing"):
        express.show(found.computations[0])
