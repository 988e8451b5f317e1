"""The examples run; one of them in a process of its own, as a user would run it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.script import ROOT, printed, printed_here

SAYS = {
    "lift_fully_connected": [
        "= recognize-MVMul",
        "block MVMul32",
        "parallel",
        "equal to NumPy",
    ],
    "compile_onnx": ["result: (1, 8) float32", "loaded: True"],
    "compile_torch": ["agrees with PyTorch"],
    "custom_operator": ["agrees with its reference", "matmul+swish"],
    "halide_blur": ["sliding_window", "tiled_parallel", "MB moved"],
    "int8_matmul": ["u8 x s8", "bfloat16"],
    "mdh_bert_subgraph": ["are equal: True", "agrees with NumPy: True", "one kernel"],
    "npu_portability": ["network", "gru           wide", "MVMul128x128"],
    "schedule_by_hand": ["s.vectorize(", "by hand", "by default"],
    "vta_network": ["vta  Gemm+Relu", "bit for bit: True", "GEMM UOP["],
    "vta_roofline": ["C12", "best"],
    "te_matmul": [
        "# naive",
        "# parallel",
        "128 x 128 x 128, 2 thread(s), in turns:",
        "NumPy",
    ],
}
# Small sizes, and nothing that only another compiler makes slow.
ARGUMENTS = {
    "halide_blur": ["512", "256"],
    "int8_matmul": ["128"],
    "mdh_bert_subgraph": ["2", "32", "3", "--without-compile"],
    "npu_portability": ["gru", "wide"],
    "schedule_by_hand": ["64"],
    "te_matmul": ["128", "2"],
    "vta_network": ["--listing"],
    "vta_roofline": ["--layers", "C8,C12", "--picture", "roofline.png"],
}

BY_ITSELF = (
    "compile_onnx"  # starting a process for each would take longer than most of them do
)


TRAINING = {"train_lenet", "train_transformer"}  # run by test_training_examples


def test_every_example_is_run() -> None:
    found = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert found == set(SAYS) | TRAINING


# Seconds each; what they show has fast tests of its own.
LONG = {
    "halide_blur",
    "lift_fully_connected",
    "npu_portability",
    "te_matmul",
    "vta_network",
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in SAYS]
)
def test_example(name: str, tmp_path: Path, own_registries: None) -> None:
    if "torch" in name and find_spec("torch") is None:
        pytest.skip("needs PyTorch")
    run = printed if name == BY_ITSELF else printed_here
    found = run(ROOT / "examples" / f"{name}.py", ARGUMENTS.get(name, []), tmp_path)
    for words in SAYS[name]:
        assert words in found
