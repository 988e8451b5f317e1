"""Indices that are data, far out of range: defined behavior, and no access beyond a tensor.

Protected pages surround every operand, and every call runs in a process of its own, which an
access to one of them would end.
"""

import re

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.guarded import guarded, in_a_child
from tests.robust.models import BOOL, FLOAT, INT32, INT64, info, model, node
from tilewright.base.errors import TilewrightError

F, INT = np.float32, np.int64
KINDS = {np.dtype(F): FLOAT, np.dtype(INT): INT64, np.dtype(np.int32): INT32}
BAD = (7, -7, 10**6, -(10**6), 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
X = np.arange(16, dtype=F).reshape(4, 4)
IMAGE = np.arange(32, dtype=F).reshape(1, 2, 4, 4)
ROI = np.array([[0, 0, 3, 3]], F)
ROW, COLUMN = np.ones((1, 4), F), np.zeros((4, 1), INT)
STEPS = [
    np.ones((3, 2, 2), F),
    np.ones((1, 8, 2), F),
    np.ones((1, 8, 2), F),
    np.ones((1, 16), F),
]


def at(*numbers, dtype=INT):
    return np.array(numbers, dtype)


def calls(op, operands, place, values, outputs=1, opset=24, **attributes):
    """For each of `values`, the result or the error's text when operand `place` is filled with it.

    operands: arrays, None for one left out; the operand at `place` gives shape and dtype.
    """
    domain = attributes.pop("domain", "")
    names = ["" if a is None else f"v{n}" for n, a in enumerate(operands)]
    given = {f"v{n}": a for n, a in enumerate(operands) if a is not None}
    made = node(
        op, names, [f"y{n}" for n in range(outputs)], "n", domain=domain, **attributes
    )
    inputs = {name: (KINDS[a.dtype], a.shape) for name, a in given.items()}
    source = model([made], inputs, ["y0"], opset=opset)
    if domain:
        source.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    exe = tw.compile(source, cache=False, threads=1, memory_limit=1 << 28)
    dtype = operands[place].dtype
    fitting = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)

    def work():
        found = {}
        for value in values:
            if fitting.min <= value <= fitting.max:
                bad = np.full_like(operands[place], value)
                found[value] = [
                    _called(exe, {**given, f"v{place}": bad}, end)
                    for end in (True, False)
                ]
        return found

    results = in_a_child(work)
    for value, (first, second) in results.items():
        assert type(first) is type(second), (value, first, second)
        np.testing.assert_array_equal(first, second)
    return {value: first for value, (first, _) in results.items()}


def _called(exe, feeds, at_end):
    try:
        return exe({name: guarded(a, at_end) for name, a in feeds.items()})
    except TilewrightError as error:
        return f"{type(error).__name__}: {error}"


def refused(found, values=BAD, words="out of range", kind="ExecutionError"):
    for value in values:
        if value in found:
            text = found[value]
            assert isinstance(text, str), (value, text)
            assert (
                text.startswith(kind) and re.search(r"'n'|\bn/", text) and words in text
            ), (
                value,
                text,
            )


# ------------------------------------------------------------- checked; negative ones from the end

CHECKED = {
    "Gather": ("Gather", [X, at(0)], 1, {}, X[-1:]),
    "Gather int32": ("Gather", [X, at(0, dtype=np.int32)], 1, {}, X[-1:]),
    "Gather columns": ("Gather", [X, at(0)], 1, {"axis": 1}, X[:, -1:]),
    "GatherElements": ("GatherElements", [X, np.zeros((1, 4), INT)], 1, {}, X[-1:]),
    "GatherElements columns": ("GatherElements", [X, COLUMN], 1, {"axis": 1}, X[:, -1:]),
    "GatherND": ("GatherND", [X, np.zeros((1, 2), INT)], 1, {}, X[-1:, -1]),
    "GatherND in batches": ("GatherND", [X, COLUMN], 1, {"batch_dims": 1}, X[:, -1]),
    "ScatterElements": ("ScatterElements", [X, np.zeros((1, 4), INT), ROW], 1, {},
                        np.r_[X[:3], ROW]),
    "ScatterElements max": ("ScatterElements", [X, np.zeros((1, 4), INT), ROW], 1,
                            {"reduction": "max"}, X),
    "ScatterND": ("ScatterND", [X, np.zeros((1, 1), INT), ROW], 1, {}, np.r_[X[:3], ROW]),
    "ScatterND add": ("ScatterND", [X, np.zeros((1, 1), INT), ROW], 1, {"reduction": "add"},
                      np.r_[X[:3], X[3:] + 1]),
    "embedding": ("Gather", [X, np.zeros((2, 3), INT)], 1, {}, np.tile(X[-1], (2, 3, 1))),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CHECKED)
def test_an_index_is_checked_and_a_negative_one_counts_from_the_end(case):
    op, operands, place, attributes, last = CHECKED[case]
    found = calls(op, operands, place, (-1, 4, -5, *BAD), **attributes)
    np.testing.assert_array_equal(found.pop(-1), last)
    refused(found, (4, -5, *BAD))


