"""The stages of a compilation as text: asked for one by one, or all written into a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tilewright.base.errors import FlagError
from tilewright.driver.kernels import KernelCompiler, interface
from tilewright.driver.schedule_records import by_name, records
from tilewright.graph.lower import Lowered, live_buffers
from tilewright.graph.stages import HostCall, Stage
from tilewright.targets.base import Target

KINDS: Final = ("graph", "computation", "schedule", "kernel", "llvm", "asm")
Schedules = Mapping[str, Mapping[str, Any]]  # values of parameters by kernel


def show(lowered: Lowered, target: Target, kind: str, schedules: Schedules) -> str:
    """All kernels of a model at one stage, one of KINDS."""
    if kind == "graph":
        return str(lowered.graph)
    if kind == "schedule":
        return "\n\n".join(map(str, records(lowered, target, schedules)))
    choose = by_name(schedules, (s.name for s in lowered.steps if isinstance(s, Stage)))
    compiler = KernelCompiler(target, target, None, choose=choose)
    live = live_buffers(lowered)
    parts: list[str] = []
    for step in lowered.steps:
        if isinstance(step, HostCall):
            parts.append(f"# host: {step.operation}")
            continue
        face = interface(step, live[step])
        parts.append(f"# {step.name}: {', '.join(step.sources)}")
        if kind == "computation":
            parts.extend(str(c) for c in face.computations)
            continue
        kernel = compiler.hoisted(face, [b in lowered.data for b in face.values]).kernel
        text = str(kernel) if kind == "kernel" else target.text(kernel, face.name, kind)
        parts.append(text)
    return "\n".join(parts)


_LONGEST = 60  # letters of a file's name that are the model's


def dump(folder: Path, lowered: Lowered, target: Target, schedules: Schedules) -> None:
    """Write `<model>.<kind>.txt` for every stage; the last compilation of a model stays.

    Raises FlagError (TILEWRIGHT_DUMP) if the folder cannot be written.
    """
    name = re.sub(r"[^\w.-]", "_", lowered.graph.name)[:_LONGEST] or "model"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kind in KINDS:
            text = show(lowered, target, kind, schedules)
            (folder / f"{name}.{kind}.txt").write_text(text + "\n")
    except OSError as error:
        raise FlagError(
            f"TILEWRIGHT_DUMP={str(folder)!r} cannot be written: {error.strerror}",
            hint="Set it to a folder that can, or unset it",
        ) from error
