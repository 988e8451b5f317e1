"""What kernels are expected to take: their data, their operations, accesses across vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from benchmarks.predictions import model, predicted
from tilewright.base.dtypes import DType, bfloat16, float32, int8, int32, uint8
from tilewright.compute.build import cast, reduce_
from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.compute.reducer import reducer
from tilewright.compute.winograd import winograd
from tilewright.expr.nodes import INDEX, Buffer, Load, Var
from tilewright.targets.cpu.cost import cost_model
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.predict import predicted_time, predicted_work
from tilewright.targets.cpu.sketches import Context

MACHINES = ["x86-64-v3", "x86-64-v4", "sapphirerapids"]


def price(name: str, folder: Path, mcpu: str = "x86-64-v4") -> float:
    file = folder / f"{name}.onnx"
    onnx.save(model(name), file)
    return 1e9 * predicted(file, mcpu)


@pytest.mark.parametrize(
    ("cheap", "dear"),
    [
        ("relu", "exp"),
        ("relu", "quotient"),
        ("sum_column", "transposed"),  # as many elements, and one operation more
        ("row_sums", "softmax"),
        ("max_pool_2", "max_pool_3_stride_2"),
        ("rows_of_a_table", "heads"),  # twice as many; of a table a thousand times as large
    ],
)  # fmt: skip
@pytest.mark.parametrize("mcpu", MACHINES)
def test_a_kernel_is_dearer_by_what_it_does(
    cheap: str, dear: str, mcpu: str, tmp_path: Path
) -> None:
    assert 1.1 * price(cheap, tmp_path, mcpu) < price(dear, tmp_path, mcpu)


def test_rows_a_power_of_two_apart_are_dearer(tmp_path: Path) -> None:
    """A first cache of eight ways holds eight such rows, and a vector has 16 lanes."""
    elements = {"transposed_1000": 1_000**2, "transposed_2048": 2_048**2}
    apart, crowded = (price(n, tmp_path) / size for n, size in elements.items())
    assert 2 * apart < crowded


def test_what_a_loop_does_not_change_is_free_and_guards_are(tmp_path: Path) -> None:
    """A root per row takes nothing beside the row's elements; nor do a border's conditions."""
    rows = price("layer_norm", tmp_path)
    assert rows < 1.2 * price("sum", tmp_path)
    assert price("padded", tmp_path) < 1.5 * price("channels_last", tmp_path)


@pytest.mark.parametrize("mcpu", MACHINES)
def test_data_arrives_from_the_cache_that_holds_it(mcpu: str) -> None:
    m = machine(mcpu)
    costs = cost_model(m)
    near, third, far = (costs.arriving(n) for n in (m.l2 // 2, m.l3, m.l3 + 1))
    assert near > third > far


def product_ns(a: DType, b: DType, out: DType, mcpu: str, depth: int = 256) -> float:
    """What a product of 256 rows and columns is expected to take."""
    x, w = Buffer("x", (256, depth), a), Buffer("w", (depth, 256), b)
    c = reduce_(
        "mm",
        Buffer("y", (256, 256), out),
        (depth,),
        "add",
        lambda i, j, k: cast(x[i, k], out) * cast(w[k, j], out),
    )
    return predicted_time([c], Context(machine(mcpu), {w}))


def test_dot_products_have_their_own_rate() -> None:
    """Of two bfloat16 or four bytes in each lane, where the processor has such instructions."""
    floats = product_ns(float32, float32, float32, "znver4")
    pairs = product_ns(bfloat16, bfloat16, float32, "znver4")
    fours = product_ns(uint8, int8, int32, "znver4")
    assert floats / 2.4 < pairs < floats / 1.6
    assert floats / 4.8 < fours < floats / 3
    widened = product_ns(bfloat16, bfloat16, float32, "cascadelake")
    assert widened > floats / 1.6
    odd, even = (
        product_ns(bfloat16, bfloat16, float32, "znver4", depth) for depth in (65, 66)
    )
    assert odd == pytest.approx(even, rel=0.005)  # the last pair is half empty


@pytest.mark.parametrize("mcpu", MACHINES)
def test_work_is_that_of_one_core(mcpu: str) -> None:
    """Cores that share a kernel read its weights each, which a block on one core does not."""
    b, k, p, q, c, j = (Var(name, INDEX) for name in "bkpqcj")
    sizes = [(b, 16), (k, 16), (j, 64)]
    summed = [(p, 3), (q, 3), (c, 64)]
    dims = [Dim(v, n) for v, n in sizes] + [Dim(v, n, "pw") for v, n in summed]
    x, w, y = (
        Buffer(name, shape, float32)
        for name, shape in (
            ("x", (18, 18, 64)),
            ("w", (3, 3, 64, 64)),
            ("y", (16, 16, 64)),
        )
    )
    value = Load(x, (b + p, k + q, c)) * Load(w, (p, q, c, j))
    out = Output(y, (b, k, j), value)
    conv = Computation("conv", tuple(dims), (out,), reducer("add", float32))
    parts = winograd(conv, 2)
    assert parts is not None
    one, two = (replace(machine(mcpu), cores=n) for n in (1, 2))
    works = [predicted_work(parts, Context(m, (w,))) for m in (one, two)]
    assert works[0] == works[1]
    assert predicted_work(parts, Context(one, (w,))) > 0
