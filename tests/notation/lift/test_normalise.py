"""Programs as Computations: the form of each pattern, and stages where there must be some."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.base.errors import InputError, UnsupportedError
from tilewright.compute.check import check
from tilewright.compute.interp import evaluate
from tilewright.notation.lift.interp import interpret
from tilewright.notation.lift.normalise import Normal, normalise
from tilewright.notation.lift.patterns import parse

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


def normal(name: str) -> Normal:
    return normalise(parse(PROGRAMS[name]), {}, name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_form_and_meaning(name: str, golden) -> None:
    found = normal(name)
    golden(f"lift_{name}", "\n".join(map(repr, found.computations)))
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-4, 5, b.shape).astype(b.dtype.numpy) for b in found.inputs]
    for c in found.computations:
        check(c)
    got = evaluate(found.computations, dict(zip(found.inputs, arrays, strict=True)))
    for b, want in zip(found.outputs, interpret(parse(PROGRAMS[name]), *arrays), strict=True):
        np.testing.assert_allclose(got[b], want, rtol=1e-6)


@pytest.mark.parametrize("rest", ["Reduce(add, 0.0)", "Map(id) | Reduce(add, 0.0)"])
def test_a_reduction_of_reductions_is_one(rest: str) -> None:
    program = parse(f"fun(lambda A, v: {TILED.format(rest)}, f32[4, 6], f32[6])")
    (c,) = normalise(program, {}).computations
    assert [d.combine for d in c.dims] == ["cc", "cc", "pw", "pw"]


def test_moving_data_leaves_no_trace() -> None:
    twice = "Gather('reverse') | Gather('reverse')"
    text = f"fun(lambda x: x | Split(4) | Map(Map(exp)) | Join | {twice}, f32[8])"
    plain = normalise(parse("fun(lambda x: x | Map(exp), f32[8])"), {})
    moved = normalise(parse(text), {})
    assert repr(moved.computations) == repr(plain.computations)


def test_a_fold_that_combines_nothing_is_refused() -> None:
    text = "fun(lambda x: x | Reduce(lambda a, e: a * 2.0 + exp(e), 0.0), f32[8])"
    with pytest.raises(InputError, match=r"not neutral|not associative") as error:
        normalise(parse(text), {})
    assert error.value.code == "TW-LIFT-LAW"
    text = "fun(lambda x: x | Reduce(lambda a, e: i64(e) + a * a, 0), f32[8])"
    with pytest.raises(UnsupportedError, match=r"no combine operator.*ReduceSeq"):
        normalise(parse(text), {})


def pairs(f: str) -> Any:
    op = f"lambda a, b: Tuple({f}, a[1] + b[1])"
    return parse(f"fun(lambda x: Zip(x, x) | Reduce({op}, Tuple(0, 0)), i64[8])")


def test_an_operator_of_ones_own_must_keep_the_laws() -> None:
    program = pairs("a[0] + b[0] + a[0] * b[0]")
    (c,) = normalise(program, {}).computations
    assert c.reducer is not None and c.reducer.commutative
    with pytest.raises(InputError, match=r"\(0, 0\) is not neutral"):
        normalise(pairs("a[0] - b[0]"), {})
