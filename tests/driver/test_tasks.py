"""The kernels of models as tasks: which there are, and what their programs give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from tests.driver.test_compile import perceptron
from tilewright import te
from tilewright.base.errors import ExecutionError, InputError, ScheduleError
from tilewright.driver import reference as references
from tilewright.driver.guard.judges import ComputationJudge
from tilewright.driver.tasks import task_of_kernel, tasks
from tilewright.loops.walk import loops_of
from tilewright.runtime.executable import Executable, load
from tilewright.schedule import Schedule
from tilewright.schedule.space import Point
from tilewright.tune.base import Candidate, Task
from tilewright.tune.measure.reference import ReferenceCase, unpack
from tilewright.tune.space import Parameter, ParameterSpace, Set

V3: Any = {"mcpu": "x86-64-v3", "threads": 1}


def model(text: str) -> Any:
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    return parser.parse_model(f"{head} g {text}")


def loaded(data: bytes, folder: Path) -> Executable:
    path = folder / "kernel.tw"
    path.write_bytes(data)
    return load(path)


def ran(program: Executable, case: ReferenceCase) -> list[np.ndarray]:
    """The outputs on the inputs of a case."""
    arrays = [
        np.resize(block, t.extents)
        for block, t in zip(case.inputs, program.inputs, strict=True)
    ]
    outs = [
        np.resize(r.before, t.extents)
        for r, t in zip(case.results, program.outputs, strict=True)
    ]
    program(*arrays, out=outs)
    return [o.reshape(-1) for o in outs]


def expect_right(task: Task, data: bytes, folder: Path) -> None:
    program = loaded(data, folder)
    for case in unpack(task.reference()):
        for result, got in zip(case.results, ran(program, case), strict=True):
            assert result.wrong(got) is None


def layers() -> Any:
    """Three products of one shape with weights of their own, and one of another."""
    rng = np.random.default_rng(0)
    names = ["a", "b", "c"]
    weights = {n: rng.standard_normal((16, 16)).astype(np.float32) for n in names}
    weights["d"] = rng.standard_normal((16, 5)).astype(np.float32)
    nodes, last = [], "x"
    for n in weights:
        nodes.append(helper.make_node("MatMul", [last, n], [f"y{n}"], name=n))
        last = f"y{n}"
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [4, 5])],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_equal_kernels_are_one_task_with_their_calls_and_nodes() -> None:
    found = tasks(layers(), **V3)
    assert [(t.calls, t.sources) for t in found] == [(3, ("a", "b", "c")), (1, ("d",))]
    first, last = found
    assert (first.operations, last.operations) == (2 * 4 * 16 * 16, 2 * 4 * 16 * 5)
    assert first.bytes_moved == 4 * (4 * 16 + 16 * 16 + 4 * 16)
    assert first.key != last.key


def test_programs_have_the_model_s_weights_packed_inside(tmp_path: Path) -> None:
    [first, _] = tasks(layers(), **V3)
    program = loaded(first.build(first.schedule(first.space.default())), tmp_path)
    assert [t.shape for t in program.inputs] == [(4, 16)]
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    x = np.ones((4, 16), np.float32)
    np.testing.assert_allclose(program(x), x @ weight, rtol=1e-5, atol=1e-5)


def test_every_candidate_gives_the_same_results(tmp_path: Path) -> None:
    random = Random(0)
    for task in tasks(perceptron(7), **V3):
        space = task.space
        found = [space.default(), *(space.sample(random) for _ in range(2))]
        found.append(space.neighbor(found[0], random))
        found.append(space.cross(found[0], found[-1], random))
        for candidate in found:
            point = task.schedule(Candidate.parse(candidate.key))
            expect_right(task, task.build(point), tmp_path)


def test_a_candidate_that_is_not_possible_is_refused() -> None:
    task = tasks(perceptron(7), **V3)[0]
    with pytest.raises(ScheduleError, match="there is no sketch 'odd'"):
        task.schedule(Candidate("odd", {}))


def test_programs_are_loaded_without_the_compiler(tmp_path: Path) -> None:
    task = tasks(perceptron(7), **V3)[0]
    path = tmp_path / "kernel.tw"
    path.write_bytes(task.build(task.schedule(task.space.default())))
    text = (
        "import sys, tilewright as tw\n"
        f"tw.load({str(path)!r})\n"
        "print(any(m.startswith('tilewright.ir') for m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_parts_of_a_tensor_that_a_kernel_does_not_write_stay(tmp_path: Path) -> None:
    """Of a concatenation's operands each is written to its part of the result."""
    text = "(float[4,8] x, float[4,8] z) => (float[4,16] y)"
    body = "a = Exp(x) b = Tanh(z) y = Concat<axis=1>(a, b)"
    for task in tasks(model(f"{text} {{ {body} }}"), **V3):
        expect_right(task, task.build(task.schedule(task.space.default())), tmp_path)


