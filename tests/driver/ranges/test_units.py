"""Kernels of an open plan some units at a time: the results of the plain nest at every size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx.reference
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from tilewright.base import events
from tilewright.base.dtypes import float32, int64
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import map_
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.compute.reducer import reducer
from tilewright.compute.transforms import on_tensors
from tilewright.driver.ranges import units
from tilewright.driver.ranges.part_assembly import PartedWork
from tilewright.driver.ranges.units import by_units
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, Max, Select, Var, const
from tilewright.loops.interp import run
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.loops.verify import verify
from tilewright.loops.walk import loops_of
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.open_extents import Resized
from tilewright.targets.registry import target

N, M = Var("n", INDEX), Var("m", INDEX)
P, J, K, A, B, C, D = (Var(name, INDEX) for name in "pjkabcd")
Group = tuple[list[Computation], list[Buffer], list[Buffer], list[Buffer]]


def product(depth: int, columns: int, rows: int = 1) -> Group:
    """relu(x @ w): Computations, inputs, constants, outputs."""
    x = Buffer("x", (N, rows, depth), float32)
    w = Buffer("w", (depth, columns), float32)
    p, y = (Buffer(name, (N * rows, columns), float32) for name in "py")
    value = Load(x, (P // rows, P % rows, K)) * Load(w, (K, J))
    dims = (Dim(P, N * rows), Dim(J, columns))
    group = [
        Computation(
            "p",
            (*dims, Dim(K, depth, "pw")),
            (Output(p, (P, J), value),),
            reducer("add", float32),
        ),
        Computation(
            "relu",
            dims,
            (Output(y, (P, J), Max(Load(p, (P, J)), const(0.0, float32))),),
        ),
    ]
    return group, [x], [w], [y]


def convolution(last: bool = True, size: tuple[int, int] = (7, 6)) -> Group:
    """3x3 with padding, of images whose channels are stored last, or first."""
    height, width = size

    def image(name: str, count: int) -> Buffer:
        shape = (N, *size, count) if last else (N, count, *size)
        return Buffer(name, shape, float32)

    def at(b: Buffer, i: Expr, h: Expr, v: Expr, c: Expr) -> Load:
        return Load(b, (i, h, v, c) if last else (i, c, h, v))

    x, y = image("x", 3), image("y", 16)
    w = Buffer("w", (3, 3, 3, 16), float32)
    h, v = A + C - 1, B + D - 1
    inside = (h >= 0) & (h < height) & (v >= 0) & (v < width)
    value = Select(inside, at(x, P, h, v, K), const(0.0, float32)) * Load(
        w, (C, D, K, J)
    )
    index = at(y, P, A, B, J).index
    dims = (Dim(P, N), Dim(A, height), Dim(B, width), Dim(J, 16))
    inner = (Dim(C, 3, "pw"), Dim(D, 3, "pw"), Dim(K, 3, "pw"))
    made = Computation(
        "conv", (*dims, *inner), (Output(y, index, value),), reducer("add", float32)
    )
    return [made], [x], [w], [y]


def gathered() -> Group:
    """Elements of the unit's own row, in places that memory names."""
    x, y = (Buffer(name, (N, 24), float32) for name in "xy")
    places = Buffer("places", (24,), int64)
    value = Load(x, (P, Load(places, (J,))))
    made = Computation("g", (Dim(P, N), Dim(J, 24)), (Output(y, (P, J), value),))
    return [made], [x], [places], [y]


