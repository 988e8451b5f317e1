"""Constant memory: who may be there, who may read there, and what each target makes of it."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tests.loops.gpu_kernels import judged, kernel
from tests.targets.cuda.fake import RunningFake
from tests.targets.cuda.running import SM80, load_counted
from tests.targets.opencl.running import pocl, program_on
from tilewright.base.dtypes import float32
from tilewright.base.errors import (
    ArtifactError,
    CompileError,
    ScheduleError,
    VerifyError,
)
from tilewright.compute.build import reduce_
from tilewright.driver.compile import schedules
from tilewright.driver.compile import text as emitted
from tilewright.expr.nodes import Buffer, var
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.lower import lower
from tilewright.loops.passes.constant_memory import constants_of, read_together
from tilewright.loops.passes.on_buffers import on_buffers
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.verify import verify
from tilewright.runtime.device import MemoryRange
from tilewright.schedule import Schedule
from tilewright.targets.amdgpu import emit as amdgpu
from tilewright.targets.amdgpu.machine import machine as amd
from tilewright.targets.cuda import report
from tilewright.targets.cuda.device import CudaDevice
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.target import Cuda, code_of
from tilewright.targets.opencl.emit import emit
from tilewright.targets.opencl.target import OpenCL
from tilewright.targets.simt.code import PTX, DeviceProgram
from tilewright.targets.simt.machine import GENERIC, described
from tilewright.targets.simt.schedules import sketches
from tilewright.targets.spirv import emit as spirv
from tilewright.targets.spirv.machine import SpirvMachine
from tilewright.testing.ptx.machine import run
from tilewright.testing.ptx.memory import CallerMemory
from tilewright.testing.ptx.text import kernels
from tilewright.testing.ptx.traffic import AccessKind

# A filter of three taps, another one for each block.
FILTERS = """\
kernel filters(x: float32[4, 34], w: float32[4, 3]) -> y: float32[4, 32]:
  for b in 4 blockIdx.x:
    for t in 32 threadIdx.x:
      y[b, t] = 0.0
      for k in 3:
        y[b, t] add= x[b, t + k] * w[b, k]"""
GATHER = """\
kernel gather(x: int64[8], w: float32[8]) -> y: float32[8]:
  for t in 8 threadIdx.x:
    y[t] = w[x[0]]"""
X = np.random.default_rng(0).integers(-4, 5, (4, 34)).astype(np.float32)
W = np.random.default_rng(1).integers(-4, 5, (4, 3)).astype(np.float32)
Y = np.add.reduce([X[:, k : k + 32] * W[:, k : k + 1] for k in range(3)])


def constant(text: str = FILTERS, buffer: str = "w") -> Schedule:
    s = Schedule(kernel(text))
    s.set_scope(buffer, "constant")
    return s


def filters() -> LaunchProgram:
    return to_launches(constant().kernel)


def test_a_parameter_moves_and_the_results_stay() -> None:
    s = constant()
    verify(s.kernel)
    assert "w: float32[4, 3] in constant" in str(s)
    assert [b.scope for b in s.kernel.params] == ["global", "constant", "global"]
    assert str(kernel(str(s))) == str(s)
    program = filters()
    assert [b.name for b in constants_of(program)] == ["w"]
    judged(kernel(FILTERS), program)


LOCAL = (
    FILTERS.replace("      y[b, t] = 0.0\n", "      alloc a: float32[1]:\n")
    .replace(
        "        y[b, t] add= x[b, t + k] * w[b, k]",
        "          a[0] = x[b, t + k]\n          y[b, t] add= a[0] * w[b, k]",
    )
    .replace("      for k in 3", "        for k in 3")
)


@pytest.mark.parametrize(
    ("text", "apply", "message"),
    [
        (FILTERS, ("set_scope", "y", "constant"), "the kernel writes the buffer"),
        (FILTERS, ("set_scope", "w", "shared"), "whose memory is the caller's"),
        (FILTERS, ("set_scope", "w", "register"), "whose memory is the caller's"),
        (LOCAL, ("set_scope", "a", "constant"), "a kernel cannot write to it"),
        (FILTERS, ("cache_read", "w", "b", "constant"), "a kernel cannot write to it"),
        (FILTERS, ("cache_write", "y", "b", "constant"), "a kernel cannot write to it"),
    ],
)
def test_what_cannot_be_there_is_refused(
    text: str, apply: tuple[str, ...], message: str
) -> None:
    s = Schedule(kernel(text))
    verb, *arguments = apply
    with pytest.raises(ScheduleError, match=message):
        getattr(s, verb)(*arguments)


def test_a_size_that_a_call_decides_is_refused() -> None:
    made = kernel(FILTERS)
    open_sized = Buffer("w", (var("n"), 3), float32)
    s = Schedule(on_buffers(made, {made.params[1]: open_sized}))
    with pytest.raises(ScheduleError, match="its size is known only at run time"):
        s.set_scope("w", "constant")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FILTERS.replace("w[b, k]", "w[b, k % 3]"), ""),
        (FILTERS.replace("w[b, k]", "w[t % 4, k]"), "threadIdx.x decides"),
        (FILTERS.replace("w[b, k]", "w[b, (t + k) % 3]"), "threadIdx.x decides"),
        (FILTERS.replace("threadIdx.x", "threadIdx.y").replace("w[b,", "w[t % 4,"),
         "threadIdx.y decides"),
        (GATHER, "data decides"),
    ],
)  # fmt: skip
def test_threads_read_one_element_at_a_time(text: str, message: str) -> None:
    s = constant(text)
    verify(s.kernel)
    if not message:
        judged(kernel(text), to_launches(s.kernel))
        return
    with pytest.raises(ScheduleError, match=message) as error:
        to_launches(s.kernel)
    assert error.value.code == "TW-LAUNCH"
    to_launches(kernel(text))  # from the device's memory, they may


def test_an_invariant_keeps_what_is_written_out_of_it() -> None:
    for text, message in (
        (
            LOCAL.replace("float32[1]", "float32[1] in constant"),
            "allocated in constant",
        ),
        (
            FILTERS.replace("float32[4, 32]", "float32[4, 32] in constant"),
            "output y is",
        ),
    ):
        with pytest.raises(VerifyError, match=message):
            verify(kernel(text))


@pytest.mark.parametrize(("nbytes", "fits"), [(48, True), (47, False)])
def test_a_machine_has_only_so_much(nbytes: int, fits: bool) -> None:
    small = described({"constant": nbytes})
    gpu = Cuda(replace(machine("sm_80")))
    gpu._simt = replace(gpu.simt, constant=nbytes)
    scheduled = constant().kernel
    for compile in (
        lambda: OpenCL(small).emit(scheduled, "f"),
        lambda: OpenCL(small).text(scheduled, "f", "asm"),
        lambda: gpu.emit(scheduled, "f"),
    ):
        if fits:
            compile()
            continue
        with pytest.raises(CompileError, match="48 bytes of constant memory") as error:
            compile()
        assert error.value.code == "TW-LAUNCH"


@pytest.mark.parametrize("limit", [1 << 20, 0])
def test_a_device_of_opencl_reads_there(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own allocation, or in a copy if that is too large for constant memory."""
    device = pocl()
    monkeypatch.setattr(device, "constant", limit)
    program = filters()
    assert "__constant uchar *w" in emit(program).text
    found = program_on(device, program, dict(zip(program.params, (X, W), strict=False)))
    np.testing.assert_array_equal(found[program.outputs[0]], Y)