def test_integers_and_gathered_rows_are_compared_too(tmp_path: Path) -> None:
    text = "(float[9,8] x, int64[5] i) => (float[5,8] y, int64[5] j)"
    body = "y = Gather<axis=0>(x, i) j = Add(i, i)"
    found = tasks(model(f"{text} {{ {body} }}"), **V3)
    assert found
    for task in found:
        expect_right(task, task.build(task.schedule(task.space.default())), tmp_path)


def sums(extent: Any = 20) -> Any:
    """Sums of rows, as te lowers them."""
    x = te.placeholder((extent, 30), name="x")
    k = te.reduce_axis((0, 30), name="k")
    y = te.compute((extent,), lambda i: te.sum(x[i, k], axis=k), name="y")
    return te.lower(te.create_schedule(y.op), [x, y])


def test_a_kernel_of_a_notation_is_a_task(tmp_path: Path) -> None:
    kernel = sums()
    task = task_of_kernel(kernel, **V3)
    assert (task.name, task.calls, task.operations) == (kernel.name, 1, 20 * 30)
    expect_right(task, task.build(task.schedule(task.space.default())), tmp_path)


def test_a_kernel_has_schedules_of_its_author_s_own(tmp_path: Path) -> None:
    kernel = sums()
    kernels = []

    def schedule(candidate: Candidate) -> Point:
        made = Schedule(kernel)
        made.split("y.i", candidate.values["rows"])
        kernels.append(made.kernel)
        return Point(made, (), "")

    space: Any = ParameterSpace(Parameter("rows", Set(1, 2, 4, 5)))
    task = task_of_kernel(kernel, space=space, schedule=schedule, **V3)
    for candidate in task.space:
        expect_right(task, task.build(task.schedule(candidate)), tmp_path)
    assert len(set(map(str, kernels))) == 4


def test_a_kernel_of_open_sizes_is_refused() -> None:
    with pytest.raises(InputError, match="only a program of fixed sizes can be timed"):
        task_of_kernel(sums(te.var("n")), **V3)


def test_a_model_of_symbolic_shapes_needs_their_values() -> None:
    symbolic = model("(float[n,8] x) => (float[n,8] y) { y = Exp(x) }")
    with pytest.raises(InputError, match="the shape of 'x' is symbolic"):
        tasks(symbolic, **V3)
    [task] = tasks(symbolic, dims={"n": 3}, **V3)
    assert task.bytes_moved == 2 * 4 * 3 * 8


def test_a_default_schedule_that_is_wrong_is_no_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = tasks(perceptron(7), **V3)[0]
    real = ComputationJudge.expected

    def other(self: ComputationJudge, b: Any) -> Any:
        found = real(self, b)
        return references.ExpectedElements(
            found.places, found.value + 0.01, found.error
        )

    monkeypatch.setattr(ComputationJudge, "expected", other)
    with pytest.raises(ExecutionError, match="wrong before it is tuned"):
        task.reference()


def test_a_sum_in_sequence_of_few_different_values_is_right(tmp_path: Path) -> None:
    norm = model(
        "(float[8,768] x, float[768] w) => (float[8,768] y)"
        " { y = LayerNormalization <epsilon=0.0> (x, w) }"
    )
    [task] = tasks(norm, **V3)
    in_sequence = task.schedule(Candidate("plain", {}))
    program = loaded(task.build(in_sequence), tmp_path)
    _, case = unpack(task.reference())  # of small integers
    [got] = ran(program, case)
    [result] = case.results
    assert result.wrong(got) is None
    n = int(np.argmax(np.abs(result.value)))
    for share, right in [(0.99, True), (1.01, False)]:
        got[n] = result.value[n] + share * result.error[n]
        assert (result.wrong(got) is None) == right


def test_features_are_read_from_what_runs_in_each_call() -> None:
    """Weights are packed once: the program that a model of costs sees has no loops for that."""
    task = tasks(layers(), **V3)[0]
    packed = next(
        point
        for c in task.space
        if any(k.startswith("pack.") and v for k, v in c.values.items())
        and len(loops_of((point := task.schedule(c)).schedule.kernel.body)) > 1
    )
    whole = [f.var.name for f in loops_of(packed.schedule.kernel.body)]
    left = [f.var.name for f in loops_of(task.program(packed).body)]
    assert set(left) < set(whole)
