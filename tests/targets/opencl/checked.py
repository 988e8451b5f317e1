"""What runs on Oclgrind: small models compared with the CPU, and programs with a planted fault."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import onnx.parser

import tilewright as tw
from tests.loops.gpu_kernels import without_barrier
from tests.targets.opencl.running import X, launched, program_on
from tests.targets.simt.attention import attention
from tests.targets.simt.groups import GROUPS, check, column_sum, inputs
from tests.targets.simt.products import arrays, expected, product, program, tiled
from tests.targets.simt.test_windows import depthwise
from tilewright.base.dtypes import float32
from tilewright.expr.nodes import Buffer, Lt, const
from tilewright.loops.launch import Barrier
from tilewright.loops.nodes import If, Stmt, Store, block
from tilewright.loops.passes.to_launches import to_launches
from tilewright.runtime import devices
from tilewright.schedule.space.patterns import classify
from tilewright.targets.simt.last_wave import LastWave
from tilewright.targets.simt.machine import GENERIC
from tilewright.targets.simt.products import product_of
from tilewright.targets.simt.schedules import sketches
from tilewright.targets.simt.tiling import SimtTile, tiling
from tilewright.testing.random_kernels import plain

TEXTS = {
    "map": "m (float[5, 7] x) => (float[7, 5] y) { t = Transpose(x) y = Exp(t) }",
    "product": "m (float[5, 7] x) => (float[5, 5] y) { t = Transpose(x) y = MatMul(x, t) }",
    "softmax": "m (float[5, 7] x) => (float[5, 7] y) { y = Softmax(x) }",
    "norm": """m (float[3, 70] x, float[70] g, float[70] b) => (float[3, 70] y)
        { y = LayerNormalization(x, g, b) }""",
    "columns": """m (float[70, 40] x) => (float[1, 40] y)
        { a = Constant<value = int64[1] {0}>() y = ReduceSum(x, a) }""",
    "total": "m (float[90, 60] x) => (float[1, 1] y) { y = ReduceSum(x) }",
    "convolution": """m (float[1, 2, 7, 5] x, float[3, 2, 3, 3] w) => (float[1, 3, 4, 3] y)
        { c = Conv<strides=[2, 2], pads=[1, 1, 1, 1]>(x, w) y = Relu(c) }""",
    "pooling": """m (float[1, 2, 7, 5] x) => (float[1, 2, 4, 3] y)
        { y = MaxPool<kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]>(x) }""",
    "scan": """m (float[5, 7] x) => (float[5, 7] y)
        { a = Constant<value = int64 {1}>() y = CumSum(x, a) }""",
    "gather": """m (float[5, 7] x) => (float[3, 7] y)
        { i = Constant<value = int64[3] {4, 0, 2}>() y = Gather(x, i) }""",
    "sort": """m (float[5, 7] x) => (float[5, 2] y, int64[5, 2] i)
        { k = Constant<value = int64[1] {2}>() y, i = TopK(x, k) }""",
    "concat": "m (float[5, 7] x) => (float[10, 7] y) { e = Exp(x) y = Concat<axis=0>(x, e) }",
    "transpose": "m (float[5, 7] x) => (float[7, 5] y) { y = Transpose(x) }",
    "lstm": """m (float[3, 2, 4] x, float[1, 12, 4] w, float[1, 12, 3] r) => (float[3, 1, 2, 3] y)
        { y = LSTM<hidden_size=3>(x, w, r) }""",
    "half": "m (float16[5, 7] x) => (float16[5, 7] y) { y = Softmax(x) }",
}


def model(name: str) -> None:
    """Print that a model is right on the device."""
    text = f'<ir_version: 8, opset_import: ["": 17]> {TEXTS[name]}'
    made = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    given = []
    for value in made.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        dtype = "e" if value.type.tensor_type.elem_type == 10 else "f"
        given.append(rng.standard_normal(shape).astype(dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [
            tw.compile(made, target=t, cache=False)(*given) for t in ("opencl", "cpu")
        ]
    pairs = [r if isinstance(r, tuple) else (r,) for r in results]
    for one, two in zip(*pairs, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-3)
    print("right")


FAMILIES = {family: partial(make, 3, 70) for make, family in GROUPS.values()}
FAMILIES["columns"] = partial(column_sum, 70, 40)
FAMILIES["attention"] = lambda: attention(5, 12, 6, 5, columns=7)


def family(name: str, barrier: bool = True) -> None:
    """Print that a schedule of a family, by its name, is right; or drop its first barrier."""
    group = FAMILIES[name]()
    sketch = next(s for s in sketches(*group, GENERIC) if s.name == name)
    made = to_launches(sketch.default().schedule.kernel)
    if not barrier:
        made = without_barrier(made, 0)

    def on_device(p, given):
        return program_on(devices.find("opencl"), p, given)

    given = inputs(group[0])
    if barrier:
        check(group[0], made, given, on_device)
        print("right")
    else:
        on_device(made, given)


def last_wave(barrier: bool) -> None:
    """Print that a product whose last tiles are in parts is right; or drop a barrier of it."""
    case = product(33, 29, 50)
    tile = SimtTile(16, 16, 16, 8, 8)
    found = product_of(classify(case))
    assert found is not None
    left = tiling(found, tile).blocks % 4
    of = replace(GENERIC, units=4)
    made = program(tiled(case, of, tile=tile, last_wave=LastWave(left, 2)), of)
    assert left and len(made.launches) == 3 and made.workspace
    if not barrier:
        made = without_barrier(made, 0)
    given = arrays(made)
    want = expected(case, given)
    results = program_on(devices.find("opencl"), made, given)
    if barrier:
        np.testing.assert_array_equal(results[made.outputs[0]], want)
        print("right")


def windows(places: int) -> None:
    """Print that convolutions with a filter for each channel are right, channels last and first."""
    for last in (True, False):
        case = depthwise(9, 7, 3, last=last, followed=True)
        sketch = next(
            s for s in sketches(plain(case), case, GENERIC) if s.name == "windows"
        )
        made = program(sketch.at({"mm.share": (places, 8, 1)}), GENERIC)
        given = arrays(made)
        want = expected(case, given)
        results = program_on(devices.find("opencl"), made, given)
        np.testing.assert_array_equal(results[made.outputs[0]], want)
        print("right")


def exchanged(*between: Stmt) -> None:
    """Each thread reads what another one wrote. between: what orders the two."""
    x, held = Buffer("x", (8,), float32), Buffer("held", (8,), float32, "shared")
    body = block(Store(held, (X,), x[X]), *between, Store(x, (X,), held[const(7) - X]))
    program = launched(body, [x], threads=8, shared=[held])
    program_on(devices.find("opencl"), program, {x: np.zeros(8, "f")})


def race(barrier: bool) -> None:
    """With a barrier between write and read, or without it."""
    exchanged(*[Barrier("shared")] * barrier)


def divergence() -> None:
    """The last thread does not come to the barrier."""
    exchanged(If(Lt(X, const(7)), Barrier("shared"), None))


def outside() -> None:
    """A thread writes behind the end of all memory."""
    x = Buffer("x", (8,), float32)
    program = launched(Store(x, (X + 64,), const(1.0, float32)), [x], threads=8)
    program_on(devices.find("opencl"), program, {x: np.zeros(8, "f")})
