"""Products of one row with weights of 4 bits, beside reading as much memory and other engines.

    python -m benchmarks.weight_only [--threads N] [--group 32] [--rounds 40] [--rows 1]

Rounds are interleaved: in each, every engine runs once, after a pass over an array that is larger
than the last cache, so that weights come from memory. `read` is the largest element of as many
bytes, by a kernel of ours. Engines beside it compute with float32 activations (`float`) or with
bytes (`bytes`, accuracy_level 4); float32 weights show what they save. Outputs are compared in the
same run with the exact result of the same integers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import tilewright as tw
from tilewright.base.text import columns
from tilewright.graph.ops.block_weights import unpacked

SHAPES = ((4096, 4096), (4096, 11008), (2048, 5632))
LEVELS = {"float": 0, "bytes": 4}
TOLERANCE = {"float": 1e-4, "bytes": 2e-2, "float32 weights": 1e-4}
FLUSHED = 128 << 20  # bytes, more than the last cache has

Run = Callable[[], Any]


def model(rows: int, depth: int, width: int, group: int, level: int) -> onnx.ModelProto:
    """MatMulNBits of 4 bits with drawn weights, the same ones at every level."""
    random = np.random.default_rng(0)
    blocks = depth // group
    packed = random.integers(0, 256, (width, blocks, group // 2), dtype=np.uint8)
    scales = random.uniform(0.01, 0.1, width * blocks).astype(np.float32)
    node = helper.make_node(
        "MatMulNBits",
        ["x", "packed", "scales"],
        ["y"],
        domain="com.microsoft",
        N=width,
        K=depth,
        bits=4,
        block_size=group,
        accuracy_level=level,
    )
    known = {"packed": packed, "scales": scales}
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return _model(node, rows, depth, width, known, sets)


def real_weights(depth: int, width: int, group: int) -> np.ndarray:
    """What the integers of `model` stand for, [depth, width]."""
    known = model(1, depth, width, group, 0).graph.initializer
    packed, scales = (numpy_helper.to_array(a) for a in known)
    q = unpacked(packed.reshape(width, -1), 4).astype(np.float32) - 8
    return (q * np.repeat(scales.reshape(width, -1), group, 1)).T


def float_model(rows: int, weights: np.ndarray) -> onnx.ModelProto:
    """The product with the same weights in float32."""
    depth, width = weights.shape
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    known = {"w": np.ascontiguousarray(weights)}
    sets = [helper.make_opsetid("", 21)]
    return _model(node, rows, depth, width, known, sets)


def reader(size: int, threads: int) -> Run:
    """Reads so many bytes once."""
    count = size // 4 // 1024
    node = helper.make_node("ReduceMax", ["x", "axes"], ["y"], keepdims=0)
    axes = {"axes": np.array([1])}
    sets = [helper.make_opsetid("", 21)]
    exe = tw.compile(_model(node, 1024, count, None, axes, sets), threads=threads)
    data = np.ones((1024, count), np.float32)
    return lambda: exe(data)


def _model(
    node: Any, rows: int, depth: int, width: int | None, known: Any, sets: Any
) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    made = [rows] if width is None else [rows, width]
    graph = helper.make_graph(
        [node],
        "product",
        [info("x", 1, [rows, depth])],
        [info("y", 1, made)],
        [numpy_helper.from_array(a, n) for n, a in known.items()],
    )
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


def ours(source: onnx.ModelProto, x: np.ndarray, threads: int, **options: Any) -> Run:
    exe = tw.compile(source, threads=threads, **options)
    return lambda: exe(x)


def onnxruntime(source: onnx.ModelProto, x: np.ndarray, threads: int) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(
        source.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, {"x": x})[0]


def openvino(source: onnx.ModelProto, x: np.ndarray, threads: int) -> Run:
    import io

    import openvino as ov

    core = ov.Core()
    read = core.read_model(io.BytesIO(source.SerializeToString()))
    how = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(read, "CPU", how).create_infer_request()
    return lambda: request.infer({"x": x})[0].copy()


def engines(
    rows: int, depth: int, width: int, group: int, x: np.ndarray, threads: int
) -> dict[tuple[str, str], Run]:
    """What is timed, by engine and kind of product; an engine that is not there is left out."""
    found: dict[tuple[str, str], Run] = {}
    for kind, level in LEVELS.items():
        source = model(rows, depth, width, group, level)
        found["tilewright", kind] = ours(source, x, threads)
        for name, make in (("onnxruntime", onnxruntime), ("openvino", openvino)):
            if name == "openvino" and level:
                continue  # it chooses by itself
            try:
                found[name, kind] = make(source, x, threads)
            except Exception as error:  # not installed, or it has no such operator
                print(f"{name}, {kind}: {str(error).splitlines()[0][:70]}")
    plain = float_model(rows, real_weights(depth, width, group))
    found["tilewright", "float32 weights"] = ours(plain, x, threads)
    return found


def measure(
    rows: int, depth: int, width: int, group: int, threads: int, rounds: int
) -> list[tuple[str, ...]]:
    """A row per engine: kind, milliseconds, GB/s of weights, the share of reading, error."""
    x = np.random.default_rng(1).standard_normal((rows, depth)).astype(np.float32)
    size = depth * width // 2 + depth * width // group * 4
    runs = engines(rows, depth, width, group, x, threads)
    weights = real_weights(depth, width, group)
    exact = x.astype(np.float64) @ weights
    errors = {
        key: float(np.abs(run() - exact).max() / np.abs(exact).max())
        for key, run in runs.items()
    }
    everything = {("memory", "read"): reader(size, threads), **runs}
    times: dict[tuple[str, str], list[float]] = {key: [] for key in everything}
    flush = np.ones(FLUSHED // 8)
    for _ in range(rounds):
        for key, run in everything.items():
            flush.max()
            start = time.perf_counter()
            run()
            times[key].append(time.perf_counter() - start)
    return [
        _row(key, times, errors.get(key), weights.nbytes if "32" in key[1] else size)
        for key in everything
    ]


def _row(
    key: tuple[str, str],
    times: dict[tuple[str, str], list[float]],
    error: float | None,
    size: int,
) -> tuple[str, ...]:
    read = times["memory", "read"]
    share = statistics.median(a / b for a, b in zip(read, times[key], strict=True))
    middle, least = statistics.median(times[key]), min(times[key])
    right = "" if error is None else f"{error:.1e}"
    if error is not None and not error <= TOLERANCE[key[1]]:
        right += " WRONG"
    speed = f"{size / middle / 1e9:.1f}"
    best = f"{size / least / 1e9:.1f}"
    return (*key, f"{1e3 * middle:.3f}", speed, best, f"{share:.2f}", right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("threads", 1), ("group", 32), ("rounds", 40), ("rows", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    head = ("engine", "product", "ms", "GB/s", "best GB/s", "of reading", "error")
    for depth, width in SHAPES:
        print(f"\n{given.rows} x {depth} x {width}, group {given.group}:")
        rows = measure(
            given.rows, depth, width, given.group, given.threads, given.rounds
        )
        print(columns([head, *rows], "<<>>>>>"))


if __name__ == "__main__":
    main()
