"""The overhead of one call of a compiled model (python -m benchmarks.call_overhead).

A model of one ReLU on 100 elements, called in every possible way; the minimum of 7 repeats.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.parser

import tilewright as tw

CALLS = 2000

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
relu (float[100] x) => (float[100] y) { y = Relu(x) }
"""


def main() -> None:
    """Print microseconds per call."""
    exe: Any = tw.compile(onnx.parser.parse_model(MODEL), threads=1)
    x, out = np.ones(100, np.float32), np.empty(100, np.float32)
    ways: dict[str, Callable[[], object]] = {
        "exe(x)": lambda: exe(x),
        "exe(x, out=out)": lambda: exe(x, out=out),
        "exe(x=x)": lambda: exe(x=x),
    }
    for name, way in ways.items():
        best = min(timeit.repeat(way, number=CALLS, repeat=7)) / CALLS * 1e6
        print(f"{name:16} {best:6.2f} us")


if __name__ == "__main__":
    main()
