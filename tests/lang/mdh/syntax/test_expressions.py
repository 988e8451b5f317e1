"""What an expression may say, what is refused by name, and what its text may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.base.errors import InputError, UnsupportedError, VerifyError
from tilewright.compute.build import map_
from tilewright.compute.nodes import PS, PW
from tilewright.expr.nodes import Buffer
from tilewright.lang import mdh
from tilewright.lang.mdh import (
    add,
    argmax,
    buffer,
    cast,
    cc,
    float32,
    float64,
    inp_view,
    int64,
    md_hom,
    out_view,
    parse,
    ps,
    pw,
    pw_custom_func,
    select,
    show,
)

max_ = mdh.max

X = inp_view[float32](x=[lambda i, j: (i, j)])
ROW = out_view[float32](y=[lambda i, j: i])


def same(x: Any) -> Any:
    return x


def test_sizes_are_inferred_from_the_accesses() -> None:
    e = (
        out_view[float32](y=[lambda i, k: 2 * i + 1])
        @ md_hom[5, 3](same, (cc, pw(add)))
        @ inp_view[float32](x=[lambda i, k: (3 * i + k, 4)])
    )
    assert [b.shape for b in (*e.inputs, *e.results)] == [(15, 5), (10,)]


def test_inputs_are_in_the_order_of_the_view_not_of_the_function() -> None:
    e = (
        out_view[float32](y=[lambda i: i])
        @ md_hom[5](lambda a, b: b - a, (cc,))
        @ inp_view[float32, float32](a=[lambda i: i], b=[lambda i: i])
    )
    assert [b.name for b in e.inputs] == ["a", "b"]
    y = np.empty(5, np.float32)
    mdh.build(e)(np.full(5, 3, np.float32), np.full(5, 1, np.float32), y)
    assert (y == -2).all()


def test_the_function_form_is_the_same() -> None:
    hom = md_hom[4, 6](same, (cc, pw(add)))
    assert mdh.equal(mdh.mdh(out_view=ROW, md_hom=hom, inp_view=X), ROW @ hom @ X)


def test_dimensions_that_are_not_cc_stand_behind() -> None:
    e = ROW @ md_hom[4, 6](same, (cc, pw(add))) @ X
    turned = (
        out_view[float32](y=[lambda j, i: i])
        @ md_hom[6, 4](same, (pw(add), cc))
        @ inp_view[float32](x=[lambda j, i: (i, j)])
    )
    assert mdh.equal(e, turned)


def test_a_function_may_know_the_dimensions() -> None:
    e = (
        out_view[float32](y=[lambda i: i])
        @ md_hom[6](lambda x, *, i: select(i < 2, 0.0, x), (cc,))
        @ inp_view[float32](x=[lambda i: i - 2])
    )
    assert e.inputs[0].shape == (4,)
    y = np.empty(6, np.float32)
    mdh.build(e)(np.arange(1, 5, dtype=np.float32), y)
    assert y.tolist() == [0, 0, 1, 2, 3, 4]
    assert mdh.equal(parse(show(e)), e)


def test_an_accumulator_may_be_wider_than_the_result() -> None:
    e = ROW @ md_hom[4, 6](lambda x: cast(x, float64), (cc, pw(add))) @ X
    assert e.reducer is not None and e.reducer.dtypes == (float64,)
    assert mdh.equal(parse(show(e)), e)


def test_several_accesses_of_one_result() -> None:
    e = (
        out_view[float32](y=[lambda i: 2 * i, lambda i: 2 * i + 1])
        @ md_hom[3](lambda x: (x, -x), (cc,))
        @ inp_view[float32](x=[lambda i: i])
    )
    y = np.empty(6, np.float32)
    mdh.build(e)(np.array([1, 2, 3], np.float32), y)
    assert y.tolist() == [1, -1, 2, -2, 3, -3]
    assert mdh.equal(parse(show(e)), e)


def test_arguments_of_the_maximum() -> None:
    e = (
        out_view[float32, int64](v=[lambda i, j: i], at=[lambda i, j: i])
        @ md_hom[3, 5](lambda x, *, j: (x, j), (cc, pw(argmax)))
        @ X
    )
    x = np.random.default_rng(0).standard_normal((3, 5), dtype=np.float32)
    v, at = np.empty(3, np.float32), np.empty(3, np.int64)
    mdh.build(e)(x, v, at)
    assert (at == x.argmax(axis=1)).all() and (v == x.max(axis=1)).all()
    assert "pw(argmax)" in show(e)


# -- ill-formed homomorphisms


def test_operators_that_differ_between_dimensions() -> None:
    with pytest.raises(
        VerifyError, match=r"i combines by add, dimension j by max"
    ) as raised:
        out_view[float32](y=[lambda i, j: ()]) @ md_hom[4, 6](
            same, (pw(add), pw(max_))
        ) @ X
    assert raised.value.code == "TW-OPERATOR"


def test_an_operator_that_does_not_commute_over_two_dimensions() -> None:
    first = pw_custom_func(
        lambda a, b: (select(a[1].eq(0), b[0], a[0]), mdh.max(a[1], b[1])),
        identity=(0.0, 0),
        samples=((0.0, 1.0, 2.0), (1,)),
        name="first",
    )
    out = out_view[float32, int64](y=[lambda i, j: ()], n=[lambda i, j: ()])
    one = mdh.const(1, int64)
    with pytest.raises(VerifyError, match="first does not commute"):
        out @ md_hom[4, 6](lambda x: (x, one), (pw(first), pw(first))) @ X
    # Along one dimension it is well formed.
    e = out @ md_hom[4, 1](lambda x: (x, one), (pw(first), pw(first))) @ X
    assert e.reducer is not None and not e.reducer.commutative


def test_an_operator_that_is_not_associative() -> None:
    mean = pw_custom_func(lambda a, b: (a + b) * 0.5, identity=0.0, name="mean")
    with pytest.raises(
        InputError, match=r"operator mean: its identity 0\.0 is not neutral"
    ):
        ROW @ md_hom[4, 6](same, (cc, pw(mean))) @ X
    odd = pw_custom_func(lambda a, b: a + b + a * a * b, identity=0.0, name="odd")
    with pytest.raises(
        InputError, match=r"odd: it is not associative, at -2\.5, -2\.5"
    ):
        ROW @ md_hom[4, 6](same, (cc, pw(odd))) @ X


def test_a_commutativity_that_does_not_hold() -> None:
    left = pw_custom_func(
        lambda a, b: select(mdh.isnan(a), b, a),
        identity=float("nan"),
        commutative=True,
        name="left",
    )
    with pytest.raises(InputError, match=r"left: it does not commute, at"):
        ROW @ md_hom[4, 6](same, (cc, pw(left))) @ X


@pytest.mark.parametrize(
    "function", [lambda a: a, lambda a, b, c: a, 3], ids=["1", "3", "none"]
)
def test_the_function_of_an_operator_takes_two(function: Any) -> None:
    with pytest.raises(InputError, match="function") as raised:
        pw_custom_func(function, identity=0.0)
    assert raised.value.code == "TW-OPERATOR" and raised.value.hint


def test_the_number_of_components() -> None:
    with pytest.raises(
        InputError, match=r"argmax: it combines 2 component\(s\), 1 given"
    ):
        ROW @ md_hom[4, 6](same, (cc, pw(argmax))) @ X


def test_results_that_meet() -> None:
    with pytest.raises(
        VerifyError, match="several points of i, j write one element of y"
    ):
        out_view[float32](y=[lambda i, j: i + j]) @ md_hom[4, 6](same, (cc, cc)) @ X
    with pytest.raises(VerifyError, match="two outputs write one element of y"):
        (
            out_view[float32](y=[lambda i: i, lambda i: i + 1])
            @ md_hom[4](lambda x: (x, x), (cc,))
            @ inp_view[float32](x=[lambda i: i])
        )


def test_a_result_indexed_by_a_reduced_dimension() -> None:
    with pytest.raises(VerifyError, match="y is indexed by j, which is reduced"):
        out_view[float32](y=[lambda i, j: j]) @ md_hom[4, 6](
            same, (pw(add), pw(add))
        ) @ X


def test_a_value_of_another_dtype() -> None:
    with pytest.raises(VerifyError, match="is float64, y float32; cast it"):
        (
            out_view[float32](y=[lambda i: i])
            @ md_hom[4](same, (cc,))
            @ inp_view[float64](x=[lambda i: i])
        )


# -- parts that do not fit


BAD: dict[str, tuple[Any, str]] = {
    "order": (lambda: ROW @ X, r"md_hom\[...\]\(...\) is expected here, not a InpView"),
    "no function": (
        lambda: md_hom[3](3, (cc,)),
        "md_hom mdh: the scalar function is 3",
    ),
    "no-value": (
        lambda: ROW @ md_hom[3, 4](lambda x: None, (cc, pw(add))) @ X,
        "None is not a valid float32",
    ),
    "operators": (lambda: md_hom[4, 6](same, (cc,)), r"2 dimension\(s\), 1 combine"),
    "no operator": (lambda: pw(sum), "not a combine operator"),
    "extent": (lambda: md_hom[4, -1](same, (cc, cc)), "the extent -1 is not a number"),
    "types": (
        lambda: inp_view[float32, float32](x=[same]),
        r"2 type\(s\) in brackets, 1 buffer",
    ),
    "access": (lambda: inp_view[float32](x=3), "an access is a function"),
    "arity": (
        lambda: ROW @ md_hom[4](same, (cc,)) @ inp_view[float32](x=[lambda i: i]),
        r"takes i, j; md_hom has 1 dimension",
    ),
    "function": (
        lambda: ROW @ md_hom[4, 6](lambda a, b: a, (cc, pw(add))) @ X,
        r"cannot be applied to the 1 access",
    ),
    "values": (
        lambda: ROW @ md_hom[4, 6](lambda a: (a, a), (cc, pw(add))) @ X,
        r"returns 2 value\(s\), out_view has 1",
    ),
    "unused": (
        lambda: ROW @ md_hom[4, 6](lambda a: 1.0, (cc, pw(add))) @ X,
        "does not use x",
    ),
    "keyword": (
        lambda: ROW @ md_hom[4, 6](lambda a, *, q: a, (cc, pw(add))) @ X,
        "q is not a dimension: i, j",
    ),
    "negative": (
        lambda: (
            ROW
            @ md_hom[4, 6](same, (cc, pw(add)))
            @ inp_view[float32](x=[lambda i, j: i - j])
        ),
        "the index may be negative",
    ),
    "names": (
        lambda: (
            ROW
            @ md_hom[4, 6](same, (cc, pw(add)))
            @ inp_view[float32](y=[lambda i, j: (i, j)])
        ),
        "two buffers are called y",
    ),
    "dtype": (lambda: inp_view["float99"](x=[same]), "not a known dtype"),
    "outside": (
        lambda: (
            ROW
            @ md_hom[4, 6](same, (cc, pw(add)))
            @ inp_view[buffer(float32, 4, 5)](x=[lambda i, j: (i, j)])
        ),
        r"leaves 0\.\.4",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_refused(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises((InputError, VerifyError), match=message):
        make()


# -- text


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "().__class__",
        "[x for x in (1, 2)]",
        "open",
        "2 ** 99",
        "out_view[float32](y=[lambda i: (i)])",
        "md_hom[",
        "1",
        "lambda: missing",
    ],
)
def test_text_that_is_no_expression(text: str) -> None:
    with pytest.raises(InputError) as raised:
        parse(text)
    assert raised.value.code == "TW-SYNTAX"


def test_stated_shapes_are_printed() -> None:
    e = (
        ROW
        @ md_hom[4, 6](same, (cc, pw(add)))
        @ inp_view[buffer(float32, 9, 6)](x=[lambda i, j: (i, j)])
    )
    assert "inp_view[buffer(float32, 9, 6)]" in show(e)
    assert mdh.equal(parse(show(e)), e)


def test_names_that_python_or_the_notation_has_taken() -> None:
    x, y = Buffer("lambda", (4,), float32), Buffer("max", (4,), float32)
    c = map_("for", y, lambda *i: x[i] + 1.0)
    assert mdh.equal(parse(show(c)), c)


def test_a_checked_read_has_no_form() -> None:
    table, at = Buffer("table", (9,), float32), Buffer("at", (4,), int64)
    c = map_("gather", Buffer("y", (4,), float32), lambda i: table[at[i]])
    with pytest.raises(
        UnsupportedError, match=r"gather: .* an access reads its index from memory"
    ):
        show(c)


def test_scan_prints() -> None:
    e = (
        out_view[float32](y=[lambda i: i])
        @ md_hom[8](same, (ps(add),))
        @ inp_view[float32](x=[lambda i: i])
    )
    assert "(ps(add),)" in show(e) and e.dims[0].combine == PS != PW
