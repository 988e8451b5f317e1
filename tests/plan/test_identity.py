"""A kernel apart from the names of its tensors: what is found for one fits each of its kind."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.driver import sources, steps
from tilewright.driver.compilation import Compilation
from tilewright.driver.options import Options
from tilewright.plan.identity import anonymous, structure, tensors, with_names
from tilewright.plan.normalize import KernelSignature, kernel_signature
from tilewright.targets.registry import target

CPU = target("cpu", "x86-64-v3")


def signatures(names: str, transposed: bool = False) -> list[KernelSignature]:
    """A product and a row sum over tensors of these names."""
    x, w, h, y, s, m = names.split()
    shape = (24, 40) if transposed else (40, 24)
    weights = np.ones(shape, np.float32)
    nodes = [
        helper.make_node("Gemm", [x, w], [h], transB=int(transposed)),
        helper.make_node("Relu", [h], [y]),
        helper.make_node("Softmax", [y], [m]),
        helper.make_node("ReduceSum", [m], [s], keepdims=0),
    ]
    return planned(nodes, x, (32, 40), s, (), numpy_helper.from_array(weights, w))


def planned(
    nodes: list[Any],
    x: str,
    given: tuple[int, ...],
    y: str,
    made: tuple[int, ...],
    weights: TensorProto,
) -> list[KernelSignature]:
    """The kernels of a model with one input `x`, one result `y` and one constant."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, given)],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, made)],
        [weights],
    )
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    options = Options.of({"cache": False})
    compiling = Compilation.of(CPU, options)
    made = sources.import_model(model.SerializeToString(), (), options)
    plan = compiling.planned(steps.optimize(made, options, CPU))
    return [kernel_signature(g, plan.live[g]) for g in plan.groups]


def points(signature: KernelSignature) -> list[dict[str, object]]:
    """Values of parameters of all its sketches: the default ones, and some drawn by chance."""
    chance = random.Random(0)
    found = []
    for sketch in CPU.sketches(signature.plain(), signature.computations, ()):
        found.append(sketch.default().values)
        found += [sketch.random(chance).values for _ in range(3)]
    return found


PLAIN = signatures("x w h y s m")
OTHER = signatures("matmul.i tensor7 relu k conv1/weight:0 i")


def test_names_of_tensors_play_no_part() -> None:
    assert list(map(structure, PLAIN)) == list(map(structure, OTHER))
    for a, b in zip(PLAIN, OTHER, strict=True):
        assert str(anonymous(a).plain()) == str(anonymous(b).plain())
        assert [t.name for t in tensors(anonymous(a))] == [
            f"tensor{n}" for n in range(len(tensors(a)))
        ]


def test_a_transposed_operand_is_another_structure() -> None:
    other = signatures("x w h y s m", transposed=True)
    assert structure(other[0]) != structure(PLAIN[0])


@pytest.mark.parametrize("number", range(len(PLAIN)))
def test_what_is_found_for_the_anonymous_kernel_fits_the_named_one(number: int) -> None:
    signature = PLAIN[number]
    nameless = points(anonymous(signature))
    assert [with_names(v, signature) for v in nameless] == points(signature)


def test_a_place_that_the_kernel_lacks_stays_as_it_is() -> None:
    values = {"pack.tensor0": True, "pack.tensor99": ["tensor99.i", 3], "at": None}
    assert with_names(values, PLAIN[0]) == {
        "pack.x": True,
        "pack.tensor99": ["tensor99.i", 3],
        "at": None,
    }


def test_names_of_other_things_stay() -> None:
    values = {"mytensor0": 1, "x": "tensor01", "y": "tensors"}
    assert with_names(values, PLAIN[0]) == values


def test_tensors_of_two_uses_of_an_operator_have_names_of_their_own() -> None:
    """Schedules find tensors by name: two normalizations in one kernel are rows, in one loop."""
    ones = numpy_helper.from_array(np.ones(40, np.float32), "w")
    nodes = [
        helper.make_node("LayerNormalization", ["x", "w"], ["y"]),
        helper.make_node("LayerNormalization", ["y", "w"], ["z"]),
    ]
    (signature,) = planned(nodes, "x", (32, 40), "z", (32, 40), ones)
    names = [b.name for b in tensors(signature)]
    assert len(signature.computations) > 7 and len({*names}) == len(names)
    (best, *_) = CPU.sketches(signature.plain(), signature.computations, ())
    assert best.name == "rows"
    assert " parallel" not in str(best.default().schedule.kernel)  # too small to share
