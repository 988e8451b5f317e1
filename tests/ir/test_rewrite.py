"""The rule engine: matching, drivers, traces, tracebacks, and rule sets that do not end."""

import linecache

import pytest

from tilewright.base.events import record
from tilewright.expr.nodes import Max, Min, Mul, const, var
from tilewright.expr.patterns import FAMILY, IDX, INT, divides, holes
from tilewright.ir.node import postorder
from tilewright.ir.rewrite import RewriteLoopError, Rule, RuleSet, normalize, tracing
from tilewright.ir.strategy import (
    at_children,
    attempt,
    everywhere,
    otherwise,
    repeat,
    somewhere,
    then,
)

x, y = holes("x y", INT)
c, d = holes("c d", INT, "const")
i, j = var("i"), var("j")


def rules(*rows, name="rules"):
    return RuleSet(name, rows, FAMILY)


SMALL = rules(
    Rule("add-zero", x + 0, x),
    Rule("mul-mul", (x * c) * d, x * (c * d)),
    Rule("div-mul", (x * c) // d, x * (c // d), when=[d > 0, divides(d, c)]),
    name="small",
)


def test_a_row_prints_itself():
    assert (
        str(SMALL.rules[2])
        == "div-mul: x * c // d -> x * (c // d)  when 0 < d and c % d == 0"
    )
    assert str(SMALL).splitlines()[0].split() == ["add-zero", "x", "+", "0", "x"]


def test_bottom_up_to_normal_form():
    assert normalize(((i * 4 + 0) * 6) // 3, SMALL) is i * 8


def test_guards_decide():
    assert SMALL.at_root((i * 4) // 3) is None
    assert SMALL.at_root((i * 4) // const(0)) is None
    assert SMALL.at_root((i * 4) // const(2)) is i * 2


def test_a_repeated_hole_matches_one_node_only():
    same = rules(Rule("sub-self", x - x, const(0, INT)))
    assert same.at_root(i - i) is const(0)
    assert same.at_root(i - j) is None


def test_holes_of_constants_and_of_terms():
    t = holes("t", INT, "term")[0]
    swap = rules(Rule("swap", c + t, t + c))
    assert swap.at_root(const(1) + i) is i + 1
    assert swap.at_root(i + 1) is None
    assert swap.at_root(const(1) + const(2)) is None


def test_the_first_row_wins():
    two = rules(Rule("first", x * 1, x), Rule("second", x * c, const(0, INT)))
    assert two.at_root(i * 1) is i
    assert two.at_root(i * 2) is const(0)
    assert rules(*reversed(two.rules)).at_root(i * 1) is const(0)


def test_commute_expands_the_orders():
    row = Rule("absorb", Min(Max(x, y), x), x, commute=True)
    for e in (
        Min(Max(i, j), i),
        Min(Max(j, i), i),
        Min(i, Max(i, j)),
        Min(i, Max(j, i)),
    ):
        assert rules(row).at_root(e) is i
    plain = Rule("absorb", Min(Max(x, y), x), x)
    assert rules(plain).at_root(Min(i, Max(i, j))) is None


def test_literals_of_the_right_side_take_the_matched_dtype():
    from tilewright.base.dtypes import int8

    twice = rules(Rule("twice", x + x, x * 2))
    k = var("k", int8)
    assert twice.at_root(k + k) is Mul(k, const(2, int8))


def test_sorts_keep_rules_away_from_other_dtypes():
    from tilewright.base.dtypes import float32, int32

    v = var("v", float32)
    assert SMALL.at_root(v + const(0.0, float32)) is None
    a = holes("a", IDX)[0]
    index_only = rules(Rule("halve", (a * 2) // 2, a))
    k = var("k", int32)
    assert index_only.at_root((k * 2) // 2) is None
    assert index_only.at_root((i * 2) // 2) is i


def test_index_rules_leave_loaded_values_alone():
    from tilewright.base.dtypes import int64
    from tilewright.expr.nodes import Buffer

    a = holes("a", IDX)[0]
    values = Buffer("V", (8,), int64)
    assert rules(Rule("halve", (a * 2) // 2, a)).at_root((values[i] * 2) // 2) is None


def test_computed_index_constants_that_overflow_stop_a_rule():
    a, b = holes("a b", IDX, "const")
    k = holes("k", IDX)[0]
    grow = rules(Rule("grow", (k // a) // b, k // (a * b)))
    big = const(1 << 40)
    assert grow.at_root((i // big) // big) is None
    assert grow.at_root((i // 4) // 2) is i // 8


def test_a_right_side_may_be_a_function_that_declines():
    def odd(e):
        return e.lhs if e.rhs.value % 2 else None

    row = rules(Rule("odd", x + c, odd, reason="an example"))
    assert row.at_root(i + 3) is i
    assert row.at_root(i + 2) is None


def test_names_are_unique():
    with pytest.raises(ValueError, match="names used twice: a"):
        rules(Rule("a", x + 0, x), Rule("a", x * 1, x))


def test_tables_add_up():
    more = SMALL + rules(Rule("mul-one", x * 1, x), name="more")
    assert more.name == "small+more"
    assert normalize(i * 1 + 0, more) is i


def test_each_rewrite_is_an_event_where_that_is_asked_for():
    with record() as events:
        normalize((i + 0) * 2 * 3, SMALL)
    assert events == []
    with record() as events, tracing():
        normalize((i + 0) * 2 * 3, SMALL)
    fired = [(e.fields["rule"], e.fields["before"], e.fields["after"]) for e in events]
    assert fired == [("add-zero", "i + 0", "i"), ("mul-mul", "i * 2 * 3", "i * 6")]
    assert {e.kind for e in events} == {"rule"}
    assert {e.fields["set"] for e in events} == {"small"}


def test_compiled_source_is_seen_in_tracebacks():
    def broken(e):
        raise ZeroDivisionError

    one = rules(Rule("broken", x + c, broken, reason="an example"), name="fragile")
    with pytest.raises(ZeroDivisionError) as caught:
        one.at_root(i + 1)
    entry = caught.traceback[-2]
    assert str(entry.path).endswith("<rules fragile: Add>")
    line = linecache.getline("<rules fragile: Add>", entry.lineno + 1)
    assert line.strip() == "found = apply0(e)"


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([Rule("swap", x + y, y + x)], {"swap"}),
        ([Rule("there", x + y, x - y), Rule("back", x - y, x + y)], {"there", "back"}),
        ([Rule("grow", x * y, (x * 1) * y)], {"grow"}),
        ([Rule("wrap", x + y, -(x + y))], {"wrap"}),
    ],
)
def test_rules_that_do_not_end_are_named(rows, names):
    ending = Rule("mul-zero", x * 0, const(0, INT))
    with pytest.raises(RewriteLoopError) as caught:
        normalize((i + j) * j, rules(ending, *rows, name="bad"))
    assert set(caught.value.rules) == names
    assert "rule set bad does not terminate" in str(caught.value)


def test_rules_that_end_after_many_rewrites_are_no_loop():
    count = rules(Rule("down", x + c, x + (c - 1), when=[c > 0]), Rule("end", x + 0, x))
    assert normalize(i + 400, count) is i
    with pytest.raises(RewriteLoopError, match="down"):
        normalize(i + 400, count, generations=300)


def test_decide_is_asked_where_no_rule_matches():
    answer = normalize(
        i * j + 0, SMALL, decide=lambda e: i if isinstance(e, Mul) else None
    )
    assert answer is i


def test_a_memo_is_extended_and_used():
    memo = {}
    normalize(i * 2 * 3, SMALL, memo=memo)
    assert memo[i * 2 * 3] is i * 6
    memo[j] = const(7)
    assert normalize(j + 0, SMALL, memo=memo) is const(7)


def test_a_deep_chain_needs_no_recursion():
    e = i
    for _ in range(20_000):
        e = (e + 0) * j
    result = normalize(e, SMALL)
    assert sum(1 for _ in postorder(result)) == 20_002


STEP = SMALL.at_root


def test_strategies():
    e = ((i + 0) * 2) * 3
    assert then(STEP, STEP)(e) is None
    assert then(STEP)(e) is (i + 0) * 6
    assert otherwise(lambda n: None, STEP)(e) is (i + 0) * 6
    assert attempt(STEP)(i) is i
    assert repeat(STEP)(i + 0 + 0) is i
    assert at_children(STEP)((i + 0) * (j + 0)) is i * j
    assert at_children(STEP)(i * j) is None
    assert everywhere(STEP)(e) is i * 6
    assert everywhere(STEP)(i) is None
    assert somewhere(STEP)(e) is (i * 2) * 3
    assert somewhere(STEP)(i * j) is None


def test_a_strategy_that_is_repeated_for_ever_is_stopped():
    swap = rules(Rule("swap", x + y, y + x)).at_root
    with pytest.raises(RewriteLoopError, match="still applies"):
        repeat(swap, limit=50)(i + j)


def test_patterns_may_use_every_shape_of_node():
    from tilewright.base.dtypes import float32
    from tilewright.expr.nodes import call
    from tilewright.expr.patterns import FLOAT

    g = holes("g", FLOAT)[0]
    row = rules(
        Rule("log-exp", call("log", call("exp", g)), g, reason="an example, not exact")
    )
    v = var("v", float32)
    assert row.at_root(call("log", call("exp", v))) is v
    assert row.at_root(call("log", call("sin", v))) is None
    back = rules(Rule("to-call", -g, call("abs", g)))
    assert back.at_root(-v) is call("abs", v)
