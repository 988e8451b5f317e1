"""From text to objects: what llvmlite does not free is made once."""

from dataclasses import replace
from typing import Any

import llvmlite.binding as llvm
import pytest

from tilewright.base.dtypes import float32, int64
from tilewright.expr.nodes import Buffer, Var
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.loops.parser import parse
from tilewright.targets.cpu import compile as backend
from tilewright.targets.cpu.frame_layout import plan_memory
from tilewright.targets.cpu.machine import host
from tilewright.targets.llvm.backend import (
    CHEAP,
    RUNS,
    PassRunner,
    pipeline,
    target_machine,
)
from tilewright.targets.registry import target

TEXT = """
define void @twice(ptr %x) {{
  %place = alloca float
  %a = load float, ptr %x
  store float %a, ptr %place
  %b = load float, ptr %place
  %c = fadd float %b, {value}
  store float %c, ptr %x
  ret void
}}
"""


def test_passes_and_their_builder_are_made_once_for_a_processor(monkeypatch):
    made = []
    for name in ("create_pass_builder", "create_new_module_pass_manager"):
        real = getattr(llvm, name)
        monkeypatch.setattr(
            llvm, name, lambda *a, f=real, n=name: (made.append(n), f(*a))[1]
        )
    pipeline.cache_clear()
    # Not from files that were made by another test.
    monkeypatch.setattr(backend, "object_code", backend.object_code.__wrapped__)
    codes = [
        backend.compile_text(TEXT.format(value=f"{n}.0"), host(), "twice")
        for n in (1, 2, 1, 3)
    ]
    assert sorted(made) == ["create_new_module_pass_manager", "create_pass_builder"]
    assert codes[0] == codes[2] != codes[1]
    assert len(set(codes)) == 3


def test_what_runs_the_passes_is_renewed_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A builder keeps what each run leaves in it, and all later passes call that."""
    made: list[Any] = []
    real = llvm.create_pass_builder

    def create(*given: Any) -> Any:
        made.append(real(*given))
        return made[-1]

    monkeypatch.setattr(llvm, "create_pass_builder", create)
    runner = PassRunner(target_machine("x86_64-unknown-linux", "x86-64", "", 2), CHEAP)
    module = llvm.parse_assembly(TEXT.format(value="1.0"))
    for _ in range(2 * RUNS + 1):
        runner.run(module)
    assert len(made) == 3
    assert "alloca" not in str(module)


def test_the_passes_run_each_time():
    for _ in range(2):
        module = backend.optimized(TEXT.format(value="1.0"), host(), "twice")
        assert "alloca" not in str(module)


def test_what_llvm_makes_of_the_code_hangs_on_the_level_which_keys_name():
    """Folded loads, for example, are chosen at a higher level only."""
    plain, least = target("cpu"), replace(target("cpu"), level=0)
    assert plain.level == backend.LEVEL and plain.key != least.key
    x, y = Buffer("x", (64,), float32), Buffer("y", (64,), float32)
    i = Var("i", int64)
    kernel = Kernel("k", (x, y), (y,), loop(i, 64, Store(y, (i,), x[i] * x[i] + 1.0)))
    codes = {t.key: t.emit(kernel, "k").code for t in (plain, least, plain)}
    assert len(set(codes.values())) == 2


def test_small_buffers_go_to_the_stack_first() -> None:
    # The large one comes first; LLVM keeps the small one in registers, but only on the stack.
    text = """
kernel k(x: float32[16384]) -> y: float32[16384]:
  alloc large: float32[15360] in stack:
    for i in 15360:
      large[i] = x[i]
    for j in 15360:
      alloc small: float32[4096] in stack:
        small[0] = large[j]
        y[j] = small[0]
"""
    plan = plan_memory(parse(text.strip().split("\n")))
    assert [b.name for b in plan.on_stack] == ["small"]
    assert [b.name for b in plan.offsets] == ["large"]
    assert plan.shared == 4 * 15360