def test_a_copy_is_new_in_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    device = pocl()
    loaded = device.load(emit(filters()).to_bytes())
    assert not _checked_runs(device, loaded)._constants
    monkeypatch.setattr(device, "constant", 0)
    assert len(_checked_runs(device, loaded)._constants) == 1


def _checked_runs(device: Any, loaded: Any) -> Any:
    """A program on one queue, several times, with other contents each time; the queue."""
    queue = device.queue()
    regions = [MemoryRange(device.allocate(n + 64), 64, n) for n in (544, 48, 512)]
    for turn in range(5):
        w = W + turn
        for region, array in zip(regions, (X, w), strict=False):
            queue.write(region, array.reshape(-1).view(np.uint8)).wait()
        queue.launch(loaded, regions)
        found = np.zeros(512, np.uint8)
        queue.read(found, regions[2]).wait()
        wanted = sum(X[:, k : k + 32] * w[:, k : k + 1] for k in range(3))
        np.testing.assert_array_equal(found.view(np.float32).reshape(4, 32), wanted)
    return queue


def test_a_device_has_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    made = emit(filters())
    [launch] = made.launches
    assert launch.constants == (1,) and launch.arguments == (0, 1, 2)
    many = replace(made, params=99, launches=(replace(launch, constants=(1,) * 99),))
    with pytest.raises(ArtifactError, match="99 constant tensors"):
        pocl().load(many.to_bytes())


def test_ptx_has_an_array_that_is_filled() -> None:
    program = filters()
    text = ptx(program, SM80)
    assert ".const .align 16 .b8 constant_1[48];" in text
    assert "ld.const" in text
    traffic, [found] = load_counted(
        program, SM80, dict(zip(program.params, (X, W), strict=False))
    )
    np.testing.assert_array_equal(found, Y)
    reads = AccessKind("constant", False)
    assert traffic.requests[reads] == traffic.turns[reads] > 0
    [launch] = code_of(program, text, SM80).launches
    assert launch.constants == (1,) and launch.arguments == (0, 2)


