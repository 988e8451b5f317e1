"""Groups that read one tensor at the same points: when they become one, and when not."""

from __future__ import annotations

from collections.abc import Sequence
from string import Template
from typing import Any

import numpy as np
import onnx.parser
import onnx.reference
import pytest

import tilewright as tw
from tilewright.base import events
from tilewright.base.dtypes import float32
from tilewright.base.errors import VerifyError
from tilewright.compute.build import map_, reduce_
from tilewright.compute.interp import run
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Operation
from tilewright.loops.nodes import Kernel, block
from tilewright.plan.nodes import FusionGroup, HostFallback, Step
from tilewright.plan.passes.siblings import merge_siblings
from tilewright.plan.verify import verify_steps
from tilewright.targets.registry import target

ROWS, COLUMNS = 6, 24
X, Y, Z = (Buffer(n, (ROWS, COLUMNS), float32) for n in "xyz")
S, T = (Buffer(n, (ROWS,), float32) for n in "st")
U, V = (Buffer(n, (ROWS, COLUMNS), float32) for n in "uv")
COSTS = target("cpu", "x86-64-v3").plan_costs
POINT, TOP = Buffer("point", (), float32), Buffer("top", (), float32)
LONG, FAR = (Buffer(n, (2, 1 << 17), float32) for n in ("long", "far"))
FEW = Buffer("few", (2,), float32)
SQUARE = Buffer("square", (COLUMNS, COLUMNS), float32)
W = Buffer("w", (COLUMNS,), float32)


def free(group: Sequence[Computation], constants: Any = ()) -> float | None:
    """One kernel takes as long as any other."""
    return 0.0


def stage(c: Computation) -> FusionGroup:
    return FusionGroup(c.name, (c,), (c.name,))


def total(
    out: Buffer, x: Buffer, op: str = "add", extent: int = COLUMNS
) -> FusionGroup:
    return stage(reduce_(f"{op}_{out.name}", out, (extent,), op, lambda i, k: x[i, k]))


def scaled(out: Buffer, x: Buffer, by: float = 2.0) -> FusionGroup:
    return stage(map_(f"scaled_{out.name}", out, lambda i, j: x[i, j] * by))


def merged(
    steps: Sequence[Step], given: Sequence[Buffer] = (X,), cost: Any = free
) -> int:
    """The number of groups left; they are valid and write the same values."""
    found = merge_siblings(steps, (), cost, COSTS)
    rng = np.random.default_rng(0)
    data = {b: rng.standard_normal(b.shape, dtype=np.float32) for b in given}
    memories: list[dict[Buffer, Any]] = []
    results = list(dict.fromkeys(b for s in steps for b in s.writes))
    for some in (steps, found):
        verify_steps(some, given, results)
        memory: dict[Buffer, Any] = {b: a.copy() for b, a in data.items()}
        for s in some:
            if isinstance(s, FusionGroup) and s.kernel is None:
                for b in s.writes:
                    memory.setdefault(b, np.full(b.shape, np.nan, np.float32))
                run(s.computations, memory)
        memories.append(memory)
    for b in memories[0]:
        np.testing.assert_array_equal(memories[0][b], memories[1][b])
    return len(found)


def host(reads: Sequence[Buffer], writes: Sequence[Buffer]) -> HostFallback:
    call = Operation("Own", (), (), {}, "", 1, "call")
    return HostFallback(call, tuple(reads), tuple(writes))


def test_two_reductions_of_one_tensor_are_one_to_two_results() -> None:
    steps = [total(S, X), total(T, X, "max")]
    assert merged(steps) == 1
    (both,) = merge_siblings(steps, (), free, COSTS)
    assert isinstance(both, FusionGroup)
    (c,) = both.computations
    assert c.reducer is not None and len(c.outputs) == len(c.reducer.dtypes) == 2
    assert both.sources == ("add_s", "max_t")


def test_one_operator_may_be_there_twice() -> None:
    """Each of the two sums has its own components."""
    square = stage(reduce_("q", T, (COLUMNS,), "add", lambda i, k: X[i, k] * X[i, k]))
    assert merged([total(S, X), square]) == 1


def test_two_maps_of_one_tensor_are_one_of_two_outputs() -> None:
    assert merged([scaled(U, X), scaled(V, X, -1.0)]) == 1


def test_a_map_that_others_read_too_is_computed_where_the_next_one_is() -> None:
    steps = [scaled(U, X), scaled(V, U), scaled(Z, U, 3.0)]
    assert merged(steps) == 1


def test_rows_that_are_used_on_are_made_where_they_are_reduced() -> None:
    steps = [scaled(U, X), total(S, U), scaled(V, U)]
    assert merged(steps) == 1


