"""A sketch that a primitive refuses is told, with the reason, wherever schedules are explained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx.parser
import pytest

from tests.targets.cuda.running import SM80
from tests.targets.simt.attention import attention
from tests.targets.simt.operators import HEAD, families, kernel
from tilewright.base import events
from tilewright.base.dtypes import float16
from tilewright.base.errors import ScheduleError
from tilewright.cli import app
from tilewright.driver import schedules, text
from tilewright.schedule.space import Sketch
from tilewright.targets.cuda import tensor_attention
from tilewright.targets.cuda.target import Cuda
from tilewright.targets.simt import families as families_module
from tilewright.targets.simt import schedules as schedules_module
from tilewright.targets.simt.machine import GENERIC

SOFTMAX = "(float[40, 30] x) => (float[40, 30] y) { y = Softmax(x) }"
GRU = """(float[3, 2, 4] x, float[1, 15, 4] w, float[1, 15, 5] r)
    => (float[3, 1, 2, 5] y) { y = GRU<hidden_size = 5>(x, w, r) }"""
WHY = "loop i: two threads would meet"


def refuse(*_: Any) -> Any:
    raise ScheduleError("two threads would meet", where="loop i")


@pytest.fixture
def no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which the schedule by rows is refused."""
    applies, _, regroups = families_module.FAMILIES["rows"]
    found = families_module.FAMILIES | {"rows": (applies, refuse, regroups)}
    monkeypatch.setattr(families_module, "FAMILIES", found)


def refusals(ask: Callable[[], Sequence[Sketch]]) -> tuple[list[str], list[tuple]]:
    """The sketches that are left, and those of the events, with their reasons."""
    with events.record() as log:
        left = [s.name for s in ask()]
    told = [e.fields for e in log if e.kind == "sketch-refused"]
    return left, [(f["sketch"], f["reason"]) for f in told]


def test_phases_that_are_refused_are_told(monkeypatch):
    k = kernel(GRU)
    assert refusals(lambda: families(k, GENERIC)) == (["phases", "by element"], [])
    monkeypatch.setattr(schedules_module, "by_phases", refuse)
    left, told = refusals(lambda: families(k, GENERIC))
    assert (left, told) == (["by element"], [("phases", WHY)])


def test_attention_that_is_refused_is_told(monkeypatch):
    group = attention(16, 32, 16, 16, of=float16)
    monkeypatch.setattr(tensor_attention, "by_fragments", refuse)
    left, told = refusals(lambda: Cuda(SM80).sketches(*group, ()))
    assert tensor_attention.NAME not in left
    assert told == [(tensor_attention.NAME, WHY)]


def test_the_account_of_a_kernel_has_what_was_refused(no_rows):
    model = onnx.parser.parse_model(HEAD + SOFTMAX)
    (record,) = schedules(model, target="opencl")
    assert (record.device, record.sketch) == ("opencl", "by element")
    assert record.refused == (f"rows (sketch-refused): {WHY}",)
    listed = text(model, "schedule", target="opencl")
    assert f"# {record.kernel} on opencl: Softmax -> y\n" in listed
    assert f"  refused: rows (sketch-refused): {WHY}\n" in listed


def test_the_command_line_tells_it_for_a_kernel_of_a_device(no_rows, capsys, tmp_path):
    path = tmp_path / "softmax.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + SOFTMAX), path)
    how = ["--target", "opencl", "--profile", "--why", "--repeat", "1"]
    assert app.run(["run", str(path), *how]) == 0
    assert f"  refused: rows (sketch-refused): {WHY}\n" in capsys.readouterr().out
