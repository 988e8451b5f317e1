"""From text to objects: what llvmlite does not free is made once."""

import llvmlite.binding as llvm

from tilewright.targets.cpu import compile as backend
from tilewright.targets.cpu.machine import host

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
        monkeypatch.setattr(llvm, name, lambda *a, f=real, n=name: (made.append(n), f(*a))[1])
    backend._pipeline.cache_clear()
    codes = [
        backend.compile_text(TEXT.format(value=f"{n}.0"), host(), "twice") for n in (1, 2, 1, 3)
    ]
    assert sorted(made) == ["create_new_module_pass_manager", "create_pass_builder"]
    assert codes[0] == codes[2] != codes[1]
    assert len(set(codes)) == 3


def test_the_passes_run_each_time():
    for _ in range(2):
        module = backend._optimised(TEXT.format(value="1.0"), host(), "twice")
        assert "alloca" not in str(module)