def test_what_ptx_does_wrong_there_is_found() -> None:
    text = ptx(filters(), SM80)
    for wrong, message in (
        (text.replace("constant_1[48]", "constant_1[16]"), "outside constant memory"),
        (text.replace("st.global", "st.const").replace("ld.global", "ld.const"), ""),
    ):
        [made] = kernels(wrong).values()
        memory = CallerMemory([X, Y, np.zeros(8, np.uint8)])
        at = memory.addresses
        if not message:  # the results are at an address in constant memory
            at, message = [at[0], 4 << 40, at[2]], "constant memory is written"
        with pytest.raises(IndexError, match=message):
            run(made, (4, 1, 1), (32, 1, 1), memory, at)


def test_the_driver_fills_the_array_before_each_run() -> None:
    program = filters()
    made = code_of(program, ptx(program, machine("sm_80")), machine("sm_80"))
    device = CudaDevice(RunningFake())
    _checked_runs(device, device.load(made.to_bytes()))
    calls = device.driver.api.calls
    assert calls.count("GraphLaunch") == 4
    assert calls.index("MemcpyDtoDAsync") < calls.index("LaunchKernel")


class _Runs:
    """Runs of filters on a GPU."""

    def __init__(self) -> None:
        self.api = RunningFake()
        program = filters()
        made = code_of(program, ptx(program, machine("sm_80")), machine("sm_80"))
        self.device = CudaDevice(self.api)
        self.loaded, self.again = (self.device.load(made.to_bytes()) for _ in range(2))
        self.queue = self.device.queue()
        self.x, self.y = (self.written(a, False) for a in (X, np.zeros_like(Y)))

    def written(self, array: Any, is_fixed: bool) -> MemoryRange:
        """The place of an array on the GPU."""
        memory = self.device.allocate(array.nbytes)
        place = MemoryRange(memory, 0, array.nbytes, is_fixed)
        self.queue.write(place, array.reshape(-1).view(np.uint8)).wait()
        return place

    def fills(self, weights: MemoryRange, factor: int) -> int:
        """How often a run, whose results are right, fills the array."""
        before = self.api.filled
        self.queue.launch(self.loaded, [self.x, weights, self.y])
        found = np.zeros(Y.nbytes, np.uint8)
        self.queue.read(found, self.y).wait()
        assert np.array_equal(found.view(np.float32).reshape(Y.shape), Y * factor)
        return self.api.filled - before


def test_weights_that_stay_are_copied_once() -> None:
    """Also of runs that are recorded as a graph."""
    runs = _Runs()
    weights = runs.written(W, True)
    assert [runs.fills(weights, 1) for _ in range(5)] == [1, 0, 0, 0, 0]
    assert runs.api.calls.count("GraphLaunch") >= 2


def test_weights_that_may_change_are_copied_for_each_run() -> None:
    runs = _Runs()
    weights = runs.written(W, False)
    assert [runs.fills(weights, 1) for _ in range(4)] == [1, 1, 1, 1]


def test_kernels_that_share_code_copy_weights_of_their_own() -> None:
    """A graph that was recorded while there was one of them does not run any more."""
    runs = _Runs()
    one, two = runs.written(W, True), runs.written(2 * W, True)
    assert [runs.fills(one, 1) for _ in range(4)] == [1, 0, 0, 0]
    for _ in range(3):
        assert [runs.fills(two, 2), runs.fills(one, 1)] == [1, 1]


def test_each_model_has_an_array_of_its_own() -> None:
    """Also models of equal code, of which one is loaded after the other has run."""
    runs = _Runs()
    one, two = runs.written(W, True), runs.written(2 * W, True)
    assert [runs.fills(one, 1) for _ in range(3)] == [1, 0, 0]
    first, runs.loaded = runs.loaded, runs.again
    assert [runs.fills(two, 2) for _ in range(3)] == [1, 0, 0]
    runs.loaded = first
    assert [runs.fills(one, 1) for _ in range(3)] == [0, 0, 0]


