"""The machines by name; everybody but a machine itself goes through here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.base.errors import UnsupportedError
from tilewright.loops.intrinsic import INTRINSICS, TensorIntrinsic
from tilewright.targets.base import Mapper, QuantisedModel, Simulator, Target

if TYPE_CHECKING:
    from tilewright.graph.nodes import Graph


@dataclass(frozen=True, slots=True)
class Machine:
    """Where to find what a machine supplies (targets/base.py); "" for what it does not.

    target, simulator, mapper, quantised: "module:function" that makes one. intrinsics: the module
    that declares its tensor intrinsics.
    """

    target: str = ""
    simulator: str = ""
    mapper: str = ""
    quantised: str = ""
    intrinsics: str = ""


_MACHINES = {
    "cpu": Machine(
        target="tilewright.targets.cpu.target:make",
        intrinsics="tilewright.targets.cpu.intrinsics",
    ),
    "npu": Machine(mapper="tilewright.targets.npu.target:make"),
    "vdla": Machine(
        simulator="tilewright.targets.vdla.simulator:make",
        intrinsics="tilewright.targets.vdla.intrinsics",
    ),
    "vta": Machine(
        simulator="tilewright.targets.vta.target:make",
        quantised="tilewright.targets.vta.network:Network",
        intrinsics="tilewright.targets.vta.intrinsics",
    ),
}


def register(name: str, machine: Machine) -> None:
    """Add a machine, or replace one."""
    _MACHINES[name] = machine


def names() -> tuple[str, ...]:
    """The targets that whole models are compiled for."""
    return _with("target")


def simulators() -> tuple[str, ...]:
    """The machines that are simulated."""
    return _with("simulator")


def mappers() -> tuple[str, ...]:
    """The machines that Lift programs are brought to by rewriting."""
    return _with("mapper")


def quantisers() -> tuple[str, ...]:
    """The machines that a whole model is quantised for."""
    return _with("quantised")


def target(name: str = "cpu", mcpu: str = "native", exact: bool = False) -> Target:
    """The target `name` for the processor `mcpu`; `exact` forbids fused multiply-adds.

    Raises UnsupportedError for an unknown one.
    """
    made: Target = _load(name, "target")(mcpu, exact)
    return made


def simulator(name: str) -> Simulator:
    """The simulated machine `name`. Raises UnsupportedError for an unknown one."""
    made: Simulator = _load(name, "simulator")()
    return made


def mapper(name: str) -> Mapper:
    """The machine `name` that Lift programs are brought to. Raises UnsupportedError for others."""
    made: Mapper = _load(name, "mapper")()
    return made


def quantised(
    name: str,
    graph: Graph,
    samples: Sequence[Mapping[str, Any]],
    scales: Mapping[str, int] | None = None,
) -> QuantisedModel:
    """A float model for the machine `name`, with scales from samples, an array per input each.

    scales: those of a model made before; a sample then says the shapes only.

    Raises UnsupportedError for an unknown machine or a model that it cannot take.
    """
    made: QuantisedModel = _load(name, "quantised")(graph, samples, scales)
    return made


def intrinsics(name: str) -> dict[str, TensorIntrinsic]:
    """The tensor intrinsics of a machine by name, declared from now on; those of users included.

    Raises UnsupportedError for an unknown machine.
    """
    if name not in _MACHINES:
        raise _unknown(name)
    if _MACHINES[name].intrinsics:
        importlib.import_module(_MACHINES[name].intrinsics)
    return {i.name: i for i in INTRINSICS.values() if i.target == name}


def _with(role: str) -> tuple[str, ...]:
    return tuple(sorted(name for name, machine in _MACHINES.items() if getattr(machine, role)))


def _load(name: str, role: str) -> Any:
    place = getattr(_MACHINES.get(name), role, "")
    if not place:
        raise _unknown(name)
    module, function = place.split(":")
    return getattr(importlib.import_module(module), function)


def _unknown(name: str) -> UnsupportedError:
    hint = (
        f"known: {', '.join(names())}; simulated, for one kernel: {', '.join(simulators())}; "
        f"for Lift programs: {', '.join(mappers())}"
    )
    return UnsupportedError(f"unknown target {name!r}", code="TW-TARGET", hint=hint)
