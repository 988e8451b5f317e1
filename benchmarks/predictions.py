"""Predicted times of kernels without products against measured ones.

    python -m benchmarks.predictions --kernels transposed,softmax

The search over substitutions adds up predictions (`targets/cpu/predict.py`). Each kernel is one
model of `PRICED`, compiled for one thread with its default schedule; a time is the median of calls,
without what a call of an empty model takes.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
import onnx
import onnx.parser

import tilewright as tw
from benchmarks.harness import chosen
from tilewright.driver.graph_cost import TIME, GraphCost
from tilewright.driver.options import Options
from tilewright.driver.random_inputs import random_array
from tilewright.frontends.load import load

ROW: Final = "{:20} predicted {:8.2f} us  measured {:8.2f} us  ratio {:.2f}"
ROUNDS: Final = 15
BATCH: Final = 2e-3  # seconds of calls that are timed as one

IMAGE: Final = "float[1,64,112,112] x"
HALF: Final = "float[1,64,56,56]"
# Inputs, outputs and the body of each kernel's graph.
PRICED: Final[Mapping[str, tuple[str, str, str]]] = {
    "relu": ("float[256,256] x", "float[256,256] y", "y = Relu(x)"),
    "relu_large": ("float[2048,2048] x", "float[2048,2048] y", "y = Relu(x)"),
    "sum": ("float[512,512] x, float[512,512] z", "float[512,512] y", "y = Add(x, z)"),
    "sum_column": (
        "float[512,512] x, float[512,1] z",
        "float[512,512] y",
        "y = Add(x, z)",
    ),
    "exp": ("float[256,256] x", "float[256,256] y", "y = Exp(x)"),
    "quotient": (
        "float[256,256] x, float[256,256] z",
        "float[256,256] y",
        "y = Div(x, z)",
    ),
    "gelu": ("float[256,1024] x", "float[256,1024] y", "y = Gelu(x)"),
    "transposed": (
        "float[512,512] x",
        "float[512,512] y",
        "y = Transpose<perm = [1, 0]>(x)",
    ),
    "transposed_1000": (
        "float[1000,1000] x",
        "float[1000,1000] y",
        "y = Transpose<perm = [1, 0]>(x)",
    ),
    "transposed_2048": (
        "float[2048,2048] x",
        "float[2048,2048] y",
        "y = Transpose<perm = [1, 0]>(x)",
    ),
    "channels_last": (
        f"{HALF} x",
        "float[1,56,56,64] y",
        "y = Transpose<perm = [0, 2, 3, 1]>(x)",
    ),
    "heads": (
        "float[1,128,12,64] x",
        "float[1,12,128,64] y",
        "y = Transpose<perm = [0, 2, 1, 3]>(x)",
    ),
    "space_to_depth": (
        "float[1,16,112,112] x",
        f"{HALF} y",
        "y = SpaceToDepth<blocksize = 2>(x)",
    ),
    "every_second": (
        IMAGE,
        f"{HALF} y",
        """b = Constant<value_ints = [0, 0]>() e = Constant<value_ints = [112, 112]>()
        a = Constant<value_ints = [2, 3]>() s = Constant<value_ints = [2, 2]>()
        y = Slice(x, b, e, a, s)""",
    ),
    "joined": (
        f"{HALF} x, {HALF} z",
        "float[1,128,56,56] y",
        "y = Concat<axis = 1>(x, z)",
    ),
    "padded": (
        f"{HALF} x",
        "float[1,64,58,58] y",
        "p = Constant<value_ints = [0, 0, 1, 1, 0, 0, 1, 1]>() y = Pad(x, p)",
    ),
    "rows_of_a_table": (
        "int64[128] i, float[30522,384] x",
        "float[128,384] y",
        "y = Gather(x, i)",
    ),
    "max_pool_2": (
        IMAGE,
        f"{HALF} y",
        "y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)",
    ),
    "max_pool_3_stride_2": (
        IMAGE,
        f"{HALF} y",
        """y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x)""",
    ),
    "mean_pool_3": (
        f"{HALF} x",
        f"{HALF} y",
        "y = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)",
    ),
    "max_pool_13": (
        "float[1,256,20,20] x",
        "float[1,256,20,20] y",
        "y = MaxPool<kernel_shape = [13, 13], pads = [6, 6, 6, 6]>(x)",
    ),
    "image_means": (
        "float[1,512,28,28] x",
        "float[1,512,1,1] y",
        "y = GlobalAveragePool(x)",
    ),
    "row_sums": (
        "float[512,768] x",
        "float[512] y",
        "a = Constant<value_ints = [1]>() y = ReduceSum<keepdims = 0>(x, a)",
    ),
    "column_sums": (
        "float[512,768] x",
        "float[768] y",
        "a = Constant<value_ints = [0]>() y = ReduceSum<keepdims = 0>(x, a)",
    ),
    "softmax": ("float[512,512] x", "float[512,512] y", "y = Softmax<axis = -1>(x)"),
    "layer_norm": (
        "float[512,768] x, float[768] w, float[768] b",
        "float[512,768] y",
        "y = LayerNormalization(x, w, b)",
    ),
    "scan": (
        "float[256,512] x",
        "float[256,512] y",
        "a = Constant<value = int64 {1}>() y = CumSum(x, a)",
    ),
}


def model(name: str) -> onnx.ModelProto:
    """The model of one row of `PRICED`."""
    takes, makes, body = PRICED[name]
    text = f'<ir_version: 9, opset_import: ["" : 20]> g ({takes}) => ({makes}) {{ {body} }}'
    return onnx.parser.parse_model(text)


def predicted(file: Path, mcpu: str = "native") -> float:
    """The seconds that the search over substitutions expects of a model, on one thread."""
    return GraphCost(Options(threads=1, mcpu=mcpu), TIME)(load(file))


def measured(file: Path, expected: float) -> float:
    """Seconds of a call on one thread: the median of rounds of as many calls as BATCH holds."""
    exe = tw.compile(file, threads=1)
    feeds: dict[str, Any] = {
        v.name: random_array(v.name, v.dtype, v.extents, 0)
        for v in load(file).inputs
        if v.dtype is not None
    }
    exe(feeds)
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        calls = max(1, int(BATCH / expected))
        for _ in range(calls):
            exe(feeds)
        times.append((time.perf_counter() - begin) / calls)
    return statistics.median(times)


@click.command()
@click.option("--kernels", default="*", help="Rows of PRICED, separated by commas.")
def main(kernels: str) -> None:
    """Print predicted and measured times of kernels, and the mean of their ratios."""
    ratios = []
    with TemporaryDirectory() as folder:
        empty = Path(folder, "empty.onnx")
        onnx.save(
            onnx.parser.parse_model(
                '<ir_version: 9, opset_import: ["" : 20]> g (float[1] x) => (float[1] y) '
                "{ y = Relu(x) }"
            ),
            empty,
        )
        call = measured(empty, 1e-6)
        for name in chosen(kernels, list(PRICED)):
            file = Path(folder, f"{name}.onnx")
            onnx.save(model(name), file)
            guess = predicted(file)
            taken = max(measured(file, guess) - call, 1e-9)
            ratios.append(guess / taken)
            click.echo(ROW.format(name, guess * 1e6, taken * 1e6, ratios[-1]))
    mean = statistics.geometric_mean(ratios)
    spread = math.exp(statistics.pstdev(math.log(r) for r in ratios))
    click.echo(
        f"geometric mean {mean:.2f}, standard deviation of ratios {spread:.2f} times"
    )


if __name__ == "__main__":
    main()
