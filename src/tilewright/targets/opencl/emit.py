"""From a Program to OpenCL C 1.2, with subgroups 2.0: one kernel function per launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tilewright.base.errors import CompileError
from tilewright.expr.nodes import Buffer, Extent, fixed
from tilewright.ir.node import postorder
from tilewright.loops.analysis.effects import writes
from tilewright.loops.launch import AXIS, Launch, LaunchProgram
from tilewright.loops.passes.block_memory import BlockMemory
from tilewright.loops.scopes import CONSTANT
from tilewright.targets.opencl.emit_expr import EmittedValue
from tilewright.targets.opencl.emit_stmt import ERROR, FIRST, OpenCLStatements
from tilewright.targets.opencl.helpers import HelperFunctions
from tilewright.targets.opencl.types import in_memory
from tilewright.targets.simt.code import OPENCL_C, DeviceProgram, KernelLaunch

_CALL: Final = {"blockIdx": "get_group_id", "threadIdx": "get_local_id"}
_EXACT: Final = "#pragma OPENCL FP_CONTRACT OFF"
_DOUBLE: Final = "cl_khr_fp64"
# Of subgroups: their numbers, and the exchange of values.
_SUBGROUPS: Final = ("cl_khr_subgroups", "cl_khr_subgroup_shuffle")


def emit(
    program: LaunchProgram, exact: bool = False, subgroups: bool = False
) -> DeviceProgram:
    """The code of a program; exact: no fused multiply-adds. subgroups: threads that combine values
    exchange registers, where they are neighbors of a subgroup; a kernel reports it if they are not.

    Raises CompileError for anything that OpenCL C lacks: a dtype (TW-DTYPE), a function
    (TW-FUNCTION), a node (TW-OPERATION); and if a thread needs too much memory (TW-REGISTERS).
    """
    numbers = {b: n for n, b in enumerate((*program.params, *program.workspace))}
    checks: list[str] = []
    helpers = HelperFunctions()
    calls: list[KernelLaunch] = []
    texts: list[str] = []
    exchanges = False
    for launch in program.launches:
        # A grid without blocks does nothing, and no device takes it.
        if 0 in launch.grid:
            continue
        name = f"tw_{len(calls)}_{launch.name}"
        x = OpenCLStatements(checks, launch.threads, subgroups)
        x.helpers = helpers
        call, text = _kernel(launch, name, numbers, x)
        exchanges |= x.exchanged > 1
        calls.append(call)
        texts.append(text)
    source = "\n\n".join([helpers.text.strip("\n"), *texts]).strip("\n") + "\n"
    extensions = _SUBGROUPS if exchanges else ()
    enabled = [_DOUBLE] * ("double" in source) + [*extensions]
    heads = [_EXACT] * exact
    heads += [f"#pragma OPENCL EXTENSION {name} : enable" for name in enabled]
    return DeviceProgram(
        language=OPENCL_C,
        params=len(program.params),
        workspace=tuple(b.size * b.dtype.itemsize for b in program.workspace),
        launches=tuple(calls),
        text="\n".join([*heads, source]),
        checks=tuple(checks),
        extensions=extensions,
    )


def _no_swizzle(buffer: Buffer, launch: Launch) -> CompileError:
    return CompileError(
        f"{buffer.name} is swizzled, which OpenCL C is not generated for",
        code="TW-LAUNCH",
        where=f"launch {launch.name}",
        hint="pad its rows with storage_align instead",
    )


def _kernel(
    launch: Launch,
    name: str,
    numbers: Mapping[Buffer, int],
    x: OpenCLStatements,
) -> tuple[KernelLaunch, str]:
    """The function of a launch, and how it is called."""
    try:
        parameters = _parameters(x, launch)
        _axes(x, launch)
        for b in launch.shared:
            if b.swizzle:
                raise _no_swizzle(b, launch)
            x.declare(b, "__local ")
        x.emit(launch.body)
    except RecursionError as error:
        raise CompileError(
            "the expression is nested too deeply", where=launch.name
        ) from error
    expected = x.expected_subgroups()
    if x.has_checks:
        parameters += [f"__global int *{ERROR}", f"int {FIRST}"]
    size = ", ".join(map(str, launch.threads))
    head = f"__kernel __attribute__((reqd_work_group_size({size})))"
    listed = ",\n    ".join(parameters)
    declared = ["    " + text for text in (*x.declared, *expected)]
    lines = [f"{head}\nvoid {name}(\n    {listed})", "{", *declared, *x.lines, "}"]
    call = KernelLaunch(
        name=name,
        grid=_numbers(launch.grid, name),
        threads=launch.threads,
        shared=BlockMemory.of(launch).nbytes,
        arguments=tuple(numbers[b] for b in launch.params),
        checked=int(x.has_checks),
        constants=tuple(numbers[b] for b in launch.params if b.scope == CONSTANT),
    )
    return call, "\n".join(lines)


def _numbers(extents: Sequence[Extent], name: str) -> tuple[int, int, int]:
    x, y, z = (fixed(n, f"the grid of {name}") for n in extents)
    return x, y, z


def _parameters(x: OpenCLStatements, launch: Launch) -> list[str]:
    """The declarations of a launch's buffers: memory of the device, and bytes into it."""
    written = writes(launch.body)
    found = []
    for b in launch.params:
        name = x.buffers[b] = x.fresh(b.name)
        kind = "__global " if b in written else "__global const "
        if b.scope == CONSTANT:
            kind = "__constant "
        found += [f"{kind}uchar *{name}_of", f"ulong {name}_at"]
        pointer = f"{kind}{in_memory(b.dtype)} *"
        x.line(f"{pointer}{name} = ({pointer})({name}_of + {name}_at);")
    return found


def _axes(x: OpenCLStatements, launch: Launch) -> None:
    """The numbers of blocks and threads that the body uses, as variables."""
    used = set(postorder(launch.body))
    counts = {
        **dict(zip(("blockIdx.x", "blockIdx.y", "blockIdx.z"), launch.grid)),
        **dict(zip(("threadIdx.x", "threadIdx.y", "threadIdx.z"), launch.threads)),
    }
    for axis, count in counts.items():
        var = AXIS[axis]
        extent = fixed(count, axis)
        x.ranges[var] = (0, extent - 1)
        if var not in used:
            continue
        level, letter = axis.split(".")
        name = x.fresh(axis)
        type = x.index_type(var)
        x.line(f"const {type} {name} = ({type}){_CALL[level]}({'xyz'.index(letter)});")
        x.values[-1][var] = EmittedValue(name, type)
