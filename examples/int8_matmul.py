"""Products of bytes and of bfloat16 by the processor's dot products, scheduled by hand.

python examples/int8_matmul.py [n]     n is a multiple of 64

See docs/intrinsics.md. Needs AVX-512 VNNI and BF16, and says so where the processor lacks one.
Beside it, where installed: torch and ONNX Runtime, on one thread.
"""

import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.base.dtypes import DType, bfloat16, float32, int8, int32, uint8
from tilewright.base.errors import CompileError
from tilewright.loops.lower import lower
from tilewright.loops.passes.hoist import hoist
from tilewright.operators import Buffer, cast, reduce_
from tilewright.schedule import Schedule
from tilewright.targets import registry

Run = Callable[[], Any]


def product(n: int, a: DType, b: DType, c: DType) -> Schedule:
    """`c = a @ b` as the plain nest, each factor taken to the accumulator's dtype."""
    x, w, y = Buffer("a", (n, n), a), Buffer("b", (n, n), b), Buffer("c", (n, n), c)
    mm = reduce_(
        "mm", y, (n,), "add", lambda i, j, k: cast(x[i, k], c) * cast(w[k, j], c)
    )
    return Schedule(lower("mm", [mm], params=[x, w, y], outputs=[y]))


def schedule(s: Schedule, intrinsic: str, inside: int) -> None:
    """4 x 64 accumulators in 16 registers, `inside` products per lane and instruction."""
    i_o, j_o, i_i, j_i = s.tile("mm.i", "mm.j", 4, 64)
    s.reorder(j_o, i_o, i_i, j_i)
    acc = s.cache_write("c", i_o, scope="register")
    s.decompose_reduction(acc, i_i)
    k_o, k_i = s.split("mm.k", inside)
    vector, lane = s.split(j_i, 16)
    s.reorder(k_o, i_i, vector, lane, k_i)
    s.pack("b", j_o, k_o, vector, lane, k_i)
    s.tensorize("b.pack.r3", f"cpu.interleave.{s.kernel.params[1].dtype}")
    s.tensorize(lane, intrinsic)
    for loop in (f"{j_i}.init", f"{acc}.w1"):
        block, lanes = s.split(loop, 16)
        s.unroll(block)
        s.vectorize(lanes)
    for loop in (i_i, vector, f"{i_i}.init", f"{acc}.w0"):
        s.unroll(loop)


def ours(s: Schedule, x: Any, y: Any) -> tuple[Run, Run]:
    """The kernel as it is, and with `y` packed ahead, as the compiler does with weights."""
    out = np.empty(x.shape, s.kernel.outputs[0].dtype.numpy)
    whole = tw.compile(s.kernel, threads=1)
    parts = hoist(s.kernel, [s.kernel.params[1]])
    packed = tw.compile(parts.prepare[0], threads=1)(y)
    rest = tw.compile(parts.kernel, threads=1)
    return lambda: whole(x, y, out=out), lambda: rest(x, packed, out=out)


def others(n: int, arrays: dict[str, Any]) -> dict[str, Run]:
    """What is installed, on the same data."""
    found: dict[str, Run] = {}
    if find_spec("torch"):
        import torch

        torch.set_num_threads(1)
        s8, f32 = (torch.from_numpy(arrays[k]) for k in ("s8", "f32"))
        b16 = f32.bfloat16()
        found["float32, torch"] = lambda: torch.mm(f32, f32)
        found["s8 x s8, torch._int_mm"] = lambda: torch._int_mm(s8, s8)
        found["bfloat16, torch"] = lambda: torch.mm(b16, b16)
    if find_spec("onnxruntime"):
        import onnx.parser
        import onnxruntime

        model = onnx.parser.parse_model(
            f'<ir_version: 10, opset_import: ["" : 21]> f (uint8[{n}, {n}] x, int8[{n}, {n}] w) '
            f"=> (int32[{n}, {n}] y) {{ y = MatMulInteger(x, w) }}"
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        feeds = {"x": arrays["u8"], "w": arrays["s8"]}
        found["u8 x s8, ONNX Runtime"] = lambda: session.run(None, feeds)
    return found


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    rng = np.random.default_rng(0)
    f32 = rng.standard_normal((n, n), dtype=np.float32)
    u8, s8 = (
        rng.integers(lo, lo + 256, (n, n)).astype(t)
        for lo, t in ((0, "u1"), (-128, "i1"))
    )
    b16 = f32.astype(ml_dtypes.bfloat16)
    registry.intrinsics("cpu")
    runs = others(n, {"f32": f32, "u8": u8, "s8": s8})
    rows = [
        ("u8 x s8", product(n, uint8, int8, int32), "cpu.vpdpbusd", 4, u8, s8),
        (
            "bfloat16",
            product(n, bfloat16, bfloat16, float32),
            "cpu.vdpbf16ps",
            2,
            b16,
            b16,
        ),
    ]
    for title, s, intrinsic, inside, x, y in rows:
        schedule(s, intrinsic, inside)
        try:
            whole, packed = ours(s, x, y)
        except CompileError as error:
            print(error)
            continue
        exact = x.astype(np.float64) @ y.astype(np.float64)
        error = max(np.abs(f() - exact).max() for f in (whole, packed))
        print(f"{title}: largest error {error / np.abs(exact).max():.1e}")
        runs |= {f"{title}, packed each time": whole, f"{title}, packed ahead": packed}
    times: dict[str, list[float]] = {title: [] for title in runs}
    for _ in range(11):  # interleaved, so that all see the same load
        for title, run in runs.items():
            start = time.perf_counter()
            run()
            times[title].append(time.perf_counter() - start)
    for title, seconds in sorted(times.items(), key=lambda t: statistics.median(t[1])):
        median = statistics.median(seconds)
        print(
            f"{title:<28}{median * 1e3:>9.3f} ms{2 * n**3 / median / 1e9:>8.0f} Gop/s"
        )


if __name__ == "__main__":
    main()
