"""Groups that no sketch covers become kernels that sketches do cover."""

from onnx import parser

from tilewright.driver.stage_passes import stages
from tilewright.frontends.onnx.load import load
from tilewright.targets.registry import target

HEADER = '<ir_version: 9, opset_import: ["" : 21]>'


def steps_of(text):
    graph = load(parser.parse_model(HEADER + text).SerializeToString())
    return stages(graph, target("cpu")).steps


def test_a_softmax_over_rows_is_one_kernel():
    assert len(steps_of("g (float[4,33] x) => (float[4,33] y) { y = Softmax(x) }")) == 1


def test_a_softmax_over_columns_is_one_kernel_per_pass():
    steps = steps_of("g (float[4,33,8] x) => (float[4,33,8] y) { y = Softmax<axis=1>(x) }")
    # The sum of a column and its inverse are one pass: the terms are multiplied by it.
    assert [len(s.computations) for s in steps] == [1, 1, 2, 1]
    assert len({s.name for s in steps}) == 4
    assert all(target("cpu").covers(s.computations) for s in steps)
