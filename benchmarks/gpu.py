"""GPU benchmarks: operators and models, against the installed peers.

    python -m benchmarks.gpu --target cuda -o gpu.json      on a machine with an NVIDIA GPU
    python -m benchmarks.gpu                                 without one: small sizes on OpenCL

Each case is an ONNX model: it is compiled, run, and compared with NumPy or the peer before it is
timed. A time is the median over rounds of the kernels of one call by the device's own clock,
without copies to the device and back. Peers (`gpu_peers.py`) are timed in the same rounds,
interleaved, on the same inputs, if their results are right; one that is not installed, or cannot
compute a case, is left out, with the reason in the row. Without a GPU the sizes are small and the
times are meaningless, as the output states: the run only shows that the path works and results are
correct.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
import onnx.parser

import tilewright
from benchmarks.gpu_peers import PEERS, LeftOutError, PeerCase
from benchmarks.turns import by_turns
from tilewright.base.errors import TilewrightError
from tilewright.runtime import devices
from tilewright.runtime.profile import Profile
from tilewright.testing.networks import NETWORKS

Array = np.ndarray[Any, Any]
Reference = Callable[..., Any]
BUDGET: Final = 540.0  # seconds, after which no case is begun
MEANINGLESS: Final = "there is no GPU: sizes are small, and the times mean nothing"


@dataclass(frozen=True)
class Case:
    """An operator.

    body: of an ONNX graph of `inputs`, which makes `y`, with names of sizes in it. dtype: of all
    tensors. full, small: sizes on a GPU, and without one. expected: the result, by a module such as
    `numpy`, whose arrays are given. peer: the same for the module `torch`.
    flops, bytes: by the sizes, for the rate; one of them is what limits the operator.
    """

    name: str
    inputs: Mapping[str, str]
    output: str
    body: str
    full: Mapping[str, int]
    small: Mapping[str, int]
    expected: Reference
    peer: Reference
    flops: Callable[..., float] | None = None
    bytes: Callable[..., float] | None = None
    dtype: str = "float"

    def model(self, sizes: Mapping[str, int]) -> onnx.ModelProto:
        """The operator as a model."""

        def typed(name: str, shape: str) -> str:
            return f"{self.dtype}[{shape.format(**sizes)}] {name}"

        given = ", ".join(typed(n, s) for n, s in self.inputs.items())
        made = typed("y", self.output)
        text = f"case ({given}) => ({made}) {{ {self.body} }}"
        header = '<ir_version: 9, opset_import: ["": 20]>\n'
        return onnx.parser.parse_model(header + text)

    def arrays(self, sizes: Mapping[str, int]) -> list[Array]:
        """Inputs between -1 and 1, in float32; of a narrower dtype, numbers that it has."""
        rng = np.random.default_rng(0)
        shapes = (
            [int(n) for n in s.format(**sizes).split(",")] for s in self.inputs.values()
        )
        return [(rng.integers(-64, 65, s) / 64).astype(np.float32) for s in shapes]


def softmax(np: Any, x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(np: Any, x: Any, g: Any, b: Any) -> Any:
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * g + b


def attention(np: Any, q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.swapaxes(-1, -2) * 0.125
    return softmax(np, scores) @ v


_ATTENTION: Final = """
    t = Transpose<perm=[0, 1, 3, 2]>(k) s = MatMul(q, t)
    scale = Constant<value = float {0.125}>() u = Mul(s, scale) p = Softmax<axis=-1>(u)
    y = MatMul(p, v) """
_ATTENTION_16: Final = _ATTENTION.replace(
    "u = Mul(s, scale)", "c = CastLike(scale, s) u = Mul(s, c)"
)
_MASK: Final = """
    one = Constant<value = float {1.0}>() big = Constant<value = float {-10000.0}>()
    axes = Constant<value = int64[1] {1}>() m = Mul(p, q) e = Unsqueeze(m, axes)
    s = Sub(one, e) y = Mul(s, big) """
_SUM: Final = (
    "axes = Constant<value = int64[1] {0}>() y = ReduceSum<keepdims=0>(x, axes)"
)
CASES: Final = (
    Case(
        "BiasAddGrad", {"x": "{m},{n}"}, "{n}", _SUM,
        {"m": 6144, "n": 768}, {"m": 96, "n": 24},
        lambda _, x: x.sum(0), lambda torch, x: x.sum(0),
        bytes=lambda m, n: 4.0 * m * n,
    ),
    Case(
        "BatchMatMul", {"a": "{b},{m},{k}", "c": "{b},{k},{m}"}, "{b},{m},{m}",
        "y = MatMul(a, c)",
        {"b": 192, "m": 384, "k": 64}, {"b": 3, "m": 24, "k": 16},
        lambda _, a, c: a @ c, lambda torch, a, c: a @ c,
        flops=lambda b, m, k: 2.0 * b * m * m * k,
    ),
    Case(
        "mask", {"p": "{b},{n},1", "q": "{b},1,{n}"}, "{b},1,{n},{n}", _MASK,
        {"b": 16, "n": 384}, {"b": 2, "n": 24},
        lambda _, p, q: ((1 - p * q) * -10000)[:, None],
        lambda torch, p, q: (1 - (p * q).unsqueeze(1)) * -10000.0,
        bytes=lambda b, n: 4.0 * b * n * n,
    ),
    *(
        Case(
            f"product of {n}, bfloat16", {"a": "{n},{n}", "c": "{n},{n}"}, "{n},{n}",
            "y = MatMul(a, c)", {"n": n}, {"n": 32 * n // 4096},
            lambda _, a, c: a @ c, lambda torch, a, c: a @ c,
            flops=lambda n: 2.0 * n**3, dtype="bfloat16",
        )
        for n in (4096, 8192)
    ),
    Case(
        "softmax", {"x": "{m},{n}"}, "{m},{n}", "y = Softmax<axis=-1>(x)",
        {"m": 8192, "n": 4096}, {"m": 16, "n": 40},
        softmax, lambda torch, x: torch.softmax(x, -1),
        bytes=lambda m, n: 8.0 * m * n,
    ),
    Case(
        "layer norm", {"x": "{m},{n}", "g": "{n}", "b": "{n}"}, "{m},{n}",
        "y = LayerNormalization<axis=-1, epsilon=0.00001>(x, g, b)",
        {"m": 8192, "n": 4096}, {"m": 16, "n": 40},
        layer_norm,
        lambda torch, x, g, b: torch.nn.functional.layer_norm(x, g.shape, g, b),
        bytes=lambda m, n: 8.0 * m * n,
    ),
    Case(
        "transpose", {"x": "{m},{n}"}, "{n},{m}", "y = Transpose<perm=[1, 0]>(x)",
        {"m": 8192, "n": 4096}, {"m": 33, "n": 40},
        lambda _, x: x.T, lambda torch, x: x.T.contiguous(),
        bytes=lambda m, n: 8.0 * m * n,
    ),
    Case(
        "copy", {"x": "{m},{n}"}, "{m},{n}", "y = Neg(x)",
        {"m": 8192, "n": 4096}, {"m": 33, "n": 40},
        lambda _, x: -x, lambda torch, x: -x,
        bytes=lambda m, n: 8.0 * m * n,
    ),
    *(
        Case(
            name, dict.fromkeys("qkv", "{b},{h},{n},64"), "{b},{h},{n},64", body,
            {"b": 4, "h": 16, "n": 2048}, {"b": 1, "h": 2, "n": 24},
            attention,
            lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v),
            flops=lambda b, h, n: 4.0 * b * h * n * n * 64, dtype=dtype,
        )
        for name, body, dtype in (
            ("attention", _ATTENTION, "float"),
            ("attention, bfloat16", _ATTENTION_16, "bfloat16"),
        )
    ),
)  # fmt: skip
_NARROW: Final = {"bfloat16": ("bfloat16", 0.02), "float": ("float32", 1e-3)}


def has_gpu(target: str) -> bool:
    """Whether the target's device is available, and not a CPU."""
    device = devices.find(target)
    if target != "opencl":
        return True
    return bool(device.device.type & device.cl.device_type.GPU)  # type: ignore[attr-defined]


