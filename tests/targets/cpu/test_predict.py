"""What kernels are expected to take: their data, their operations, accesses across vectors."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from benchmarks.predictions import model, predicted
from tilewright.targets.cpu.cost import cost_model
from tilewright.targets.cpu.machine import machine

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
