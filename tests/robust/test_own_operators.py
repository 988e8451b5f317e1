"""Definitions of users: what they read and write is proven inside their tensors, or refused."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

import tilewright as tw
from tests.robust.models import FLOAT, INT64, model, node
from tilewright import operators
from tilewright.base.errors import (
    CompileError,
    ExecutionError,
    InputError,
    TilewrightError,
    VerifyError,
)
from tilewright.expr.nodes import INDEX, Var
from tilewright.graph import interp
from tilewright.graph.ops import registry
from tilewright.loops.nodes import Kernel, Store, block, loop
from tilewright.operators import (
    Buffer,
    OpDef,
    cast,
    map_,
    padded,
    reduce_,
    register,
    where,
)

X = np.arange(48, dtype=np.float32).reshape(6, 8)


@pytest.fixture(autouse=True)
def own_definitions(monkeypatch):
    """What a test registers is forgotten after it."""
    registry.registered()
    known = {k: list(v) for k, v in registry._definitions.items()}
    monkeypatch.setattr(registry, "_definitions", known)


def same(op):
    return [(op.dtype(0), op.shape(0))]


def compiled(compute, infer=same, inputs=None):
    """A model of one node `mine`, whose operator `test.own::Mine` is defined so."""
    register(OpDef("Mine", infer, domain="test.own", compute=compute), replace=True)
    inputs = inputs or {"x": (FLOAT, X.shape)}
    source = model(
        [node("Mine", list(inputs), ["y"], "mine", domain="test.own")], inputs
    )
    source.opset_import.append(helper.make_opsetid("test.own", 1))
    return tw.compile(source, cache=False)


def refused(compute, *words, infer=same, error=CompileError):
    with pytest.raises(error) as caught:
        compiled(compute, infer)
    text = str(caught.value)
    assert "node 'mine' (test.own::Mine)" in text and "eport it" not in text
    for word in words:
        assert word in text, text
    return caught.value


OUTSIDE = {
    "far": (lambda x, i, j: x[i + 100_000_000, j],
            "index i + 100000000 of dimension 0 of x takes 100000000 to 100000005"),
    "before": (lambda x, i, j: x[i, j - 1],
               "index j - 1 of dimension 1 of x takes -1 to 6, the extent is 8"),
    "one beyond": (lambda x, i, j: x[i, j + 1], "takes 1 to 8, the extent is 8"),
    "product": (lambda x, i, j: x[i * j, j], "takes 0 to 35, the extent is 6"),
    "transposed": (lambda x, i, j: x[j, i], "index j of dimension 0 of x takes 0 to 7"),
    "half a guard": (lambda x, i, j: where(j > 0, x[i, j - 2], 0), "takes -1 to 5"),
    "wrong arm": (lambda x, i, j: where(j > 0, 0 * x[i, j], x[i, j - 1]), "takes -1 to -1"),
    "inside an index": (lambda x, i, j: x[i, cast(x[i, j + 1], INDEX)], "takes 1 to 8"),
}  # fmt: skip


@pytest.mark.parametrize("case", OUTSIDE)
def test_an_index_that_leaves_its_tensor(case):
    read, words = OUTSIDE[case]
    error = refused(
        lambda op, inputs, outputs: [
            map_("mine", outputs[0], lambda i, j: read(inputs[0], i, j))
        ],
        words,
        "padded(x, index, outside)",
        "where(condition",
    )
    assert error.code == "TW-BOUNDS"


def test_a_window_without_a_guard_and_with_one():
    def window(read):
        return lambda op, inputs, outputs: [
            reduce_(
                "mine",
                outputs[0],
                (3,),
                "add",
                lambda i, j, k: read(inputs[0], i, j + k - 1),
            )
        ]

    refused(
        window(lambda x, i, j: x[i, j]),
        "index j + k - 1 of dimension 1 of x takes -1 to 8",
    )
    wide = np.pad(X, [(0, 0), (1, 1)])
    expected = wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]
    for read in (
        lambda x, i, j: padded(x, (i, j), 0),
        lambda x, i, j: where((j >= 0) & (j < 8), x[i, j], 0),
    ):
        np.testing.assert_array_equal(compiled(window(read))(X), expected)


def test_a_result_written_outside_of_its_tensor():
    refused(
        lambda op, inputs, outputs: [
            map_(
                "mine",
                outputs[0],
                lambda i, j: inputs[0][i, j],
                index=lambda i, j: (i + 1, j),
            )
        ],
        "index i + 1 of dimension 0 of y takes 1 to 6",
    )


INFER = {
    "more rows than compute reads": (
        lambda op: [(op.dtype(0), (12, 8))],
        "takes 0 to 11",
    ),
    "no types": (lambda op: [], "gives 0 types for 1 output"),
    "a name": (lambda op: [("float32", (6, 8))], "'float32' as the element type"),
    "a fraction": (lambda op: [(op.dtype(0), (6.5, 8))], "(6.5, 8)) for output 0"),
    "one number": (lambda op: [(op.dtype(0), 6)], "for output 0"),
    "no pair": (lambda op: op.shape(0), "gives 6 for output 0"),
    "an exception": (
        lambda op: 1 / 0,
        "infer of its definition fails: ZeroDivisionError",
    ),
    "nothing": (lambda op: None, "infer of its definition fails: TypeError"),
    "a negative extent": (lambda op: [(op.dtype(0), (6, -8))], "[6, -8]"),
}


@pytest.mark.parametrize("case", INFER)
def test_a_wrong_infer(case):
    infer, words = INFER[case]
    refused(_copy, words, infer=infer, error=TilewrightError)


def _copy(op, inputs, outputs):
    return [map_("mine", outputs[0], lambda i, j: inputs[0][i, j])]


def _half(op, inputs, outputs):
    return [map_("mine", outputs[0], lambda i, j: inputs[0][i, j], extents=(3, 8))]


def _twice(op, inputs, outputs):
    return [
        map_(
            "mine", outputs[0], lambda i, j: inputs[0][i, j], index=lambda i, j: (0, j)
        )
    ]


def _unwritten(op, inputs, outputs):
    scratch = Buffer("scratch", X.shape, inputs[0].dtype)
    return [map_("mine", outputs[0], lambda i, j: scratch[i, j])]


COMPUTE = {
    "half": (_half, "it writes 24 elements of y, which has 48"),
    "twice": (_twice, "several points of i, j write one element of y"),
    "nothing": (lambda *_: [], "it writes 0 elements of y"),
    "unwritten scratch": (
        _unwritten,
        "scratch is read, but it is neither an operand nor written",
    ),
    "a number": (lambda *_: 5, "its definition fails: TypeError"),
    "numbers": (lambda *_: [5], "5 is neither a Computation nor a Kernel"),
    "too few indices": (
        lambda op, inputs, outputs: [map_("m", outputs[0], lambda i, j: inputs[0][i])],
        "indexed with 1",
    ),
}


@pytest.mark.parametrize("case", COMPUTE)
def test_a_wrong_compute(case):
    compute, words = COMPUTE[case]
    refused(compute, words)


def test_the_interpreter_refuses_what_the_compiler_refuses():
    """NumPy would take -1 for the last element."""
    value = registry.Value("x", registry.DType and tw.dtype_of("float32"), X.shape)
    out = registry.Value("y", value.dtype, X.shape)
    register(
        OpDef(
            "Mine",
            same,
            domain="test.own",
            compute=lambda op, inputs, outputs: [
                map_("mine", outputs[0], lambda i, j: inputs[0][i, j - 1])
            ],
        )
    )
    op = registry.Operation("Mine", (value,), (out,), {}, "test.own", 1, "mine")
    with pytest.raises(CompileError, match="takes -1 to 6"):
        interp.run_natively(op, [X])


@pytest.mark.parametrize("bad", [6, -1, -(2**63), 2**63 - 1])
def test_an_index_from_data_is_checked_where_it_is_used(bad):
    """In a definition it means what it says: a negative one is out of range, too."""
    exe = compiled(
        lambda op, inputs, outputs: [
            map_("mine", outputs[0], lambda i, j: inputs[0][inputs[1][i], j])
        ],
        inputs={"x": (FLOAT, X.shape), "at": (INT64, [6])},
    )
    at = np.array([5, 0, 1, 2, 3, 4])
    np.testing.assert_array_equal(exe(X, at), X[at])
    at[3] = bad
    with pytest.raises(ExecutionError, match=r"'mine'.*out of range"):
        exe(X, at)


# ---------------------------------------------------------------------------- kernels by hand


def _kernel(index, extent=8):
    x, y = (Buffer(n, (8,), tw.dtype_of("float32")) for n in "xy")
    i = Var("i", INDEX)
    body = block(loop(i, extent, Store(y, (i,), x[index(i)])))
    return Kernel("mine", (x, y), (y,), body)


def test_a_kernel_by_hand_that_leaves_its_buffers():
    data = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(
        tw.compile(_kernel(lambda i: 7 - i))(data), data[::-1]
    )
    for kernel in (
        _kernel(lambda i: i + 1),
        _kernel(lambda i: i - 1),
        _kernel(lambda i: i, 9),
    ):
        with pytest.raises(VerifyError, match=r"leaves 0\.\.7 at i = ") as caught:
            tw.compile(kernel)
        assert caught.value.code == "TW-BOUNDS"


def test_a_definition_that_gives_such_a_kernel():
    def kernel(extent):
        def compute(op, inputs, outputs):
            i, j = Var("i", INDEX), Var("j", INDEX)
            store = Store(outputs[0], (i, j), inputs[0][i, j])
            body = loop(i, 6, loop(j, extent, store))
            return [Kernel("mine", (inputs[0], outputs[0]), (outputs[0],), body)]

        return compute

    np.testing.assert_array_equal(compiled(kernel(8))(X), X)
    refused(kernel(9), "leaves 0..7 at", "j = 8")


def test_every_notation_refuses_at_compile_time():
    t, hl = tw.te, tw.halide
    a = t.placeholder((8,), name="A")
    with pytest.raises(TilewrightError, match=r"leaves 0\.\.7"):
        t.build(
            t.create_schedule(t.compute((8,), lambda i: a[i + 1], name="C").op), [a]
        )
    x = hl.Var("x")
    f, image = hl.Func("f"), hl.Buffer(np.zeros(8, np.float32))
    f[x] = image[x + 1]
    with pytest.raises(TilewrightError):
        f.realize([8])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda x: np.sin(x), "tilewright.operators.sin"),
        (lambda x: math.sin(x), "tilewright.operators.sin"),
        (lambda x: np.exp2(x), "tilewright.operators.exp2"),
        (lambda x: abs(x), "tilewright.operators.abs"),
        (lambda x: x**2, "use tilewright.operators.pow, or x * x"),
        (lambda x: getattr(operators, "sine")(x), "Did you mean 'sin'?"),
    ],
    ids="numpy math exp2 abs power spelling".split(),
)
def test_functions_of_numbers_name_those_of_expressions(body, words):
    def compute(call, inputs, outputs):
        return [map_("f", outputs[0], lambda *i: body(inputs[0][i]))]

    refused(compute, words)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            lambda x: where(x == 0, x, 1),
            "the condition is False, no expression. `==` asks",
        ),
        (
            lambda x: where(x.eq(0), 1, 2),
            "1 and 2 have no dtype; write const(1, y.dtype)",
        ),
    ],
    ids="identity numbers".split(),
)
def test_what_where_does_not_take(body, words):
    def compute(call, inputs, outputs):
        return [map_("f", outputs[0], lambda *i: body(inputs[0][i]))]

    refused(compute, words)


def test_either_arm_of_where_is_a_number():
    def compute(call, inputs, outputs):
        x, y = inputs[0], outputs[0]
        return [map_("f", y, lambda *i: where(x[i] > 0, 3, where(x[i] < -1, x[i], 4)))]

    expected = np.where(X > 0, 3, np.where(X < -1, X, 4))
    np.testing.assert_array_equal(compiled(compute)(X), expected)


def test_numbers_of_numpy_are_operands():
    def compute(call, inputs, outputs):
        two = np.float32(2)
        return [map_("f", outputs[0], lambda *i: two * inputs[0][i] - two)]

    np.testing.assert_array_equal(compiled(compute)(X), 2 * X - 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"traits": "pointwise"}, "such as Trait.POINTWISE. Did you mean 'Trait.POI"),
        ({"infre": same}, "OpDef has no argument 'infre'. Did you mean 'infer'?"),
        ({"infer": 3}, "infer is 3, not a function"),
        ({"compute": 3}, "compute is 3, not a function"),
        ({"since": "3"}, "since is '3', not an integer"),
        ({"by_value": 1}, "by_value is 1, not a tuple"),
        ({"op_type": 3}, "op_type is 3, not a string"),
    ],
)
def test_arguments_of_a_definition_are_checked(arguments, words):
    with pytest.raises(InputError) as caught:
        OpDef(**{"op_type": "Mine", "infer": same, **arguments})
    assert words in str(caught.value)


def test_only_definitions_are_registered():
    with pytest.raises(InputError, match="register takes an OpDef, not 'Mine'"):
        register("Mine")


def test_a_definition_can_be_copied():
    definition = OpDef("Mine", same)
    assert replace(definition, since=2).since == 2
    assert copy.copy(definition).infer is same