def test_a_group_moves_up_past_those_that_write_other_things() -> None:
    between = host([X], [Z])
    assert merged([total(S, X), between, total(T, X, "max")]) == 2


def test_a_reduction_that_the_first_one_decides_runs_behind_it() -> None:
    """They are not reduction to two results: the sum is complete before the maximum begins."""
    second = reduce_("d", T, (COLUMNS,), "max", lambda i, k: Y[i, k] - S[i])
    steps = [total(S, X), stage(second)]
    assert merged(steps, [X, Y]) == 1
    (both,) = merge_siblings(steps, (), free, COSTS)
    assert isinstance(both, FusionGroup) and len(both.computations) == 2
    columns = reduce_("c", W, (ROWS,), "max", lambda j, i: X[i, j] - S[i])
    assert merged([total(S, X), stage(columns)]) == 2


SEPARATE: dict[str, list[Step]] = {
    "of different tensors": [total(S, X), total(T, Y)],
    "of other points": [total(S, X), total(T, X, extent=COLUMNS - 1)],
    "of the transposed points": [
        scaled(U, X),
        stage(map_("t", Buffer("o", (COLUMNS, ROWS), float32), lambda i, j: X[j, i])),
    ],
    "products, whose rows are tiles": [
        scaled(U, X),
        stage(reduce_("p", V, (COLUMNS,), "add", lambda i, j, k: U[i, k] * SQUARE[k, j])),
    ],
    "totals": [
        stage(reduce_("all", POINT, (COLUMNS,), "add", lambda k: W[k])),
        stage(reduce_("most", TOP, (COLUMNS,), "max", lambda k: W[k])),
    ],
    "of long rows": [scaled(FAR, LONG), total(FEW, FAR, extent=1 << 17)],
    "with a vector in common": [
        stage(map_("a", U, lambda i, j: X[i, j] + W[j])),
        stage(map_("b", V, lambda i, j: Y[i, j] + W[j])),
    ],
    "that are too many steps apart": [
        total(S, X),
        *(scaled(Buffer(f"f{n}", (ROWS, COLUMNS), float32), Y) for n in range(1)),
        *(host([], [Buffer(f"h{n}", (2,), float32)]) for n in range(8)),
        total(T, X, "max"),
    ],
}  # fmt: skip


# Its sum is over 131,072 columns: interpreted, it takes seconds.
SLOW = "of long rows"
CASES = [pytest.param(n, marks=pytest.mark.slow if n == SLOW else ()) for n in SEPARATE]


@pytest.mark.parametrize("name", CASES)
def test_what_stays_separate(name: str) -> None:
    steps = SEPARATE[name]
    assert merged(steps, [X, Y, W, LONG, SQUARE]) == len(steps)


def test_an_input_written_between_keeps_groups_separate() -> None:
    """The first group reads u when half of it is written; the rest is written later."""
    upper = map_("upper", U, lambda i, j: X[i, j], extents=(3, COLUMNS))
    lower = map_("lower", U, lambda i, j: Y[i, j], extents=(3, COLUMNS),
                 index=lambda i, j: (i + 3, j))  # fmt: skip
    half = Buffer("half", (3,), float32)
    first = stage(reduce_("first", half, (COLUMNS,), "add", lambda i, k: U[i, k]))
    rest = stage(reduce_("rest", S, (COLUMNS,), "max", lambda i, k: U[i, k] * U[i, k]))
    steps = [stage(upper), first, stage(lower), rest]
    assert merged(steps, [X, Y]) == 3
    assert merge_siblings(steps, (), free, COSTS)[-1] is rest
    moved = [stage(upper), rest, stage(lower)]
    with pytest.raises(VerifyError, match="not written before"):
        verify_steps(moved, [X, Y], [S])


def test_a_host_call_may_write_what_the_second_reads() -> None:
    steps = [
        scaled(V, X),
        host([V], [U]),
        stage(map_("m", Z, lambda i, j: X[i, j] + U[i, j])),
    ]
    assert len(merge_siblings(steps, (), free, COSTS)) == 3


def test_a_kernel_given_as_such_stays_alone() -> None:
    own = FusionGroup("own", (), kernel=Kernel("own", (X, U), (U,), block()))
    assert len(merge_siblings([scaled(V, X), own], (), free, COSTS)) == 2


def test_constants_read_twice_are_no_reason() -> None:
    steps = [total(S, X), total(T, X, "max")]
    assert len(merge_siblings(steps, {X}, free, COSTS)) == 2


