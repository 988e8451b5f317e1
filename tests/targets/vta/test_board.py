"""The processor of the board as a bound, and the table of docs/vta.md that is computed from it."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from tilewright.base.errors import InputError
from tilewright.targets.vta import Convolution
from tilewright.targets.vta.board import CORTEX_A9
from tilewright.targets.vta.device import CLOCK

ROOT = Path(__file__).parents[3]
ROW = re.compile(
    r"\| (C\d+|all) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|"
)


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = spec_from_file_location("vta_roofline", ROOT / "examples/vta_roofline.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def table() -> dict[str, list[float]]:
    """Layer -> milliseconds on VTA, in float32 and the factor, in int8 and the factor."""
    found = ROW.findall((ROOT / "docs/vta.md").read_text())
    return {name: [float(n) for n in numbers] for name, *numbers in found}


def test_arithmetic_or_memory_is_the_bound() -> None:
    """A product of 650 x 100 x 100 on one core; and one of so few rows that weights dominate."""
    c = Convolution(100, 100, (650, 1))
    assert CORTEX_A9.seconds(c, "float32", 1) == pytest.approx(6.5e6 / 650e6 / 2)
    assert CORTEX_A9.seconds(c, "float32") == pytest.approx(6.5e6 / 650e6 / 4)
    assert CORTEX_A9.seconds(c) == pytest.approx(6.5e6 * 3 / 16 / 650e6 / 2)
    dense = Convolution(1000, 1000, (1, 1))
    assert CORTEX_A9.seconds(dense) == pytest.approx(1_002_000 / 2.1e9)
    assert CORTEX_A9.seconds(dense, "float32") == pytest.approx(4_008_000 / 2.1e9)


@pytest.mark.parametrize(("dtype", "cores"), [("float64", 1), ("int8", 0), ("int8", 3)])
def test_what_the_processor_has_no_rate_for(dtype: str, cores: int) -> None:
    with pytest.raises(InputError, match="expected float32, int8 on 1 to 2"):
        CORTEX_A9.seconds(Convolution(16, 16, (2, 2)), dtype, cores)


def test_the_table_has_the_processor_s_times(
    table: dict[str, list[float]], example: ModuleType
) -> None:
    assert list(table) == [*example.LAYERS, "all"]
    for name in example.LAYERS:
        shape, row = example.convolution_of(name), table[name]
        for dtype, at in (("float32", 1), ("int8", 3)):
            assert row[at] == round(1e3 * CORTEX_A9.seconds(shape, dtype), 2)
            assert row[at + 1] == pytest.approx(row[at] / row[0], rel=0.02)
    sums = [sum(table[name][at] for name in example.LAYERS) for at in (0, 1, 3)]
    assert [table["all"][at] for at in (0, 1, 3)] == pytest.approx(sums, rel=1e-3)
    assert table["all"][2] == pytest.approx(sums[1] / sums[0], rel=0.01)
    assert table["all"][4] == pytest.approx(sums[2] / sums[0], rel=0.02)


@pytest.mark.parametrize("name", ["C8", "C12"])
def test_the_table_has_the_simulator_s_times(
    name: str, table: dict[str, list[float]], example: ModuleType
) -> None:
    point, _ = example.measure(name, 2, 8)
    seconds = example.convolution_of(name).macs / point.rate / CLOCK
    assert table[name][0] == round(1e3 * seconds, 2)


def test_the_command_prints_the_rows(
    example: ModuleType,
    table: dict[str, list[float]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    example.board(["C8"])
    _, row, total = capsys.readouterr().out.splitlines()
    assert [float(n) for n in re.findall(r"\d+\.\d+", row)] == table["C8"]
    assert row.split()[1:] == total.split()[1:]
