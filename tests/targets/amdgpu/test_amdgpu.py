"""AMD's GPUs: assembly of every family, what it takes by LLVM and by us, and what is refused."""

from __future__ import annotations

import re

import onnx.parser
import pytest

import tilewright as tw
from tests.targets.simt.attention import attention
from tests.targets.simt.groups import argmax, softmax, transpose
from tests.targets.simt.products import product, tiled
from tests.targets.simt.products import program as launches_of
from tilewright.base.errors import CompileError, UnsupportedError
from tilewright.driver.compile import text
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.passes.to_launches import to_launches
from tilewright.targets import registry
from tilewright.targets.amdgpu.emit import TRIPLE, assembly, llvm_ir
from tilewright.targets.amdgpu.machine import MACHINES, AmdMachine, machine
from tilewright.targets.amdgpu.report import AmdResources, occupancy, resources
from tilewright.targets.llvm import backend
from tilewright.targets.llvm.spaces import in_spaces
from tilewright.targets.simt.schedules import sketches
from tilewright.testing.networks import NETWORKS

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
small (float[40, 30] x) => (float[40, 30] y) { y = Softmax(x) }
"""


def first(group, of: AmdMachine) -> LaunchProgram:
    kernel = sketches(*group, of.simt)[0].default().schedule.kernel
    return to_launches(kernel, of.warp)


FAMILIES = {
    "tiles": lambda of: launches_of(tiled(product(64, 64, 64), of.simt), of.simt),
    "rows": lambda of: first(softmax(40, 200), of),
    "argmax": lambda of: first(argmax(40, 200), of),
    "transpose": lambda of: first(transpose(40, 50), of),
    "attention": lambda of: first(attention(32, 64, 32, 16), of),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("arch", MACHINES)
def test_every_family_has_code_that_spills_nothing(arch, name):
    of = machine(arch)
    program = FAMILIES[name](of)
    made = assembly(program, of)
    found = resources(made)
    assert list(found) == [launch.name for launch in program.launches]
    for launch in program.launches:
        used = found[launch.name]
        assert used.spills == used.private == 0
        held = sum(b.size * b.dtype.itemsize for b in launch.shared)
        assert held <= used.shared <= held + 15 * len(launch.shared)
    assert "flat_load" not in made and "flat_store" not in made


@pytest.mark.sampled(3)  # waves of 64 and of 32, few and many registers
@pytest.mark.parametrize("name", ["tiles", "rows"])
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1030", "gfx1100"])
def test_waves_are_those_that_llvm_finds(arch, name):
    of = machine(arch)
    program = FAMILIES[name](of)
    target = backend.target_machine(TRIPLE, of.name, "", 2)
    with backend.commented(target):
        made = assembly(program, of)
    (launch,) = program.launches
    x, y, z = launch.threads
    (theirs,) = re.findall(r"; Occupancy:\s+(\d+)", made)
    ours = occupancy(resources(made)[launch.name], x * y * z, of)
    assert ours.waves == int(theirs), ours


def test_what_limits_the_waves():
    of = machine("gfx942")
    few = AmdResources(vectors=24, scalars=20, shared=0, private=0, spills=0)
    assert occupancy(few, 256, of).limit == "waves"
    many = AmdResources(vectors=129, scalars=20, shared=0, private=0, spills=0)
    assert (occupancy(many, 256, of).waves, occupancy(many, 256, of).share) == (
        3,
        0.375,
    )
    pieces = AmdResources(vectors=97, scalars=20, shared=0, private=0, spills=0)
    assert occupancy(pieces, 256, machine("gfx1100")).waves == 1536 // 120
    wide = AmdResources(vectors=24, scalars=20, shared=40 << 10, private=0, spills=0)
    assert occupancy(wide, 256, of).waves == 1
    most = AmdResources(vectors=24, scalars=20, shared=80 << 10, private=0, spills=0)
    assert occupancy(most, 256, of).waves == 0


def test_threads_of_a_wave_exchange_values_and_the_others_meet():
    of = machine("gfx942")
    made = assembly(first(softmax(40, 200), of), of)
    assert "ds_bpermute_b32" in made
    large = llvm_ir(FAMILIES["tiles"](of), of)
    assert large.count("amdgcn.s.barrier") == 2


def test_the_listing_begins_with_what_each_kernel_takes():
    shown = text(onnx.parser.parse_model(MODEL), "asm", target="amdgpu", mcpu="gfx942")
    (line,) = re.findall(r"; \S+: (.*waves.*)", shown)
    assert re.fullmatch(
        r"\d+ vector registers, \d+ scalar registers, 0 spilled, \d+ B shared, "
        r"0 B private, \d+ threads, \d of 8 waves \(.*\)",
        line,
    )
    assert '.amdgcn_target "amdgcn-amd-amdhsa--gfx942"' in shown


def test_a_network_is_assembled_and_all_of_it_is_on_the_device():
    shown = text(NETWORKS["lenet"]().graph, "asm", target="amdgpu", mcpu="gfx1100")
    assert shown.count(" waves (") == shown.count(" on amdgpu:") == 8


@pytest.mark.parametrize(
    ("target", "arch"), [("amdgpu", "amdgcn"), ("spirv", "spirv64")]
)
def test_no_artifact_is_made_since_nothing_loads_it(target, arch):
    said = f"no artifacts for the target '{target}': {arch} has no runtime"
    with pytest.raises(UnsupportedError, match=said) as error:
        tw.compile(onnx.parser.parse_model(MODEL), target=target)
    assert error.value.code == "TW-MCPU" and "--emit asm" in str(error.value.hint)


def test_an_unknown_architecture_is_refused():
    with pytest.raises(UnsupportedError, match="unknown GPU architecture 'gfx1'"):
        registry.target("amdgpu", "gfx1")


def test_a_pointer_of_several_memories_is_refused():
    wrong = "define void @f() {\n  %a = phi ptr [ %b, %c ], [ %d, %e ]\n}"
    with pytest.raises(CompileError, match="a pointer is selected"):
        in_spaces(wrong)


def test_pointers_say_where_they_point_to_in_each_function():
    text_of = (
        "define void @{0}() {{\n"
        "  %a = addrspacecast ptr addrspace({1}) @s to ptr\n"
        "  %b = getelementptr i8, ptr %a, i64 4\n"
        "  store i32 0, ptr %b\n}}"
    )
    found = in_spaces("\n".join(text_of.format(*x) for x in (("f", 3), ("g", 1))))
    assert found.count("ptr addrspace(3) %b") == found.count("ptr addrspace(1) %b") == 1
    assert "addrspacecast" not in found
