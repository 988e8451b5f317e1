"""The dot product of Steuwer et al. (CGO 2017, listing 1), derived from `reduce` and `map`.

Places are named by what is there, so that the same lines derive it for any length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import lift
from tilewright.base.errors import InputError
from tilewright.lang.lift import (
    Concat,
    Gather,
    Iterate,
    Join,
    Map,
    MapLcl,
    Reduce,
    ReduceSeq,
    Split,
    Transpose,
    Zip,
    add,
    f32,
    fun,
    i64,
    lengths,
    mul,
    neg,
    relu,
    sub,
)
from tilewright.lift.derive import Derivation, derive, replay
from tilewright.lift.lengths import Condition
from tilewright.lift.rule import Rule, RuleError
from tilewright.lift.rules import RULES
from tilewright.lift.rules.vocabulary import a, arr, b, term
from tilewright.lift.rules.vocabulary import fun as function
from tilewright.lift.rules.vocabulary import n as size
from tilewright.lift.strategies import (
    all_places,
    argument,
    below,
    body,
    innermost,
    matches,
    otherwise,
    outermost,
    repeat,
    rule,
    run,
    then,
)

(N,) = lengths("n")
LISTING = """
fun(
  lambda x, y:
    Zip(x, y)
    | Split(128)
    | MapWrg(
      Split(2)
      >> MapLcl(ReduceSeq(lambda acc, x2: acc + mul(x2), 0.0) >> toLocal(MapSeq(id)), 0)
      >> Join
      >> Iterate(6, Split(2) >> MapLcl(ReduceSeq(add, 0.0) >> toLocal(MapSeq(id)), 0) >> Join)
      >> Split(1)
      >> toGlobal(MapLcl(MapSeq(id), 0))
      >> Join,
      0,
    )
    | Join
    | ReduceSeq(add, 0.0),
  f32[512],
  f32[512],
)"""


def dot(n: Any, of: Any = f32, zero: Any = 0.0, op: Any = add) -> Any:
    return fun(lambda x, y: Zip(x, y) | Map(mul) | Reduce(op, zero), of[n], of[n])


def split_products(size: int) -> Any:
    """A sum of products as sums of `size` of them, and the sum of these."""
    parts = outermost(Reduce, rule("reduce-split", m=size))
    products = outermost(Split(size), rule("map-split"))
    return then(parts, products, outermost(Map, rule("map-fusion")))


def published(halvings: int = 6) -> Any:
    """All steps, for groups of `2 ** (halvings + 1)` products."""
    halves = then(split_products(2), rule("reduce-iterate", m=2, k=halvings))
    leaves = then(rule("copy"), rule("split-join", m=1))
    fused = then(
        argument(rule("map-seq")), rule("reduce-seq"), rule("reduce-map-fusion")
    )
    group = then(halves, leaves, outermost(Map, body(fused)))
    threads = repeat(outermost(Map, rule("map-lcl", d=0)))
    loops = otherwise(rule("reduce-seq"), matches(ReduceSeq))
    local = then(loops, rule("copy"), rule("map-seq"), rule("to-local-seq"))
    return then(
        split_products(2 ** (halvings + 1)),
        outermost(Map, body(group)),
        outermost(Map, then(rule("map-wrg", d=0), body(threads))),
        all_places(then(matches(MapLcl), body(local))),
        outermost(MapLcl, then(body(rule("map-seq")), rule("to-global-lcl"))),
        outermost(Reduce, rule("reduce-seq")),
    )


def derived(program: Any, halvings: int = 6, given: Any = ()) -> Derivation:
    return run(published(halvings), derive(program, RULES, given))


def test_the_published_program_is_derived() -> None:
    d = derived(dot(512))
    assert len(d.steps) == 26
    assert lift.show(d.program) == lift.show(lift.parse(LISTING))
    assert replay(d.to_json(), RULES).steps == d.steps
    assert lift.show(replay(d.to_json(), RULES, dot(1024)).program) == (
        lift.show(d.program).replace("512", "1024")
    )


def test_lengths_may_be_open() -> None:
    known = Condition("divides", lift.length(128), N, "")
    d = derived(dot(N), given=(known,))
    assert lift.show(d.program) == lift.show(derived(dot(512)).program).replace(
        "512", "n"
    )


@pytest.mark.parametrize(("halvings", "length"), [(0, 6), (1, 4), (2, 24), (6, 256)])
def test_it_computes_the_same(halvings: int, length: int) -> None:
    program = dot(length, i64, 0)
    d = derived(program, halvings)
    x, y = np.random.default_rng(0).integers(-9, 9, (2, length))
    out = np.empty(1, np.int64)
    lift.build(lift.lower(d.program, target="opencl"), "interp")(x, y, out)
    assert out[0] == x @ y == lift.interpret(d.program, x, y)[0][0]


def test_memory_that_threads_share_is_that_of_the_map() -> None:
    """`MapLcl(... toLocal(MapSeq(id)))` writes one array, which all threads read."""
    text = repr(lift.lower(derived(dot(256)).program, target="opencl"))
    assert "float32[32, 2] in shared" in text and text.count("in shared") == 7
    assert "stack" not in text


@pytest.mark.parametrize(
    ("program", "halvings"),
    [
        (dot(192), 6),  # 128 does not divide 192
        (dot(512, i64, 0, sub), 6),  # not associative
        (dot(512, i64, 1), 6),  # 1 is not neutral
    ],
)
def test_a_condition_that_fails_is_a_refusal(program: Any, halvings: int) -> None:
    with pytest.raises(RuleError, match="applies nowhere"):
        derived(program, halvings)


@pytest.mark.parametrize(("m", "k"), [(2, 2), (2, 4), (3, 2), (0, 1)])
def test_only_a_power_is_halved_to_one(m: int, k: int) -> None:
    program = fun(lambda x: x | Reduce(add, 0), i64[8])
    with pytest.raises(RuleError, match=f"8 is not {m} to the power {k}"):
        derive(program, RULES).apply("reduce-iterate", m=m, k=k)


# -- places


def test_a_place_is_followed_through_lambdas_that_come_and_go() -> None:
    rows = fun(lambda x: x | Map(Map(neg)), i64[4, 6])
    split_and_back = body(
        then(rule("split-join", m=2), rule("map-join"), below(rule("split-cancel")))
    )
    d = run(outermost(Map, split_and_back), derive(rows, RULES))
    assert [s.rule for s in d.steps] == ["split-join", "map-join", "split-cancel"]
    assert lift.show(d.program) == lift.show(rows)
    again = run(
        outermost(Map, then(split_and_back, body(rule("map-seq")))), derive(rows, RULES)
    )
    assert "Map(MapSeq(neg))" in lift.show(again.program)


def test_places_are_found_by_their_form() -> None:
    program = fun(lambda x: x | Transpose | Map(Map(neg)) | Map(Map(relu)), i64[4, 6])
    d = derive(program, RULES)
    inner = innermost(Map, rule("map-seq"))
    assert "Map(Map(neg)) | Map(MapSeq(relu))" in lift.show(run(inner, d).program)
    outer = outermost(Map, rule("map-seq"))
    assert "Map(Map(neg)) | MapSeq(Map(relu))" in lift.show(run(outer, d).program)
    first = outermost(Map, argument(rule("map-seq")))
    assert "MapSeq(Map(neg)) | Map(Map(relu))" in lift.show(run(first, d).program)
    under = outermost(Map, body(rule("map-seq")))
    assert "Map(Map(neg)) | Map(MapSeq(relu))" in lift.show(run(under, d).program)
    xs = term("xs", arr(a, size))
    pairs = xs | Map(function("f", a, b)) | Map(function("g", b, a))
    assert len(run(outermost(pairs, rule("map-fusion")), d).steps) == 1
    for form in (Reduce, Split(2), Join, term("xs", a) | Gather("reverse")):
        with pytest.raises(RuleError, match="applies nowhere"):
            run(outermost(form, rule("map-seq")), d)
    with pytest.raises(InputError, match="is not the form of a place"):
        matches("Reduce")


def test_rules_apply_inside_of_an_iteration_that_changes_lengths() -> None:
    halve = Split(2) >> Map(Reduce(add, 0)) >> Join
    program = fun(lambda x: x | Iterate(3, halve), i64[8])
    d = derive(program, RULES).apply("reduce-seq").apply("map-seq")
    assert "Iterate(3, Split(2) >> MapSeq(ReduceSeq(add, 0)) >> Join)" in (
        lift.show(d.program)
    )
    xs = term("xs", arr(a, size))
    f = function("f", a, b)
    longer = xs | Map(f) | Gather("rotate", size)
    needs = Rule("needs", xs | Map(f), longer | Gather("rotate", -size))
    with pytest.raises(RuleError, match="a length of one iteration"):
        derive(program, {"needs": needs}).apply("needs")
    grows = fun(lambda x: x | Iterate(2, lambda y: Concat(y, y | Map(neg))), i64[2])
    assert "MapSeq(neg)" in lift.show(derive(grows, RULES).apply("map-seq").program)
    pairs = fun(lambda x: x | Iterate(2, lambda y: Zip(y, y)), i64[4])
    assert derive(pairs, RULES).start is not None  # of more and more components
    with pytest.raises(RuleError):
        derive(pairs, RULES).apply("map-seq")
