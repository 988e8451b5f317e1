"""What a verifier finds in parts of a kernel is a fault of the compiler, and is not kept quiet."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright as tw
from tests.driver.ranges import test_positions, test_row_blocks, test_units
from tests.driver.test_debug import longer, longer_schedule
from tilewright.base import events
from tilewright.base.errors import (
    ScheduleError,
    TilewrightWarning,
    UnprovenError,
    UnsupportedError,
    VerifyError,
)
from tilewright.driver.ranges import positions, row_blocks, units
from tilewright.driver.ranges.part_assembly import tell_fault
from tilewright.driver.ranges.row_blocks import by_rows
from tilewright.plan.nodes import FusionGroup
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.registry import target

SAID = r"internal error: .*; the kernel runs in another form; please report it"
MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
rows (float[n, 16] x, float[16, 32] w) => (float[n, 32] y) { y = MatMul(x, w) }
"""


def spoil(patch: pytest.MonkeyPatch, holder: Any, name: str, fault: Any) -> None:
    """Spoil what a function gives."""
    right = getattr(holder, name)
    patch.setattr(holder, name, lambda *given, **named: fault(right(*given, **named)))


def broken(*_: object, **__: object) -> Any:
    raise VerifyError("two loops are named i", code="TW-LOOP-NAME")


def in_rows(patch: pytest.MonkeyPatch) -> Any:
    """Rows whose loops run once more than there are elements."""
    group, ins, outs = test_row_blocks.softmax()
    kernel = test_row_blocks.plain(group, ins, outs)
    spoil(patch, row_blocks, "lower", longer)
    return by_rows(kernel, FusionGroup("g", tuple(group)), target("cpu", "x86-64-v3"))


def in_units(patch: pytest.MonkeyPatch) -> Any:
    patch.setattr(units, "scheduled_part", broken)
    machine = target("cpu", "x86-64-v3")
    return test_units.parted(test_units.convolution(), machine)


WAYS = {"rows": in_rows, "units": in_units}


@pytest.mark.parametrize("way", WAYS)
def test_a_fault_is_raised_under_debug(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    with pytest.raises(VerifyError):
        WAYS[way](monkeypatch)


@pytest.mark.parametrize("way", WAYS)
def test_a_fault_is_warned_of_with_its_cause_and_the_kernel_is_kept_whole(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with events.record() as log, pytest.warns(TilewrightWarning, match=SAID) as told:
        assert WAYS[way](monkeypatch) is None
    (event,) = [e for e in log if e.kind == "kept-whole"]
    assert event.fields["reason"] in str(told[0].message)


@pytest.mark.parametrize("function", ["assembled", "scheduled_part"])
def test_a_fault_in_blocks_of_positions_is_raised_under_debug(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the driver as well, which compiles separate code where there is none for all sizes."""
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    monkeypatch.setattr(positions, function, broken)
    source = test_positions.model(test_positions.MODELS["strides"])
    dims = {"n": (1, 2), "h": (17, 22), "w": (18, 21)}
    with pytest.raises(VerifyError, match="two loops are named i"):
        tw.compile(source, dims=dims, jit=False, cache=False, threads=1)


def test_a_fault_of_a_schedule_is_raised_under_debug(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import onnx.parser

    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    spoil(monkeypatch, CpuTarget, "default_schedule", longer_schedule)
    with pytest.raises(VerifyError) as error:
        tw.compile(
            onnx.parser.parse_model(MODEL),
            dims={"n": (1, 64)}, jit=False, cache=False, threads=1,
        )  # fmt: skip
    assert error.value.code == "TW-BOUNDS"


@pytest.mark.parametrize("kind", [ScheduleError, UnsupportedError, UnprovenError])
def test_what_is_refused_or_not_proven_is_no_fault(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning would fail here, as in all tests."""
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    tell_fault(kind("as it is"))
    monkeypatch.delenv("TILEWRIGHT_DEBUG")
    tell_fault(kind("as it is"))
