"""The stages of a compilation as text, on request or dumped into a folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tilewright.base import modes
from tilewright.base.errors import FlagError, UnsupportedError
from tilewright.driver.chosen_schedules import chosen_schedules
from tilewright.driver.compilation import Compilation
from tilewright.driver.device_kernels import DeviceCompiler
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.schedule_records import records
from tilewright.plan.memory_report import memory_report
from tilewright.plan.nodes import (
    HOST,
    DeviceCall,
    DeviceCopy,
    FusionGroup,
    HostFallback,
    Plan,
)
from tilewright.plan.normalize import kernel_signature

KINDS: Final = modes.STAGES


def show(plan: Plan, compiling: Compilation, kind: str) -> str:
    """All kernels of a model at one stage, one of KINDS.

    The groups of a device that has no `llvm` say so.
    """
    target = compiling.host
    if kind == "graph":
        return str(plan.graph)
    if kind == "plan":
        return str(plan)
    if kind == "memory":
        return memory_report(plan)
    choose = chosen_schedules(plan, target, compiling.options)
    if kind == "schedule":
        there = [g for g in plan.groups if g.device != HOST]
        found = [*map(str, records(plan, target, choose))]
        found += [_elsewhere(g, plan, compiling.device, kind) for g in there]
        return "\n\n".join(found)
    compiler = KernelCompiler(
        target, target, None, choose=choose, withdraw=choose.withdraw
    )
    parts: list[str] = []
    for step in plan.steps:
        if isinstance(step, HostFallback):
            parts.append(f"# host: {step.operation}")
            continue
        if isinstance(step, DeviceCopy):
            parts.append(f"# copy: {step.source!r} to {plan.device_of(step.target)}")
            continue
        if isinstance(step, DeviceCall) or step.device != HOST:
            parts.append(_elsewhere(step, plan, compiling.device, kind))
            continue
        signature = kernel_signature(step, plan.live[step])
        parts.append(f"# {step.name}: {', '.join(step.sources)}")
        if kind == "computation":
            parts.extend(str(c) for c in signature.computations)
            continue
        fixed = [b in plan.data for b in signature.values]
        compiler.settle(signature, fixed)
        kernel = compiler.hoisted(signature, fixed).kernel
        text = (
            str(kernel)
            if kind == "kernel"
            else target.text(kernel, signature.name, kind)
        )
        parts.append(text)
    return "\n".join(parts)


def _elsewhere(
    group: FusionGroup | DeviceCall,
    plan: Plan,
    device: DeviceCompiler | None,
    kind: str,
) -> str:
    """A step of a device at one stage."""
    assert device is not None
    if isinstance(group, DeviceCall):
        title = f"# {group.name} on {group.device}"
        text = device.call(group).text if kind == "asm" else f"# no {kind}"
        return f"{title}\n{text}"
    title = f"# {group.name} on {group.device}: {', '.join(group.sources)}"
    if kind == "computation":
        return "\n".join([title, *map(str, group.computations)])
    schedule = device.schedule(device.group(group, plan.live[group]))
    kernel = schedule.kernel
    if kind == "schedule":
        steps = (f"  s.{step}" for step in schedule.trace.steps)
        return "\n".join([title, "trace:", *steps])
    if kind == "kernel":
        return f"{title}\n{kernel}"
    try:
        return f"{title}\n{device.target.text(kernel, kernel.name, kind)}"
    except UnsupportedError:
        return f"{title}\n# no {kind}"


_LONGEST = 60  # letters of a file's name that are the model's


def dump(folder: Path, plan: Plan, compiling: Compilation) -> None:
    """Write `<model>.<kind>.txt` for every stage; the last compilation of a model stays.

    Raises FlagError (TILEWRIGHT_DUMP) if the folder cannot be written.
    """
    for kind in KINDS:
        text = show(plan, compiling, kind)
        write(folder, f"{_file(plan)}.{kind}.txt", text)


@dataclass
class PlanDumps:
    """Writes `<model>.plan.<n>-<pass>.txt` for the plan after each pass, as `dump` does."""

    folder: Path
    written: int = 0

    def __call__(self, name: str, plan: Plan) -> None:
        """The plan after the pass of that name."""
        write(self.folder, f"{_file(plan)}.plan.{self.written}-{name}.txt", str(plan))
        self.written += 1


def _file(plan: Plan) -> str:
    return re.sub(r"[^\w.-]", "_", plan.graph.name)[:_LONGEST] or "model"


def write(folder: Path, name: str, text: str) -> None:
    """Raises FlagError (TILEWRIGHT_DUMP) if a file of the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    except OSError as error:
        raise FlagError(
            f"TILEWRIGHT_DUMP={str(folder)!r} cannot be written: {error.strerror}",
            hint="Set it to a folder that can, or unset it",
        ) from error
