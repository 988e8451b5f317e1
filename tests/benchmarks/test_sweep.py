"""Every cost constant affects a kernel, and the sweep shows which one and how."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import sweep
from benchmarks.cost_cases import CASES, MODELS, PROGRAMS, SCHEDULED, model
from benchmarks.sweep import Row, Setting
from tilewright.targets.cpu.cost import CALIBRATE, SWEEP, Constant, constants

# Constants that affect graphs and no kernel have another command.
COMMANDS = (CALIBRATE, SWEEP)
CONSTANTS = {c.name: c for c in constants() if c.source.startswith(COMMANDS)}
THREADS = 2


@cache
def by_default(name: str, mcpu: str) -> str:
    return sweep.kernels(name, Setting(mcpu, THREADS))


def deciding(constant: Constant) -> float | None:
    """A value of the constant under which its case has other kernels."""
    case = CASES[constant.name]
    for value in sweep.values(constant, (0.25, 4.0, 0.5, 2.0)):
        setting = Setting(case.mcpu, THREADS, {constant.name: value})
        if sweep.kernels(case.name, setting) != by_default(case.name, case.mcpu):
            return value
    return None


def test_every_constant_has_a_case_and_every_case_a_constant() -> None:
    assert list(CASES) == list(CONSTANTS)
    assert {c.name for c in CASES.values()} == {*MODELS, *PROGRAMS, *SCHEDULED}


@pytest.mark.sampled(17)
@pytest.mark.parametrize("name", CASES)
def test_a_constant_changes_the_kernels_of_its_case(name: str) -> None:
    assert deciding(CONSTANTS[name]) is not None


def test_a_constant_that_decides_nothing_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(CASES, "far_piece", CASES["share_ns"])
    assert deciding(CONSTANTS["far_piece"]) is None


def test_values_are_multiples_of_the_default() -> None:
    whole = Constant("n", 2, True, "", "", "")
    assert sweep.values(whole) == [1, 2, 4, 8]
    assert sweep.values(Constant("x", 0.5, False, "", "", "")) == [
        0.125,
        0.25,
        0.5,
        1,
        2,
    ]


def test_values_with_the_same_kernels_are_one_row() -> None:
    made = sweep.rows("chunk_vectors", [4, 16], "relu", Setting("x86-64-v4", THREADS))
    assert [row.values for row in made] == [[4], [16]]
    same = sweep.rows("far_piece", [4, 16], "relu", Setting("x86-64-v4", THREADS))
    assert [row.values for row in same] == [[4, 16]]


@pytest.mark.parametrize(
    "name",
    ["product", "softmax_few", pytest.param("convolutions", marks=pytest.mark.slow)],
)
def test_rows_are_checked_and_timed(name: str) -> None:
    made = [Row([1]), Row([4])]
    sweep.measure("in_flight", name, Setting(threads=1), made, rounds=2)
    assert all(len(row.times) == 2 and row.median > 0 for row in made)


def test_a_kernel_by_hand_is_compared_with_the_interpreter() -> None:
    found = sweep.values(CONSTANTS["spilled"], (0.5, 1.0))
    setting = Setting("x86-64-v3", threads=1)
    made = sweep.rows("spilled", found, "small_arrays", setting)
    assert [row.values for row in made] == [[2], [4]]
    sweep.measure("spilled", "small_arrays", Setting(threads=1), made, rounds=1)


def test_a_wrong_result_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sweep.reference

    def wrong(name: str, inputs: sweep.Arrays) -> sweep.Arrays:
        return [
            y + (np.arange(y.size).reshape(y.shape) == 5) for y in right(name, inputs)
        ]

    monkeypatch.setattr(sweep, "reference", wrong)
    with pytest.raises(AssertionError, match="product with in_flight = 4"):
        sweep.measure("in_flight", "product", Setting(threads=1), [Row([4])], rounds=1)


def run(*arguments: str) -> Sequence[str]:
    result = CliRunner().invoke(sweep.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_the_table_names_the_default_and_the_best() -> None:
    head, kernels, *lines = run(
        "in_flight", "--values", "1,4", "--rounds", "3", "--threads", "1"
    )
    assert head.startswith("in_flight: ") and kernels == "  relu, native: 1 | 4"
    assert len(lines) == 2 and "default" in lines[1]
    assert sum("best" in line for line in lines) == 1


def test_kernels_alone_are_compared_for_any_processor() -> None:
    _, kernels = run("dot_products", "--kernels-only", "--mcpu", "cascadelake")
    assert kernels == "  product_bytes, cascadelake: 0.25, 0.5, 1 | 2 | 4"
    _, kernels = run("far_piece", "--values", "8,16", "--case", "relu")
    assert kernels == "  relu, x86-64-v4: 8, 16"


def test_weights_are_constants_of_the_model() -> None:
    graph = model("product").graph
    assert [v.name for v in graph.input] == ["x"]
    assert [t.name for t in graph.initializer] == ["w"]
