"""Types of every pattern; errors name the pattern, what it expects and what it found."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.base.errors import InputError
from tilewright.lift.infer import infer
from tilewright.lift.patterns import SCOPE, parse
from tilewright.lift.sizes import named
from tilewright.lift.types import lengths

F32 = "f32[m, n]"
# (body over x: f32[m, n] and v: f32[n], type of the result, conditions)
TYPES = [
    ("x | Map(Map(exp))", "f32[m, n]", ()),
    ("x | Map(Reduce(add, 0.0))", "f32[m, 1]", ()),
    ("x | Map(Scan(add, 0.0))", "f32[m, n]", ()),
    ("x | Map(PartRed(add, 0.0, k))", "f32[m, k]", ("k | n",)),
    ("x | Map(lambda r: Zip(r, v))", "Tup(f32, f32)[m, n]", ()),
    ("x | Map(lambda r: Zip(r, v) | Unzip) | Map(Get(1))", "f32[m, n]", ()),
    ("x | At(0)", "f32[n]", ("1 <= m",)),
    ("x | Split(4)", "f32[m // 4, 4, n]", ("4 | m",)),
    ("x | Split(4) | Join", "f32[m, n]", ("4 | m",)),
    ("x | Join", "f32[m * n]", ()),
    ("v | Slide(3, 1)", "f32[n - 2, 3]", ("3 <= n",)),
    ("v | Slide(4, 2)", "f32[(n - 2) // 2, 4]", ("4 <= n", "2 | n - 4")),
    ("x | Transpose", "f32[n, m]", ()),
    ("Concat(v, v | Take(3))", "f32[n + 3]", ("3 <= n",)),
    ("Concat(v | Take(k), v | Drop(k))", "f32[n]", ("k <= n", "k <= n")),
    ("v | Pad(1, 2, 'clamp')", "f32[n + 3]", ("1 <= n",)),
    ("v | Pad(1, 2, 0.0)", "f32[n + 3]", ()),
    ("v | Gather('reverse') | Scatter('stride', 4)", "f32[n]", ("4 | n",)),
    ("v | asVector(4)", "Vec(f32, 4)[n // 4]", ("4 | n",)),
    ("v | asVector(4) | Map(Vectorize(4, exp)) | asScalar", "f32[n]", ("4 | n",)),
    ("v | Map(f64)", "f64[n]", ()),
    ("x | Iterate(2, Map(Map(neg)))", "f32[m, n]", ()),
    (
        "v | Iterate(2, lambda a: a | Split(2) | Map(Reduce(add, 0.0)) | Join)",
        "f32[n // 4]",
        None,
    ),
    ("Zip(v, Iota(n))", "Tup(f32, i64)[n]", ()),
    ("x | Reduce(lambda a, r: Zip(a, r) | Map(add), Fill(0.0, n))", "f32[1, n]", ()),
    ("x | MapWrg(toLocal(MapLcl(exp, 0)), 0)", "f32[m, n]", ()),
    ("v | MapSeqSlide(Reduce(add, 0.0), 3, 1)", "f32[n - 2, 1]", ("3 <= n",)),
    ("let(v | Map(exp), lambda e: Zip(e, e) | Map(mul))", "f32[n]", ()),
]


def program(body: str) -> object:
    return parse(f"fun(lambda x, v: {body}, f32[m, n], f32[n])")


@pytest.mark.parametrize(
    ("body", "expected", "conditions"), TYPES, ids=[t[0] for t in TYPES]
)
def test_types(body: str, expected: str, conditions: tuple[str, ...] | None) -> None:
    found = infer(program(body))
    assert repr(found.result) == expected
    if conditions is not None:
        assert tuple(str(c).split(" (")[0] for c in found.conditions) == conditions


REFUSED = [
    ("Zip(x, v)", r"Zip: argument 2 has the length n, argument 1 m"),
    ("v | Join", r"Join: expected an array of arrays, found f32\[n\]"),
    ("v[0]", r"Get\(0\): expected a tuple with component 0, found f32\[n\].*At\(i\)"),
    ("x | Map(exp)", r"exp: expected a scalar, found f32\[n\]"),
    ("v | asVector(4) | Map(exp)", r"exp: expected a scalar.*Vectorize"),
    (
        "v | Map(lambda e: e + f64(1.0))",
        r"add: Add: operands are float32 and float64.*f64\(0.0\)",
    ),
    ("v | Reduce(add, 0)", r"operands are int64 and float32"),
    ("v | Reduce(lambda a, e: a < e, 0.0)", r"this has no meaning"),
    (
        "v | Reduce(lambda a, e: lt(a, e), 0.0)",
        r"operator gives bool, the initial value is f32",
    ),
    ("v | Take(4) | Split(3)", r"Split\(3\): 3 does not divide 4"),
    ("v | Take(4) | Drop(5)", r"Drop\(5\): 5 is more than 4"),
    ("Concat(v, x)", r"Concat: argument 2 holds f32\[n\], argument 1 f32"),
    ("v | Pad(1, 1, 0)", r"the value outside is i64, the array holds f32"),
    (
        "v | Pad(1, 1, 'reflect')",
        r"the boundary is 'reflect', not one of clamp, mirror, wrap",
    ),
    ("v | Gather('shuffle')", r"no index function 'shuffle'.*reverse, stride, rotate"),
    ("x | asVector(4)", r"asVector\(4\): expected an array of scalars"),
    ("v | Map(lambda e: Zip(e, e))", r"Zip: expected an array, found f32"),
    ("add(v)", r"add: it takes 2 arguments, found 1"),
    ("x | At(-1)", r"At\(-1\): 0 is more than -1"),
    ("v | Drop(-1)", r"Drop\(-1\): 0 is more than -1"),
    ("v | Take(-1)", r"Take\(-1\): 0 is more than -1"),
    ("v | Split(-2)", r"Split\(-2\): -2 does not divide n"),
    ("v | Iterate(-1, Map(exp))", r"expected a number, 0 or more, found -1"),
]


@pytest.mark.parametrize(("body", "message"), REFUSED, ids=[r[0] for r in REFUSED])
def test_errors(body: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        infer(program(body))


def test_parameters_need_types() -> None:
    with pytest.raises(InputError, match=r"the type of x is not known"):
        infer(SCOPE["fun"](lambda x: SCOPE["Zip"](x, x)))
    with pytest.raises(InputError, match=r"2 types are given for the parameters x"):
        SCOPE["fun"](lambda x: x, SCOPE["f32"], SCOPE["f32"])


@pytest.mark.parametrize("names", ["1a", "a a", "a-b", "for", 3, None], ids=repr)
def test_names_of_lengths(names: Any) -> None:
    with pytest.raises(
        InputError, match=r"length: .* (no length|not a length|twice|not text)"
    ) as raised:
        lengths(names)
    assert raised.value.hint


def test_what_is_no_length_or_size_is_refused() -> None:
    with pytest.raises(InputError, match=r"an array has the length -3"):
        SCOPE["f32"][-3]
    with pytest.raises(InputError, match=r"2\.5 is not a length"):
        SCOPE["f32"][2.5]
    for size in (-3, "3"):
        with pytest.raises(InputError, match=rf"length m: the size {size!r} is none"):
            named(program("x | Map(Map(exp))"), {"m": size})  # type: ignore[dict-item]