def device_seconds(profile: Profile) -> float:
    """The time of a call's kernels, without the host and the copies."""
    kernels = [r.seconds for r in profile.rows if not r.name.startswith("copy ")]
    return sum(kernels)


def run_case(case: Case, target: str, gpu: bool, rounds: int) -> dict[str, Any]:
    """The row of a case: sizes, how far the result is off, seconds and rates by engine."""
    sizes = case.full if gpu else case.small
    arrays = case.arrays(sizes)
    dtype, tolerance = _NARROW[case.dtype]
    given = [_as(a, dtype) for a in arrays]
    exe = tilewright.compile(case.model(sizes), target=target)
    want = np.asarray(case.expected(np, *arrays), np.float32)
    error = difference(exe(*given), want)
    if not error <= tolerance:
        raise AssertionError(f"{case.name}: off by {error:.2g} of the largest result")
    engines = {"tilewright": lambda: device_seconds(exe.profile(*given, repeat=1))}
    left_out: dict[str, str] = {}
    asked = PeerCase(
        case.name, case.model(sizes), arrays, dtype, case.expected, case.peer, gpu
    )
    for name, prepare in PEERS.items():
        try:
            result, timed = prepare(asked)
        except LeftOutError as reason:
            left_out[name] = str(reason)
            continue
        off = difference(result, want)
        if off <= tolerance:
            engines[name] = timed
        else:
            left_out[name] = f"off by {off:.2g} of the largest result"
    times = by_turns(engines, rounds)
    seconds = {name: statistics.median(found) for name, found in times.items()}
    row: dict[str, Any] = {"case": case.name, "sizes": dict(sizes), "error": error}
    row |= {"seconds": seconds, "left_out": left_out}
    for unit, count in (("TFLOP/s", case.flops), ("TB/s", case.bytes)):
        if count is not None and gpu:
            row[unit] = {n: count(**sizes) / s * 1e-12 for n, s in seconds.items() if s}
    return row


