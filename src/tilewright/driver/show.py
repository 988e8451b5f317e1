"""The stages of a compilation as text, on request or dumped into a folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from tilewright.base import modes
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ArgumentError, FlagError, UnsupportedError
from tilewright.base.text import did_you_mean, plural
from tilewright.driver.chosen_schedules import ChosenSchedules, chosen_schedules
from tilewright.driver.compilation import Compilation
from tilewright.driver.device_kernels import DeviceCompiler
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.schedule_records import device_records, records
from tilewright.plan.memory_report import memory_report
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
from tilewright.plan.normalize import kernel_signature

KINDS: Final = modes.STAGES


# The kinds that show each kernel separately.
PER_KERNEL: Final = ("computation", "schedule", "kernel", "llvm", "asm")


def show(
    plan: Plan, compiling: Compilation, kind: str, wanted: str | None = None
) -> str:
    """The kernels of a model at one stage, one of KINDS.

    wanted: part of the name of a kernel or of one of its operators, or a pattern such as "conv*";
    None shows all. Groups of a device without the stage, such as `llvm`, say so. Raises
    UnsupportedError if no group has the stage, InputError if no kernel has the name.
    """
    if kind == "graph":
        return str(plan.graph)
    if kind == "plan":
        return str(plan)
    if kind == "memory":
        return memory_report(plan)
    steps = plan.steps if wanted is None else _named(plan, wanted)
    choose = chosen_schedules(plan, compiling.host, compiling.options)
    if kind == "schedule":
        return _schedules(plan, compiling, choose, steps)
    parts = list(_parts(plan, compiling, choose, steps, kind))
    absent = [p for p in parts if p.endswith(f"\n{_no(kind)}")]
    if absent and all(p in absent or p.startswith("# copy: ") for p in parts):
        devices = {s.device for s in steps if isinstance(s, FusionGroup | DeviceCall)}
        raise UnsupportedError(
            f"kernels on {', '.join(sorted(devices))} have no stage {kind!r}",
            hint="choose another one, such as kernel or asm",
        )
    return "\n".join(parts)


def _named(plan: Plan, wanted: str) -> list[Step]:
    """The steps of that name; see `show`."""
    pattern = wanted if set(wanted) & set("*?[") else f"*{wanted}*"
    kernels = [s for s in plan.steps if isinstance(s, FusionGroup | DeviceCall)]
    found = [
        s
        for s in kernels
        if any(fnmatchcase(n, pattern) for n in (s.name, *getattr(s, "sources", ())))
    ]
    if not found:
        raise ArgumentError(
            f"there is no kernel {wanted!r}",
            where=f"graph {plan.graph.name!r}",
            hint=did_you_mean(wanted, [s.name for s in kernels]),
        )
    return list(found)


def _schedules(
    plan: Plan, compiling: Compilation, choose: ChosenSchedules, steps: Sequence[Step]
) -> str:
    names = {s.name for s in steps}
    found = records(plan, compiling.host, choose)
    if compiling.device is not None:
        found += device_records(plan, compiling.device)
    return "\n\n".join(str(record) for record in found if record.kernel in names)


def _parts(
    plan: Plan,
    compiling: Compilation,
    choose: ChosenSchedules,
    steps: Sequence[Step],
    kind: str,
) -> Iterator[str]:
    """A title and a text for each step."""
    target = compiling.host
    compiler = KernelCompiler(
        target, target, None, choose=choose, withdraw=choose.withdraw
    )
    for step in steps:
        if isinstance(step, HostFallback):
            yield f"# host: {step.operation}"
        elif isinstance(step, DeviceCopy):
            yield f"# copy: {step.source!r} to {plan.device_of(step.target)}"
        elif isinstance(step, Loop | Branch):
            yield f"# {step.name}: {plural(len(step.bodies), 'plan')} inside"
            for body in step.bodies:
                yield from _parts(body, compiling, choose, body.steps, kind)
        elif isinstance(step, DeviceCall) or step.device != HOST:
            yield _elsewhere(step, plan, compiling.device, kind)
        else:
            title = f"# {step.name}: {', '.join(step.sources)}"
            yield f"{title}\n{_here(step, plan, compiler, kind)}"


def _here(step: FusionGroup, plan: Plan, compiler: KernelCompiler, kind: str) -> str:
    """A group of the host at one stage."""
    signature = kernel_signature(step, plan.live[step])
    if kind == "computation":
        return "\n".join(map(str, signature.computations))
    fixed = [b in plan.data for b in signature.values]
    compiler.settle(signature, fixed)
    kernel = compiler.hoisted(signature, fixed).kernel
    if kind == "kernel":
        return str(kernel)
    return compiler.target.text(kernel, signature.name, kind)


def _no(kind: str) -> str:
    return f"# no {kind}"


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
        text = device.call(group).text if kind == "asm" else _no(kind)
        return f"{title}\n{text}"
    title = f"# {group.name} on {group.device}: {', '.join(group.sources)}"
    if kind == "computation":
        return "\n".join([title, *map(str, group.computations)])
    kernel = device.schedule(device.group(group, plan.live[group])).kernel
    if kind == "kernel":
        return f"{title}\n{kernel}"
    try:
        return f"{title}\n{device.target.text(kernel, kernel.name, kind)}"
    except UnsupportedError:
        return f"{title}\n{_no(kind)}"


_LONGEST = 60  # letters of the model's name in a file's name


@dataclass
class PlanDumps:
    """Writes the stages of a compilation; files of an earlier one are replaced.

    Raises FlagError (TILEWRIGHT_DUMP) if the folder cannot be written.
    """

    folder: Path
    written: int = 0

    def __call__(self, name: str, plan: Plan) -> None:
        """Write `<model>.plan.<n>-<pass>.txt`: the plan after the pass of that name."""
        write(self.folder, f"{_file(plan)}.plan.{self.written}-{name}.txt", str(plan))
        self.written += 1

    def stages(self, plan: Plan, compiling: Compilation) -> None:
        """Write `<model>.<kind>.txt` for every stage that the device has."""
        for kind in KINDS:
            with suppress(UnsupportedError):
                text = show(plan, compiling, kind)
                write(self.folder, f"{_file(plan)}.{kind}.txt", text)


def _file(plan: Plan) -> str:
    return re.sub(r"[^\w.-]", "_", plan.graph.name)[:_LONGEST] or "model"


def write(folder: Path, name: str, text: str) -> None:
    """Write a file in the folder. Raises FlagError (TILEWRIGHT_DUMP) if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    except OSError as error:
        raise FlagError(
            f"TILEWRIGHT_DUMP={str(folder)!r} cannot be written: {error.strerror}",
            hint="Set it to a writable folder, or unset it",
        ) from error
