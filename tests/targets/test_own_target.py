"""A target of the user's own: its intrinsics are declared; nothing that it makes is kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base.dtypes import int8, int32
from tilewright.base.errors import InputError, ScheduleError
from tilewright.loops.intrinsic import INTRINSICS
from tilewright.runtime import devices
from tilewright.runtime.device import Duration, HostDevice
from tilewright.schedule import Schedule
from tilewright.targets import registry
from tilewright.targets.base import Artifact, Target

MODEL = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 17]>
product (float[2, 3] x, float[3, 4] w) => (float[2, 4] y) { y = MatMul(x, w) }
""").SerializeToString()
DOT = """
from tilewright.base.dtypes import float32
from tilewright.loops.intrinsic import decl_tensor_intrinsic, hardware_intrinsic
from tilewright.operators import Buffer, map_

x, y = Buffer("x", (8,), float32), Buffer("y", (8,), float32)
decl_tensor_intrinsic(
    map_("twice", y, lambda i: x[i] * 2),
    lambda i, o: hardware_intrinsic("twice", o[0].access_ptr("w"), i[0].access_ptr("r")),
    name="filler.twice", target="filler",
)
"""


class Filler(Target):
    """Its device fills the result with a number, which is the whole program."""

    name = device = "filler"

    def __init__(self, number: int) -> None:
        self.number = number

    def refuses(self, computations):
        return ""

    def default_schedule(self, kernel, computations, constants):
        return Schedule(kernel)

    def emit(self, kernel, symbol, permitted=None):
        return Artifact(symbol, bytes([self.number]))


class Hasty(Filler):
    """Its schedule vectorizes a loop that the program does not have."""

    def default_schedule(self, kernel, computations, constants):
        made = Schedule(kernel)
        made.vectorize("lanes")
        return made


def load(code):
    def run(arrays, timed):
        arrays[-1].view(np.float32)[:] = code[0]
        return Duration(1e-6, 1, 1e6, simulated=True)

    return run


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_ROWS", dict(registry._ROWS))
    monkeypatch.setattr(devices, "_makers", dict(devices._makers))
    devices.register("filler", lambda: HostDevice("filler", load))
    yield
    devices.find.cache_clear()


def result(number: int, model: object) -> float:
    registry.register("filler", registry.TargetEntry(lambda settings: Filler(number)))
    exe = tw.compile(model, target="filler")
    return float(exe(np.ones((2, 3), "f"), np.ones((3, 4), "f"))[0, 0])


def test_a_changed_code_generator_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache's key knows the code of the compiler, and not that of another package."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    graph = onnx.load_from_string(MODEL)  # keeps kernels; bytes keep the whole model
    assert [result(n, graph) for n in (5, 7)] == [5, 7]
    assert [result(n, MODEL) for n in (6, 8)] == [6, 8]


def test_its_intrinsics_are_declared_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "filler_intrinsics.py").write_text(DOT)
    monkeypatch.syspath_prepend(tmp_path)
    row = registry.TargetEntry(lambda settings: Filler(0), "filler_intrinsics")
    registry.register("filler", row)
    registry.target("filler")
    try:
        assert "filler.twice" in INTRINSICS
    finally:
        INTRINSICS.pop("filler.twice", None)
        sys.modules.pop("filler_intrinsics", None)


def test_an_illegal_schedule_of_a_target_is_an_error_and_not_a_refusal() -> None:
    """Refused, the group would run on the host, and nobody would see the fault."""
    registry.register("filler", registry.TargetEntry(lambda settings: Hasty(1)))
    said = r"group \w+: default schedule of target filler: .*lanes"
    with pytest.raises(ScheduleError, match=said):
        tw.compile(MODEL, target="filler")


def test_only_entries_are_registered() -> None:
    with pytest.raises(
        InputError, match="target 'filler': register takes a TargetEntry"
    ):
        registry.register("filler", Filler(0))  # type: ignore[arg-type]


def test_what_emit_gives_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Filler, "emit", lambda *_: b"code")
    with pytest.raises(
        TypeError, match="emit of target 'filler' gives b'code', not an"
    ):
        result(1, MODEL)


def test_a_schedule_for_a_target_without_sketches() -> None:
    registry.register("filler", registry.TargetEntry(lambda settings: Filler(1)))
    with pytest.raises(ScheduleError, match="its target has no sketches for it"):
        tw.compile(MODEL, target="filler", schedules={"matmul": {"tile": 4}})


BYTES = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 17]>
product (int8[2, 3] x, int8[3, 4] w) => (int32[2, 4] y) { y = MatMulInteger(x, w) }
""").SerializeToString()


@pytest.mark.parametrize("signed", [True, False])
def test_products_of_bytes_have_the_form_that_the_device_takes(
    signed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processors with VNNI take uint8 by int8, and the device int8 by int8."""
    seen = []

    def refuses(self, computations):
        seen.extend(t.dtype.name for c in computations for t in c.inputs)
        return "seen"

    def products(self, a, b, out):
        return ("filler.dot",) if signed and (a, b, out) == (int8, int8, int32) else ()

    monkeypatch.setattr(Filler, "refuses", refuses)
    monkeypatch.setattr(Filler, "products", products)
    registry.register("filler", registry.TargetEntry(lambda settings: Filler(1)))
    tw.compile(BYTES, target="filler", mcpu="cascadelake")
    assert ("uint8" in seen) is not signed