def test_positions_of_a_cache_are_checked_or_taken_around_it():
    cache, new = np.zeros((2, 4, 3), F), np.ones((2, 1, 3), F)
    found = calls("TensorScatter", [cache, new, at(0, 0)], 2, (3, -1, 4, *BAD))
    assert found[3][:, 3].all() and not found[3][:, :3].any()
    refused(found, (-1, 4, *BAD))
    around = calls(
        "TensorScatter", [cache, new, at(0, 0)], 2, (3, *BAD), mode="circular"
    )
    for value, result in around.items():
        assert result[:, value % 4].all() and result.sum() == new.sum(), value


def test_classes_of_a_loss():
    for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
        found = calls(
            op, [np.ones((2, 3), F), at(0, 0)], 1, (2, 3, *BAD), reduction="sum"
        )
        assert np.isfinite(found[2])
        refused(found, (3, *BAD))
        ignored = calls(op, [np.ones((2, 3), F), at(0, 0)], 1, (-7,), ignore_index=-7,
                        reduction="sum")  # fmt: skip
        assert ignored[-7] == 0


# ------------------------------------------------------------------ clamped, or without effect


def test_windows_are_clamped_to_the_tensor():
    for place, cut in ((1, lambda v: slice(v, 4)), (2, lambda v: slice(0, v))):
        found = calls("Slice", [X, at(0), at(4), at(0)], place, (1, -1, *BAD))
        for value, result in found.items():
            np.testing.assert_array_equal(result, X[cut(value)])
    steps = calls("Slice", [X, at(0), at(4), at(0), at(1)], 4, (2, -1, *BAD, 0))
    for value, result in steps.items():
        if value:
            np.testing.assert_array_equal(result, X[slice(0, 4, value)])
    refused({0: steps[0]}, (0,), "step", "ModelError")
    axes = calls("Slice", [X, at(0), at(2), at(0)], 3, (-1, *BAD))
    np.testing.assert_array_equal(axes.pop(-1), X[:, :2])
    refused(axes, words="axis", kind="ModelError")


def test_one_hot_of_what_is_no_class_is_all_off():
    depth_and_values = [np.array(4), np.array([0, 1], F)]
    found = calls("OneHot", [at(0), *depth_and_values], 0, (-1, 3, 4, -5, *BAD))
    for value, result in found.items():
        np.testing.assert_array_equal(
            result, np.eye(4)[[value]] if -4 <= value < 4 else [[0] * 4]
        )


def test_a_diagonal_and_an_axis_anywhere():
    for value, result in calls("Trilu", [X, np.array(0)], 1, (1, *BAD)).items():
        np.testing.assert_array_equal(result, np.triu(X, np.clip(value, -9, 9)))
    refused(calls("CumSum", [X, np.array(0)], 1, BAD), words="axis", kind="ModelError")
    refused(calls("ReduceSum", [X, at(0)], 1, BAD), words="axis", kind="ModelError")


def test_lengths_beyond_the_sequence():
    found = calls("ReverseSequence", [X, at(1, 1, 1, 1)], 1, (4, 0, 5, -1, *BAD))
    np.testing.assert_array_equal(found.pop(4), X[::-1])
    for result in found.values():
        assert isinstance(result, str) or sorted(result.ravel()) == sorted(X.ravel())
    lengths = at(1, 1, dtype=np.int32)
    recurrent = calls(
        "LSTM", [*STEPS, lengths], 4, (3, 0, *BAD), outputs=1, hidden_size=2
    )
    for result in recurrent.values():
        assert isinstance(result, str) or np.isfinite(result).all()


# --------------------------------------------------------- any values: an error, or a result

