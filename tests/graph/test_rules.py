"""Rules on graphs: what matches, what is refused, and that every row is right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import parser

import tilewright as tw
from tilewright.base import events
from tilewright.base.errors import CompileError, InputError
from tilewright.driver import text
from tilewright.frontends.onnx.load import load
from tilewright.graph import interp
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops import registry as operator_registry
from tilewright.graph.ops.registry import OpDef, Trait
from tilewright.graph.rules import check as checking
from tilewright.graph.rules.attention import ATTENTION_RULE
from tilewright.graph.rules.batchnorm import BATCHNORM
from tilewright.graph.rules.catalog import CATALOG
from tilewright.graph.rules.check import _difference
from tilewright.graph.rules.match import matches
from tilewright.graph.rules.patterns import reals
from tilewright.graph.verify import verify
from tilewright.rules import (
    Attribute,
    LeftOut,
    Match,
    Rule,
    check,
    constants,
    either,
    having,
    maybe,
    one_of,
    onnx,
    operators,
    register,
    registered,
    rewrite,
    tensors,
    unregister,
)

x, y, z = tensors("x y z")
REAL = reals("real")[0]
(c,) = constants("c")
relu = onnx.Relu
TWICE = Rule("relu-twice", relu(relu(x)), relu(x))


def model_of(nodes: str, inputs: str = "float[2, 3] x", out: str = "float out") -> Any:
    opsets = '["" : 21, "com.acme" : 1]'
    return parser.parse_model(
        f"<ir_version: 10, opset_import: {opsets}> f ({inputs}) => ({out}) {{ {nodes} }}"
    )


def graph_of(nodes: str, *ends: str) -> Graph:
    return load(model_of(nodes, *ends))


def kinds(graph: Graph) -> list[str]:
    return [op.qualified for op in graph.operations]


def found(pattern: Any, nodes: str, *ends: str) -> int:
    """In how many ways a pattern matches the operations of a graph."""
    graph = graph_of(nodes, *ends)
    return sum(1 for op in graph.operations for _ in matches(pattern, graph, op))


@pytest.fixture(autouse=True)
def no_rules() -> Iterator[None]:
    yield
    for rule in registered():
        unregister(rule.name)


# ------------------------------------------------------------------------------------ the rows


@pytest.mark.parametrize(
    "instances", [8, pytest.param(60, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize("rule", CATALOG, ids=lambda r: r.name)
def test_every_row_is_right(rule: Rule, instances: int) -> None:
    check(rule, seed=3, instances=instances)


def test_which_rows_may_round_otherwise() -> None:
    """A sum in another order, or in integers; all others must give the same bits."""
    told = {r.name for r in CATALOG if not r.exact}
    assert told == {
        "attention",
        "attention-of-bfloat16",
        "batchnorm-into-conv",
        "conv-of-few-positions-as-product",
        "conv-without-padding-taps",
        "padding-into-convolution",
        "conv-without-what-is-cut",
        "convolution-of-bfloat16",
        "group-norm-by-channels",
        "norm-by-constants",
        "norm-scaled",
        "norm-shifted",
        "sum-of-filters",
        "dequantized-blocks",
        "gathered-matrices-in-panels",
        "packed-blocks",
        "product-in-bytes",
        "product-of-gathered-matrices",
        "product-of-bfloat16",
        "product-of-bytes",
        "product-of-float16",
        *(
            f"layer-norm{form}"
            for form in ("", "-scaled", "-shifted", "-scaled-and-shifted")
        ),
        *(
            f"rms-norm-{form}{scaled}"
            for form in ("by-one-over-it", "divided", "multiplied")
            for scaled in ("", "-and-scaled")
        ),
    }


def test_rows_have_names_of_their_own() -> None:
    assert len({r.name for r in CATALOG}) == len(CATALOG)


def test_rows_print(golden: Any) -> None:
    golden("graph_rules", "\n".join(map(str, CATALOG)))


perm = Attribute("perm", examples=([0, 1], [1, 0]))
axis = Attribute("axis", examples=(0, 1, -1))


def both_matrices(m: Match) -> bool:
    """x and y are matrices"""
    return len(m[x].extents) == len(m[y].extents) == 2


turned = {"perm": [1, 0]}
TURNED = Rule(
    "r",
    onnx.Transpose(x @ y, **turned),
    onnx.Transpose(y, **turned) @ onnx.Transpose(x, **turned),
    exact=False,
)
WRONG = {
    "without end, as a sum commutes": Rule("r", (x + y) + z, x + (y + z), exact=False),
    "a product with a vector turned round": TURNED,
    "another operator": Rule("r", relu(x), onnx.Abs(x)),
    "a transpose without its condition": Rule("r", onnx.Transpose(x, perm=perm), x),
    "a difference turned round": Rule("r", x - y, y - x),
    "zeros of another sign": Rule("r", x + 0, x),
    "a quotient that rounds otherwise": Rule("r", x / y, x * onnx.Reciprocal(y)),
    "half of what overflows": Rule("r", (REAL + REAL) * 0.5, REAL),
    "infinity times zero": Rule("r", x * 0, x - x),
    "a softmax of any axis": Rule(
        "r", onnx.Softmax(x, axis=axis), onnx.Softmax(x, axis=-1)
    ),
    "a default that is none": Rule(
        "r", onnx.Gelu(x, approximate=LeftOut("tanh")), onnx.Gelu(x, approximate="tanh")
    ),
    "a type that is not kept": Rule("r", onnx.Flatten(x), x, keeps_type=True),
    "an infinity times zero": Rule("r", x * z + y * z, (x + y) * z, exact=False),
    "far beyond rounding": Rule("r", onnx.Sigmoid(x), onnx.HardSigmoid(x), exact=False),
    "operands that may be left out": Rule(
        "r", onnx.Clip(x, maybe(c)), onnx.Max(x, 0), exact=False
    ),
    "a function that forgets": replace(
        BATCHNORM, name="r", replacement=lambda m, f: f.op("Relu", m.root.inputs[0])
    ),
    "a function that fails": Rule(
        "r", relu(x), lambda m, f: f.op("MatMul", m[x], m[x])
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_refused_with_a_counterexample(name: str) -> None:
    with pytest.raises(
        InputError, match=r"rule 'r': it (is wrong|fails) on .* with "
    ) as caught:
        register(WRONG[name])
    assert caught.value.code == "TW-RULE"
    if "wrong" in caught.value.message:
        told_to_round = "or exact=False" in str(caught.value.hint)
        assert told_to_round == WRONG[name].exact
    assert registered() == ()


RIGHT = {
    "a factor drawn out": Rule("r", x * z + y * z, (x + y) * z, exact=False, finite=True),
    "a sign drawn out": Rule("r", -x * y, -(x * y)),
    "the same twice": Rule("r", onnx.Max(x, x), x),
    "a product with one": Rule("r", x * 1, x),
    "a power": Rule("r", REAL**2, REAL * REAL),
    "a root of a product": Rule("r", onnx.Sqrt(x) * onnx.Sqrt(x), onnx.Abs(x), exact=False,
                                samples=lambda rng: {x: rng.uniform(0, 2, (3, 4)).astype("f")}),
    "a matrix product turned round": replace(TURNED, when=[both_matrices]),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_rule_is_taken(name: str) -> None:
    register(RIGHT[name])
    assert registered() == (RIGHT[name],)


def test_a_rule_that_nothing_can_be_tried_on_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checking, "DRAWS", 300)
    never = Rule("never", relu(x), x, when=[lambda m: False])
    with pytest.raises(
        InputError, match=r"applied to 0 of 300 random instances.*samples"
    ):
        register(never)


def test_a_name_is_taken_once() -> None:
    register(TWICE)
    with pytest.raises(InputError, match="registered already"):
        register(TWICE)
    unregister("relu-twice")
    with pytest.raises(InputError, match="no rule 'relu-twice'"):
        unregister("relu-twice")


def test_what_the_replacement_reads_must_be_in_the_pattern() -> None:
    with pytest.raises(InputError, match="y of its replacement is not in its pattern"):
        Rule("r", relu(x), onnx.Abs(y))
    with pytest.raises(InputError, match="applies no operator"):
        Rule("r", x, relu(x))
    with pytest.raises(InputError, match="not an operand"):
        relu("x")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"when": lambda m: True}, "when is one function; give a list of them"),
        (
            {"when": [lambda m: m.arr(x)]},
            r"a condition fails at node '.*' \(Relu\): AttributeError: .* 'arr'",
        ),
        ({"replacement": lambda m, f: 3}, "its replacement gives 3, not a value"),
        (
            {"replacement": lambda m, f: [3, 4]},
            r"its replacement gives \[3, 4\], not a value",
        ),
    ],
    ids="condition failing number list".split(),
)
def test_functions_of_a_rule_that_are_wrong_are_named(
    parts: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=rf"rule 'r'.*{words}"):
        register(Rule(**{"name": "r", "pattern": relu(x), "replacement": x, **parts}))


# -------------------------------------------------------------------------------------- matching


def test_an_operator_is_one_of_its_domain() -> None:
    with pytest.raises(
        InputError, match=r"no operator 'Reluu' of ONNX.*Did you mean 'Relu'"
    ):
        _ = onnx.Reluu
    with pytest.raises(InputError, match=r"no operator 'Relu' of domain 'com\.acme'"):
        _ = operators("com.acme").Relu
    own = OpDef(
        "Relu",
        lambda call: [(call.dtype(0), call.shape(0))],
        "com.acme",
        reference=lambda call, a: [-a],
    )
    operator_registry.register(own)
    try:
        nodes = "a = com.acme.Relu(x) out = com.acme.Relu(a)"
        assert found(relu(relu(x)), nodes) == 0
        mine = operators("com.acme").Relu
        assert found(mine(mine(x)), nodes) == 1
        assert found(mine(mine(x)), "a = Relu(x) out = com.acme.Relu(a)") == 0
        back = Rule("there-and-back", mine(mine(x)), x)
        register(back)
        graph = graph_of("a = com.acme.Relu(x) b = com.acme.Relu(a) out = Abs(b)")
        assert kinds(rewrite(graph, [back])) == ["Abs"]
        assert str(back) == "there-and-back: com.acme::Relu(com.acme::Relu(x)) => x"
    finally:
        del operator_registry._definitions["com.acme", "Relu"]


TWO = "float[2, 3] x, float[2, 3] y"
TURN = "Transpose<perm = [1, 0]>"
ONE_TURNED = onnx.Transpose(x, perm=perm) @ onnx.Transpose(y, perm=perm)
BOTH_TURNED = onnx.Transpose(x, perm=perm) + onnx.Transpose(y, perm=perm)
MATCHES = [
    (x + c, "c = Constant<value_float = 2.0>() out = Add(c, x)", 1),
    (x - c, "c = Constant<value_float = 2.0>() out = Sub(c, x)", 0),
    (x + x, "out = Add(x, y)", 0),
    (x + x, "out = Add(x, x)", 2),
    (x * 2, "c = Constant<value_float = 2.0>() out = Mul(x, c)", 1),
    (x * 2, "c = Constant<value_float = 3.0>() out = Mul(x, c)", 0),
    (onnx.Clip(x, maybe(y), maybe(z)), "out = Clip(x)", 1),
    (onnx.Clip(x), "c = Constant<value_float = 2.0>() out = Clip(x, c)", 0),
    (onnx.Clip(x, ...), "c = Constant<value_float = 2.0>() out = Clip(x, , c)", 1),
    (onnx.Softmax(x), "out = Softmax<axis = 0>(x)", 0),
    (onnx.Softmax(x).with_attributes(), "out = Softmax<axis = 0>(x)", 1),
    (onnx.Softmax(x, axis=LeftOut(-1)), "out = Softmax<axis = -1>(x)", 1),
    (onnx.Softmax(x, axis=LeftOut(-1)), "out = Softmax(x)", 1),
    (onnx.Softmax(x, axis=-1), "out = Softmax(x)", 0),
    (either(relu(x), onnx.Abs(x)) + y, "a = Abs(x) out = Add(y, a)", 1),
    (one_of(relu, onnx.Abs)(x), "out = Abs(x)", 1),
    (having(Trait.IDEMPOTENT)(x), "a = Abs(x) out = Neg(a)", 1),
    (BOTH_TURNED, f"a = {TURN}(x) b = {TURN}(y) out = Add(a, b)", 2),
    (BOTH_TURNED, f"a = {TURN}(x) b = Transpose(y) out = Add(a, b)", 0),
    (
        ONE_TURNED,
        f"a = {TURN}(x) b = Transpose<perm = [0, 1]>(y) out = MatMul(a, b)",
        0,
    ),
    (relu(onnx.Abs(x)), "a = Abs(x) b = Relu(a) out = Add(a, b)", 1),
    (relu(onnx.Abs(x).once()), "a = Abs(x) b = Relu(a) out = Add(a, b)", 0),
    (relu(onnx.Abs(x).once()), "a = Abs(x) out = Relu(a)", 1),
]


@pytest.mark.parametrize(("pattern", "nodes", "count"), MATCHES, ids=str)
def test_matches(pattern: Any, nodes: str, count: int) -> None:
    assert found(pattern, nodes, TWO) == count


def test_other_results_that_are_read_keep_an_operation() -> None:
    wide = "float[2, 6] x"
    both = "a, b = Split<axis = 1>(x) out = Add(a, b)"
    assert found(onnx.Split(x, ...).with_attributes(), both, wide) == 0


def test_what_leaves_the_graph_is_not_read_once() -> None:
    nodes, outs = "a = Abs(x) out = Relu(a)", "float[2, 3] a, float[2, 3] out"
    assert found(relu(onnx.Abs(x).once()), nodes, TWO, outs) == 0


# --------------------------------------------------------------------------------------- driving


def test_rules_apply_until_none_does() -> None:
    graph = graph_of("a = Relu(x) b = Relu(a) c = Relu(b) d = Relu(c) out = Neg(d)")
    with events.record() as log:
        after = rewrite(graph, [TWICE])
    verify(after)
    assert kinds(after) == ["Relu", "Neg"]
    fired = [e.fields for e in log if e.kind == "rule"]
    assert {(f["set"], f["rule"]) for f in fired} == {("graph", "relu-twice")}
    assert rewrite(after, [TWICE]) is after


def test_what_leaves_the_graph_keeps_its_value() -> None:
    graph = graph_of("a = Neg(x) out = Neg(a)")
    after = rewrite(graph, [Rule("neg-twice", -(-x), x)])
    verify(after)
    assert kinds(after) == ["Identity"]
    given = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(interp.evaluate(after, {"x": given})["out"], given)


def test_what_a_subgraph_reads_keeps_its_value() -> None:
    body = "g () => (float[2, 3] r) { r = Relu(a) }"
    graph = graph_of(
        f"b = Relu(x) a = Relu(b) out = If(k) <then_branch = {body}, else_branch = {body}>",
        "float[2, 3] x, bool k",
    )
    after = rewrite(graph, [TWICE, Rule("relu-of-input", relu(x), x, keeps_type=True)])
    given = {"x": -np.ones((2, 3), np.float32), "k": np.array(True)}
    verify(after)
    assert (interp.evaluate(after, given)["out"] <= 0).all()


def test_an_operation_takes_part_in_one_match() -> None:
    """Two attentions in a row that share a product."""
    graph = graph_of(
        "s = MatMul(x, k) p = Softmax(s) o = MatMul(p, v) r = Softmax(o) out = MatMul(r, w)",
        "float[2, 3] x, float[3, 4] k, float[4, 5] v, float[5, 3] w",
    )
    with events.record() as log:
        after = rewrite(graph, [ATTENTION_RULE])
    verify(after)
    assert sum(e.kind == "rule" for e in log) == 1
    assert kinds(after).count("tilewright::Attention") == 1


def test_inner_results_that_others_read_stay() -> None:
    graph = graph_of("a = Relu(x) b = Relu(a) out = Add(a, b)")
    assert kinds(rewrite(graph, [TWICE])) == ["Relu", "Relu", "Add"]


def test_types_must_agree() -> None:
    narrow = Rule("cast-away", onnx.Cast(x).with_attributes(), x)
    graph = graph_of(
        "a = Cast<to = 11>(x) out = Abs(a)", "float[2, 3] x", "double[2, 3] out"
    )
    assert rewrite(graph, [narrow]) is graph


def test_a_rule_without_end_is_named() -> None:
    around = Rule("turn", x + y, y + x)
    graph = graph_of("out = Add(x, y)", TWO)
    with pytest.raises(
        CompileError, match=r"rule 'turn': it does not terminate"
    ) as caught:
        rewrite(graph, [around])
    assert caught.value.code == "TW-RULE"
    with pytest.raises(InputError, match="does not terminate"):
        register(around)
    there, back = Rule("there", x - y, x + -y), Rule("back", x + -y, x - y)
    with pytest.raises(CompileError, match=r"or back|or there"):
        rewrite(graph_of("out = Sub(x, y)", TWO), [there, back])


# ------------------------------------------------------------------------------------- compiling


def test_a_registered_rule_takes_part_in_a_compilation() -> None:
    """Also of a model whose compiled form is in the cache."""
    source = model_of("a = Log(x) b = Exp(a) out = Neg(b)").SerializeToString()
    given = np.array([[1.1, 2.3, 3.7], [4.9, 5.3, 61]], np.float32)

    def compiled(math: Any = "default") -> tuple[bool, Any]:
        shown = text(source, "graph", math=math)
        return "Log(" in shown, tw.compile(source, threads=1, math=math)(given)

    shown, before = compiled()
    assert shown and not np.array_equal(before, -given)
    register(
        Rule(
            "exp-of-log",
            onnx.Exp(onnx.Log(x)),
            x,
            exact=False,
            samples=lambda rng: {x: rng.uniform(0.1, 2, 7).astype("f")},
        )
    )
    shown, after = compiled()
    assert not shown and np.array_equal(after, -given)
    assert compiled("exact")[0]
    unregister("exp-of-log")
    shown, again = compiled()
    assert shown and np.array_equal(again, before)


NUMBERS = np.float32([1.0, np.nan, -0.0, np.inf])


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("at", "other"), [(0, np.nan), (1, 1.0), (3, -np.inf), (0, 1.1)]
)
def test_a_number_for_none_and_none_for_a_number_are_told(
    exact: bool, at: int, other: float
) -> None:
    got = NUMBERS.copy()
    assert _difference(NUMBERS, got, exact) is None
    got[at] = other
    told = _difference(NUMBERS, got, exact)
    assert told is not None and told.startswith(f"at ({at},)")


def test_a_value_of_unknown_type_is_not_known_to_be_real() -> None:
    given, made = Value("given"), Value("made")
    graph = Graph("g", (given,), (made,), (Operation("Neg", (given,), (made,)),))
    (anything,), (real,) = tensors("t"), reals("t")
    (op,) = graph.operations
    assert len(list(matches(onnx.Neg(anything), graph, op))) == 1
    assert not list(matches(onnx.Neg(real), graph, op))


def test_integers_are_tried_where_they_overflow():
    """A square that overflows may be negative, so that its absolute is another."""
    rule = Rule("r", onnx.Abs(x * x), x * x)
    with pytest.raises(InputError, match="it is wrong on"):
        check(rule)
    check(Rule("r", onnx.Abs(REAL * REAL), REAL * REAL))
