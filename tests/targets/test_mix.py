"""The instruction mix of a kernel, against what LLVM writes for the same kernel as text."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base.dtypes import float32, int8, int32, uint8
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.loops.lower import lower
from tilewright.operators import cast, map_, maximum, reduce_
from tilewright.runtime.elf import SHF_EXECINSTR, parse
from tilewright.runtime.instruction_mix import Mix, inner_loop
from tilewright.runtime.x86 import decode
from tilewright.targets.registry import target

Program = tuple[list[Computation], list[Buffer], Buffer]
MACHINES = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "sapphirerapids")


def product() -> Program:
    x, w, y = (
        Buffer(n, s, float32) for n, s in zip("xwy", ((60, 64), (64, 96), (60, 96)))
    )
    c = reduce_("product", y, (64,), "add", lambda i, j, k: x[i, k] * w[k, j])
    return [c], [x, w, y], y


def bytes_product() -> Program:
    x, w = Buffer("x", (32, 64), uint8), Buffer("w", (64, 64), int8)
    y = Buffer("y", (32, 64), int32)
    c = reduce_(
        "product",
        y,
        (64,),
        "add",
        lambda i, j, k: cast(x[i, k], int32) * cast(w[k, j], int32),
    )
    return [c], [x, w, y], y


def rectifier() -> Program:
    x, y = Buffer("x", (50, 70), float32), Buffer("y", (50, 70), float32)
    return [map_("relu", y, lambda i, j: maximum(x[i, j], 0.0))], [x, y], y


def transpose() -> Program:
    x, y = Buffer("x", (64, 48), float32), Buffer("y", (48, 64), float32)
    return [map_("turn", y, lambda i, j: x[j, i])], [x, y], y


PROGRAMS = (product, bytes_product, rectifier, transpose)


def written(text: str) -> list[str]:
    """The instructions in assembler text."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return [
        line for line in lines if line and line[0] != "." and not line.endswith(":")
    ]


@pytest.mark.covering(1)  # each machine, each program
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("program", PROGRAMS, ids=[p.__name__ for p in PROGRAMS])
def test_what_is_read_is_what_llvm_wrote(
    program: Callable[[], Program], machine: str
) -> None:
    computations, params, out = program()
    cpu = target("cpu", machine)
    plain = lower("k", computations, params, [out])
    kernel = cpu.default_schedule(plain, computations, []).kernel
    text = written(cpu.text(kernel, "k", "asm"))
    data = cpu.emit(kernel, "k").code
    code = [s.data for s in parse(data).sections if s.flags & SHF_EXECINSTR]
    read = [i for part in code for i in decode(part)]
    padding = sum((i.map, i.opcode) in ((0, 0x90), (1, 0x1F)) for i in read)
    assert len(read) - padding == len(text)
    assert [i.end for i in read[:-1]] == [i.start for i in read[1:]]
    jumps = [line for line in text if re.match(r"j\w+\s", line)]
    assert sum(i.target is not None for i in read) == len(jumps)
    starts = {i.start for i in read}
    assert all(i.target in starts for i in read if i.target is not None)
    on_stack = [
        s for s in text if re.search(r"\(%rsp[,)]", s) and not s.startswith("lea")
    ]
    assert sum(i.stack and i.opcode != 0x8D for i in read) == len(on_stack)
    mix = inner_loop(data)
    fused = [line for line in text if line.startswith(("vfm", "vfn", "vpdp", "tdp"))]
    assert mix is not None and mix.fmas <= len(fused) and bool(mix.fmas) == bool(fused)


def mix_of(program: Program, machine: str) -> Mix:
    computations, params, out = program
    cpu = target("cpu", machine)
    plain = lower("k", computations, params, [out])
    found = inner_loop(
        cpu.emit(cpu.default_schedule(plain, computations, []).kernel, "k").code
    )
    assert found is not None
    return found


def test_a_product_of_six_rows_by_two_vectors() -> None:
    """12 multiply-adds, 6 broadcasts and 2 loads a step, and nothing on the stack."""
    mix = mix_of(product(), "x86-64-v3")
    steps = mix.fmas // 12
    assert mix.counts == (12 * steps, 0, 8 * steps, 0, 0) and mix.width == 32


def test_a_rectifier_loads_computes_and_stores() -> None:
    mix = mix_of(rectifier(), "x86-64-v3")
    assert mix.fmas == mix.spills == 0
    assert mix.loads + mix.vectors > 0 and mix.stores > 0


@pytest.mark.parametrize("cut", range(0, 40, 3))
def test_code_that_ends_early_is_read_up_to_there(cut: int) -> None:
    computations, params, out = product()
    cpu = target("cpu", "x86-64-v4")
    kernel = lower("k", computations, params, [out])
    data = cpu.emit(kernel, "k").code
    code = next(
        s.data for s in parse(data).sections if s.flags & SHF_EXECINSTR and s.size
    )
    whole = list(decode(code))
    read = list(decode(code[: len(code) - cut]))
    assert read[:-1] == whole[: len(read)][:-1]


def test_the_profile_of_a_saved_model_has_it(tmp_path: object) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        m (float[64, 64] x, float[64, 64] w) => (float[64, 64] y) { y = MatMul(x, w) }"""
    )
    exe = tw.compile(model, cache=False, threads=1)
    exe.save(f"{tmp_path}/m.tw")
    x = np.ones((64, 64), np.float32)
    rows: Sequence[object] = [
        e.profile(x, x, repeat=1).rows[0].mix
        for e in (exe, tw.load(f"{tmp_path}/m.tw"))
    ]
    assert rows[0] == rows[1] is not None
    assert dataclasses.is_dataclass(rows[0])