def test_what_costs_more_stays_separate_and_is_reported() -> None:
    def dear(group: Sequence[Computation], constants: Any = ()) -> float | None:
        return 10e3 if sum(len(c.outputs) for c in group) > 1 else 4e3

    steps = [total(S, X), total(T, X, "max")]
    with events.record() as log:
        assert merged(steps, cost=dear) == 2
    said = {e.fields["reason"] for e in log if e.kind == "not-fused"}
    assert said == {"one kernel is expected to take 10.0 us, 8.0 us separately"}
    assert merged(steps, cost=lambda group, constants=(): None) == 2


def test_more_results_than_registers_for_them_stay_separate() -> None:
    made = [scaled(Buffer(f"o{n}", (ROWS, COLUMNS), float32), X, n) for n in range(6)]
    assert merged(made) == 2


MODEL = """<ir_version: 10, opset_import: ["" : 21]>
g (float[$N,$M] x, float[$N,$M] y, float[$M] g) =>
  (float[$N] s, float[$N] m, float[$M] cs, float[$M] cm,
   float[$N,$M] t, float[$N,$M] n, float[$N,$M] p)
{
  rows = Constant<value_ints = [1]>()
  columns = Constant<value_ints = [0]>()
  s = ReduceSum<keepdims=0>(x, rows)
  m = ReduceMax<keepdims=0>(x, rows)
  cs = ReduceSum<keepdims=0>(y, columns)
  cm = ReduceMin<keepdims=0>(y, columns)
  t = Add(x, y)
  n = LayerNormalization<axis=-1>(t, g)
  p = Mul(t, n)
}"""


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", [(6, 40), (33, 129), (1, 64), (5, 1), (64, 7)])
@pytest.mark.parametrize("mcpu", ["x86-64-v2", "x86-64-v3", "native"])
@pytest.mark.parametrize("math", ["default", "exact"])
def test_models_give_what_the_reference_gives(
    shape: tuple[int, int], mcpu: str, math: str
) -> None:
    if not target("cpu", mcpu).runs_here:
        pytest.skip(f"this machine does not run {mcpu}")
    text = Template(MODEL).substitute(N=shape[0], M=shape[1])
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, *shape), dtype=np.float32)
    given = {"x": x, "y": y, "g": rng.standard_normal(shape[1:], dtype=np.float32)}
    want: Any = onnx.reference.ReferenceEvaluator(model).run(None, given)
    exe: Any = tw.compile(model, mcpu=mcpu, math=math, threads=2, cache=False)
    for got, expected in zip(exe(given), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=1e-4)


@pytest.mark.sampled(3)  # no number, and a sign
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.0])
def test_special_values_pass_as_they_do_apart(value: float) -> None:
    model = onnx.parser.parse_model(Template(MODEL).substitute(N=5, M=40))
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((2, 5, 40), dtype=np.float32)
    x[1, 7] = y[3, 39] = value
    y[2] = 0.0
    given = {"x": x, "y": y, "g": np.ones(40, np.float32)}
    both: list[Any] = [
        tw.compile(model, fusion=fusion, cache=False)(given) for fusion in (True, False)
    ]
    for got, want in zip(*both, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(
            np.signbit(got[got == 0]), np.signbit(want[want == 0])
        )


@pytest.mark.parametrize("dtype", ["float16", "double", "int32", "bfloat16"])
def test_other_dtypes(dtype: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g ({dtype}[9,33] x) => ({dtype}[9] s, {dtype}[9] m, {dtype}[9,33] n) {{
          rows = Constant<value_ints = [1]>()
          s = ReduceSum<keepdims=0>(x, rows) m = ReduceMax<keepdims=0>(x, rows) n = Neg(x) }}"""
    )
    kind = onnx.helper.tensor_dtype_to_np_dtype(
        model.graph.input[0].type.tensor_type.elem_type
    )
    x = np.random.default_rng(3).integers(-4, 5, (9, 33)).astype(kind)
    exe: Any = tw.compile(model, cache=False)
    s, m, n = (np.asarray(a).astype(np.float64) for a in exe(x))
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(s, wide.sum(1))
    np.testing.assert_array_equal(m, wide.max(1))
    np.testing.assert_array_equal(n, -wide)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_of_nothing(shape: tuple[int, int]) -> None:
    n, m = shape
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[{n},{m}] x) => (float[{n}] s, float[{n}] p, float[{n},{m}] y) {{
          rows = Constant<value_ints = [1]>()
          s = ReduceSum<keepdims=0>(x, rows) p = ReduceProd<keepdims=0>(x, rows) y = Neg(x) }}"""
    )
    exe: Any = tw.compile(model, cache=False)
    s, p, y = exe(np.zeros(shape, np.float32))
    assert s.tolist() == [0.0] * n and p.tolist() == [1.0] * n and y.shape == shape