def test_calls_of_several_threads_do_not_share_what_is_in_the_array(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another call begins just when a first one has filled it."""
    program = filters()
    made = code_of(program, ptx(program, machine("sm_80")), machine("sm_80"))
    device = CudaDevice(api := RunningFake())
    loaded, wrong = device.load(made.to_bytes()), []

    def call(factor: int) -> None:
        queue = device.queue()
        regions = [MemoryRange(device.allocate(n), 0, n) for n in (544, 48, 512)]
        for region, array in zip(regions, (X, W * factor), strict=False):
            queue.write(region, array.reshape(-1).view(np.uint8)).wait()
        queue.launch(loaded, regions)
        found = np.zeros(512, np.uint8)
        queue.read(found, regions[2]).wait()
        if not np.array_equal(found.view(np.float32).reshape(4, 32), Y * factor):
            wrong.append(factor)

    other = threading.Thread(target=call, args=(2,))
    filled = api._MemcpyDtoDAsync

    def interrupted(*arguments: Any) -> tuple[()]:
        monkeypatch.undo()
        filled(*arguments)
        other.start()
        other.join(0.5)
        return ()

    monkeypatch.setattr(api, "_MemcpyDtoDAsync", interrupted)
    call(3)
    other.join()
    assert not wrong


@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
def test_the_array_is_assembled() -> None:
    _, used = report.assemble(ptx(filters(), SM80), SM80)
    assert used["filters_0"].spill_stores == 0


def test_a_buffer_that_a_program_has_not_is_refused() -> None:
    program = filters()
    made = code_of(program, ptx(program, SM80), SM80)
    assert DeviceProgram.from_bytes(made.to_bytes(), PTX) == made
    [launch] = made.launches
    wrong = replace(made, launches=(replace(launch, constants=(3,)),))
    with pytest.raises(ArtifactError, match="more than 3 buffers"):
        DeviceProgram.from_bytes(wrong.to_bytes(), PTX)


def test_other_gpus_take_its_address() -> None:
    text = amdgpu.llvm_ir(filters(), amd("gfx942"))
    assert "ptr addrspace(4) align 16 noalias readonly %p1" in text
    assert "= load float, ptr addrspace(4) %" in text
    assert amdgpu.assembly(filters(), amd("gfx942"))
    listing = spirv.assembly(filters(), SpirvMachine(described(None)))
    assert "OpTypePointer UniformConstant" in listing


SHARPEN = """<ir_version: 8, opset_import: ["": 17]>
sharpen (float[1, 1, 20, 24] x, float[1, 1, 3, 3] w) => (float[1, 1, 18, 22] y) {
  y = Conv(x, w)
}"""


@pytest.mark.parametrize(("nbytes", "chosen"), [(36, True), (35, False)])
def test_a_filter_may_be_there_by_choice(
    nbytes: int, chosen: bool, tmp_path: Path
) -> None:
    """Where the machine has as much: never by default, as no gain was measured."""
    model = onnx.parser.parse_model(SHARPEN)
    file = tmp_path / "gpu.toml"
    file.write_text(f'like = "generic"\nconstant = {nbytes}')
    options: dict[str, Any] = {"target": "opencl", "machine": file, "records": False}
    [found] = schedules(model, **options)
    assert ("w_opencl.constant" in {p.name for p in found.parameters}) is chosen
    assert "__constant" not in emitted(model, "asm", **options)
    if not chosen:
        return
    pocl()
    wanted = {found.kernel: {"sketch": "by element", "w_opencl.constant": True}}
    assert "__constant" in emitted(model, "asm", schedules=wanted, **options)
    x, w = (X.reshape(-1)[:n] for n in (136, 9))
    x = np.resize(x, (1, 1, 20, 24))
    exe = tw.compile(model, schedules=wanted, **options)
    plain = tw.compile(model, **options)
    given = x, w.reshape(1, 1, 3, 3)
    np.testing.assert_array_equal(exe(*given), plain(*given))


@pytest.mark.parametrize(("taps", "able"), [(3, True), (1, False), (0, False)])
def test_one_element_or_none_is_no_choice(taps: int, able: bool) -> None:
    x, w, y = (Buffer(n, (e,), float32) for n, e in (("x", 8), ("w", taps), ("y", 8)))
    made = reduce_("sum", y, (taps,), "add", lambda i, k: x[i] * w[k])
    plain = lower("sum", [made], params=[x, w, y], outputs=[y])
    [found] = (s for s in sketches(plain, [made], GENERIC) if s.name == "by element")
    names = {p.name for p in found.at({}).parameters}
    assert ("w.constant" in names) is able


def test_what_threads_read_apart_is_no_choice() -> None:
    """By the thread, or by data; a parameter that is read at one place only is one element."""
    for body, names in (
        (FILTERS, ["w"]),
        (FILTERS.replace("w[b, k]", "w[t % 4, k]"), []),
        (FILTERS.replace("w[b, k]", "w[b, k] * w[t % 4, 0]"), []),
        (GATHER, ["x"]),
    ):
        assert [b.name for b in read_together(kernel(body))] == names