ANYTHING = {
    "TopK": ("TopK", [X, at(1)], 1, {"outputs": 2}),
    "MaxUnpool": ("MaxUnpool", [IMAGE, np.zeros((1, 2, 4, 4), INT)], 1,
                  {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "RoiAlign": ("RoiAlign", [IMAGE, ROI, at(0)], 2,
                 {"output_height": 2, "output_width": 2, "sampling_ratio": 2}),
    "MaxRoiPool": ("MaxRoiPool", [IMAGE, np.zeros((1, 5), F)], 1, {"pooled_shape": [2, 2]}),
    "Pad": ("Pad", [X, at(0, 0, 0, 0)], 1, {}),
    "Pad reflect": ("Pad", [X, at(0, 0, 0, 0)], 1, {"mode": "reflect"}),
    "Pad wrap": ("Pad", [X, at(0, 0, 0, 0)], 1, {"mode": "wrap"}),
    "Expand": ("Expand", [at(1, dtype=F), at(1)], 1, {}),
    "Tile": ("Tile", [at(1, dtype=F), at(1)], 1, {}),
    "Reshape": ("Reshape", [X, at(4, 4)], 1, {}),
    "Split": ("Split", [X, at(4)], 1, {}),
    "Unsqueeze": ("Unsqueeze", [X, at(0)], 1, {}),
    "ConstantOfShape": ("ConstantOfShape", [at(1)], 0, {}),
    "Range": ("Range", [np.array(0), np.array(5), np.array(1)], 1, {}),
    "Resize": ("Resize", [IMAGE, None, None, at(1, 2, 4, 4)], 3, {}),
    "CenterCropPad": ("CenterCropPad", [X, at(4, 4)], 1, {}),
    "Col2Im": ("Col2Im", [np.ones((1, 4, 1), F), at(2, 2), at(2, 2)], 1, {}),
    "RotaryEmbedding": ("RotaryEmbedding", [np.ones((1, 2, 2, 4), F), np.ones((3, 2), F),
                                            np.ones((3, 2), F), np.zeros((1, 2), INT)], 3, {}),
    "DFT": ("DFT", [np.ones((1, 4, 1), F), np.array(4)], 1, {}),
    "HannWindow": ("HannWindow", [np.array(4)], 0, {}),
}  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", ANYTHING)
@pytest.mark.filterwarnings("ignore")
def test_nothing_is_touched_beyond_a_tensor(case):
    op, operands, place, attributes = ANYTHING[case]
    found = calls(op, operands, place, BAD, **attributes)
    kinds = (
        "ExecutionError: ",
        "ModelError: ",
        "MemoryLimitError: ",
        "UnsupportedError: ",
    )
    for value, result in found.items():
        assert isinstance(result, np.ndarray) or result.startswith(kinds), (
            value,
            result,
        )


def test_the_guard_ends_a_process_that_touches_it():
    array = guarded(np.zeros(8, np.uint8))
    beyond = np.lib.stride_tricks.as_strided(array, (9,), (1,))
    with pytest.raises(AssertionError, match="read at 1 bytes past the end of array"):
        in_a_child(lambda: int(beyond[8]))
    before = np.lib.stride_tricks.as_strided(
        guarded(np.zeros(8, np.uint8), False), (2,), (-1,)
    )
    with pytest.raises(AssertionError, match="read at 1 bytes before array"):
        in_a_child(lambda: int(before[1]))
    assert in_a_child(lambda: int(array[7])) == 0
    with pytest.raises(ZeroDivisionError):
        in_a_child(lambda: 1 / 0)


# ------------------------------------------------- operators that run as host fallbacks


@pytest.mark.filterwarnings("ignore")
def test_a_place_in_a_sequence():
    def source(op, operands):
        nodes = [
            node("SequenceConstruct", ["x", "x"], ["s"]),
            node(
                "SequenceErase" if op == "SequenceErase" else "SequenceInsert",
                operands,
                ["t"],
            )
            if op != "SequenceAt"
            else node("Identity", ["s"], ["t"]),
            node(
                "SequenceAt", ["t", "i" if op == "SequenceAt" else "zero"], ["y"], "n"
            ),
        ]
        constants = {"zero": np.array(0)}
        return model(
            nodes, {"x": (FLOAT, [4, 4]), "i": (INT64, [])}, constants=constants
        )

    cases = {
        "SequenceAt": [],
        "SequenceErase": ["s", "i"],
        "SequenceInsert": ["s", "x", "i"],
    }
    for op, operands in cases.items():
        exe = tw.compile(source(op, operands), cache=False)
        for value in (0, -1, *BAD):
            found = _called(exe, {"x": X, "i": np.array(value)}, True)
            if value in (0, -1):
                np.testing.assert_array_equal(found, X)
            else:
                assert "out of range for a sequence of 2" in found, (op, value)


@pytest.mark.parametrize("trips", [3, 0, -1, -(2**31), -(2**63)])
def test_a_loop_of_any_number_of_iterations(trips):
    """A number below one means none; the accumulated result is then empty."""
    body = onnx.helper.make_graph(
        [node("Add", ["s", "s"], ["t"]), node("Identity", ["c"], ["go"])],
        "body",
        [info("i", INT64, []), info("c", BOOL, []), info("s", FLOAT, [4, 4])],
        [info("go", BOOL, []), info("t", FLOAT, [4, 4])],
    )
    made = node("Loop", ["n", "", "x"], ["y"], "n", body=body)
    exe = tw.compile(
        model([made], {"n": (INT64, []), "x": (FLOAT, [4, 4])}), cache=False
    )
    np.testing.assert_array_equal(_called(exe, {"n": np.array(trips), "x": X}, True),
                                  X * 2 ** max(trips, 0))  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_boxes_that_are_kept():
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 1], [5, 5, 6, 6]]], F)
    scores = np.array([[[0.9, 0.8, 0.7]]], F)
    found = calls(
        "NonMaxSuppression",
        [boxes, scores, np.array(1), np.array(0.5, F)],
        2,
        (2, *BAD),
    )
    for value, result in found.items():
        kept = [[0, 0, 0], [0, 0, 2]] if value > 0 else []
        np.testing.assert_array_equal(result, np.array(kept, INT).reshape(-1, 3))