def difference(got: Any, want: Array) -> float:
    """The largest difference, relative to the largest result."""
    found = np.asarray(got).astype(np.float32)
    return float(np.abs(found - want).max() / max(1.0, np.abs(want).max()))


def _as(array: Array, dtype: str) -> Array:
    if dtype == "float32":
        return array
    import ml_dtypes

    return array.astype(getattr(ml_dtypes, dtype))


def run_model(name: str, target: str, rounds: int) -> dict[str, Any]:
    """The row of a network and this machine's processor: of an ONNX file, on random inputs, or
    one of the tests' own."""
    source: Any = name
    inputs = None
    if name in NETWORKS:
        case = NETWORKS[name]()
        source, inputs = case.graph, case.inputs
    on_cpu = tilewright.compile(source)
    exe: Any = tilewright.compile(source, target=target)
    rng = np.random.default_rng(0)
    given = [
        rng.standard_normal(s.shape).astype(s.dtype)
        if inputs is None
        else inputs[s.name]
        for s in exe.inputs
    ]
    want, got = (np.asarray(_first(e(*given)), np.float32) for e in (on_cpu, exe))
    error = difference(got, want)
    if not error <= _NARROW["float"][1]:
        raise AssertionError(f"{name}: off by {error:.2g} of the largest result")
    runs = [device_seconds(exe.profile(*given, repeat=1)) for _ in range(rounds)]
    seconds = {"tilewright": statistics.median(runs)}
    return {"case": name, "error": error, "seconds": seconds}


def _first(outputs: Any) -> Any:
    return outputs[0] if isinstance(outputs, tuple | list) else outputs


def report(
    target: str, models: Sequence[str], rounds: int, only: Sequence[str]
) -> dict[str, Any]:
    """All rows, with the machine; a failed case has its error as its row."""
    gpu = has_gpu(target)
    start = time.monotonic()
    jobs: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        (c.name, lambda c=c: run_case(c, target, gpu, rounds))  # type: ignore[misc]
        for c in CASES
        if not only or c.name in only
    ]
    jobs += [(m, lambda m=m: run_model(m, target, rounds)) for m in models]  # type: ignore[misc]
    rows: list[dict[str, Any]] = []
    for name, job in jobs:
        if time.monotonic() - start > BUDGET:
            rows.append({"case": name, "skipped": f"{BUDGET:.0f} s are over"})
            continue
        try:
            rows.append(job())
        except (TilewrightError, AssertionError) as error:
            rows.append({"case": name, "failed": str(error)})
    found: dict[str, Any] = {"target": target, "gpu": gpu, "rows": rows}
    if not gpu:
        found["note"] = MEANINGLESS
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report, or write it; 1 if a result is wrong or a case fails."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0] if __doc__ else ""
    )
    parser.add_argument("--target", choices=("cuda", "opencl"), default="opencl")
    parser.add_argument(
        "--models",
        nargs="*",
        default=[],
        help="networks: ONNX files, or names such as lenet of the tests' own",
    )
    parser.add_argument("--only", nargs="*", default=[], help="names of cases")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", help="a file for the JSON")
    given = parser.parse_args(arguments)
    try:
        found = report(given.target, given.models, given.rounds, given.only)
    except TilewrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    text = json.dumps(found, indent=2)
    if given.output:
        with open(given.output, "w") as file:
            file.write(text + "\n")
    else:
        print(text)
    if not found["gpu"]:
        print(MEANINGLESS, file=sys.stderr)
    return int(any("failed" in row for row in found["rows"]))


if __name__ == "__main__":
    sys.exit(main())
