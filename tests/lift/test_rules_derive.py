"""Derivations are recorded, printed, replayed and refused with a reason; strategies say where."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tilewright import lift
from tilewright.base.errors import InputError
from tilewright.ir.rewrite import RewriteLoopError
from tilewright.lang.lift import (
    RULES,
    Derivation,
    Get,
    Iterate,
    Join,
    Map,
    Reduce,
    Slide,
    Split,
    Transpose,
    Zip,
    add,
    f32,
    fun,
    i64,
    lengths,
    let,
    mul,
    neg,
    relu,
    sub,
)
from tilewright.lift.lambdas import key, pointfree, same
from tilewright.lift.lengths import Condition
from tilewright.lift.match import Bindings, PatternMismatch, fill, match
from tilewright.lift.nodes import Lambda
from tilewright.lift.nodes import Map as MapNode
from tilewright.lift.rule import RuleError
from tilewright.lift.rules.device import Accelerator
from tilewright.lift.rules.device import rules as device_rules
from tilewright.lift.rules.vocabulary import a, arr, b, c, fn, term
from tilewright.lift.rules.vocabulary import fun as fun_hole
from tilewright.lift.rules.vocabulary import m as m_hole
from tilewright.lift.rules.vocabulary import n as n_hole
from tilewright.lift.strategies import (
    at,
    bottom_up,
    normalize,
    otherwise,
    rule,
    run,
    then,
    top_down,
    try_all,
)


def start(program: object, **options: object) -> Derivation:
    assert isinstance(program, Lambda)
    return lift.derive(program, RULES, **options)  # type: ignore[arg-type]


def text(d: Derivation) -> str:
    """The body of the program on one line."""
    return repr(pointfree(d.program.body))  # type: ignore[attr-defined]


TWO_MAPS = fun(lambda x: x | Map(neg) | Map(relu), f32[12])


# -- derivations


def test_each_step_is_shown_with_what_it_makes() -> None:
    d = start(TWO_MAPS).apply("map-fusion").apply("split-join", m=4)
    assert str(d).splitlines() == [
        "  fun(lambda x: x | Map(neg) | Map(relu), f32[12])",
        "= map-fusion at 1",
        "  fun(lambda x: x | Map(neg >> relu), f32[12])",
        "= split-join, m=4 at 1",
        "  fun(lambda x: x | Split(4) | Map(Map(neg >> relu)) | Join, f32[12])",
    ]


def test_a_derivation_is_saved_loaded_and_replayed_on_another_size() -> None:
    d = start(TWO_MAPS).apply("map-fusion").apply("split-join", m=4)
    again = lift.replay(d.to_json(), RULES)
    assert again.steps == d.steps
    assert same(again.program, d.program)
    wider = lift.replay(
        d.to_json(), RULES, fun(lambda x: x | Map(neg) | Map(relu), f32[32])
    )
    assert text(wider) == text(d)
    narrow = fun(lambda x: x | Map(neg) | Map(relu), f32[10])
    with pytest.raises(
        RuleError, match=r"step 2: rule split-join at 1: m \| n fails: 4 does not"
    ):
        lift.replay(d.to_json(), RULES, narrow)


@pytest.mark.parametrize(
    "broken",
    ["", "[]", '{"steps": 1}', '{"start": "x", "steps": [{"rule": "cut", "at": "a"}]}',
     '{"start": "x", "steps": [{"rule": "cut", "at": "0", "m": "4"}]}'],
    ids=["empty", "list", "number", "path", "size"],
)  # fmt: skip
def test_what_is_no_derivation_is_refused(broken: str) -> None:
    with pytest.raises(InputError, match="this is not a derivation"):
        lift.replay(broken, RULES)


def test_a_refused_step_says_why() -> None:
    d = start(fun(lambda x: x | Map(neg) | Reduce(sub, 0.0), f32[12]))
    with pytest.raises(RuleError, match="5 does not divide 12"):
        d.apply("split-join", m=5)
    with pytest.raises(
        RuleError, match="f associative fails: sub is not known to be associative"
    ):
        d.apply("reduce-split", m=4)
    with pytest.raises(
        RuleError, match=r"no place has the form xs \| Split\(m\) \| Join"
    ):
        d.apply("split-cancel")
    with pytest.raises(RuleError, match="its parameters are m; given: none"):
        d.apply("split-join", at=(1, 1))
    with pytest.raises(InputError, match="there is no rule 'split'"):
        d.apply("split")
    with pytest.raises(InputError, match="has no part 7"):
        d.apply("map-seq", at=(1, 7))


def test_symbolic_lengths_need_the_condition_as_given() -> None:
    (n,) = lengths("n")
    program = fun(lambda x: x | Map(neg), f32[n])
    with pytest.raises(RuleError, match="4 is not known to divide n"):
        start(program).apply("split-join", m=4)
    four = lift.length(4)
    d = start(program, given=(Condition("divides", four, n, ""),)).apply(
        "split-join", m=4
    )
    assert text(d) == "x | Split(4) | Map(Map(neg)) | Join"
    assert str(lift.infer(d.program).conditions[0]) == "4 | n (Split(4))"


def test_a_place_is_chosen_by_its_path() -> None:
    d = start(fun(lambda x, y: Zip(x | Map(neg), y | Map(neg)), f32[8], f32[8]))
    assert text(d.apply("split-join", at=(2, 2), m=4)) == (
        "Zip(x | Map(neg), y | Split(4) | Map(Map(neg)) | Join)"
    )


def test_a_function_that_a_pattern_is_given_is_a_place() -> None:
    d = start(fun(lambda x: x | Map(Map(neg)), f32[4, 8])).apply(
        "split-join", at=(1, 0, 0), m=2
    )
    assert text(d) == "x | Map(Split(2) >> Map(Map(neg)) >> Join)"


def test_nothing_is_rewritten_where_an_iteration_changes_more_than_lengths() -> None:
    nested = start(fun(lambda x: x | Iterate(2, lambda y: Zip(y, y)), f32[8]))
    assert run(try_all(rule("zip-same")), nested).steps == ()
    same_type = start(fun(lambda x: x | Iterate(2, Map(neg)), f32[8]))
    assert text(same_type.apply("map-seq")) == "x | Iterate(2, MapSeq(neg))"


def test_a_let_is_a_place_too() -> None:
    d = start(fun(lambda x: let(x | Map(neg), lambda y: Zip(y, y) | Map(add)), f32[8]))
    d = d.apply("zip-same").apply("split-join", at=(1, 1), m=4)
    (found,) = lift.interpret(d.program, np.ones(8, np.float32))  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, np.full(8, -2, np.float32))
    assert [s.rule for s in d.steps] == ["zip-same", "split-join"]


def test_a_condition_that_needs_numbers_is_refused_on_symbolic_lengths() -> None:
    (n,) = lengths("n")
    table = {**RULES, **device_rules(Accelerator(8, 8, 8, 64))}
    d = lift.derive(
        fun(lambda x, y: Zip(x, y) | Map(add) | Map(relu), f32[n], f32[n]), table
    )
    with pytest.raises(RuleError, match="m is a number fails: n is not a number"):
        d.apply("recognize-VVAdd")


# -- matching


xs, e = term("xs", arr(a, n_hole)), fun_hole("e", a, b, c)


def matched(pattern: object, program: object) -> Bindings:
    found = Bindings()
    match(pattern, start(program).program.body, found)  # type: ignore[attr-defined, arg-type]
    return found


def test_patterns_do_not_see_names_eta_or_compositions() -> None:
    pattern = xs | MapNode(MapNode(fun_hole("f", a, b)))
    for inner in (Map(neg), lambda r: r | Map(lambda x: neg(x))):
        found = matched(pattern, fun(lambda x: x | Map(inner), f32[4, 8]))
        assert repr(found.parts[fun_hole("f", a, b)]) == "neg"


def test_a_hole_takes_nothing_that_the_pattern_binds() -> None:
    ys = term("ys", arr(b, m_hole))
    pattern = xs | MapNode(fn(lambda x: ys | MapNode(fn(lambda y: e(x, y)))))
    fits = fun(lambda x, y: x | Map(lambda p: y | Map(lambda q: p * q)), f32[4], f32[8])
    assert repr(matched(pattern, fits).parts[e]) == "mul"
    escapes = fun(lambda x: x | Map(lambda p: p | Map(lambda q: q + q)), f32[4, 8])
    with pytest.raises(PatternMismatch, match="depends on"):
        matched(pattern, escapes)


def test_one_function_may_stand_for_a_pair_and_for_two_arguments() -> None:
    two = fun(lambda x, y: Zip(x, y) | Map(lambda p, q: p), f32[4], f32[4])
    pair = fun(lambda x, y: Zip(x, y) | Map(Get(0)), f32[4], f32[4])
    for program in (two, pair):
        d = start(program).apply("zip-first").apply("map-identity")
        assert text(d) == "x"


def test_filling_renames_what_it_copies() -> None:
    d = start(fun(lambda x: x | Map(lambda p: p | Map(lambda q: q * q)), f32[8, 4]))
    copied = d.apply("split-unequal", m=3)
    lambdas = {key(part) for part in (d.program, copied.program)}
    assert len(lambdas) == 2
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 4), dtype=np.float32)
    np.testing.assert_array_equal(lift.interpret(copied.program, x)[0], x * x)  # type: ignore[arg-type]


def test_an_unbound_hole_is_named() -> None:
    with pytest.raises(PatternMismatch, match="n is not given"):
        Bindings().size(n_hole)
    with pytest.raises(PatternMismatch, match="xs is not given"):
        fill(xs, Bindings())


# -- strategies


NESTED = fun(lambda x: x | Map(Map(neg)) | Map(Map(relu)), f32[4, 8])


def test_top_down_and_bottom_up_differ_in_the_place() -> None:
    outer, inner = (
        run(walk(rule("map-seq")), start(NESTED)) for walk in (top_down, bottom_up)
    )  # fmt: skip
    assert text(outer) == "x | Map(Map(neg)) | MapSeq(Map(relu))"
    assert text(inner) == "x | Map(Map(neg)) | Map(MapSeq(relu))"


def test_try_all_rewrites_every_place_once_and_always_applies() -> None:
    d = run(try_all(rule("map-seq")), start(NESTED))
    assert text(d) == "x | MapSeq(MapSeq(neg)) | MapSeq(MapSeq(relu))"
    assert run(try_all(rule("split-cancel")), start(NESTED)).steps == ()


@pytest.mark.slow
def test_normalize_goes_on_until_nothing_applies() -> None:
    program = fun(
        lambda x: (
            x | Transpose | Transpose | Split(2) | Join | Map(Map(neg)) | Map(Map(neg))
        ),
        f32[4, 8],
    )
    shorter = normalize(
        otherwise(*map(rule, ("transpose-transpose", "split-cancel", "map-fusion")))
    )
    assert text(run(shorter, start(program))) == "x | Map(Map(neg >> neg))"
    with pytest.raises(RewriteLoopError, match="still applies"):
        run(normalize(rule("zip-swap"), limit=5), start(SWAPS))


SWAPS = fun(lambda x, y: Zip(x, y) | Map(lambda p, q: p - q), i64[4], i64[4])


def test_sequence_choice_and_place() -> None:
    both = then(top_down(rule("map-fusion")), top_down(rule("split-join", m=2)))
    assert len(run(both, start(TWO_MAPS)).steps) == 2
    either = otherwise(top_down(rule("split-cancel")), top_down(rule("map-fusion")))
    assert [s.rule for s in run(either, start(TWO_MAPS)).steps] == ["map-fusion"]
    assert (
        text(run(at((1, 1), rule("map-seq")), start(TWO_MAPS)))
        == "x | MapSeq(neg) | Map(relu)"
    )
    with pytest.raises(RuleError, match="applies nowhere"):
        run(top_down(rule("split-cancel")), start(TWO_MAPS))


# -- whole derivations


def test_overlapped_tiles_of_a_stencil() -> None:
    program = fun(lambda x: x | Slide(3, 1) | Map(Reduce(add, 0.0)) | Join, f32[34])
    d = start(program).apply("map-slide-tiling", u=10, v=8).apply("map-par")
    assert text(d).startswith("x | Slide(10, 8) | MapPar(Slide(3, 1) >> ")
    with pytest.raises(RuleError, match="u - v = size - step fails"):
        start(program).apply("map-slide-tiling", u=18, v=8)
    x = np.random.default_rng(0).standard_normal(34, dtype=np.float32)
    y = np.empty(32, np.float32)
    lift.build(d.program)(x, y)  # type: ignore[arg-type]
    np.testing.assert_allclose(y, x[:-2] + x[1:-1] + x[2:], rtol=1e-5)


def test_unequal_parts() -> None:
    d = start(fun(lambda x: x | Map(neg), f32[10])).apply("split-unequal", m=8)
    assert text(d) == "Concat(x | Take(8) | Map(neg), x | Drop(8) | Map(neg))"
    d = d.apply("split-join", m=4).apply("map-par")
    x, y = np.arange(10, dtype=np.float32), np.empty(10, np.float32)
    lift.build(d.program)(x, y)  # type: ignore[arg-type]
    np.testing.assert_array_equal(y, -x)


def test_a_reduction_on_lanes() -> None:
    program = fun(
        lambda x, y: Zip(x, y) | Map(mul) | Reduce(add, 0.0), f32[64], f32[64]
    )
    d = start(program).apply("reduce-columns", m=8).apply("reduce-map")
    d = run(bottom_up(rule("map-vec")), d)
    x, y = np.random.default_rng(0).standard_normal((2, 64), dtype=np.float32)
    out = np.empty(1, np.float32)
    lift.build(d.program)(x, y, out)  # type: ignore[arg-type]
    np.testing.assert_allclose(out, x @ y, rtol=1e-4)
    assert "in 8 vector" in repr(lift.lower(d.program))  # type: ignore[arg-type]


def test_the_saved_form_is_plain_json() -> None:
    d = start(TWO_MAPS).apply("map-fusion").apply("split-join", m=4)
    assert json.loads(d.to_json())["steps"] == [
        {"rule": "map-fusion", "at": "1"},
        {"rule": "split-join", "at": "1", "m": 4},
    ]
