"""The code of a plan: every step of it with its program."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.base import events, flags
from tilewright.base.errors import UnsupportedError
from tilewright.base.store import FileStore
from tilewright.driver.aliases import in_place
from tilewright.driver.built import BuiltControl, BuiltGroup, BuiltProgram, BuiltStep
from tilewright.driver.chosen_schedules import ChosenSchedules, chosen_schedules
from tilewright.driver.compilation import Compilation, store_for
from tilewright.driver.early_kernels import EarlyKernels, Jobs
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.processes import Job
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import (
    HOST,
    Branch,
    DeviceCall,
    DeviceCopy,
    FusionGroup,
    HostFallback,
    Loop,
    Plan,
    Step,
)
from tilewright.plan.normalize import KernelSignature, SharedSignatures
from tilewright.runtime.threads import thread_count
from tilewright.targets.base import Target
from tilewright.targets.registry import target as find_target

if TYPE_CHECKING:  # loaded by the functions that need them: most compilations do not
    from tilewright.driver.device_kernels import DeviceCompiler


def kernels(
    plan: Plan,
    target: Target,
    store: FileStore | None,
    sanitize: bool,
    choose: ChosenSchedules,
    device: DeviceCompiler | None = None,
    aliases: Mapping[Buffer, Buffer] = MappingProxyType({}),
    early: EarlyKernels | None = None,
) -> list[BuiltStep]:
    """Every fusion group with its code; choose: selects the schedules of the kernels.

    device: compiles the groups that are not on the host. aliases: results in the memory of an
    input. early: kernels that another process makes.
    """
    if flags.CHECK.get() and not target.runs_here:
        raise UnsupportedError(
            f"{flags.CHECK.name}: kernels are validated by running them, and kernels of a library "
            "or of another processor do not run here",
            code="TW-CHECK",
            hint=f"Unset {flags.CHECK.name}",
        )
    compiler = _compiler(target, store, sanitize, choose)
    return _compiled(plan, compiler, device, aliases, choose.named, early)


def early_jobs(compiling: Compilation) -> Jobs | None:
    """What compiles the kernels of a part of the plan; None if a device takes some groups.

    None for sanitized code, too: it names tensors, those of the first group that it is for.
    """
    host, options = compiling.host, compiling.options
    if compiling.device is not None or options.sanitize:
        return None
    store = store_for(host, options)

    def jobs(part: Plan) -> Mapping[str, Job]:
        choose = chosen_schedules(part, host, options)
        compiler = _compiler(host, store, False, choose)
        return compiler.jobs(_signatures(part, choose.named), part.data)

    return jobs


def _compiler(
    target: Target, store: FileStore | None, sanitize: bool, choose: ChosenSchedules
) -> KernelCompiler:
    host = target if target.runs_here else find_target("cpu")
    return KernelCompiler(target, host, store, sanitize, choose, choose.withdraw)


def _signatures(plan: Plan, named: Collection[str]) -> list[KernelSignature]:
    """The host's groups, ready to compile; named: those whose schedules the caller chooses."""
    shared = SharedSignatures(named)
    return [shared.of(s, plan.live[s]) for s in plan.groups_on(HOST)]


def _compiled(
    plan: Plan,
    compiler: KernelCompiler,
    device: DeviceCompiler | None,
    aliases: Mapping[Buffer, Buffer],
    named: Collection[str],
    early: EarlyKernels | None = None,
) -> list[BuiltStep]:
    """The steps of a plan, or of a plan inside a loop or branch.

    named: the groups whose schedules the caller chooses.
    """
    mine = plan.groups_on(HOST)
    signatures = _signatures(plan, named)
    if flags.DEBUG.get():
        from tilewright.plan.verify_signature import verify_signature

        for s, signature in zip(mine, signatures, strict=True):
            verify_signature(s, signature)
    signatures = [in_place(s, aliases) for s in signatures]
    built: dict[FusionGroup, BuiltGroup] = {}
    with events.span("kernels", total=len(signatures)):
        codes = compiler.compile_all(signatures, plan.data, thread_count(), early)
        for step, signature, code in zip(mine, signatures, codes, strict=True):
            events.emit("kernel-ready", name=step.name, total=len(signatures))
            built[step] = BuiltGroup(step, signature, code)
    if flags.CHECK.get():
        with events.span("check", total=len(built)):
            check(built.values(), plan.data)
    found: list[BuiltStep] = []
    for item in plan.steps:
        if isinstance(item, Loop | Branch):
            bodies = (_compiled(p, compiler, None, {}, named) for p in item.bodies)
            found.append(BuiltControl(item, tuple(map(tuple, bodies))))
        else:
            found.append(_built(item, plan, built, device))
    return found


def _built(
    step: Step,
    plan: Plan,
    native: Mapping[FusionGroup, BuiltGroup],
    device: DeviceCompiler | None,
) -> BuiltStep:
    """A step with its code."""
    match step:
        case FusionGroup() if step in native:
            return native[step]
        case FusionGroup():
            assert device is not None
            group = device.group(step, plan.live[step])
            program = device.program(group)
            workspace = device.target.workspace(program)
            return BuiltProgram(step, group.operands, program, workspace)
        case DeviceCall():
            assert device is not None
            program = device.call(step).code
            workspace = device.target.workspace(program)
            operands = (*step.reads, *step.writes)
            return BuiltProgram(step, operands, program, workspace)
        case HostFallback() | DeviceCopy():
            return step
    raise AssertionError(f"{step.name} has no code")


def check(
    built: Iterable[BuiltGroup], constants: Mapping[Buffer, np.ndarray[Any, Any]]
) -> None:
    """Validate each distinct kernel. Raises ExecutionError (TW-CHECK) for the first wrong one."""
    from tilewright.driver.guard import validate

    for item in {b.code.symbol: b for b in built}.values():
        fixed = [v in constants for v in item.signature.values]
        validate(item.signature, item.code, fixed, known=constants).require()
