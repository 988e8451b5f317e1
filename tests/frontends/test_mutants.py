"""Damaged models: what was found by mutation, and a few hundred mutants more."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.conformance import node_cases
from tests.robust.models import BOOL, FLOAT, INT64, info, model, node
from tilewright.base.errors import ModelError, TilewrightError
from tilewright.frontends.onnx import load
from tilewright.testing import mutate_models
from tilewright.testing.mutants import MutantFailure
from tilewright.testing.mutate_models import attempt, mutant, worker

VECTOR = {"x": (FLOAT, [4])}


def relu():
    return model([node("Relu", ["x"], ["y"], "n")], VECTOR)


@pytest.mark.parametrize("version", [-1, -(2**31), -(2**63)])
def test_an_operator_set_before_the_first(version):
    source = relu()
    source.opset_import[0].version = version
    with pytest.raises(ModelError, match=f"imports opset {version} of domain ai.onnx"):
        load(source)


@pytest.mark.parametrize("op", ["Relu", "Constant", "DFT", "Identity", "Split"])
def test_a_node_without_outputs(op):
    source = relu()
    source.graph.node.insert(0, node(op, [] if op == "Constant" else ["x"], [], "idle"))
    with pytest.raises(ModelError, match=r"node 'idle'.*no output"):
        load(source)


def test_attributes_of_a_constant_are_checked():
    for attribute in (
        {"value": 3},
        {"value": "text"},
        {"value_ints": 1.5},
        {"value": [1.5, 2]},
    ):
        made = node("Constant", [], ["c"], "n", **attribute)
        with pytest.raises(ModelError, match=r"node 'n'.*expected"):
            load(model([made, node("Add", ["x", "c"], ["y"])], VECTOR))


def body(inputs, outputs):
    names = [f"i{n}" for n in range(inputs)]
    nodes = [node("Identity", ["x"], [f"o{n}"]) for n in range(outputs)]
    return helper.make_graph(
        nodes, "b", [info(n) for n in names], [info(f"o{n}") for n in range(outputs)]
    )


@pytest.mark.parametrize(
    ("op", "operands", "outputs", "graphs", "words"),
    [
        (
            "If",
            ["c"],
            1,
            {"then_branch": (0, 2), "else_branch": (0, 1)},
            "1 output of then_branch",
        ),
        (
            "If",
            ["c"],
            1,
            {"then_branch": (0, 1), "else_branch": (0, 0)},
            "1 output of else_branch",
        ),
        (
            "If",
            ["c"],
            1,
            {"then_branch": (1, 1), "else_branch": (0, 1)},
            "0 inputs of then_branch",
        ),
        (
            "Loop",
            ["t", "", "x"],
            1,
            {"body": (2, 2)},
            "expected 3 inputs of body, got 2",
        ),
        (
            "Loop",
            ["t", "", "x"],
            1,
            {"body": (3, 1)},
            "at least 2 outputs of body, got 1",
        ),
        (
            "Loop",
            ["t", "", "x"],
            3,
            {"body": (3, 3)},
            "at least 4 outputs of body, got 3",
        ),
        ("Scan", ["x", "x"], 2, {"body": (1, 2)}, "expected 2 inputs of body, got 1"),
        ("Scan", ["x", "x"], 3, {"body": (2, 2)}, "at least 3 outputs of body, got 2"),
        ("Scan", ["x"], 1, {"body": (0, 0)}, "expected 1 input of body, got 0"),
    ],
)
def test_bodies_that_take_or_give_another_number_of_values(
    op, operands, outputs, graphs, words
):
    given = {name: body(*counts) for name, counts in graphs.items()}
    if op == "Scan":
        given["num_scan_inputs"] = 1
    made = node(op, operands, [f"y{n}" for n in range(outputs)], "n", **given)
    inputs = {**VECTOR, "c": (BOOL, []), "t": (INT64, [])}
    with pytest.raises(ModelError) as caught:
        load(model([made], inputs, ["y0"]))
    assert words in str(caught.value) and "'n'" in str(caught.value)
    assert caught.value.hint is not None and op in caught.value.hint


@pytest.mark.parametrize("count", [0, -1, 5, 2**62])
def test_a_scan_of_more_operands_than_it_has(count):
    made = node("Scan", ["x"], ["y"], "n", body=body(1, 1), num_scan_inputs=count)
    with pytest.raises(TilewrightError):
        load(model([made], VECTOR))


def test_a_condition_without_a_value():
    graphs = {"then_branch": body(0, 1), "else_branch": body(0, 1)}
    made = node("If", ["c"], ["y"], "n", **graphs)
    source = model([made], VECTOR)
    source.graph.initializer.append(TensorProto(name="c", data_type=BOOL, dims=[0]))
    with pytest.raises(ModelError, match=r"'n'.*condition has 0 elements"):
        tw.compile(source, cache=False)


def test_scales_that_are_data_where_the_shape_is_known_all_the_same():
    """An operand without dimensions has a result without any."""
    inputs = {"x": (FLOAT, []), "s": (FLOAT, [4])}
    source = model([node("Resize", ["x", "", "s"], ["y"], "n")], inputs)
    with pytest.warns(tw.TilewrightWarning, match="falls back to the host"):
        tw.compile(source, cache=False)


# --------------------------------------------------------------------------------- many mutants

SEEDS = 120  # `make fuzz` runs others


@pytest.mark.sampled(8)
@pytest.mark.parametrize("part", range(8))
def test_mutants_end_well(part):
    found = []
    with worker(node_cases.folder) as process:
        for seed in range(part, SEEDS, 8):
            failure = process.run(seed)
            if failure is not None:
                found.append(failure)
    assert not found, "\n".join(f"{f.seed} {f}" for f in found)


@pytest.fixture
def one_model(monkeypatch):
    case = SimpleNamespace(name="relu", model=relu())
    monkeypatch.setattr(mutate_models, "_cases", lambda: [case])


def test_a_mutant_is_the_same_every_time_and_differs_from_the_next(one_model):
    with_names = [mutant(seed) for seed in range(20)]
    assert with_names == [mutant(seed) for seed in range(20)]
    assert len({data for data, *_ in with_names}) > 15
    assert all(damage for *_, damage in with_names)


def test_what_is_no_error_of_ours_is_a_failure(monkeypatch, one_model):
    def broken(data):
        raise IndexError("deep inside")

    monkeypatch.setattr(mutate_models, "_use", broken)
    found = attempt(3)
    assert (
        isinstance(found, MutantFailure)
        and found.seed == 3
        and "deep inside" in found.error
    )
    monkeypatch.setattr(mutate_models, "_use", lambda data: load(b""))
    assert attempt(3) is None


def test_a_process_that_ends_is_a_failure_and_another_takes_its_place(monkeypatch):
    begun = []

    def started(kept):
        """Reads one seed, then dies, or answers once."""
        code = "import os, sys, pickle; sys.stdin.buffer.read(8); "
        code += (
            "pickle.dump(None, sys.stdout.buffer)"
            if begun
            else "os.kill(os.getpid(), 9)"
        )
        begun.append(code)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen([sys.executable, "-c", code], **pipes)

    monkeypatch.setattr(mutate_models, "_started", started)
    with worker() as process:
        found = process.run(7)
        assert found is not None and found.seed == 7 and "status -9" in found.error
        assert process.run(8) is None
    assert len(begun) == 2