def of_two_sizes() -> Group:
    """Rows of sequences of a batch, plus those of a table, by a matrix."""
    x, table = Buffer("x", (M, N, 9), float32), Buffer("table", (N, 9), float32)
    w, y = Buffer("w", (9, 32), float32), Buffer("y", (M, 2, N, 16), float32)
    value = (Load(x, (A, P, K)) + Load(table, (P, K))) * Load(w, (K, J))
    dims = (Dim(A, M), Dim(P, N), Dim(J, 32), Dim(K, 9, "pw"))
    output = Output(y, (A, J // 16, P, J % 16), value)
    made = Computation("two", dims, (output,), reducer("add", float32))
    return [made], [x, table], [w], [y]


GROUPS: dict[str, Callable[[], Group]] = {
    "product": lambda: product(8, 24),
    "rows of several": lambda: product(5, 20, rows=3),
    "channels last": lambda: convolution(size=(4, 5)),
    "channels first": lambda: convolution(last=False, size=(4, 5)),
    "gathered": gathered,
    "two sizes": of_two_sizes,
}


def parted(group: Group, machine: Any) -> PartedWork | None:
    computations, inputs, constants, outputs = group
    kernel = lower("k", computations, [*inputs, *constants, *outputs], outputs)
    return by_units(kernel, FusionGroup("g", tuple(computations)), constants, machine)


def compare(group: Group, work: PartedWork, n: int) -> None:
    """The kernel and the plain Computations on random numbers, for n units."""
    computations, inputs, constants, outputs = group
    sized = Resized({N: n, M: 3}, {})
    rng = np.random.default_rng(n)
    given = {
        b: rng.integers(0, 5, sized.buffer(b).shape).astype(b.dtype.numpy)
        for b in (*inputs, *constants)
    }
    want = evaluate(
        list(map(sized.computation, computations)),
        {sized.buffer(b): array for b, array in given.items()},
    )
    memory: dict[Buffer, Any] = dict(given)
    by_name = {b.name: array for b, array in given.items()}
    for kernels in work.prepare:
        for k in kernels:
            result = k.outputs[0]
            memory[result] = np.zeros(result.shape, result.dtype.numpy)
            by_name[result.name] = memory[result]
            run(k, {b: by_name[b.name].reshape(b.shape) for b in k.params})
    for b in outputs:
        memory[b] = np.full(sized.buffer(b).shape, -1, b.dtype.numpy)
    run(work.kernel, {b: memory[b] for b in work.kernel.params})
    for b in outputs:
        np.testing.assert_allclose(memory[b], want[sized.buffer(b)], rtol=1e-5)


def at_a_time(kernel: Kernel) -> list[tuple[str, str]]:
    """The loops over units, and how they run."""
    return [
        (f.var.name.removeprefix("units."), f.kind)
        for f in loops_of(kernel.body)
        if f.var.name.startswith("units.")
    ]


@pytest.mark.parametrize(
    ("costs", "counts"),
    [
        ({}, [4, 1]),
        ({"many_units": 8}, [4, 2, 1]),
        ({"block_gain": 4.0}, [1]),
        ({"unit_gain": 4.0}, [1]),
        ({"few_units": 100}, []),
    ],
)
def test_costs_of_the_machine_say_how_many_at_a_time(
    costs: dict[str, float], counts: list[int]
) -> None:
    machine = target("cpu", "x86-64-v3", description={"costs": costs})
    with events.record() as heard:
        parted(GROUPS["rows of several"](), machine)
    assert [e.fields["at_a_time"] for e in heard if e.kind == "units"] == [counts]


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "mcpu",
    [
        "x86-64-v2",
        pytest.param("x86-64-v3", marks=pytest.mark.slow),
        "x86-64-v4",
        "neoverse-n1",
    ],
)
@pytest.mark.parametrize(
    "counts", [None, [1], pytest.param([4, 1], marks=pytest.mark.slow), [16, 4, 2, 1]]
)
@pytest.mark.parametrize("name", GROUPS)
def test_units_are_the_whole(
    name: str, counts: list[int] | None, mcpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if counts is not None:
        monkeypatch.setattr(units, "counts_of", lambda *_: counts)
    group = GROUPS[name]()
    work = parted(group, target("cpu", mcpu))
    if work is None:
        assert counts is None or name == "gathered"
        return
    verify(work.kernel)
    if counts is not None:
        assert [int(n) for n, _ in at_a_time(work.kernel)] == counts
    for n in (0, 1, 3, 23):
        compare(group, work, n)


def counts_of(group: Group) -> list[int]:
    work = parted(group, target("cpu", "x86-64-v4"))
    return [] if work is None else [int(n) for n, _ in at_a_time(work.kernel)]


def test_numbers_are_compared_with_those_that_fill_a_tile() -> None:
    """16 units that take as long as 4 leave most of a tile empty, however long 64 take."""
    costs = target("cpu").open_costs
    costs = replace(costs, many_units=64, few_units=4, unit_gain=1.1)

    def filled(at_once: int) -> list[int]:
        return units.counts_of(lambda n: max(9.0, n * 9.0 / at_once), 0.0, costs)

    assert filled(at_once=8) == []
    assert filled(at_once=2)[-1] == 1


def test_how_many_at_a_time() -> None:
    assert counts_of(convolution()) == [1]  # an image has all its rows
    first, *_, last = counts_of(product(64, 256))
    assert (first, last) == (32, 1)  # products want rows
    assert counts_of(product(256, 10)) == []  # one row takes as long as 16


def test_units_whose_elements_lie_apart_are_left_whole() -> None:
    (made,), (x,), _, _ = gathered()
    for extents, index, whole in (
        ((24, N), (J, P), True),
        ((2, N, 12), (J // 12, P, J % 12), True),
        ((2, N, 24), (const(1), P, J), False),
    ):
        y = Buffer("y", extents, float32)
        output = Output(y, index, Load(x, (P, J)) * 2.0)
        group = ([replace(made, outputs=(output,))], [x], [], [y])
        assert (parted(group, target("cpu")) is None) == whole


def transposed(rows: int = 32) -> Group:
    """x @ w with a column of each result in a row, the first ones of `rows`."""
    (p, relu), inputs, constants, _ = product(8, 32)
    y = Buffer("y", (2, rows // 2, N), float32)
    (out,) = relu.outputs
    made = replace(out, tensor=y, index=(J // 16, J % 16, P))
    return [p, replace(relu, outputs=(made,))], inputs, constants, [y]


@pytest.mark.parametrize("mcpu", ["x86-64-v2", "x86-64-v4"])
def test_products_that_lie_apart_are_copied_where_they_fill_a_tensor(
    mcpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "counts_of", lambda *_: [16, 4, 1])
    group = transposed()
    work = parted(group, target("cpu", mcpu))
    assert work is not None
    verify(work.kernel)
    for n in (0, 1, 7, 39):
        compare(group, work, n)
    # Another kernel writes the rest, which a copy would overwrite.
    assert parted(transposed(rows=64), target("cpu", mcpu)) is None
    monkeypatch.setattr(units, "counts_of", lambda *_: [4, 1])
    assert parted(transposed(), target("cpu", mcpu)) is None


def test_a_kernel_that_is_worth_all_threads_has_them() -> None:
    def kinds(group: Group) -> set[str]:
        work = parted(group, target("cpu", "x86-64-v4", threads=2))
        assert work is not None
        return {kind for _, kind in at_a_time(work.kernel)}

    assert kinds(convolution()) == {"parallel"}
    assert "serial" in kinds(product(512, 4096))


def test_packed_constants_have_names_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(units, "counts_of", lambda *_: [16, 4, 1])
    group = product(96, 256)
    work = parted(group, target("cpu", "x86-64-v3"))
    assert work is not None
    names = [k.outputs[0].name for kernels in work.prepare for k in kernels]
    assert len(names) == len(set(names)) >= 2
    (w,) = group[2]
    assert w not in work.kernel.params or len(names) < 3
    for n in (1, 21):
        compare(group, work, n)


@pytest.mark.representatives("neoverse-n1")  # machines differ in numbers
@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64-v4", "neoverse-n1"])
def test_all_numbers_of_units_read_constants_as_the_first_one_packs_them(
    mcpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "counts_of", lambda *_: [32, 8, 2, 1])
    work = parted(product(96, 256), target("cpu", mcpu))
    assert work is not None
    made = [[k.outputs[0].shape for k in kernels] for kernels in work.prepare]
    assert len(made) == 4 and made.count(made[0]) == 4
    monkeypatch.setattr(units, "packed_alike", lambda *_: False)
    group = product(96, 256)
    work = parted(group, target("cpu", mcpu))
    assert work is not None
    assert len(work.prepare) == 1 and group[2][0] in work.kernel.params
    compare(group, work, 43)


def test_work_on_constants_alone_is_done_at_compile_time_for_each_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(units, "counts_of", lambda *_: [32, 1])
    monkeypatch.setattr(units, "packed_alike", lambda *_: False)
    (p, relu), inputs, (w,), outputs = product(8, 24)
    scaled = Buffer("scaled", w.shape, float32)
    made = map_(scaled.name, scaled, lambda k, j: w[k, j] * 3.0)
    group = [made, on_tensors(p, {w: scaled}), relu], inputs, [w], outputs
    work = parted(group, target("cpu", "x86-64-v3"))
    assert work is not None
    assert len(work.prepare) == 2 and w not in work.kernel.params
    compare(group, work, 43)


def test_a_shape_that_cannot_be_undone_keeps_the_group_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> Any:
        raise ScheduleError("as it is", where="here", hint="leave it")

    monkeypatch.setattr(units._Parts, "scheduled", refused)
    with events.record() as heard:
        assert parted(convolution(), target("cpu")) is None
    assert [e.fields["reason"] for e in heard if e.kind == "kept-whole"]


def chained(nodes: Sequence[Any], weights: dict[str, Any], shape: Sequence[int]) -> Any:
    made = helper.make_graph(
        nodes,
        "chained",
        [helper.make_tensor_value_info("x", 1, ["n", *shape])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(a, name) for name, a in weights.items()],
    )
    opset = [helper.make_opsetid("", 21)]
    return helper.make_model(made, opset_imports=opset, ir_version=10)


def drawn(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32) / 4


@pytest.fixture(scope="module")
def of_any_batch() -> tuple[Any, Any, list[events.Event]]:
    """A small network, compiled for a range of batches, and what happened meanwhile."""
    shapes = {
        "v": (16, 3, 3, 3), "u": (16, 16, 3, 3), "w": (16, 40), "k": (40, 9),
    }  # fmt: skip
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "u"], ["c"], pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["c"], ["d"]),
        helper.make_node("Flatten", ["d"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["f"]),
        helper.make_node("Tanh", ["f"], ["g"]),
        helper.make_node("MatMul", ["g", "k"], ["y"]),
    ]
    weights = {name: drawn(rng, *shape) for name, shape in shapes.items()}
    model = chained(nodes, weights, (3, 8, 8))
    how: Any = {"dims": {"n": (1, 21)}, "jit": False, "threads": 2, "cache": False}
    with events.record() as heard:
        exe = tw.compile(model, **how)
    return model, exe, heard


def test_constants_that_are_worked_on_first_are_so_at_compile_time(
    of_any_batch: tuple[Any, Any, list[events.Event]],
) -> None:
    """The filters of Winograd's convolution are in the model, and not those that they are of."""
    _, exe, _ = of_any_batch
    (step,) = exe.model.shared[0].opened.model.steps
    sizes = [math.prod(s.tensor.shape) for s in step.values if s.kind == "constant"]
    assert 16 * 16 * 16 in sizes
    assert 16 * 16 * 9 not in sizes


def test_a_model_of_any_batch_is_the_one_of_each(
    of_any_batch: tuple[Any, Any, list[events.Event]], tmp_path: Any
) -> None:
    """Padded and transposed tiles, Winograd with weights made of constants, products; saved."""
    model, exe, heard = of_any_batch
    ways = [e.fields["at_a_time"] for e in heard if e.kind == "units"]
    assert [1] in ways
    assert any(len(counts) > 1 for counts in ways)
    exe.save(tmp_path / "model.tw")
    loaded: Any = tw.load(tmp_path / "model.tw", threads=1)
    session = onnx.reference.ReferenceEvaluator(model)
    rng = np.random.default_rng(4)
    for n in (1, 2, 15, 16, 17, 21):
        x = drawn(rng, n, 3, 8, 8)
        want = session.run(None, {"x": x})[0]
        for run_ in (exe, loaded):
            np.testing.assert_allclose(run_(x), want, rtol=1e-3, atol=1e-4)


def test_rows_of_all_sequences_are_units_of_one_size() -> None:
    """A sum with what all sequences share has two sizes, and the products around it one."""
    v, w = (helper.make_node("MatMul", [a, b], [c]) for a, b, c in ("xva", "bwy"))
    shared = helper.make_node("Add", ["a", "p"], ["c"])
    nodes = [v, shared, helper.make_node("Tanh", ["c"], ["b"]), w]
    rng = np.random.default_rng(6)
    weights = {"v": drawn(rng, 8, 64), "w": drawn(rng, 64, 32)}
    model = chained(nodes, weights, ("t", 8))
    given = helper.make_tensor_value_info("p", 1, ["t", 64])
    model.graph.input.append(given)
    dims = {"n": (2, 9), "t": (3, 40)}
    with events.record() as heard:
        exe: Any = tw.compile(model, dims=dims, jit=False, threads=2, cache=False)
    sizes = [e.fields["sizes"] for e in heard if e.kind == "units"]
    assert ["n * t"] in sizes and ["n", "t"] in sizes
    session = onnx.reference.ReferenceEvaluator(model)
    for n, t in ((2, 3), (9, 40), (5, 13), (4, 8), (3, 11)):
        x, p = drawn(rng, n, t, 8), drawn(rng, t, 64)
        (want,) = session.run(None, {"x": x, "p": p})
        np.testing.assert_allclose(exe(x, p), want, rtol=1e-4, atol=1e-5)
