"""Products of one row with 4-bit weights, against moving as much memory and other engines.

    python -m benchmarks.weight_only [--threads N] [--group 32] [--rounds 12] [--rows 1]

Rounds are interleaved: in each, every engine runs once a model with enough products of one input
that the weights exceed the last-level cache, so that they come from memory, and call overhead is a
small part. `read` is a maximum over as many bytes, by our kernel; `copy` moves as many, half of
them read and half written. On one thread, processor time is measured, which excludes other
processes. Other engines compute with float32 activations (`float`) or with bytes (`bytes`,
accuracy_level 4); float32 weights show the savings. Outputs are compared in the same run with the
exact result of the same integers.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import tilewright as tw
from benchmarks.turns import by_turns, clock_of, stopwatch
from tilewright.base.numbers import ceil_div
from tilewright.base.text import columns
from tilewright.graph.ops.block_weights import unpacked

SHAPES = ((4096, 4096), (4096, 11008), (2048, 5632))
LEVELS = {"float": 0, "bytes": 4}
TOLERANCE = {"float": 1e-4, "bytes": 2e-2, "float32 weights": 1e-4}
FILLED = 128 << 20  # bytes, more than the last cache has

Run = Callable[[], list[Any]]
_SETS = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]


def packed_weights(
    depth: int, width: int, group: int, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Drawn integers of 4 bits and scales of product n, as MatMulNBits has them."""
    random, blocks = np.random.default_rng(n), depth // group
    packed = random.integers(0, 256, (width, blocks, group // 2), dtype=np.uint8)
    return packed, random.uniform(0.01, 0.1, width * blocks).astype(np.float32)


def real_weights(depth: int, width: int, group: int, n: int = 0) -> np.ndarray:
    """The dequantized weights of product n, [depth, width]."""
    packed, scales = packed_weights(depth, width, group, n)
    q = unpacked(packed.reshape(width, -1), 4).astype(np.float32) - 8
    weights: np.ndarray = q * np.repeat(scales.reshape(width, -1), group, 1)
    return weights.T


def model(
    rows: int, depth: int, width: int, group: int, level: int, count: int = 1
) -> onnx.ModelProto:
    """So many MatMulNBits of one input, with the same weights at every level."""
    nodes, known = [], dict[str, np.ndarray]()
    for n in range(count):
        names = f"packed{n}", f"scales{n}"
        known |= zip(names, packed_weights(depth, width, group, n), strict=True)
        node = helper.make_node(
            "MatMulNBits",
            ["x", *names],
            [f"y{n}"],
            domain="com.microsoft",
            N=width,
            K=depth,
            bits=4,
            block_size=group,
            accuracy_level=level,
        )
        nodes.append(node)
    return _model(nodes, [rows, depth], [rows, width], known)


def float_model(
    rows: int, depth: int, width: int, group: int, count: int
) -> onnx.ModelProto:
    """The products with the same weights in float32."""
    whole = {
        f"w{n}": np.ascontiguousarray(real_weights(depth, width, group, n))
        for n in range(count)
    }
    nodes = [
        helper.make_node("MatMul", ["x", f"w{n}"], [f"y{n}"]) for n in range(count)
    ]
    return _model(nodes, [rows, depth], [rows, width], whole)


def reader(size: int, threads: int) -> Run:
    """Reads `size` bytes once."""
    count = size // 4 // 1024
    node = helper.make_node("ReduceMax", ["x", "axes"], ["y0"], keepdims=0)
    source = _model([node], [1024, count], [1024], {"axes": np.array([1])})
    return ours(source, np.ones((1024, count), np.float32), threads)


def copier(size: int) -> Run:
    """Moves `size` bytes on one thread: half are read, half written."""
    source = np.ones(size // 8, np.float32)
    target = np.empty_like(source)

    def run() -> list[Any]:
        np.copyto(target, source)
        return []

    return run


def _model(
    nodes: list[Any], given: list[int], made: list[int], known: dict[str, Any]
) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "products",
        [info("x", 1, given)],
        [info(node.output[0], 1, made) for node in nodes],
        [numpy_helper.from_array(a, n) for n, a in known.items()],
    )
    return helper.make_model(graph, opset_imports=_SETS, ir_version=10)


def ours(source: onnx.ModelProto, x: np.ndarray, threads: int, **options: Any) -> Run:
    exe = tw.compile(source, threads=threads, **options)

    def run() -> list[Any]:
        found = exe(x)
        return list(found) if isinstance(found, tuple) else [found]

    return run


def onnxruntime(source: onnx.ModelProto, x: np.ndarray, threads: int) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(
        source.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, {"x": x})


def openvino(source: onnx.ModelProto, x: np.ndarray, threads: int) -> Run:
    import io

    import openvino as ov

    core = ov.Core()
    read = core.read_model(io.BytesIO(source.SerializeToString()))
    how = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(read, "CPU", how).create_infer_request()
    return lambda: [a.copy() for a in request.infer({"x": x}).values()]


def engines(
    rows: int, depth: int, width: int, group: int, x: np.ndarray, threads: int
) -> dict[tuple[str, str], tuple[Run, int]]:
    """The timed functions, by engine and kind of product, and the number of products.

    Engines that are not installed are omitted.
    """
    found: dict[tuple[str, str], tuple[Run, int]] = {}
    size = packed_size(depth, width, group)
    count = ceil_div(FILLED, size)
    for kind, level in LEVELS.items():
        source = model(rows, depth, width, group, level, count)
        found["tilewright", kind] = ours(source, x, threads), count
        for name, make in (("onnxruntime", onnxruntime), ("openvino", openvino)):
            if name == "openvino" and level:
                continue  # it makes its own choice
            try:
                found[name, kind] = make(source, x, threads), count
            except Exception as error:  # not installed, or it has no such operator
                print(f"{name}, {kind}: {str(error).splitlines()[0][:70]}")
    few = ceil_div(FILLED, 4 * depth * width)
    plain = ours(float_model(rows, depth, width, group, few), x, threads)
    found["tilewright", "float32 weights"] = plain, few
    return found


def packed_size(depth: int, width: int, group: int) -> int:
    """Bytes of one product's integers and scales."""
    return depth * width // 2 + depth * width // group * 4


def measure(
    rows: int, depth: int, width: int, group: int, threads: int, rounds: int
) -> list[tuple[str, ...]]:
    """A row per engine: kind, milliseconds, GB/s of weights, the share of a copy's, error."""
    x = np.random.default_rng(1).standard_normal((rows, depth)).astype(np.float32)
    size = packed_size(depth, width, group)
    runs = engines(rows, depth, width, group, x, threads)
    count = max(n for _, n in runs.values())
    errors = wrongness({key: run() for key, (run, _) in runs.items()}, x, width, group)
    memory = {"copy": copier(count * size), "read": reader(count * size, threads)}
    everything = {("memory", k): (run, count) for k, run in memory.items()} | runs
    clock = clock_of(threads)
    timed = {key: stopwatch(run, clock) for key, (run, _) in everything.items()}
    taken = by_turns(timed, rounds)
    times = {key: [s / n for s in taken[key]] for key, (_, n) in everything.items()}
    whole = 4 * depth * width
    return [
        _row(key, times, errors.get(key), whole if "32" in key[1] else size)
        for key in everything
    ]


def wrongness(
    found: dict[tuple[str, str], list[Any]], x: np.ndarray, width: int, group: int
) -> dict[tuple[str, str], float]:
    """The largest error of each engine's products, over the largest exact result."""
    errors = dict.fromkeys(found, 0.0)
    for n in range(max(map(len, found.values()))):
        exact = x.astype(np.float64) @ real_weights(x.shape[1], width, group, n)
        for key, outputs in found.items():
            if n < len(outputs):
                error = np.abs(outputs[n] - exact).max() / np.abs(exact).max()
                errors[key] = float(np.maximum(errors[key], error))  # NaN stays
    return errors


def _row(
    key: tuple[str, str],
    times: dict[tuple[str, str], list[float]],
    error: float | None,
    size: int,
) -> tuple[str, ...]:
    middle, least = statistics.median(times[key]), min(times[key])
    copied = zip(times["memory", "copy"], times[key], strict=True)
    share = statistics.median(a / b for a, b in copied)
    right = "" if error is None else f"{error:.1e}"
    if error is not None and not error <= TOLERANCE[key[1]]:
        right += " WRONG"
    speed = f"{size / middle / 1e9:.1f}"
    best = f"{size / least / 1e9:.1f}"
    return (*key, f"{1e3 * middle:.3f}", speed, best, f"{share:.2f}", right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("threads", 1), ("group", 32), ("rounds", 12), ("rows", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    head = ("engine", "product", "ms", "GB/s", "best GB/s", "of a copy", "error")
    for depth, width in SHAPES:
        print(f"\n{given.rows} x {depth} x {width}, group {given.group}:")
        rows = measure(
            given.rows, depth, width, given.group, given.threads, given.rounds
        )
        print(columns([head, *rows], "<<>>>>>"))


if __name__ == "__main__":
    main()
